"""What passes through each host, read from the marks of the tests: `python docs/hosts.py > docs/hosts.md`."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
CAPABILITIES = (
    *("loss", "objective", "post", "row weight", "token weight", "accumulation", "packing", "AMP", "compile", "DDP"),
    *("sampler", "step", "average"),
)
HEAD = """# What passes through each host

Made by `docs/hosts.py` from the tests. A tick is a test marked `shows`, which compares the host with a reference;
"refused" is one marked `refuses`, which reads the sentence that says why; "–" does not apply, for the reason below the
table. An empty cell has no test of its own.
"""
_ROWS = "the unit is a row of a table"
_ONE_PROCESS = "it trains in one process, in full precision and without a compiler of graphs"
_NO_CLASSES = "corrections are for classes, and a language model is not used as a classifier of tokens"
_TOKENS_ALONE = "its preparation of data keeps tokens and labels alone"
#: What has no meaning in a host, and why.
DOES_NOT_APPLY: dict[str, dict[tuple[str, ...], str]] = {
    "LLaMA-Factory": {("post",): _NO_CLASSES, ("row weight", "token weight"): _TOKENS_ALONE},
    "TRL": {("post",): _NO_CLASSES},
    "XGBoost, LightGBM, CatBoost": {
        ("token weight", "packing"): _ROWS,
        ("accumulation",): "each tree is grown on all rows",
        ("AMP", "compile", "DDP"): "gradients are NumPy arrays of all rows, handed over in one process",
    },
    "axolotl": {("post",): _NO_CLASSES, ("row weight", "token weight"): _TOKENS_ALONE},
    "ms-swift": {("post",): _NO_CLASSES},
    "scikit-learn": {
        ("token weight", "packing"): _ROWS,
        ("accumulation",): "`batch_size` is the batch of a step",
        ("AMP", "compile", "DDP"): _ONE_PROCESS,
    },
    "skorch": {
        ("packing",): "a criterion gets outputs and targets, and not where sequences start",
        ("DDP",): "it trains in one process; several are the business of Accelerate",
    },
    "torchtune": {
        ("post",): _NO_CLASSES,
        ("row weight", "token weight", "packing"): "a loss gets logits and labels alone",
    },
}


def shown() -> dict[str, dict[str, str]]:
    """By host and capability: a tick, or that it is refused."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(TESTS.rglob("test_*.py")):
        module = ast.parse(path.read_text())
        names = {
            node.targets[0].id: node.value.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_text(node.value)
        }
        for test in module.body:
            for mark in getattr(test, "decorator_list", ()):
                kind = mark.func.attr if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) else ""
                if kind not in ("shows", "refuses"):
                    continue
                host, *capabilities = (names[a.id] if isinstance(a, ast.Name) else a.value for a in mark.args)
                for capability in capabilities:
                    if capability not in CAPABILITIES:
                        raise ValueError(f"{test.name} names {capability!r}, which is not a column: {CAPABILITIES}.")
                    cells[host][capability] = "✓" if kind == "shows" else "refused"
    for host, reasons in DOES_NOT_APPLY.items():
        for capability in (name for names in reasons for name in names):
            if capability in cells[host]:
                raise ValueError(f"{capability!r} is said not to apply to {host}, and a test shows or refuses it.")
            cells[host][capability] = "–"
    return cells


def page() -> str:
    """The whole page."""
    lines = [f"| host | {' | '.join(CAPABILITIES)} |", "|---" * (len(CAPABILITIES) + 1) + "|"]
    for host, cells in sorted(shown().items()):
        lines.append(f"| {host} | {' | '.join(cells.get(name, '') for name in CAPABILITIES)} |")
    reasons = [
        f"- {host}, {' and '.join(names) if len(names) < 3 else ', '.join(names)}: {why}."
        for host, cells in sorted(DOES_NOT_APPLY.items())
        for names, why in cells.items()
    ]
    return f"{HEAD}\n" + "\n".join([*lines, "", "What does not apply, and why:", "", *reasons]) + "\n"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


if __name__ == "__main__":
    print(page(), end="")
