"""The report: the results of finished runs as one page, as text tables and in the terminal.

A pure function of `reweigh.bench.lab.results.collect`; nothing is trained. The page is self-contained: no network, no
fonts or scripts from elsewhere, readable without JavaScript.
"""

from reweigh.bench.lab.results import Figure
from reweigh.bench.report.page import write
from reweigh.bench.report.summary import read_summary, write_summary
from reweigh.bench.report.tabulate import tables
from reweigh.bench.report.terminal import terminal

__all__ = ["Figure", "read_summary", "tables", "terminal", "write", "write_summary"]
