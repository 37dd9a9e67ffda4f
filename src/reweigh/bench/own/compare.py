"""`reweigh.compare`: one function for training code, programs, estimators, tables and images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from reweigh.bench.errors import UserError
from reweigh.bench.lab.budget import seconds
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.own import ask, data, estimator, script, source
from reweigh.bench.own.ask import TrainingRequest
from reweigh.bench.own.result import Comparison


def compare(
    subject: Callable[[Any], Any] | Any,
    X: Any = None,
    y: Any = None,
    *,
    methods: Sequence[str] = (),
    target: str = "",
    metric: str = "",
    select: str = "",
    seeds: int = 10,
    tune: int = 3,
    budget: str | float = math.inf,
    out: str | Path | None = None,
    jobs: int = 1,
    smallest: bool | None = None,
    lr: float = 1.0,
    device: str | None = None,
    executor: Literal["local", "ray", "slurm"] = "local",
    slurm: str = "",
    quiet: bool = False,
    **options: Any,
) -> Comparison:
    """Does re-weighting help in your training? Every method tuned alike and compared on paired seeds, with a verdict.

    Plain training, RGD's two scale controls and the correction for several comparisons are added for you.

    Parameters
    ----------
    subject
        A function `train(run)` that returns a dict of scores, or yields one per epoch; the text `"train.py:train"`; a
        command such as `"python train.py --seed {seed}"`, with `REWEIGH_METHOD` in its environment; or a scikit-learn
        estimator, followed by `X` and `y`.
    X, y
        The rows and the target of an estimator.
    methods
        What to compare with plain training; the first is the comparison that is declared beforehand. For a training
        `["rgd"]` if not given, for data what the command compares.
    target
        The column to predict, where `subject` is a file, a folder, the name of a table, or a frame; the rest is then
        as in `reweigh compare`, and `budget` is two minutes if not given.
    metric
        The test score to judge by, such as `"test/accuracy"`.
    select
        The validation score that chooses settings and epochs, such as `"val/accuracy"`.
    seeds
        Paired seeds of every method.
    tune
        Learning rates that every method, plain training included, is tuned over, crossed with as many settings of its
        hyper-parameters; from 3 on, each trial is done on three seeds. 1 takes all as written.
    budget
        When to stop, such as `"6h"`; what is finished by then counts.
    out
        The folder of runs and report. The same call on the same folder resumes.
    jobs
        Processes at once; 0 runs everything in this process, for breakpoints.
    smallest
        Whether less is better; inferred from the score's name if not given.
    lr
        The learning rate that `{lr}` of a command stands for.
    device
        The device of `run.device`.
    executor, slurm
        Who does the trainings: processes of this machine, a Ray cluster, or Slurm, with what to ask it for, such as
        `"partition=gpu,gpus_per_node=1"`. Clusters must share the folder.
    quiet
        Whether to print nothing.
    **options
        On data: `models`, `task`, `categorical`, `drop`, `group`, `time`, `test`, `image_size`.

    Returns
    -------
    Comparison
        `result.verdict`, `result.best`, `result.table()`, `result.open()`.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> import tempfile, reweigh
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     X, y = load_wine(return_X_y=True)
    ...     model = LogisticRegression(max_iter=2000)
    ...     result = reweigh.compare(model, X[:, :3], y, seeds=2, tune=1, out=folder, jobs=0, quiet=True)
    >>> [name for name in result.table()["method"]]
    ['mean', 'rgd', 'rgd, mean weight one']
    """
    if target or (not callable(subject) and not estimator.is_estimator(subject) and data.is_data(subject)):
        limit = {} if budget == math.inf else {"budget": seconds(budget)}
        return data.compare_data(
            subject, target=target, methods=methods, metric=metric, out=out, jobs=jobs, device=device, quiet=quiet,
            **limit, **options,
        )  # fmt: skip
    if options:
        raise TypeError(
            f"`reweigh.compare` of a training takes no {next(iter(options))!r}: that is an option for data."
        )
    overlap = 0.0
    if estimator.is_estimator(subject):
        if X is None or y is None:
            raise TypeError("an estimator is compared on data: reweigh.compare(estimator, X, y).")
        name = type(subject).__name__
        metric = metric or f"test/{estimator.default_metric(subject)}"
        select = select or metric.replace("test/", "val/", 1)
        tune = 1  # estimators have no learning rate in common; their settings are the user's
        overlap = estimator.TEST / (1 - estimator.TEST - estimator.VALIDATION)
        subject = estimator.training_of(subject, X, y)
    elif isinstance(subject, str):
        name = "training"
    else:
        name = getattr(getattr(subject, "func", subject), "__name__", "training")
    root = Path(out) if out is not None else Path("runs") / f"own-{name}"
    origin, fingerprint = _source(subject, root)
    if source.command_of(origin) is not None and tune > 1:
        _check_places(str(subject))
    request = TrainingRequest(
        source=origin,
        fingerprint=fingerprint,
        methods=tuple(methods) or ("rgd",),
        metric=metric,
        select=select,
        root=root,
        seeds=seeds,
        tune=tune,
        budget=math.inf if budget == math.inf else seconds(budget),
        jobs=jobs,
        smallest=smallest,
        base_lr=lr,
        device=device,
        executor=executor,
        slurm=slurm,
        overlap=overlap,
        title=name,
    )
    console = Console(quiet=quiet)
    with RunDisplay(console, metric) as display:
        return ask.compare(request, display)


def _source(subject: Any, root: Path) -> tuple[str, str]:
    if not isinstance(subject, str):
        return source.of_function(subject, root)
    if subject.partition(":")[0].endswith(".py") and " " not in subject.rpartition(":")[2]:
        return source.of_file(subject)
    return source.of_command(subject)


def _check_places(template: str) -> None:
    if "{lr}" not in template and "{lr_factor}" not in template and script.LR_FACTOR not in template:
        raise UserError(
            "the command has neither {lr} nor {lr_factor}, so tuning learning rates would do nothing. Add one, or "
            "compare with tune=1 (`--tune none`)."
        )
