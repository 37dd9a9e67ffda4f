"""What users install: the archives' content, life with nothing but NumPy, and what pyproject.toml promises."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from distribution import ROOT, build, call, new_environment, pip
from test_docs import blocks_of, needs

import reweigh

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a release, with the source archive next to it."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and NumPy, lent by this one."""
    interpreter, packages = new_environment(tmp_path_factory.mktemp("clean") / "env", wheel)
    here = importlib.metadata.distribution("numpy")
    for name in {file.parts[0] for file in here.files or () if file.parts[0] != ".."}:
        (packages / name).symlink_to(Path(str(here.locate_file(name))))
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
    assert required == ["numpy>=2.1"]
    assert {"torch", "jax", "bench", "dev"} <= set(fields.get_all("Provides-Extra", []))
    assert fields["Version"] == reweigh.__version__


def test_content_of_the_source_archive(wheel: Path) -> None:
    (path,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "LICENSE", "Makefile", "src/reweigh/__init__.py", "tests/test_package.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "docs/_build", "runs"))]


def test_archives_can_be_published(wheel: Path) -> None:
    pytest.importorskip("twine")
    pytest.importorskip("check_wheel_contents")
    call(sys.executable, "-m", "twine", "check", "--strict", *sorted(wheel.parent.iterdir()), cwd=wheel.parent)
    call(sys.executable, "-m", "check_wheel_contents", "--toplevel", "reweigh", wheel, cwd=wheel.parent)


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
    installed = pip(python, "list", "--format=freeze", cwd=tmp_path).split()
    assert f"reweigh=={version}" in installed
    assert {name.split("==")[0] for name in installed} == {"reweigh", "numpy"}


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


# --- what pyproject.toml promises ---

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Distributions whose package has another name.
IMPORTED_AS = {"pillow": "PIL", "scikit-learn": "sklearn", "xgboost-cpu": "xgboost"}
#: Used by the host that the extra is for, and not by our adapter to it.
USED_BY_THE_HOST = {"accelerate", "flax", "optax"}
#: Extras for people who work on the library itself.
TOOLS = {"docs", "dev"}


def name_of(requirement: str) -> str:
    """The distribution of a requirement, as `xgboost` of "xgboost>=2.1; sys_platform != 'linux'"."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()


def floor_of(requirement: str) -> str | None:
    match = re.search(r">=([\w.]+)", requirement)
    return match[1] if match else None


def ranges() -> dict[str, str]:
    """The lowest admitted version of every distribution that users can be asked to install."""
    wanted = [*PROJECT["dependencies"]]
    for extra, requirements in PROJECT["optional-dependencies"].items():
        wanted += [] if extra in TOOLS else requirements
    return {name_of(text): floor for text in wanted if (floor := floor_of(text)) is not None}


def test_nothing_is_installed_that_is_not_used() -> None:
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    unused = {name for name in ranges() if IMPORTED_AS.get(name, name) not in imported}
    assert unused == USED_BY_THE_HOST


def test_the_oldest_environment_has_the_lowest_admitted_versions() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    floors = ranges()
    for name, version in pinned.items():
        assert floors[name] == version, f"{name}: constraints-oldest.txt has {version}, pyproject.toml {floors[name]}"


def test_the_support_page_states_the_ranges() -> None:
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.MULTILINE))
    floors = ranges() | {"Python": floor_of(PROJECT["requires-python"])}
    assert {"Python", "numpy", "torch", "jax", "transformers"} <= set(rows)
    assert rows == {name: floors[name] for name in rows}
    newest = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if ":: Python :: 3." in line][-1]
    assert f"{rows['Python']} to {newest}" in page
