"""Mutants of the source: where it can be changed, how, and which of the places a seed draws.

A mutant is the source with one small change: another comparison, another sign, a constant one larger, a condition
turned round.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants_known import PLANTED

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
#: Class variables that are choices: a test could only repeat the values that tuning searches, and `neutral` picks the
#: faster of two ways to the same numbers.
_CHOICES = ("search", "neutral")
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "all": "any", "any": "all", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """A changed module; `lines` are those of the changed statement, and None if it runs when the module is imported."""

    module: str
    line: str
    what: str
    source: str
    lines: frozenset[int] | None


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
