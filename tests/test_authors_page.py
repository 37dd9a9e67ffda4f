"""The page of comparisons with authors' code names methods that exist, and differences that are small enough."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reweigh import method

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "authors.py"
PAGE = (ROOT / "docs" / "authors.md").read_text()
ROWS = re.findall(r"^\| `(.+?)` \| (\S+/\S+) \| ([0-9a-f]{7,}) \| .+? \| (\S+) \|$", PAGE, flags=re.MULTILINE)


def test_rows_are_methods_within_the_tolerance():
    assert len(ROWS) == PAGE.count("\n| `")
    for text, _, _, difference in ROWS:
        assert method(text), text
        assert float(difference) <= 1e-6


def test_every_repository_of_the_script_has_rows():
    assert set(re.findall(r'@against\("(.+?)"', SCRIPT.read_text())) == {repository for _, repository, _, _ in ROWS}


@pytest.mark.processes
def test_other_code_is_told_apart(tmp_path):
    """A selection of the easiest in place of the hardest fails; clones that are not there are named."""
    clone = tmp_path / "OATML+RHO-Loss"
    (clone / "src" / "curricula").mkdir(parents=True)
    code = (
        "def top_x_indices(vec, x, largest):\n    order = vec.argsort(descending={})\n    return order[:x], order[x:]\n"
    )
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    ended = []
    for order in ("largest", "not largest"):
        (clone / "src" / "curricula" / "utils_selection_methods.py").write_text(code.format(order))
        run = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True)
        ended.append(run.returncode)
        assert "kaidic/LDAM-DRW: no clone" in run.stderr
        assert "rho:keep=0.3" in run.stdout
    assert ended == [0, 1]
