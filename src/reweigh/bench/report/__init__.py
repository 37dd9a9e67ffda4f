"""The report: what finished runs say, as one page, as text tables and in the terminal.

A pure function of `reweigh.bench.results.collect`; nothing is trained. The page is self-contained: no network, no
fonts or scripts from elsewhere, readable without JavaScript.
"""

from reweigh.bench.report.page import write
from reweigh.bench.report.tabulate import tables
from reweigh.bench.report.terminal import terminal
from reweigh.bench.results import Figure

__all__ = ["Figure", "tables", "terminal", "write"]
