"""The command line: `reweigh compare`, `judge`, `predict`, `run`, `report`, `score`, `list` and `data`.

Exit codes: 0 all is well, 1 some runs failed, 2 the call or its input is wrong, 70 a bug; 130 interrupted, 143
terminated and 129 hung up, all three with what was finished on disk.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from tyro.extras import SubcommandApp

from reweigh.bench.cli import stops
from reweigh.bench.cli.commands.compare import compare
from reweigh.bench.cli.commands.data import data
from reweigh.bench.cli.commands.judge import judge
from reweigh.bench.cli.commands.list import list_command
from reweigh.bench.cli.commands.predict import predict
from reweigh.bench.cli.commands.report import report
from reweigh.bench.cli.commands.run import processes_to_launch, run
from reweigh.bench.cli.commands.score import score
from reweigh.bench.cli.console import SafeConsole, print_plainly
from reweigh.bench.cli.wrong_calls import message_for_user, write_details

#: In the order of the help.
_COMMANDS = {
    "run": run,
    "compare": compare,
    "judge": judge,
    "predict": predict,
    "report": report,
    "score": score,
    "list": list_command,
    "data": data,
}
_DESCRIPTION = "Train models that do not ignore their hard examples."
#: The exit code of a bug, as in sysexits.h.
BUG = 70

app = SubcommandApp()
for _name, _command in _COMMANDS.items():
    app.command(name=_name)(_command)


def run_command(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    with stops.as_interruptions() as received:
        code = _run(arguments)
    return 128 + received[0] if received and code == stops.INTERRUPTED else code


def _run(arguments: Sequence[str]) -> int:
    try:
        if (nproc := processes_to_launch(arguments)) is not None:
            from reweigh.bench.lab.executors.torchrun import launch

            return launch(arguments, nproc)
        return app.cli(args=list(arguments), prog="reweigh", description=_DESCRIPTION) or 0
    except KeyboardInterrupt:
        SafeConsole(stderr=True).print("Interrupted. The same command resumes from here.")
        return stops.INTERRUPTED
    except BrokenPipeError:  # nobody is left to read a message
        raise
    except Exception as error:
        message = message_for_user(error)
        if message is not None:
            print_plainly(SafeConsole(stderr=True), f"reweigh: {message}")
            return 2
        summary = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
        details = write_details(error, arguments)
        told = f"reweigh: this is a bug ({summary}). Details were written to {details}."
        print_plainly(SafeConsole(stderr=True), told)
        return BUG
