"""The command `reweigh`; without its extra it reports how to get it."""

from __future__ import annotations

import os
import sys

from reweigh import __version__


def main() -> None:
    """Run the command and leave with its exit code."""
    if sys.argv[1:] in (["--version"], ["-V"]):  # also where the command's extra is not installed
        print(f"reweigh {__version__}")
        sys.exit(0)
    try:
        from reweigh.bench.cli.main import run_command
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "reweigh":
            raise
        print(
            f"reweigh: the command needs {error.name}, which is not installed.\n"
            'Install what it uses with: pip install "reweigh[bench]"',
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        sys.exit(run_command(sys.argv[1:]))
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
