"""`reweigh report`: the results of a folder of runs, as a page, tables or numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reweigh.bench.cli.console import SafeConsole, print_plainly
from reweigh.bench.cli.report_page import write_page
from reweigh.bench.errors import MissingFileError, UserError


def report(
    runs_dir: Annotated[Path, Positional, arg(metavar="RUNS_DIR")],
    /,
    out: Annotated[Path | None, arg(aliases=["-o"])] = None,
    recipe: str | None = None,
    preset: Literal["smoke", "cpu", "paper"] | None = None,
) -> int:
    """Make the report of the runs in a folder; nothing is trained.

    Args:
        runs_dir: The folder of runs.
        out: The page to write; report.html in the folder if not given. A name ending in .md, .tex or .csv writes
            the tables in that format instead, and one ending in .json all numbers of the page, for programs.
        recipe: Only what was asked of this recipe.
        preset: Only what was asked with this preset.
    """
    from reweigh.bench import report as reports
    from reweigh.bench.files import write_atomically
    from reweigh.bench.lab.results import collect

    if not runs_dir.is_dir():
        raise MissingFileError(f"there is no folder {runs_dir}. `reweigh run` makes one.")
    results = collect(runs_dir, recipe=recipe, preset=preset)
    if not results:
        raise UserError(_nothing_to_report(runs_dir, recipe, preset))
    if not any(result.columns for result in results):
        raise UserError(
            f"no run in {runs_dir} has finished yet, so there is nothing to report. Run the same "
            "command again to resume."
        )
    formats: dict[str, Literal["markdown", "latex", "csv"]] = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
    console = SafeConsole()
    reports.terminal(results, console)
    if out is None:
        write_page(console, runs_dir / "report.html", lambda page: reports.write(results, page))
        return 0
    if out.suffix in formats:
        write_atomically(out, reports.tables(results, formats[out.suffix]))
    elif out.suffix == ".json":
        reports.write_summary(results, out)
    else:
        reports.write(results, out)
    print_plainly(console, f"Report: {out}")
    return 0


def _nothing_to_report(runs_dir: Path, recipe: str | None, preset: str | None) -> str:
    """Why a folder has no results."""
    if recipe is not None or preset is not None:
        chosen = ", ".join(f"--{name} {value}" for name, value in (("recipe", recipe), ("preset", preset)) if value)
        return f"{runs_dir} has no runs of {chosen}. Leave that out to report all there is."
    if any(runs_dir.glob("*/*/spec.json")):
        return (
            f"the runs in {runs_dir} were made before a folder stored the question it answers. Run the same command "
            "again: finished runs are not repeated."
        )
    return f"there are no runs in {runs_dir}."
