"""What users install: the wheel's content, and its life in an environment with nothing but NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import children
import pytest
from test_docs import ROOT, blocks_of, needs

pytestmark = pytest.mark.processes


def call(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command that sees none of this process's Python settings; on failure show what it said."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = children.run(command, cwd=cwd, env=clean)
    assert not check or done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and NumPy."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    venv.create(folder, with_pip=True)
    interpreter = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    call(interpreter, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return interpreter


def test_content_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(metadata).decode())
    assert "reweigh/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {"reweigh", metadata.split("/")[0]}
    folders_and_files = {part for name in names for part in name.split("/")}
    assert not [part for part in folders_and_files if part.startswith("test") or part in ("__pycache__", "conftest.py")]
    sources = {f"reweigh/{path.relative_to(ROOT / 'src/reweigh')}" for path in (ROOT / "src/reweigh").rglob("*.py")}
    assert sources <= set(names)
    assert fields["License-Expression"] == "Apache-2.0"
    required = [line for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert required == ["numpy>=1.26"]
    assert {"torch", "jax", "bench", "dev"} <= set(fields.get_all("Provides-Extra", []))


def test_readme_code_runs_where_only_numpy_is_installed(python: Path, tmp_path: Path) -> None:
    chosen = [b for b in blocks_of((ROOT / "README.md").read_text(encoding="utf-8")) if not needs(b.code)]
    assert len(chosen) >= 2
    (tmp_path / "readme.py").write_text("\n".join(b.code for b in chosen), encoding="utf-8")
    done = call(python, "-I", "readme.py", cwd=tmp_path)
    assert done.stdout.split() == "".join(b.output or "" for b in chosen).split()


def test_import_brings_numpy_and_no_framework(python: Path, tmp_path: Path) -> None:
    code = (
        "import sys, reweigh; from pathlib import Path; "
        f"assert Path({str(python)!r}).parents[1] in Path(reweigh.__file__).parents, reweigh.__file__; "
        "assert 'numpy' in sys.modules and not {'torch', 'jax', 'scipy', 'rich'} & set(sys.modules); "
        "print(reweigh.__version__)"
    )
    version = call(python, "-I", "-c", code, cwd=tmp_path).stdout.strip()
    installed = call(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path).stdout.split()
    assert f"reweigh=={version}" in installed
    assert not {name.split("==")[0] for name in installed} - {"reweigh", "numpy", "pip", "setuptools"}


@pytest.mark.parametrize("code", ["import reweigh; reweigh.torch", "from reweigh.torch import Reweighted"])
def test_missing_torch_is_named_with_the_extra(python: Path, tmp_path: Path, code: str) -> None:
    done = call(python, "-I", "-c", code, cwd=tmp_path, check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "ModuleNotFoundError" in last  # a kind of ImportError
    assert 'pip install "reweigh[torch]"' in last


def test_objectives_need_no_framework(python: Path, tmp_path: Path) -> None:
    names = sorted(p.stem for p in (ROOT / "src/reweigh/objectives").glob("*.py") if not p.name.startswith("_"))
    code = f"import importlib\nfor name in {names!r}: importlib.import_module('reweigh.objectives.' + name)"
    call(python, "-I", "-c", code, cwd=tmp_path)
