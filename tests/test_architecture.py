"""The rooms of the house: which may import which, what importing costs, and what no file may do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import reweigh

ROOT = Path(reweigh.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
#: Each room may import itself and those before it.
ORDER = [
    "_array",
    "_validate",
    "_cards",
    "weights",
    "objectives",
    "method",
    "monitor",
    "post",
    "torch",
    "integrations",
    "bench",
]
#: Rooms on one floor do not see each other.
APART = [("method", "monitor"), ("monitor", "method")]
#: Who may name a framework at import time.
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "scipy", "pandas", "polars", "sklearn", "matplotlib"}
#: Files of the core that are another library's method, imported when their method is named and not before.
BORROWED = {"post/isotonic.py": {"sklearn"}}
#: Functions that bring values to the host and are named for it, or that only ever see tensors which are there already.
HOST_ONLY = {"to_numpy", "_apply_here", "_weigh_here"}


def room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Absolute names of the modules a file imports, wherever in the file."""
    names: list[str] = []
    package = ["reweigh", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = base + (node.module or "")
            # `from reweigh import monitor` names a room as well.
            names += [f"{module}.{alias.name}" if module == "reweigh" else module for alias in node.names]
    return names


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_arrows_point_one_way(path):
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    assert here in ORDER, f"{here} is not a room of the plan"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "reweigh" or len(parts) == 1 or parts[1] not in ORDER:
            continue
        there = parts[1]
        assert ORDER.index(there) <= ORDER.index(here), f"{named(path)} imports {name}"
        assert (here, there) not in APART, f"{named(path)} imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) not in ("torch", "integrations", "bench")], ids=named)
def test_the_core_names_no_framework(path):
    named_frameworks = {name.split(".")[0] for name in imports(path)} & FRAMEWORKS
    assert named_frameworks <= BORROWED.get(path.relative_to(ROOT).as_posix(), set())


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_room_for_everything(path):
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", [p for p in FILES if room(p) not in ("integrations", "bench")], ids=named)
def test_no_file_brings_values_to_the_host(path):
    """`.item()`, `.cpu()` and `.numpy()` make a device wait; only functions named for that may."""
    tree = ast.parse(path.read_text())
    allowed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in HOST_ONLY
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and id(node) not in allowed:
            assert node.func.attr not in {"item", "cpu", "numpy"}, f"{named(path)}, line {node.lineno}"


def test_the_checks_above_see_what_they_should(tmp_path, monkeypatch):
    """A file that breaks the plan is found, so that an empty search cannot pass for a clean one."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    wrong = tmp_path / "weights.py"
    wrong.write_text(
        "from reweigh import torch\nfrom .bench import runs\nimport jax\n\ndef f(x):\n    return x.item()\n"
    )
    assert imports(wrong) == ["reweigh.torch", "reweigh.bench", "jax"]
    with pytest.raises(AssertionError, match=r"weights\.py imports reweigh\.torch"):
        test_arrows_point_one_way(wrong)
    with pytest.raises(AssertionError):
        test_the_core_names_no_framework(wrong)
    with pytest.raises(AssertionError, match="line 6"):
        test_no_file_brings_values_to_the_host(wrong)


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)


def test_importing_brings_no_framework():
    code = "import sys, reweigh; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(run(code).stdout.split())
    assert "numpy" in loaded
    assert not loaded & FRAMEWORKS


def test_public_names_resolve():
    for name in reweigh.__all__:
        assert getattr(reweigh, name) is not None


def test_importing_costs_little_over_numpy():
    """Processor time beside that of importing NumPy itself, in fresh processes; any framework takes many times that."""
    code = (
        "from time import process_time as now; t0 = now(); import numpy; t1 = now(); import reweigh; "
        "print((now() - t1) / (t1 - t0))"
    )
    assert min(float(run(code).stdout) for _ in range(4)) < 0.7
