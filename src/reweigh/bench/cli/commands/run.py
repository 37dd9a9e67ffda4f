"""`reweigh run`: an experiment, and its report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reweigh.bench.cli import devices
from reweigh.bench.cli.console import SafeConsole
from reweigh.bench.cli.options import Repeated, trials
from reweigh.bench.cli.report_page import write_page
from reweigh.bench.cli.wrong_calls import check_folder, check_methods
from reweigh.bench.errors import UserError
from reweigh.bench.train.precision import Precision


def run(
    recipe: Annotated[str, Positional, arg(metavar="RECIPE")],
    /,
    method: Repeated = (),
    preset: Literal["smoke", "cpu", "paper"] = "cpu",
    only: Repeated = (),
    seeds: int | None = None,
    set: Repeated = (),
    jobs: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    compile: bool = False,
    tune: str | None = None,
    data_root: Path | None = None,
    runs_dir: Path = Path("runs"),
    dry_run: bool = False,
    storage: str | None = None,
    executor: Literal["local", "ray", "slurm"] = "local",
    address: str | None = None,
    slurm: str = "",
    launcher: Literal["none", "torchrun"] = "none",
    nproc: int | None = None,
) -> int:
    """Run an experiment: tune every method alike, compare on paired seeds, write the report.

    What is finished is not done again: after an interruption the same command resumes where it stopped.

    For example:
        reweigh run longtail --preset smoke
        reweigh run longtail --method rgd --method term:t=0.5 --seeds 10
        reweigh run longtail --only fashion --only quickdraw
        reweigh run noise --set data=fashion_mnist --set model=cnn --jobs 2
        reweigh run noise --tune optuna:20 --executor ray --address auto

    Args:
        recipe: Which experiment; `reweigh list recipes` shows them.
        method: A method to compare, like rgd:tau=3 or focal+rgd+sam; repeat for more. The recipe's own if none.
        preset: smoke takes seconds, cpu an hour or two on two cores, paper the paper's own settings.
        only: Columns of the recipe's table whose names contain this; repeat for more. All if none.
        seeds: Paired seeds of the comparison.
        set: A setting of the recipe, as key=value; repeat for more.
        jobs: Processes at once; if not given, one per core, or one per accelerator where these train. Processes take
            turns with several accelerators.
        device: Where to train: auto takes an accelerator where there is one and prints which; cpu; cuda, cuda:1, mps
            and the like. The paper preset takes auto if not given, the others cpu.
        precision: float32, or bfloat16 or float16 for forward passes in mixed precision; the recipe's own if not given.
            It is a setting of the run.
        compile: Compile the model with torch.compile. It pays for long trainings of larger models on an accelerator; it
            does not for trainings of a minute, which is what compiling takes. It is a setting of the run.
        tune: Learning rates to tune every method over, crossed with as many settings of its hyper-parameters: a
            number, none, or grid for 5; optuna, or optuna:20 for 20 trials, lets Optuna propose trials and stop
            hopeless ones.
        data_root: Folder with official data files; REWEIGH_DATA does the same.
        runs_dir: Where runs are kept.
        dry_run: Show what would be run, and stop.
        storage: Database URL for Optuna's studies; a journal in the folder of runs if not given.
        executor: local for processes of this machine; ray for a Ray cluster, slurm for a Slurm cluster, which must
            share the folder of runs.
        address: The Ray cluster's address; one is started on this machine if not given.
        slurm: What to ask Slurm for, such as partition=gpu,gpus_per_node=1,timeout_min=240.
        launcher: torchrun starts this command on several processes that do every run together, which a recipe must be
            made for (imagenet is). For several machines, call torchrun itself: torchrun ... -m reweigh run ...
        nproc: Processes that the launcher starts; one per core if not given.
    """
    from reweigh.bench import report
    from reweigh.bench.cli import listing
    from reweigh.bench.lab import experiment, plan
    from reweigh.bench.lab.display import RunDisplay
    from reweigh.bench.lab.results import collect
    from reweigh.bench.lab.tuning import optuna as tuning_optuna

    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if launched:
        from reweigh.bench.lab.executors import torchrun as launch

        if int(os.environ["RANK"]) > 0:
            return launch.follow(data_root, device=device or "auto")
    console = SafeConsole()
    check_methods(method)
    check_folder(runs_dir)
    changes = (*(_pair(text) for text in set), *devices.settings(recipe, precision, compile))
    place = device or ("auto" if launched or preset == "paper" else "cpu")
    if executor == "local" and not launched and not dry_run:  # a cluster has devices of its own
        place = devices.chosen(place, precision, console)
    options = experiment.Options(
        preset=preset,
        methods=method,
        only=only,
        seeds=seeds,
        trials=trials(tune),
        tuner=_tuner(tune, storage),
        storage=storage,
        executor=executor,
        address=_address(executor, address),
        slurm=_slurm(executor, slurm),
        launched=launched,
        changes=changes,
        device=place,
        jobs=devices.processes(jobs, place if executor == "local" else "cpu"),
        runs_dir=runs_dir,
        data_root=data_root,
    )
    question = experiment.question(recipe, options)
    if dry_run:
        tuning = [] if options.tuner == "optuna" else plan.tuning(question)
        if options.tuner == "optuna":
            asks = sum(row.trials for row in tuning_optuna.rows(question))
            console.print(f"tune: {asks} trials, which Optuna proposes one after the other")
        final = plan.comparison(question, plan.as_written(question))
        shown, words = listing.runs(tuning, final, len(plan.scale_controls(question, final)))
        listing.show(shown, console)
        console.print(words)
        return 0
    with RunDisplay(console, question.table.metric) as display:
        failures = experiment.run(question, options, display)
    results = collect(runs_dir, recipe=recipe)
    if any(one.columns for one in results):  # a page that shows nothing must not replace one that does
        report.terminal(results, console)
        write_page(console, runs_dir / f"{recipe}.html", lambda page: report.write(results, page))
    if failures:
        console.print(f"{len(failures)} runs failed; the same command tries them again.", style="red")
        return 1
    return 0


def processes_to_launch(arguments: Sequence[str]) -> int | None:
    """How many processes `--launcher torchrun` is to start; None where the command runs in this one."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    after = {word: words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--launcher", "--nproc")}
    if after.get("--launcher") != "torchrun" or "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    nproc = after.get("--nproc", str(os.cpu_count() or 1))
    if not nproc.isdigit() or int(nproc) < 1:
        raise UserError(f"`--nproc` must be a positive number, got {nproc!r}.")
    return int(nproc)


def _tuner(tune: str | None, storage: str | None) -> Literal["latin", "optuna"]:
    by_optuna = tune is not None and tune.partition(":")[0] == "optuna"
    if storage is not None and not by_optuna:
        raise UserError(f"`--storage` is where Optuna keeps its studies; add `--tune optuna`, got {tune!r}.")
    return "optuna" if by_optuna else "latin"


def _address(executor: str, address: str | None) -> str | None:
    if address is not None and executor != "ray":
        raise UserError(f"`--address` is that of a Ray cluster; add `--executor ray`, got {executor!r}.")
    return address


def _slurm(executor: str, options: str) -> str:
    if options and executor != "slurm":
        raise UserError(f"`--slurm` is for a Slurm cluster; add `--executor slurm`, got {executor!r}.")
    return options


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"`--set` takes key=value, got {text!r}.")
    return key.strip(), value.strip()
