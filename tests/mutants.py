"""How many planted bugs the tests notice: `make test-mutants`, or `python tests/mutants.py --count 30 --only stats`.

A mutant is the source with one small change: another comparison, another sign, a constant one larger, a condition
turned round. It is killed if a test fails with it. Mutants are drawn by a seed, the same number from each module as
far as it has so many; ten more are written out below, because they once survived. Each is tried in a copy of the
source, in a process of its own with a limit on its time, and only with the tests that are there for its module.

A survivor is a missing test, or a change that makes no difference (`<` for `<=` where both sides are never equal).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
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

ROOT = Path(__file__).parent.parent
#: Modules that are mutated, and the tests that are there for them; the quickest first, since the first failure counts.
TESTS = {
    "weights.py": ("tests/test_weights.py", "tests/objectives/test_rgd.py"),
    "monitor.py": ("tests/test_monitor.py", "tests/bench/test_selection.py"),
    "method.py": ("tests/test_method.py",),
    "objectives/_measure.py": ("tests/objectives/test_measure.py", "tests/objectives/test_conformance.py"),
    "objectives/rgd.py": ("tests/objectives/test_rgd.py", "tests/objectives/test_conformance.py"),
    "objectives/kl_dro.py": ("tests/objectives/test_worst_case.py", "tests/objectives/test_conformance.py"),
    "objectives/chi2_dro.py": ("tests/objectives/test_worst_case.py", "tests/objectives/test_conformance.py"),
    "objectives/cvar.py": ("tests/objectives/test_worst_case.py", "tests/objectives/test_conformance.py"),
    "objectives/term.py": ("tests/objectives/test_tilted.py", "tests/objectives/test_conformance.py"),
    "objectives/group_dro.py": ("tests/objectives/test_group_dro.py", "tests/objectives/test_conformance.py"),
    "bench/lab/stats.py": ("tests/bench/lab/test_stats.py", "tests/bench/test_selection.py"),
    "bench/lab/intervals.py": ("tests/bench/lab/test_intervals.py", "tests/bench/lab/test_stats.py"),
    "bench/lab/plan.py": ("tests/bench/lab/test_plan.py", "tests/bench/test_selection.py"),
    "bench/lab/table.py": ("tests/bench/lab/test_plan.py", "tests/bench/test_selection.py"),
    "bench/lab/results.py": (
        "tests/bench/test_selection.py",
        "tests/bench/lab/test_questions.py",
        "tests/bench/report/test_report.py",
    ),
    "bench/train/scores.py": ("tests/bench/train/test_scores.py", "tests/bench/test_selection.py"),
    "bench/train/tally.py": ("tests/bench/train/test_tally.py", "tests/bench/train/test_driver.py"),
    "bench/compare/actions.py": ("tests/bench/compare/test_compare_answer.py", "tests/bench/test_selection.py"),
    "bench/compare/answer.py": ("tests/bench/compare/test_compare_answer.py", "tests/bench/test_selection.py"),
    "bench/compare/search.py": ("tests/bench/compare/test_compare_search.py",),
    "bench/compare/manifest.py": ("tests/faults/test_hostile_models.py",),
    "bench/compare/booster_files.py": ("tests/faults/test_hostile_models.py",),
    "bench/lab/runs.py": ("tests/bench/lab/test_runs.py", "tests/faults/test_damaged_files.py"),
}
#: Bugs that once survived: module, what is there, and what is planted.
PLANTED = {
    "epoch chosen on test data": (
        "bench/lab/results.py",
        "chosen = table.best(table.selecting(records))",
        "chosen = table.best([float(record[table.metric]) for record in records])",
    ),
    "tuning judged by the last epoch": (
        "bench/lab/plan.py",
        "(values[table.best(values)], trial)",
        "(values[-1], trial)",
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
        "if best is None or table.best([best, float(record[table.select])]) == 1:",
        "if True:",
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
#: The tests that were written for them.
PLANTED_TESTS = ("tests/bench/test_selection.py",)
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
    """A changed module."""

    module: str
    what: str
    source: str
    tests: tuple[str, ...]


def mutant_of(module: str, text: str, number: int) -> Mutant:
    """The mutant of a module at the place of this number."""
    tree = ast.parse(text)
    node = next(node for k, node in enumerate(_places(tree)) if k == number)
    before = _written(node)
    _change(node)
    return Mutant(module, f"line {node.lineno}: {before} -> {_written(node)}", ast.unparse(tree), TESTS[module])


def _written(node: Any) -> str:
    return " ".join(ast.unparse(node).split())[:80]


def _places(tree: ast.Module) -> Iterator[Any]:
    """What can be changed: expressions, but no annotation, no docstring and nothing that only words a message."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (part := getattr(node, name, None)) is not None:
                skipped.update(id(inner) for inner in ast.walk(part))
        if isinstance(node, (ast.Raise, ast.JoinedStr)):
            skipped.update(id(inner) for inner in ast.walk(node))
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
        yield Mutant(module, what, text.replace(old, new, 1), PLANTED_TESTS)


def drawn(source: Path, count: int, seed: int, only: str) -> list[Mutant]:
    """So many mutants in all, from every module alike."""
    draw = random.Random(seed)
    texts = {module: (source / module).read_text() for module in TESTS if only in module}
    places = {module: list(range(sum(1 for _ in _places(ast.parse(text))))) for module, text in texts.items()}
    for numbers in places.values():
        draw.shuffle(numbers)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(places.values()):
        for module, numbers in places.items():
            if numbers and len(chosen) < count:
                chosen.append(mutant_of(module, texts[module], numbers.pop()))
    return chosen


def tried(mutant: Mutant | None, source: Path, tests: Sequence[str], seconds: float) -> str:
    """What became of a mutant: "killed", "survived" or "out of time"; of None, whether the tests pass at all."""
    path = None if mutant is None else source / mutant.module
    original = None if path is None else path.read_text()
    if path is not None and mutant is not None:
        path.write_text(mutant.source)
    try:
        child = os.fork()
        if child == 0:
            _run_tests(source, tests)
        return _ended(child, seconds)
    finally:
        if path is not None and original is not None:
            path.write_text(original)


def _run_tests(source: Path, tests: Sequence[str]) -> None:
    """Within the child: run the tests on the copy of the source, and end with their code."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path.insert(0, str(source.parent))
    os.environ["PYTHONPATH"] = str(source.parent)
    import pytest

    options = [
        "-W",
        "ignore:Module already imported",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        "not slow and not processes",
        "--tb=no",
    ]
    os._exit(int(pytest.main([*options, *tests])))


def _ended(child: int, seconds: float) -> str:
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "out of time"


def main() -> None:
    """Draw, try, report; the exit code says whether enough were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120, help="mutants to draw, beside the ten that are planted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--seconds", type=float, default=120.0, help="time that one mutant may take")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for all of them; the rest is not tried")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be noticed")
    parser.add_argument("--out", type=Path, help="a JSON file for what became of each")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}  # before torch is imported
    for name in _LOADED_ONCE:
        __import__(name)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src")) / "reweigh"
        mutants = drawn(source, options.count, options.seed, options.only)
        if not options.only:
            mutants = [*planted(source), *mutants]
        passing: set[tuple[str, ...]] = set()
        ended: list[dict[str, str]] = []
        started = time.monotonic()
        for mutant in mutants:
            if time.monotonic() - started > options.budget:
                break
            if mutant.tests not in passing and tried(None, source, mutant.tests, 5 * options.seconds) != "survived":
                raise SystemExit(f"without a mutant {' '.join(mutant.tests)} must pass, and does not.")
            passing.add(mutant.tests)
            outcome = tried(mutant, source, mutant.tests, options.seconds)
            ended.append({"module": mutant.module, "what": mutant.what, "outcome": outcome})
            print(f"{len(ended):4d} {outcome:11s} {mutant.module}: {mutant.what}", flush=True)
    noticed = sum(one["outcome"] != "survived" for one in ended)
    print(f"{noticed} of {len(ended)} mutants were noticed ({noticed / max(len(ended), 1):.1%}); {len(mutants)} drawn.")
    if options.out:
        options.out.write_text(json.dumps(ended, indent=1))
    sys.exit(noticed < options.least * len(ended))


if __name__ == "__main__":
    main()
