"""Release archives, and new environments that hold the wheel. Nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).parent.parent


def call(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command that sees none of this process's Python settings; on failure show what it printed."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = children.run(command, cwd=cwd, env=clean, seconds=900)
    assert not check or done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout}\n{done.stderr}"
    return done


def build(out: Path) -> Path:
    """Build the source archive into a folder, and the wheel from that archive; returns the wheel."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (wheel,) = out.glob("*.whl")
    return wheel


def new_environment(folder: Path, wheel: Path) -> tuple[Path, Path]:
    """The interpreter and the packages' folder of a new environment that holds the wheel alone."""
    venv.create(folder, with_pip=False)
    interpreter = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip(interpreter, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=folder)
    where = call(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    return interpreter, Path(where.stdout.strip())


def pip(interpreter: Path, *arguments: str | Path, cwd: Path) -> str:
    """What this environment's pip prints when it works on another environment."""
    return call(sys.executable, "-m", "pip", "--python", interpreter, *arguments, cwd=cwd).stdout
