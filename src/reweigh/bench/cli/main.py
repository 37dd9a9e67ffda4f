"""The command line: `reweigh compare`, `judge`, `predict`, `run`, `report`, `score`, `list` and `data`.

Exit codes: 0 all is well, 1 some runs failed, 2 the call or its input is wrong, 70 a bug; 130 interrupted, 143
terminated and 129 hung up, all three with what was finished on disk.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from tyro.conf import Positional, UseAppendAction, arg
from tyro.extras import SubcommandApp

from reweigh.bench.cli import devices, stops
from reweigh.bench.cli.console import SafeConsole
from reweigh.bench.cli.wrong_calls import check_folder, check_methods, message_for_user, write_details
from reweigh.bench.errors import MissingFileError, UserError
from reweigh.bench.lab.budget import seconds
from reweigh.bench.train.precision import Precision

app = SubcommandApp()
#: The exit code of a bug, as in sysexits.h.
BUG = 70
#: How long a comparison of data searches; your own training runs to its end unless it is given a time.
_DEFAULT_BUDGET = "2m"

Repeated = Annotated[tuple[str, ...], UseAppendAction]


def run_command(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    with stops.as_interruptions() as received:
        code = _run(arguments)
    return 128 + received[0] if received and code == stops.INTERRUPTED else code


def _run(arguments: Sequence[str]) -> int:
    try:
        if (nproc := _asked_to_launch(arguments)) is not None:
            from reweigh.bench.lab.executors.torchrun import launch

            return launch(arguments, nproc)
        return app.cli(args=list(arguments), prog="reweigh", description=_DESCRIPTION) or 0
    except KeyboardInterrupt:
        SafeConsole(stderr=True).print("Interrupted. The same command resumes from here.")
        return stops.INTERRUPTED
    except BrokenPipeError:  # nobody is left to read a message
        raise
    except Exception as error:
        message = message_for_user(error)
        if message is not None:
            _plainly(SafeConsole(stderr=True), f"reweigh: {message}")
            return 2
        summary = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
        details = write_details(error, arguments)
        _plainly(SafeConsole(stderr=True), f"reweigh: this is a bug ({summary}). Details were written to {details}.")
        return BUG


_DESCRIPTION = "Train models that do not ignore their hard examples."


@app.command(name="run")
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
        trials=_trials(tune),
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
        _write_page(console, runs_dir / f"{recipe}.html", lambda page: report.write(results, page))
    if failures:
        console.print(f"{len(failures)} runs failed; the same command tries them again.", style="red")
        return 1
    return 0


@app.command(name="compare")
def compare_command(
    source: Annotated[str | None, Positional, arg(metavar="SOURCE")] = None,
    /,
    target: str = "",
    budget: str = _DEFAULT_BUDGET,
    model: Repeated = (),
    method: Repeated = (),
    metric: str = "",
    cost: str = "",
    positive: str = "",
    task: Literal["", "binary", "multiclass", "regression"] = "",
    categorical: Repeated = (),
    drop: Repeated = (),
    group: str = "",
    time: str = "",
    test: str = "",
    image_size: int = 32,
    script: str = "",
    select: str = "",
    seeds: int = 10,
    tune: str = "3",
    lr: float = 1.0,
    jobs: int | None = None,
    device: str = "cpu",
    precision: Precision = "float32",
    runs_dir: Path = Path("runs"),
) -> int:
    """Does re-weighting help on your data? A verdict with evidence, a report, the hardest rows, and a model.

    Every method is run as written first, then tuned on validation data over the same learning rates, then
    compared on more and more splits until the time is over. The same command resumes where it stopped.

    For example:
        reweigh compare people.csv --target income
        reweigh compare people.csv --target income --group sex --budget 10m
        reweigh compare sales.parquet --target amount --time day --model lightgbm
        reweigh compare photos/                    # a folder of class folders of images, or of texts
        reweigh compare adult                      # a named table, fetched once
        reweigh compare train.py:train --metric test/accuracy --select val/accuracy --budget 6h
        reweigh compare --script "python train.py --seed {seed} --lr {lr}" --lr 3e-4 --metric test/f1 --select val/f1
        reweigh compare                            # embedded data: scikit-learn's digits, thinned to a long tail

    Args:
        source: A CSV, TSV, JSON, Parquet or Arrow file, a folder of class folders of images or texts, the name of a
            table (`reweigh list data`), or your own training as file.py:function.
        target: The column to predict.
        budget: How long to search, such as 90s, 10m or 1h; a bare number is seconds.
        model: mlp, logistic, lightgbm or xgboost for tables; pretrained (the features of a frozen network, if its
            weights are there), cnn, mlp or logistic for images. Repeat for more.
        method: A method to compare with plain training, like rgd:tau=3 or focal+rgd; repeat for more. The first one is
            the comparison that counts. `reweigh list methods` shows them.
        metric: What to judge by: balanced_accuracy (for classes), accuracy, auroc, average_precision, f1, matthews,
            recall_at_precision (of 90 %), cost, loss, worst_class, worst_group, calibration_error, worst_tenth_loss;
            rmse (for numbers), mae, r2.
        cost: What a false alarm and a miss of the positive class cost, such as "fp=1,fn=20"; it is then judged by.
        positive: Of two classes, the one that precision, recall, F1 and cost are about; the rarer one if not given.
        task: The kind of target, if it was inferred wrongly.
        categorical: A column of numbers that are names; repeat for more.
        drop: A column to leave out; repeat for more.
        group: A column of groups: every group is scored, and small groups are kept on one side of a split.
        time: A column of moments: the latest rows are tested on.
        test: A file of rows to test on, instead of splits.
        image_size: Height and width that images are scaled to.
        script: Your own training as a command. {seed}, {lr}, {lr_factor}, {method} and {directory} are filled in, and
            REWEIGH_METHOD is set; it prints its scores as JSON Lines.
        select: For your own training: the validation score that chooses settings and epochs.
        seeds: For your own training: paired seeds of every method.
        tune: For your own training: learning rates to tune every method over, crossed with as many settings of its
            hyper-parameters, or none.
        lr: For a script: the learning rate that {lr} stands for.
        jobs: Processes at once; if not given, one per core, or one per accelerator where these train.
        device: Where to train: auto takes an accelerator where there is one and prints which; cpu; cuda, cuda:1, mps
            and the like. Boosters always take the cpu, which is also faster for small networks.
        precision: float32, or bfloat16 or float16 for forward passes of networks in mixed precision.
        runs_dir: Where runs, reports and models are kept.
    """
    check_methods(method)
    check_folder(runs_dir)
    console = SafeConsole()
    place = devices.chosen(device, precision, console)
    if script or (source or "").partition(":")[0].endswith(".py"):
        from reweigh.bench.cli import own

        if script and source:
            raise UserError(f"give either a source or `--script`, got both: {source!r} and {script!r}.")
        return own.compare_training(
            script or source or "",
            console,
            methods=method,
            budget="" if budget == _DEFAULT_BUDGET else budget,
            metric=metric,
            select=select,
            seeds=seeds,
            tune=_trials(tune),
            lr=lr,
            jobs=devices.processes(jobs, place),
            device=place,
            out=runs_dir / f"own-{Path((source or 'script').partition(':')[0]).stem}",
        )
    from reweigh.bench.cli import compare
    from reweigh.bench.compare.request import Request, data_question

    question = data_question(
        source,
        target=target,
        task=task,
        categorical=categorical,
        drop=drop,
        group=group,
        time=time,
        test=test,
        image_size=image_size,
        cost=cost,
        positive=positive,
    )
    request = Request(
        question=question,
        models=model,
        methods=method,
        metric=metric,
        budget=seconds(budget),
        jobs=devices.processes(jobs, place),
        runs_dir=runs_dir,
        device=place,
        precision=precision,
    )
    return compare.compare(request, console)


@app.command(name="judge")
def judge_command(
    scores: Annotated[Path, Positional, arg(metavar="SCORES")],
    /,
    metric: str,
    baseline: str = "mean",
    method: str = "method",
    seed: str = "seed",
    data: str = "",
    smallest: bool | None = None,
) -> int:
    """The verdict over trainings that exist already: paired intervals, correction, several data sets, a page.

    For example:
        reweigh judge scores.csv --metric accuracy --baseline plain
        reweigh judge wandb_export.csv --metric test/accuracy --method config.method --seed config.seed

    Args:
        scores: A CSV, TSV or Parquet file with one training per row (method, seed and scores), or long with the columns
            metric and value. Exports of Weights & Biases and MLflow work as they are.
        metric: The score to judge by.
        baseline: The method that all others are compared with.
        method: The column with the method.
        seed: The column with the seed; trainings of equal seeds are compared pairwise.
        data: The column with the data set, if there are several.
        smallest: Whether less is better; inferred from the score's name if not given.
    """
    from reweigh.bench.cli import own

    return own.judge_scores(
        scores, SafeConsole(), metric=metric, baseline=baseline, method=method, seed=seed, data=data, smallest=smallest
    )


@app.command(name="predict")
def predict_command(
    model: Annotated[Path, Positional, arg(metavar="MODEL")],
    rows: Annotated[Path, Positional, arg(metavar="ROWS")],
    /,
    out: Annotated[Path, arg(aliases=["-o"])],
    device: str = "cpu",
    precision: Precision = "float32",
) -> int:
    """Predict with a model that `reweigh compare` kept: the rows, with predictions and probabilities added.

    Args:
        model: The model's folder; `reweigh compare` prints it.
        rows: A file with the columns of training, or a folder of images.
        out: Where to write: a name ending in .csv, .tsv or .parquet, or - for CSV on the standard output.
        device: Where to compute, whatever the model was trained on: auto takes an accelerator where there is one and
            prints which; cpu; cuda, cuda:1, mps and the like. Boosters always take the cpu.
        precision: float32, or bfloat16 or float16 for a network in mixed precision.
    """
    from reweigh.bench.cli import compare

    console = SafeConsole(stderr=str(out) == "-")  # the standard output has the predictions and nothing else
    place = devices.chosen(device, precision, console)
    return compare.predict(model, rows, out, console, device=place, precision=precision)


@app.command(name="report")
def report_command(
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
    from reweigh.bench import report
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
    report.terminal(results, console)
    if out is None:
        _write_page(console, runs_dir / "report.html", lambda page: report.write(results, page))
        return 0
    if out.suffix in formats:
        write_atomically(out, report.tables(results, formats[out.suffix]))
    elif out.suffix == ".json":
        report.write_summary(results, out)
    else:
        report.write(results, out)
    _plainly(console, f"Report: {out}")
    return 0


@app.command(name="score")
def score_command(
    source: Annotated[Path, Positional, arg(metavar="DATA.JSONL")],
    /,
    model: Path,
    out: Annotated[Path | None, arg(aliases=("-o",))] = None,
    per: Literal["token", "row"] = "token",
    column: str = "reference",
    length: int = 0,
    batch_size: int = 8,
    device: str = "auto",
    precision: Precision = "float32",
) -> int:
    """Write the losses of a causal language model beside the rows of a JSONL file: what `rho` weighs by.

    Rows have `text`, `prompt` and `completion`, `messages`, of which the last one is learnt, or `input_ids`. One loss
    per token comes with the tokens it belongs to, as `input_ids` and `labels`, and a trainer takes these as they are.

    For example:
        reweigh score --model base-model/ train.jsonl
        reweigh score --model base-model/ train.jsonl --per row -o scored.jsonl

    Args:
        source: The rows, one JSON object per line.
        model: A Hugging Face folder with a causal language model and its tokenizer: the reference.
        out: Where to write the rows; DATA.scored.jsonl if not given.
        per: One loss per token, or their mean for each row.
        column: What the losses are called.
        length: Tokens that a row is cut to; as many as the model has positions for if not given.
        batch_size: Rows at once.
        device: Where to run the model: auto takes an accelerator where there is one; cpu; cuda, cuda:1, mps.
        precision: float32, or bfloat16 or float16 for the model's weights.
    """
    from rich.progress import Progress

    from reweigh.bench.train import scoring

    console = SafeConsole()
    place = devices.chosen(device, precision, console)
    page = source.with_suffix(".scored.jsonl") if out is None else out
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("scoring", total=None)
        summary = scoring.score_file(
            source,
            page,
            model,
            per=per,
            column=column,
            length=length,
            batch_size=batch_size,
            device=place,
            precision=precision,
            tell=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    _plainly(console, f"{page}: {summary}")
    return 0


@app.command(name="list")
def list_command(what: Positional[Literal["recipes", "methods", "data", "models"]], /) -> int:
    """List what there is: recipes, methods, data sets or models.

    Args:
        what: Which list.
    """
    from reweigh.bench.cli import listing

    console = SafeConsole()
    if what == "methods":
        listing.show(listing.methods(console.width if console.is_terminal else None), console)
    else:
        listing.show({"recipes": listing.recipes, "data": listing.data, "models": listing.models}[what](), console)
    return 0


@app.command(name="data")
def data_command(action: Positional[Literal["get"]], name: Annotated[str, Positional, arg(metavar="NAME")], /) -> int:
    """Get a data set: `reweigh data get NAME` fetches it once into the cache.

    Args:
        action: What to do; there is only get.
        name: Which data set; `reweigh list data` shows them.
    """
    from rich.markup import escape
    from rich.progress import Progress

    from reweigh.bench import catalogue

    console = SafeConsole()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"getting {escape(name)}", total=None)
        ready = catalogue.get(name, lambda done, total: progress.update(bar, completed=done, total=total))
    _plainly(console, ready)
    return 0


def _write_page(console: Console, page: Path, write: Callable[[Path], object]) -> None:
    """Write the page next to the runs; where nothing can be written, the terminal has shown what there is to know."""
    try:
        write(page)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        _plainly(
            console,
            f"{page.parent} cannot be written to, so there is no page. `reweigh report {page.parent} -o PAGE.html` "
            "writes one elsewhere.",
        )
    else:
        _plainly(console, f"Report: {page}")


def _plainly(console: Console, text: str) -> None:
    """Print a text as it is: brackets in a path are no markup, and a path that is cut in two cannot be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


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


def _trials(text: str | None) -> int | None:
    if text is None or text == "optuna":
        return None
    text = text.removeprefix("optuna:")
    named = {"none": 1, "grid": 5}
    if text in named:
        return named[text]
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"`--tune` must be a number, none or grid, optuna or optuna:number, got {text!r}.")
    return int(text)


def _tuner(tune: str | None, storage: str | None) -> Literal["latin", "optuna"]:
    by_optuna = tune is not None and tune.partition(":")[0] == "optuna"
    if storage is not None and not by_optuna:
        raise UserError(f"`--storage` is where Optuna keeps its studies; add `--tune optuna`, got {tune!r}.")
    return "optuna" if by_optuna else "latin"


def _asked_to_launch(arguments: Sequence[str]) -> int | None:
    """How many processes `--launcher torchrun` is to start; None where the command runs in this one."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    after = {word: words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--launcher", "--nproc")}
    if after.get("--launcher") != "torchrun" or "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    nproc = after.get("--nproc", str(os.cpu_count() or 1))
    if not nproc.isdigit() or int(nproc) < 1:
        raise UserError(f"`--nproc` must be a positive number, got {nproc!r}.")
    return int(nproc)


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
