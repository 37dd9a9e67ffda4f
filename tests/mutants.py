"""How many planted bugs the tests notice: `make test-mutants`, or `python tests/mutants.py --count 30 --only stats`.

A mutant is the source with one small change: another comparison, another sign, a constant one larger, a condition
turned round. It is killed if a test fails with it. Mutants are drawn by a seed, the same number from each module as
far as it has so many; ten more are written out below, because they once survived. First every test runs once without
a mutant, and which lines of the modules it runs is recorded. Then each mutant is tried in a copy of the source, in a
process of its own, with the tests that run its line, the quickest first, until one fails.

A survivor is a missing test, or a change that makes no difference (`<` for `<=` where both sides are never equal).
Those that make none are listed in `EQUIVALENT` with the reason, and are not counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
#: Modules that are mutated.
MODULES = (
    "weights.py",
    "monitor.py",
    "method.py",
    "objectives/_measure.py",
    "objectives/rgd.py",
    "objectives/kl_dro.py",
    "objectives/chi2_dro.py",
    "objectives/cvar.py",
    "objectives/term.py",
    "objectives/group_dro.py",
    "bench/lab/stats.py",
    "bench/lab/intervals.py",
    "bench/lab/plan.py",
    "bench/lab/table.py",
    "bench/lab/results.py",
    "bench/lab/runs.py",
    "bench/train/scores.py",
    "bench/train/tally.py",
    "bench/compare/actions.py",
    "bench/compare/answer.py",
    "bench/compare/search.py",
    "bench/compare/row_scores.py",
    "bench/compare/manifest.py",
    "bench/compare/booster_files.py",
)
#: Tests that may notice one.
TESTS = (
    "tests/test_weights.py",
    "tests/test_monitor.py",
    "tests/test_method.py",
    "tests/objectives",
    "tests/bench/lab/test_stats.py",
    "tests/bench/lab/test_intervals.py",
    "tests/bench/lab/test_verdicts.py",
    "tests/bench/lab/test_plan.py",
    "tests/bench/lab/test_questions.py",
    "tests/bench/lab/test_runs.py",
    "tests/bench/report/test_report.py",
    "tests/bench/train/test_scores.py",
    "tests/bench/train/test_tally.py",
    "tests/bench/train/test_driver.py",
    "tests/bench/compare",
    "tests/bench/test_selection.py",
    "tests/faults/test_damaged_files.py",
    "tests/faults/test_hostile_models.py",
)
#: Changes that make no difference: module, line and change, and why not.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "objectives/rgd.py",
        "return value is None or isinstance(value, (int, float))",
        "value is None or isinstance(value, (int, float)) -> value is None and isinstance(value, (int, float))",
    ): "whether a value is kept or built again changes time alone",
    (
        "objectives/chi2_dro.py",
        "price = 0.5 * self.reg * mean((density - 1.0) * (density - 1.0), amounts)",
        "density - 1.0 -> density + 1.0",
    ): "the density has mean one, so the mean of (d + 1)(d - 1) is that of (d - 1)²",
    (
        "weights.py",
        "if isinstance(bound, (int, float)) and abs(bound) < 10.0:",
        "10.0 -> 11.0",
    ): "exp(11) is a number in float16 too",
    (
        "objectives/_measure.py",
        "return x if x > 0 else x.dtype.type(1.0)",
        "1.0 -> 2.0",
    ): "what is divided by it is zero",
    (
        "bench/lab/plan.py",
        "longest = max((len(values) for values in spread.values()), default=1)",
        "1 -> 2",
    ): "without axes all settings are the same one",
}
#: Class variables that are choices: a test could only repeat the values that tuning searches, and `neutral` picks the
#: faster of two ways to the same numbers.
_CHOICES = ("search", "neutral")
#: Bugs that once survived: module, what is there, and what is planted.
PLANTED = {
    "epoch chosen on test data": (
        "bench/lab/table.py",
        "self.best(self.selecting(records))",
        "self.best([float(record[self.metric]) for record in records])",
    ),
    "tuning judged by the last epoch": (
        "bench/lab/plan.py",
        "table.selecting(records, spec.label)[table.chosen(records)]",
        "table.selecting(records, spec.label)[-1]",
    ),
    "evaluation without eval()": ("bench/train/driver.py", "        program.module.eval()\n", ""),
    "augmentation generator not restored": (
        "bench/train/programs/supervised.py",
        '        self.augmentation.set_state(state["augmentation"])\n',
        "",
    ),
    "the least good of the better rows proposed": (
        "bench/compare/actions.py",
        "decision(better[0],",
        "decision(better[-1],",
    ),
    "per-metric correction dropped": (
        "bench/compare/answer.py",
        "    corrected = stats.corrected(differences)\n    return",
        "    corrected = differences\n    return",
    ),
    "the kept model's epoch": (
        "bench/compare/model.py",
        "    while not driver.over:",
        "    while driver.epoch < settings.epochs - 1:",
    ),
    "AUROC ties": (
        "bench/train/scores.py",
        "ranks = stats.rankdata(probabilities[:, chosen], axis=0)",
        'ranks = stats.rankdata(probabilities[:, chosen], method="ordinal", axis=0)',
    ),
    "mixed masked and unmasked micro-batches": (
        "torch/reweighted.py",
        "    if all(measure is None for measure in measures):",
        "    if any(measure is None for measure in measures):",
    ),
    "> for >= in the clip share": ("monitor.py", "(losses >= tau + offset)", "(losses > tau + offset)"),
}
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
#: Imported before the children are forked, and not by each of them.
_LOADED_ONCE = (
    "numpy",
    "scipy.stats",
    "polars",
    "hypothesis",
    "sklearn.metrics",
    "statsmodels.stats.multitest",
    "torch",
)
_CALLS = {"min": "max", "max": "min", "all": "any", "any": "all", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """A changed module; `lines` are those of the changed statement, and None if it runs when the module is imported."""

    module: str
    line: str
    what: str
    source: str
    lines: frozenset[int] | None


@dataclass(frozen=True)
class Recorded:
    """How long a test took without a mutant, and which lines of each module it ran."""

    seconds: float
    lines: dict[str, set[int]]

    def runs(self, mutant: Mutant) -> bool:
        """Whether it runs what the mutant changes."""
        own = self.lines.get(mutant.module, set[int]())
        return bool(own) if mutant.lines is None else not own.isdisjoint(mutant.lines)


def mutant_of(module: str, text: str, number: int) -> Mutant:
    """The mutant of a module at the place of this number."""
    tree = ast.parse(text)
    node = next(node for k, node in enumerate(_places(tree)) if k == number)
    before, lines = _written(node), _statement_lines(tree, node)
    _change(node)
    line = text.splitlines()[node.lineno - 1].strip()
    return Mutant(module, line, f"{before} -> {_written(node)}", ast.unparse(tree), lines)


def _statement_lines(tree: ast.Module, node: ast.AST) -> frozenset[int] | None:
    """The lines of the statement that a node is part of, without the statements inside it."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    while not isinstance(node, ast.stmt):
        node = parents[node]
    above = parents[node]
    while not isinstance(above, (ast.FunctionDef, ast.Module)):
        above = parents[above]
    if isinstance(above, ast.Module):
        return None
    inner = [child.lineno for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    last = min(inner) - 1 if inner else node.end_lineno or node.lineno
    return frozenset(range(node.lineno, max(last, node.lineno) + 1))


def _written(node: Any) -> str:
    return " ".join(ast.unparse(node).split())[:80]


def _places(tree: ast.Module) -> Iterator[Any]:
    """What can be changed: expressions, but no annotation, no docstring and nothing that only words a message.

    Nor choices (`_CHOICES`), nor whether a class is frozen and takes keywords only, which the type checker watches.
    """
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (part := getattr(node, name, None)) is not None:
                skipped.update(id(inner) for inner in ast.walk(part))
        chosen = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in _CHOICES
        if chosen or isinstance(node, (ast.Raise, ast.JoinedStr)):
            skipped.update(id(inner) for inner in ast.walk(node))
        if isinstance(node, ast.ClassDef):
            skipped.update(id(inner) for decorator in node.decorator_list for inner in ast.walk(decorator))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if id(node) not in skipped and _changeable(node):
            yield node


def _changeable(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in _SWAPPED
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        # A bar between names is a union of types far more often than of numbers; text is joined by plus.
        return type(node.op) in _SWAPPED and not any(
            isinstance(v, ast.Constant) and isinstance(v.value, str) for v in ast.iter_child_nodes(node)
        )
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.Not, ast.USub))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (bool, int, float))
    return isinstance(node, ast.Call) and _called(node) in _CALLS


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _change(node: Any) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _SWAPPED[type(node.ops[0])]()  # pyright: ignore[reportArgumentType, reportCallIssue]
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        node.op = _SWAPPED[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        value: Any = node.value
        node.value = not value if isinstance(value, bool) else value + 1
    elif isinstance(node.func, ast.Attribute):
        node.func.attr = _CALLS[node.func.attr]
    else:
        node.func.id = _CALLS[node.func.id]


def planted(source: Path) -> Iterator[Mutant]:
    """The bugs that are written out above."""
    for what, (module, old, new) in PLANTED.items():
        text = (source / module).read_text()
        if old not in text:
            raise SystemExit(f"{module} has changed: there is no {old!r} in it to plant {what!r} in.")
        first = text[: text.index(old)].count("\n") + 1
        lines = frozenset(range(first, first + old.rstrip("\n").count("\n") + 1))
        yield Mutant(module, old.strip(), what, text.replace(old, new, 1), lines)


def drawn(source: Path, count: int, seed: int, only: str) -> list[Mutant]:
    """So many mutants in all, from every module alike."""
    draw = random.Random(seed)
    texts = {module: (source / module).read_text() for module in MODULES if only in module}
    places = {module: list(range(sum(1 for _ in _places(ast.parse(text))))) for module, text in texts.items()}
    for numbers in places.values():
        draw.shuffle(numbers)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(places.values()):
        for module, numbers in places.items():
            if numbers and len(chosen) < count:
                chosen.append(mutant_of(module, texts[module], numbers.pop()))
    return chosen


class Recorder:
    """A plugin of pytest: writes down how long each test takes and which lines of the modules it runs."""

    def __init__(self, source: Path, out: Path) -> None:
        modules = {*MODULES, *(module for module, *_ in PLANTED.values())}
        self.files = {str(source / module): module for module in modules}
        self.out = out
        self.tests: dict[str, Recorded] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        lines: dict[str, set[int]] = {}

        def of_file(frame: Any, event: str, argument: object) -> Any:
            del argument
            module = self.files.get(frame.f_code.co_filename)
            if module is None:
                return None
            seen = lines.setdefault(module, set())
            seen.add(frame.f_lineno)

            def of_frame(frame: Any, event: str, argument: object) -> Any:
                seen.add(frame.f_lineno)
                return of_frame

            return of_frame

        before, started = sys.gettrace(), time.monotonic()
        sys.settrace(of_file)
        yield
        sys.settrace(before)
        self.tests[item.nodeid] = Recorded(time.monotonic() - started, lines)

    def pytest_sessionfinish(self) -> None:
        self.out.write_bytes(pickle.dumps(self.tests))


class Selection:
    """A plugin of pytest: only these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: i for i, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


def recorded(source: Path) -> dict[str, Recorded]:
    """Run every test without a mutant; all of them must pass."""
    out = source.parent / "recorded.pickle"
    if (outcome := _in_child(source, TESTS, Recorder(source, out), seconds=3600.0)) != "survived":
        raise SystemExit(f"without a mutant all tests must pass, and they do not ({outcome}): {' '.join(TESTS)}.")
    return pickle.loads(out.read_bytes())  # written by the process above, into a folder of this one


def tried(mutant: Mutant, source: Path, tests: dict[str, Recorded]) -> str:
    """What became of a mutant: "killed", "out of time", "survived", or "not run" by any test."""
    chosen = sorted((test for test in tests if tests[test].runs(mutant)), key=lambda test: tests[test].seconds)
    if not chosen:
        return "not run"
    path = source / mutant.module
    original = path.read_text()
    path.write_text(mutant.source)
    files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
    seconds = 120.0 + 3 * sum(tests[test].seconds for test in chosen)
    try:
        return _in_child(source, files, Selection(chosen), seconds=seconds)
    finally:
        path.write_text(original)


def _in_child(source: Path, tests: Sequence[str], plugin: object, *, seconds: float) -> str:
    child = os.fork()
    if child == 0:
        _run_tests(source, tests, plugin)
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "out of time"


def _run_tests(source: Path, tests: Sequence[str], plugin: object) -> None:
    """Within the child: run the tests on the copy of the source, and end with their code."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path.insert(0, str(source.parent))
    os.environ["PYTHONPATH"] = str(source.parent)
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not processes"]
    options += ["-W", "ignore:Module already imported"]
    os._exit(int(pytest.main([*options, *tests], plugins=[plugin])))


def main() -> None:
    """Draw, try, report; the exit code says whether enough were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120, help="mutants to draw, beside the ten that are planted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be noticed")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "mutants.json", help="what became of each")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}  # before torch is imported
    for name in _LOADED_ONCE:
        __import__(name)
    ended: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src")) / "reweigh"
        mutants = drawn(source, options.count, options.seed, options.only)
        if not options.only:
            mutants = [*planted(source), *mutants]
        started = time.monotonic()
        tests = recorded(source)
        print(f"{len(tests)} tests recorded in {time.monotonic() - started:.0f} s", flush=True)
        for mutant in mutants:
            started = time.monotonic()
            key = mutant.module, mutant.line, mutant.what
            outcome = "not counted" if key in EQUIVALENT else tried(mutant, source, tests)
            ended.append({"module": mutant.module, "line": mutant.line, "what": mutant.what, "outcome": outcome})
            seconds = time.monotonic() - started
            print(f"{len(ended):4d} {outcome:11s} {seconds:4.0f} s {' | '.join(key)}", flush=True)
    counted = [one for one in ended if one["outcome"] != "not counted"]
    noticed = sum(one["outcome"] in ("killed", "out of time") for one in counted)
    print(f"{noticed} of {len(counted)} mutants were noticed ({noticed / max(len(counted), 1):.1%}).")
    if not options.only:
        options.out.write_text(json.dumps({"seed": options.seed, "mutants": ended}, indent=1) + "\n")
    sys.exit(noticed < options.least * len(counted))


if __name__ == "__main__":
    main()
