"""Commands that only list something do not wait for a framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "pandas", "statsmodels", "scipy", "sklearn", "polars", "pyarrow", "matplotlib", "jax", "transformers"}
CODE = """
import sys
from reweigh.bench.cli.main import run_command
try:
    code = run_command(sys.argv[1:])
except SystemExit as leaving:
    code = leaving.code
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("command", ["--help", "run --help", "list methods", "list recipes", "list data"])
def test_a_listing_imports_no_framework(command):
    done = subprocess.run([sys.executable, "-c", CODE, *command.split()], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 8
    loaded = set(done.stderr.split())
    assert "rich" in loaded
    assert not loaded & HEAVY
