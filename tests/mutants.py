"""How many planted bugs the tests notice: `make test-mutants`, or `python tests/mutants.py --count 30 --only stats`.

A mutant is killed if a test fails with it. Mutants are drawn by a seed, the same number from each module as far as it
has so many (`mutants_drawn.py`); ten more are written out (`mutants_known.py`), because they once survived. First every
test runs once without a mutant, and which lines of the modules it runs is recorded. Then each mutant is tried in a copy
of the source, in a process of its own, with the tests that run its line, the quickest first, until one fails; a minute
of tests at most. `--again` tries only those that were not noticed last time, or whose module has changed.

A survivor is a missing test, or a change that makes no difference (`<` for `<=` where both sides are never equal).
Those that make none are listed in `EQUIVALENT` with the reason, and are not counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
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
from mutants_drawn import MODULES, Mutant, drawn, planted
from mutants_known import EQUIVALENT, PLANTED

ROOT = Path(__file__).parent.parent
#: Tests that may notice a mutant.
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
    "tests/torch/test_reweighted.py",
)
#: Seconds of tests that a mutant is tried with, and what its process may take beside them before it counts as stuck.
_TESTED, _BESIDE = 60.0, 60.0
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
NOTICED = ("killed", "out of time")


@dataclass(frozen=True)
class Recorded:
    """How long a test took without a mutant, and which lines of each module it ran."""

    seconds: float
    lines: dict[str, set[int]]

    def runs(self, mutant: Mutant) -> bool:
        """Whether it runs what the mutant changes."""
        own = self.lines.get(mutant.module, set[int]())
        return bool(own) if mutant.lines is None else not own.isdisjoint(mutant.lines)


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


class Child:
    """A process that runs tests on a copy of the source, and may take so many seconds."""

    def __init__(self, source: Path, tests: Sequence[str], plugin: object, *, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.pid = os.fork()
        if self.pid == 0:
            _run_tests(source, tests, plugin)

    def outcome(self) -> str | None:
        """What became of it: "survived", "killed" or "out of time"; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        if time.monotonic() < self.ends:
            return None
        self.stop()
        return "out of time"

    def stop(self) -> None:
        """End it and all that it started."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


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


def recorded(sources: Sequence[Path]) -> dict[str, Recorded]:
    """Run every test without a mutant, some in each copy of the source; all of them must pass."""
    files = [str(file) for test in TESTS for file in ([test] if test.endswith(".py") else sorted(_files(test)))]
    parts = [files[k :: len(sources)] for k in range(len(sources))]
    outs = [source.parent / "recorded.pickle" for source in sources]
    children = [
        Child(source, part, Recorder(source, out), seconds=3600.0)
        for source, part, out in zip(sources, parts, outs, strict=True)
    ]
    waiting = set(range(len(children)))
    while waiting:
        time.sleep(0.2)
        for k in sorted(waiting):
            if (outcome := children[k].outcome()) is None:
                continue
            waiting.discard(k)
            if outcome != "survived":
                for other in waiting:
                    children[other].stop()
                raise SystemExit(f"without a mutant all tests must pass, and not all do ({outcome}): {parts[k]}.")
    # Written by the processes above, into folders of this one.
    return {test: one for out in outs for test, one in pickle.loads(out.read_bytes()).items()}


def _files(folder: str) -> Iterator[Path]:
    return (file.relative_to(ROOT) for file in (ROOT / folder).rglob("test_*.py"))


def chosen_tests(mutant: Mutant, tests: dict[str, Recorded]) -> tuple[list[str], float]:
    """The tests that run what a mutant changes, the quickest first, and how long they take."""
    chosen: list[str] = []
    seconds = 0.0
    for test in sorted((t for t in tests if tests[t].runs(mutant)), key=lambda t: tests[t].seconds):
        if chosen and seconds + tests[test].seconds > _TESTED:
            break
        chosen.append(test)
        seconds += tests[test].seconds
    return chosen, seconds


@dataclass
class Trial:
    """A mutant that is being tried in a copy of the source."""

    number: int
    mutant: Mutant
    original: str
    child: Child
    started: float


def tried(mutants: dict[int, Mutant], sources: Sequence[Path], tests: dict[str, Recorded]) -> Iterator[tuple[int, str]]:
    """The number of each mutant and what became of it, as they end: one at a time in each copy of the source."""
    waiting = iter(mutants.items())
    trials: dict[Path, Trial] = {}
    more = True
    try:
        while more or trials:
            for source in sources:
                while more and source not in trials:
                    number, mutant = next(waiting, (-1, None))
                    if mutant is None:
                        more = False
                    elif not (chosen := chosen_tests(mutant, tests))[0]:
                        yield number, "not run"
                    else:
                        trials[source] = _trial(number, mutant, source, *chosen)
            for source, trial in list(trials.items()):
                if (outcome := trial.child.outcome()) is not None:
                    (source / trial.mutant.module).write_text(trial.original)
                    del trials[source]
                    yield trial.number, outcome
            time.sleep(0.05)
    finally:
        for trial in trials.values():
            trial.child.stop()


def _trial(number: int, mutant: Mutant, source: Path, tests: Sequence[str], seconds: float) -> Trial:
    path = source / mutant.module
    original = path.read_text()
    path.write_text(mutant.source)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    child = Child(source, files, Selection(tests), seconds=_BESIDE + 2 * seconds)
    return Trial(number, mutant, original, child, time.monotonic())


def main() -> None:
    """Draw, try, report; the exit code says whether enough were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120, help="mutants to draw, beside the ten that are planted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be noticed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--again", action="store_true", help="try only those that were not noticed last time")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "mutants.json", help="what became of each")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}  # before torch is imported
    for name in _LOADED_ONCE:
        __import__(name)
    mutants = drawn(ROOT / "src" / "reweigh", options.count, options.seed, options.only)
    if not options.only:
        mutants = [*planted(ROOT / "src" / "reweigh"), *mutants]
    before = json.loads(options.out.read_text())["mutants"] if options.again else []
    # A machine with much else to do can be out of time for nothing: those are tried again as well.
    noticed_before = {one["sha256"]: one["outcome"] for one in before if one["outcome"] == "killed"}
    outcomes: dict[int, str] = {}
    for number, mutant in enumerate(mutants):
        if (mutant.module, mutant.line, mutant.what) in EQUIVALENT:
            outcomes[number] = "not counted"
        elif _sha256(mutant) in noticed_before:
            outcomes[number] = noticed_before[_sha256(mutant)]
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(k) / "src" for k in range(options.jobs)]
        sources = [Path(shutil.copytree(ROOT / "src", copy)) / "reweigh" for copy in copies]
        started = time.monotonic()
        tests = recorded(sources)
        print(f"{len(tests)} tests recorded in {time.monotonic() - started:.0f} s", flush=True)
        left = {number: mutant for number, mutant in enumerate(mutants) if number not in outcomes}
        for number, outcome in tried(left, sources, tests):
            outcomes[number] = outcome
            mutant = mutants[number]
            passed = f"{time.monotonic() - started:5.0f} s"
            print(
                f"{len(outcomes):4d} {outcome:11s} {passed} {mutant.module} | {mutant.line} | {mutant.what}", flush=True
            )
            if not options.only:
                _write(options.out, options.seed, mutants, outcomes)
    counted = [outcome for outcome in outcomes.values() if outcome != "not counted"]
    noticed = sum(outcome in NOTICED for outcome in counted)
    print(f"{noticed} of {len(counted)} mutants were noticed ({noticed / max(len(counted), 1):.1%}).")
    sys.exit(noticed < options.least * len(counted))


def _sha256(mutant: Mutant) -> str:
    """Of the changed module: what became of it holds for this text alone."""
    return hashlib.sha256(mutant.source.encode()).hexdigest()[:16]


def _write(out: Path, seed: int, mutants: Sequence[Mutant], outcomes: dict[int, str]) -> None:
    """What became of those that have been tried."""
    listed = [
        {"module": m.module, "line": m.line, "what": m.what, "sha256": _sha256(m), "outcome": outcomes[number]}
        for number, m in enumerate(mutants)
        if number in outcomes
    ]
    out.write_text(json.dumps({"seed": seed, "mutants": listed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
