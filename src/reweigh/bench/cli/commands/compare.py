"""`reweigh compare`: does re-weighting help on the user's data, or in their own training?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reweigh.bench.cli import devices
from reweigh.bench.cli.console import SafeConsole
from reweigh.bench.cli.options import Repeated, trials
from reweigh.bench.cli.wrong_calls import check_folder, check_methods
from reweigh.bench.errors import UserError
from reweigh.bench.lab.budget import seconds
from reweigh.bench.train.precision import Precision

#: How long a comparison of data searches; your own training runs to its end unless it is given a time.
_DEFAULT_BUDGET = "2m"


def compare(
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
    """What should be used on your data? A verdict with evidence, a report, the hardest rows, and a model.

    Every method of every model is run as written first and, if the budget allows it, tuned on validation data over the
    same learning rates, then compared with the best plain training on more and more splits until it is decided or the
    time is over. The same command resumes where it stopped. The verdict is decided, leading (ahead, not beyond doubt)
    or undecided, with what would decide it.

    For example:
        reweigh compare people.csv --target income
        reweigh compare people.csv --target income --group sex --budget 10m
        reweigh compare loans.csv --target default --cost "fp=1,fn=20"
        reweigh compare reviews.jsonl --target stars
        reweigh compare sales.parquet --target amount --time day --model lightgbm
        reweigh compare photos/                    # a folder of class folders of images, or of texts
        reweigh compare adult                      # a named table, fetched once
        reweigh compare train.py:train --metric test/accuracy --select val/accuracy --budget 6h
        reweigh compare --script "python train.py --seed {seed} --lr {lr}" --lr 3e-4 --metric test/f1 --select val/f1
        reweigh compare                            # embedded data: scikit-learn's digits, thinned to a long tail

    Args:
        source: A CSV, TSV, JSON, JSON Lines, Parquet or Arrow file, a folder of class folders of images or texts, the
            name of a table (`reweigh list data`), or your own training as file.py:function.
        target: The column to predict.
        budget: How long to search, such as 90s, 10m or 1h; a bare number is seconds.
        model: For tables and texts mlp, logistic, and lightgbm, xgboost or gradient_boosting (scikit-learn's trees);
            for images pretrained (a linear layer on the features of a frozen network, the default if its weights are
            there: `reweigh data get efficientnet_lite0`), finetuned (its last convolution is trained too, slower),
            cnn, mlp or logistic. Repeat for more; if not given, logistic, one booster and mlp for tables.
        method: A method to compare with plain training, like rgd:tau=3 or focal+rgd; repeat for more. The first one is
            the comparison that counts, and not corrected for the number of the others. If not given, rgd, class
            weights, logit adjustment, corrections of outputs and others. `reweigh list methods` shows all there are.
        metric: What to judge by: balanced_accuracy (the default for classes), accuracy, auroc, average_precision, f1,
            matthews, recall_at_precision (of 90 %), cost, loss, worst_class, worst_group, calibration_error,
            worst_tenth_loss; rmse (the default for numbers), mae, r2.
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
            tune=trials(tune),
            lr=lr,
            jobs=devices.processes(jobs, place),
            device=place,
            out=runs_dir / f"own-{Path((source or 'script').partition(':')[0]).stem}",
        )
    from reweigh.bench.cli import comparing
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
    return comparing.compare(request, console)
