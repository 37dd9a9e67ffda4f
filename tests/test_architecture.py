"""The rooms of the house: which may import which, what importing costs, and what no file may do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
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
    "_carry",
    "monitor",
    "post",
    "torch",
    "integrations",
    "bench",
]
#: The same inside the bench. The lab knows recipes by name alone, and imports one when it is asked for.
BENCH_ORDER = [
    *("errors", "limits", "spreadsheet", "files", "registry", "draws", "tables", "catalogue", "models", "train"),
    *("lab", "report", "recipes", "compare", "own", "cli"),
]
#: Private modules that a room above may use: how states and sums are handled is shared by all hosts, not by users.
SHARED = {
    "reweigh.objectives._base": {"torch", "integrations", "bench"},
    "reweigh.torch._criterion": {"integrations"},
    "reweigh.torch._classifier": {"integrations", "bench"},
    "reweigh.torch._segments": {"integrations"},
    "reweigh.torch.losses._base": {"torch"},
}
#: Rooms on one floor do not see each other.
APART = [("method", "monitor"), ("monitor", "method")]
#: Who may name a framework at import time.
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "scipy", "pandas", "polars", "sklearn", "matplotlib"}
#: Files of the core that are another library's method, imported when their method is named and not before.
BORROWED = {"post/isotonic.py": {"sklearn"}}
#: Functions that bring values to the host and are named for it, or that only ever see tensors which are there already.
HOST_ONLY = {
    *("to_numpy", "_apply_here", "_draw_here", "_exp_here", "_losses_here", "_occurs_here", "_of_rows_here"),
    *("_outside_here", "_update_here", "_weigh_here"),
}


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
            # `from reweigh import monitor` names a room as well, and so does `from reweigh.bench import lab`.
            own = module.split(".")[0] == "reweigh"
            names += [f"{module}.{alias.name}" if own else module for alias in node.names]
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


@pytest.mark.parametrize("path", [p for p in FILES if room(p) == "bench"], ids=named)
def test_arrows_point_one_way_inside_the_bench_too(path):
    here = path.relative_to(ROOT).parts[1].removesuffix(".py")
    if here == "__init__":
        return
    assert here in BENCH_ORDER, f"{here} is not a room of the bench"
    for name in imports(path):
        parts = name.split(".")
        if parts[:2] == ["reweigh", "bench"] and len(parts) > 2:
            assert parts[2] in BENCH_ORDER, f"{named(path)} imports {name}"
            assert BENCH_ORDER.index(parts[2]) <= BENCH_ORDER.index(here), f"{named(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_underscored_modules_are_private_to_their_folder(path):
    here = ["reweigh", *path.relative_to(ROOT).parts[:-1]]
    for name in imports(path):
        parts = name.split(".")
        for i, part in enumerate(parts):
            private = ".".join(parts[: i + 1])
            if i and part.startswith("_") and parts[0] == "reweigh" and is_module(private):
                inside = here[:i] == parts[:i]
                assert inside or room(path) in SHARED.get(private, ()), f"{named(path)} imports {name}"


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


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


#: Names that several files define on purpose.
SAME_IDEA = {
    "Settings": "what each recipe can be told; a part of its contract",
    "WeightLog": "the same report of weights, in the callback class of each trainer",
    "Reweighted": "the criterion of torch, and its twin that Keras can save and load",
    "ClassLoss": "a loss over classes of torch, and its twin that Keras can save and load",
    "AnyTrainer": "a type variable; those cannot be shared between modules",
    "Array": "what a file calls its arrays: any framework's in the core, NumPy's in the bench",
    "Floats": "the same, of floating-point numbers",
}


def test_one_word_per_thing():
    """A class or a type that others may import has a name of its own in the whole library, underscores aside."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for name in defined_types(path):
            places.setdefault(name, []).append(named(path))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert twice.keys() == SAME_IDEA.keys()


def defined_types(path: Path) -> list[str]:
    """The classes and type aliases at the top of a file, without leading underscores."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
    return [name.lstrip("_") for name in names if re.fullmatch(r"_?[A-Z][a-z]\w*|_?[A-Z]+[a-z]\w*", name)]


def test_the_checks_above_see_what_they_should(tmp_path, monkeypatch):
    """A file that breaks the plan is found, so that an empty search cannot pass for a clean one."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    wrong = tmp_path / "weights.py"
    wrong.write_text(
        "from reweigh import torch\nfrom .bench import runs\nimport jax\n\ndef f(x):\n    return x.item()\n"
    )
    assert imports(wrong) == ["reweigh.torch", "reweigh.bench.runs", "jax"]
    with pytest.raises(AssertionError, match=r"weights\.py imports reweigh\.torch"):
        test_arrows_point_one_way(wrong)
    with pytest.raises(AssertionError):
        test_the_core_names_no_framework(wrong)
    with pytest.raises(AssertionError, match="line 6"):
        test_no_file_brings_values_to_the_host(wrong)
    assert defined_types(wrong) == []
    wrong.write_text("class _Task: ...\nclass GroupDRO: ...\nKind = str\nLIMIT = 3\n")
    assert defined_types(wrong) == ["Task", "GroupDRO", "Kind"]
    low, high = tmp_path / "bench" / "train" / "loop.py", tmp_path / "bench" / "lab" / "_inner.py"
    for path in (low, high):
        path.parent.mkdir(parents=True)
        path.touch()
    low.write_text("def lazy():\n    from reweigh.bench import lab\n")
    with pytest.raises(AssertionError, match=r"loop\.py imports reweigh\.bench\.lab"):
        test_arrows_point_one_way_inside_the_bench_too(low)
    low.write_text("from reweigh.bench.lab._inner import x\n")
    with pytest.raises(AssertionError, match=r"loop\.py imports reweigh\.bench\.lab\._inner"):
        test_underscored_modules_are_private_to_their_folder(low)


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


def test_the_page_on_architecture_has_the_rooms_of_the_bench_in_their_order():
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    shown = re.findall(r"^  (\w+)(?:/|\.py) ", page.split("src/reweigh/bench/\n")[1].partition("```")[0], re.MULTILINE)
    assert shown == BENCH_ORDER


def test_the_page_on_architecture_counts_the_files_that_a_call_goes_through():
    torch = pytest.importorskip("torch")
    from reweigh.torch import Reweighted

    outputs, targets = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    criterion = Reweighted(torch.nn.CrossEntropyLoss())
    calls = {
        "reweigh.rgd(losses)": lambda: reweigh.rgd(np.array([0.2, 1.0])),
        'reweigh.method("focal+rgd:tau=3")': lambda: reweigh.method("focal+rgd:tau=3"),
        "Reweighted(criterion)(outputs, targets)": lambda: criterion(outputs, targets),
    }
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    rows = {
        call: (int(n), files) for call, n, files in re.findall(r"^\| `(.*)` \| (\d+) \| (.*) \|$", page, re.MULTILINE)
    }
    assert rows.keys() == calls.keys()
    for call, (count, files) in rows.items():
        calls[call]()  # what is imported or looked up once is not part of the walk
        walked = files_of(calls[call])
        assert files == " ".join(f"`{name}`" for name in walked), call
        assert count == len(walked)


def files_of(call: Callable[[], object]) -> list[str]:
    """The files of the library whose functions a call runs."""
    entered: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: entered.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(before)
    return sorted(str(Path(name).relative_to(ROOT)) for name in entered if name.startswith(f"{ROOT}/"))
