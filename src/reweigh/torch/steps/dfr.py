"""A last layer trained again on a set with as many rows of each group (DFR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh._array import to_numpy
from reweigh.torch._classifier import last_layer
from reweigh.torch.steps._base import Step, unwrapped
from reweigh.torch.steps._stages import LiveLastLayer, Passed, known_steps

__all__ = ["DFR"]

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class DFR(Step):
    r"""Deep feature re-weighting: plain training, then a logistic regression on features, groups balanced.

    .. math:: \hat W = \frac1R \sum_{r=1}^R \arg\min_W \; \lVert W \rVert_1 + C \sum_{i \in S_r} \ell(W z_i, y_i)

    :math:`S_r` holds as many rows of each group as the smallest has, drawn again R times from the rows that the first
    stage did not see, and :math:`z_i` what the last layer saw of them, standardised. It uses group labels, so it is a
    bound for methods that do without.

    Parameters
    ----------
    strength
        C, the inverse of the penalty's strength.
    repeats
        Balanced sets R whose solutions are averaged.
    held_out
        The share of training rows that is kept for the second stage.
    seed
        Of the choice of rows.
    steps, n
        Steps of the whole training and number of training rows; the training context fills them in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import CrossEntropy
    >>> from reweigh.torch.steps import Closure, TrainingRows
    >>> _ = torch.manual_seed(0)
    >>> model, x = torch.nn.Linear(2, 2), torch.randn(60, 2)
    >>> rows = TrainingRows(inputs=x, targets=(x[:, 0] > 0).long(), groups=torch.arange(60) % 3)
    >>> stepper = DFR(steps=1, n=60, held_out=0.5).start(model)
    >>> closure = Closure(model=model, batch=(x, rows.targets), losses=CrossEntropy(), training_rows=rows)
    >>> _ = stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure)
    >>> float((model(x).argmax(1) == rows.targets).float().mean()) > 0.9
    True

    Notes
    -----
    As in the authors' code: scikit-learn's `liblinear` with an L1 penalty, features standardised by all training rows,
    ten repeats on training rows (they take twenty on validation rows). Departures: rows of the training set are held
    out for it, so that validation rows are left to choose by; more than two classes are solved one against the rest. A
    group without held-out rows is left out. References: Kirichenko et al., *Last Layer Re-Training is Sufficient for
    Robustness to Spurious Correlations*, ICLR 2023.
    """

    strength: float = 1.0
    repeats: int = 10
    held_out: float = 0.2
    seed: int = 0
    steps: int | None = None
    n: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"strength": (1.0, 0.3, 0.1, 0.03, 0.01)}
    cost: ClassVar[str] = "1 forward+backward, 1 pass over the data at the end"
    needs: ClassVar[tuple[str, ...]] = ("steps", "n", "groups")
    needs_losses: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    replaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.positive("strength", self.strength)
        validate.whole("repeats", self.repeats, 1)
        validate.fraction("held_out", self.held_out, one=False)
        validate.whole("seed", self.seed, 0)
        for name in ("steps", "n"):
            if getattr(self, name) is not None:
                validate.whole(name, getattr(self, name), 1)

    def start(self, model: nn.Module) -> LiveDFR:
        """The live step."""
        if find_spec("sklearn") is None:  # at the start, and not after hours of training
            raise ModuleNotFoundError(
                "dfr needs the package scikit-learn, which is not installed. Install it with "
                '`pip install "reweigh[sklearn]"`.',
                name="sklearn",
            )
        last_layer(unwrapped(model), "dfr")
        return LiveDFR(self, known_steps(self.steps, "fit the last layer at the end"))


class LiveDFR(LiveLastLayer):
    """The live form of :class:`DFR`."""

    name: ClassVar[str] = "dfr"

    def __init__(self, settings: DFR, steps: int) -> None:
        super().__init__(steps, settings.n, settings.held_out, settings.seed)
        self.settings = settings

    def fit(self, seen: Passed, layer: nn.Linear) -> Sequence[Tensor]:
        """The mean solution over balanced sets, for features as they are."""
        if seen.groups is None:
            raise ValueError("`groups` must be among the training rows for dfr, got None. Give each row's group.")
        features = to_numpy(seen.features).astype(np.float64)
        # A feature that never varies, such as a dead unit's, stays zero.
        mean, deviation = features.mean(0), features.std(0)
        standard = (features - mean) / np.where(deviation > 0, deviation, 1.0)
        targets, groups = to_numpy(seen.targets), to_numpy(seen.groups)
        held, draw = to_numpy(self.held), np.random.default_rng(self.settings.seed)
        solutions = [
            self._solve(standard[chosen], targets[chosen], layer.out_features)
            for chosen in (_balanced(held, groups[held], draw) for _ in range(self.settings.repeats))
        ]
        solved = np.mean(solutions, axis=0)
        weight = solved[:, :-1] / np.where(deviation > 0, deviation, 1.0)
        bias = solved[:, -1] - weight @ mean
        learnt = [torch.as_tensor(value, dtype=layer.weight.dtype) for value in (weight, bias)]
        return learnt[: len(list(layer.parameters()))]

    def _solve(self, features: Floats, targets: Floats, classes: int) -> Floats:
        """One row per class: the coefficients of the features, and the intercept."""
        from sklearn import __version__
        from sklearn.linear_model import LogisticRegression

        old = tuple(int(part) for part in __version__.split(".")[:2]) < (1, 8)
        penalty: dict[str, Any] = {"penalty": "l1"} if old else {"l1_ratio": 1.0}
        solved = np.zeros((classes, features.shape[1] + 1))
        present = np.unique(targets)
        if len(present) < 2:
            raise ValueError(f"dfr needs rows of two classes that are held out, got class {present.tolist()} only.")
        for k in present[1:] if len(present) == 2 else present:
            regression: Any = LogisticRegression(
                C=self.settings.strength, solver="liblinear", random_state=0, **penalty
            )
            regression.fit(features, targets == k)
            solved[k] = np.append(regression.coef_[0], regression.intercept_[0])
        return solved


def _balanced(rows: Floats, groups: Floats, draw: np.random.Generator) -> Floats:
    """As many rows of each group as the smallest has, drawn without replacement."""
    of_group = [rows[groups == group] for group in np.unique(groups)]
    least = min(map(len, of_group))
    return np.concatenate([draw.choice(members, least, replace=False) for members in of_group])
