"""Gradient boosting as a model of the comparison: LightGBM, XGBoost or scikit-learn's trees, with re-weighting."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.tables.schema import TaskKind
from reweigh.bench.train.correction import corrected
from reweigh.bench.train.driver import Checkpoints, NoCheckpoints, Program, StepOutput
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.programs import newton_trees
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.task import Task
from reweigh.integrations import boosting
from reweigh.integrations.boosting import row_objective, variance_of
from reweigh.method import Method

LIBRARIES = ("lightgbm", "xgboost", "gradient_boosting")
#: What must be installed for each.
_PACKAGES = {"gradient_boosting": "sklearn"}
#: The learning rate that tuning starts from, and how many rounds are trained.
RATE, ROUNDS = 0.1, 100
#: How often a model is looked at while it grows.
LOOKS = 10
_LEAVES, _DEPTH = 31, 6


def installed(library: str) -> bool:
    """Whether the library is there."""
    return find_spec(_PACKAGES.get(library, library)) is not None


def takes(row: Method, kind: TaskKind) -> bool:
    """Whether boosting can have the method: its objective and loss of a row depend on that row alone.

    Corrections of outputs are another matter, but for those that look at a last layer, which trees do not have.
    """
    if row.post is not None and row.post.needs_classifier:
        return False
    try:
        row_objective(kind, dataclasses.replace(row, post=None), None)
    except ValueError:
        return False
    return True


def kind_of(task: Task) -> TaskKind:
    """The kind of problem in the words of the boosting libraries."""
    return "regression" if not task.classes else "binary" if len(task.classes) == 2 else "multiclass"


class Boosting(Program):
    """Boosting as a training: a step is the rounds up to the next look; one that is interrupted starts again.

    Parameters
    ----------
    library
        One of `LIBRARIES`.
    task, method, training, seed
        The problem, the method (loss, objective and correction after training), and learning rate and rounds
        (`epochs`).
    """

    every = 1
    #: The libraries train on the processor.
    device = torch.device("cpu")

    def __init__(self, library: str, task: Task, method: Method, training: OptimizerPlan, seed: int) -> None:
        self.task, self.training, self.post = task, training, method.build(task.context(1)).post
        self.looks = looks(training.epochs)
        self.steps, self.units = len(self.looks), len(task.x_train)
        self.objectives = (LiveObjective(method.objective),)
        self.module = nn.Identity()
        self.booster = Booster(library, task, method, training, seed)

    def step(self, step: int) -> StepOutput:
        """Grow to the next look."""
        booster = self.booster
        booster.advance(self.looks[step] - booster.rounds)
        losses = booster.losses()
        weights = np.asarray(booster.rows.weigh(losses), np.float64)
        return StepOutput(torch.from_numpy(losses), torch.from_numpy(weights), torch.arange(self.units))

    def evaluate(self, *, last: bool) -> Record:
        """Rounds so far, and scores on validation and test rows."""
        rounds = self.booster.rounds
        record: Record = {"epoch": rounds, "step": rounds, "progress": rounds / self.training.epochs}
        if self.training.final_only and not last:
            return record
        outputs = {part: self.booster.margins(part) for part in ("val", "test")}
        outputs = corrected(self.task, self.post, outputs)
        for part, own in outputs.items():
            record |= {f"{part}/{name}": value for name, value in self.task.score(part, own).items()}
        if self.training.final_only:
            record["arrays"] = {f"{part}_outputs": own.float().numpy() for part, own in outputs.items()}
        return record

    def facts(self) -> Record:
        """Classes and how many examples each has."""
        return self.task.facts()

    def checkpoints(self, writer: Writer) -> Checkpoints:
        """None: boosting again is a matter of seconds."""
        return NoCheckpoints(writer)

    def state(self) -> dict[str, Any]:
        """Nothing: trees stay with their library."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
        return


def looks(rounds: int) -> list[int]:
    """After how many rounds a model is looked at: evenly, the last included."""
    count = min(LOOKS, rounds)
    return sorted({round(rounds * (i + 1) / count) for i in range(count)})


class Booster:
    """A booster that grows a few rounds at a time, with its margins on every part."""

    def __init__(self, library: str, task: Task, method: Method, training: OptimizerPlan, seed: int) -> None:
        self.kind = kind_of(task)
        self.library = library
        self.task = task
        self.rounds = 0
        self.y = task.y_train.numpy().reshape(-1).astype(np.float64)
        variance = float(variance_of(self.y, None)) if self.kind == "regression" else None
        row = dataclasses.replace(method, post=None)
        # A class so rare that a split has none of its rows to train on keeps its output.
        counts = (
            "auto"
            if self.kind == "regression"
            else np.bincount(task.y_train.numpy(), minlength=len(task.classes)).tolist()
        )
        if library == "gradient_boosting":
            self.rows = objective = row_objective(self.kind, row, None, variance, counts)
        else:
            named = boosting.lightgbm if library == "lightgbm" else boosting.xgboost
            objective = named(self.kind, objective=row, variance=variance, class_counts=counts)
            self.rows = objective.rows
        self.x = {part: getattr(task, f"x_{part}").numpy() for part in ("train", "val", "test")}
        options = {"learning_rate": training.lr, "seed": Seeds(seed).integer("init") % 2**31}
        grow = {"lightgbm": _LightGBM, "xgboost": _XGBoost, "gradient_boosting": _NewtonTrees}[library]
        self._grown: Any = grow(self.x, self.y, self.kind, objective, options, len(task.classes))

    def advance(self, rounds: int) -> None:
        """Grow so many rounds."""
        self._grown.advance(rounds)
        self.rounds += rounds

    def losses(self) -> np.ndarray[Any, Any]:
        """The plain loss of every training row."""
        loss = self.rows.loss_of(self.y, len(self.task.classes))
        return np.asarray(self.rows.rows(self._grown.margins("train"), self.y, loss).losses, np.float64)

    def margins(self, part: str) -> Tensor:
        """Outputs as a network would give them: logits of every class, or standardised numbers."""
        margins = self._grown.margins(part)
        if self.kind == "binary":
            margins = np.stack([np.zeros_like(margins), margins], axis=1)
        return torch.from_numpy(np.ascontiguousarray(margins, dtype=np.float32))

    def save(self, path: Path, rounds: int) -> None:
        """Write the model after so many rounds in the library's own format, standing alone."""
        self._grown.save(path, rounds)


class _LightGBM:
    def __init__(self, x: Any, y: Any, kind: TaskKind, objective: Any, options: Any, classes: int) -> None:
        import lightgbm as host

        self.kind: TaskKind = kind
        self.x = x
        params: dict[str, Any] = {
            **options,
            "objective": "none",  # ours is given to every round
            "num_leaves": _LEAVES,
            "min_data_in_leaf": 20 if len(y) >= 400 else 5,
            "num_threads": 1,
            "deterministic": True,
            "verbose": -1,
        }
        if kind == "multiclass":
            params["num_class"] = classes
        self.objective = objective
        self.init = boosting.init_score(y, kind, objective=self.objective)
        self.booster = host.Booster(params, host.Dataset(x["train"], y, init_score=self.init, params=params))
        #: What is known of each part: margins so far, and after how many rounds.
        self.known = {
            part: (np.tile(self.init[0], (len(v), *(1,) * np.ndim(self.init[0]))), 0) for part, v in x.items()
        }

    def advance(self, rounds: int) -> None:
        for _ in range(rounds):
            self.booster.update(fobj=self.objective)

    def margins(self, part: str) -> Any:
        """Only the rounds since the last look are computed: rows are many, and looks are too."""
        margins, rounds = self.known[part]
        now = self.booster.current_iteration()
        if now > rounds:
            new: Any = self.booster.predict(
                self.x[part], raw_score=True, start_iteration=rounds, num_iteration=now - rounds, num_threads=1
            )
            margins = margins + np.asarray(new, np.float64)
            self.known[part] = margins, now
        return margins

    def save(self, path: Path, rounds: int) -> None:
        import lightgbm as host

        kept = host.Booster(model_str=self.booster.model_to_string(num_iteration=rounds))
        boosting.standalone(kept, self.init, self.kind).save_model(str(path))


class _XGBoost:
    def __init__(self, x: Any, y: Any, kind: TaskKind, objective: Any, options: Any, classes: int) -> None:
        import xgboost as host

        self.objective = objective
        start = boosting.xgboost_params(y, kind, objective=self.objective)
        params = {**options, **start, "max_depth": _DEPTH, "nthread": 1, "verbosity": 0}
        self.data = {part: host.DMatrix(values, y if part == "train" else None) for part, values in x.items()}
        # Margins of the matrices named here are kept and brought up to date from round to round.
        self.booster = host.Booster(params, list(self.data.values()))
        self.rounds = 0

    def advance(self, rounds: int) -> None:
        for _ in range(rounds):
            self.booster.update(self.data["train"], self.rounds, fobj=self.objective)
            self.rounds += 1

    def margins(self, part: str) -> Any:
        return np.asarray(self.booster.predict(self.data[part], output_margin=True), np.float64)

    def save(self, path: Path, rounds: int) -> None:
        self.booster[:rounds].save_model(str(path))


class _NewtonTrees:
    def __init__(self, x: Any, y: Any, kind: TaskKind, objective: Any, options: Any, classes: int) -> None:
        self.x, self.y, self.kind, self.objective = x, y, kind, objective
        self.rate, self.least = options["learning_rate"], 20 if len(y) >= 400 else 5
        self.rng = np.random.default_rng(options["seed"])
        # LightGBM's curvature of several classes, so that a rate means the same.
        self.factor = classes / (classes - 1.0) if kind == "multiclass" else 1.0
        self.start = np.atleast_1d(np.asarray(objective.start(y, None), np.float64))
        self.rounds: list[list[newton_trees.Tree]] = []
        self.known = {part: np.tile(self.start, (len(values), 1)) for part, values in x.items()}

    def advance(self, rounds: int) -> None:
        for _ in range(rounds):
            derivatives = self.objective.gradients(self.margins("train"), self.y, None, self.factor)
            gradient, curvature = (np.asarray(values, np.float64).reshape(len(self.y), -1) for values in derivatives)
            trees = [
                newton_trees.newton_tree(
                    self.x["train"], gradient[:, k], curvature[:, k], least=self.least, rng=self.rng
                )
                for k in range(gradient.shape[1])
            ]
            self.rounds.append(trees)
            for part, margins in self.known.items():
                for k, tree in enumerate(trees):
                    margins[:, k] += self.rate * tree(self.x[part])

    def margins(self, part: str) -> Any:
        return self.known[part] if self.kind == "multiclass" else self.known[part][:, 0]

    def save(self, path: Path, rounds: int) -> None:
        newton_trees.BoostedTrees(start=self.start, rate=self.rate, rounds=self.rounds[:rounds]).save(path)
