"""What re-weighting does while it does it, and a word when it silently does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, is_array, stop_gradient, to_numpy

if TYPE_CHECKING:
    from reweigh.objectives import Objective

__all__ = ["Monitor", "TauSuggestion", "suggest_tau"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

#: Losses kept to suggest a tau: enough for steady quantiles, little enough to forget.
_KEPT_LOSSES = 4096


@dataclass(frozen=True, kw_only=True)
class TauSuggestion:
    """A clip level to start from, and why. `float(suggestion)` is the level itself."""

    tau: float
    reason: str

    def __float__(self) -> float:
        return self.tau

    def __str__(self) -> str:
        return f"tau = {self.tau:.3g}: {self.reason}"


def suggest_tau(losses: Array, *, quantile: float = 0.9) -> TauSuggestion:
    r"""A clip level from the losses themselves: their 0.9 quantile.

    At a given loss the weight is largest when `tau` equals that loss. Putting `tau` at a high quantile gives the
    hard units the most emphasis that the tied scale allows, and clips only those beyond. Use the losses of a
    *trained* baseline, or of its later epochs: at initialisation every loss is large and says little.

    Parameters
    ----------
    losses
        Per-unit losses, in any shape.
    quantile
        Which quantile; one minus it is the share of units that will be clipped.

    Returns
    -------
    TauSuggestion
        The level and the reason. It is a start for tuning on validation data, not a replacement.

    Examples
    --------
    >>> import numpy as np
    >>> print(suggest_tau(np.linspace(0.0, 4.0, 101)))
    tau = 3.6: 10 % of the losses are above it; the hardest units weigh 2.19 times the easiest, 1.58 on average.
    """
    validate.fraction("quantile", quantile, one=False)
    values = to_numpy(losses if is_array(losses) else np.asarray(losses)).astype(np.float64).reshape(-1)
    values = values[np.isfinite(values)]
    if not values.size:
        raise ValueError("losses must hold at least one finite number to suggest a tau, got none.")
    level = float(np.quantile(values, quantile))
    if level <= 0:
        raise ValueError(
            f"the {quantile:g} quantile of the losses is {level:.3g}, and tau must be positive. "
            "If the loss has a floor below zero, subtract it first and pass it as `offset`."
        )
    weights = np.exp(np.clip(values, 0.0, level) / (level + 1.0))
    ratio = float(weights.max() / weights.min())
    reason = (
        f"{100 * np.mean(values > level):.0f} % of the losses are above it; the hardest units weigh {ratio:.2f} "
        f"times the easiest, {weights.mean():.2f} on average."
    )
    if ratio < 1.1:
        reason += (
            " That is close to plain training: these losses are small against tau + 1. The self-scaling rgd_auto "
            "stays active there."
        )
    return TauSuggestion(tau=level, reason=reason)


class Monitor:
    """Watches losses and weights during training and reports what re-weighting does.

    Call `update` each step; read `stats()` or `print(monitor)` when you like. Arrays are kept where they are and
    looked at only every `every` steps, so a device is made to wait that rarely.

    Parameters
    ----------
    tau
        The clip level, if you know it; otherwise clipping is inferred from shared largest weights.
    offset
        The floor of the loss that the objective subtracts before it clips.
    every
        Steps between two looks at the values.
    on_stats
        Called as `on_stats(step, stats)` after each look, with the statistics since the last one: plain floats
        in a dict, ready for any logger.

    Examples
    --------
    >>> import numpy as np, reweigh
    >>> losses = np.array([0.2, 0.7, 1.5, 4.0])
    >>> monitor = Monitor(tau=1.0)
    >>> monitor.update(losses, reweigh.KL(tau=1.0)(losses), groups=["head", "head", "tail", "tail"])
    >>> print(monitor)
    4 units in 1 step
      plain loss            1.600
      weights               mean 1.455, from 1.105 to 1.649
      clipped               50.0 % of units
      effective sample      97.7 % of units
      learning-rate factor  1.46 under SGD; Adam-type optimisers ignore it
      group head            43.4 % of the weight for 50.0 % of the units
      group tail            56.6 % of the weight for 50.0 % of the units
    """

    def __init__(
        self,
        *,
        tau: float | None = None,
        offset: float = 0.0,
        every: int = 50,
        on_stats: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        if tau is not None:
            validate.positive("tau", tau)
        validate.real("offset", offset)
        validate.whole("every", every, 1)
        self.tau = tau
        self.offset = offset
        self.every = every
        self.on_stats = on_stats
        self.reset()

    @classmethod
    def of(cls, objective: Objective, **options: Any) -> Monitor:
        """A monitor that knows where an objective clips; `options` are the other arguments."""
        if objective.clip_level is None:
            return cls(**options)
        offset = float(getattr(objective, "offset", 0.0))
        return cls(tau=objective.clip_level - offset, offset=offset, **options)

    def reset(self) -> None:
        """Forget everything seen so far."""
        self.steps = 0
        self._pending: list[tuple[Array, Array, Any, Any, Any]] = []
        self._all = _Tally()
        self._recent: list[Floats] = []
        self._groups: dict[Any, tuple[float, int]] = {}
        self._by_id: dict[Any, tuple[float, float]] = {}

    def update(
        self,
        losses: Array,
        weights: Array = None,
        *,
        ids: Sequence[Any] | Array | None = None,
        groups: Sequence[Any] | Array | None = None,
        mask: Array | None = None,
    ) -> None:
        """Take note of one step.

        `losses` and `weights` have one entry per unit; `ids` names the units, `groups` their class or group, and
        `mask` says which are real, all in the same shape. A :class:`~reweigh.torch.Reweighted` in place of the losses
        gives losses, weights and mask of its last training call: `monitor.update(criterion)`.
        """
        if weights is None:
            losses, weights, mask = _of_criterion(losses, mask)
        if losses.shape != weights.shape:
            raise ValueError(
                f"losses and weights must have the same shape, got {tuple(losses.shape)} and {tuple(weights.shape)}."
            )
        units = math.prod(losses.shape)
        for name, given in (("ids", ids), ("groups", groups), ("mask", mask)):
            number = units if given is None else math.prod(np.shape(given))
            if number != units:
                raise ValueError(f"`{name}` must have one entry per unit, {units}, got {number}.")
        self.steps += 1
        self._pending.append((stop_gradient(losses), stop_gradient(weights), ids, groups, mask))
        if len(self._pending) >= self.every:
            self._look()

    def stats(self) -> dict[str, float]:
        """Statistics since the start or the last `reset`, as plain floats."""
        self._look()
        return self._all.stats()

    def findings(self) -> list[str]:
        """What is wrong, in words; empty when nothing is."""
        self._look()
        return self._all.findings(self.tau, self.offset, self._recent)

    def hardest(self, k: int = 10) -> list[tuple[Any, float, float]]:
        """The `k` units of largest newest loss, as (id, loss, weight). Needs `ids` in `update`."""
        self._look()
        ranked = sorted(self._by_id.items(), key=lambda item: -item[1][0])
        return [(name, loss, weight) for name, (loss, weight) in ranked[:k]]

    def group_shares(self) -> dict[Any, tuple[float, float]]:
        """For each group its share of the weight and its share of the units."""
        self._look()
        weight = sum(w for w, _ in self._groups.values()) or 1.0
        units = sum(n for _, n in self._groups.values()) or 1
        return {g: (w / weight, n / units) for g, (w, n) in self._groups.items()}

    def __str__(self) -> str:
        stats = self.stats()
        if not stats:
            return "nothing seen yet"
        units = int(stats["units"])
        lines = [
            f"{units:,} unit{'s' * (units != 1)} in {self.steps:,} step{'s' * (self.steps != 1)}",
            f"  plain loss            {stats['loss']:.3f}",
            f"  weights               mean {stats['weight_mean']:.3f}, from {stats['weight_min']:.3f} to "
            f"{stats['weight_max']:.3f}",
            f"  clipped               {stats['clip_share'] * 100:.1f} % of units",
            f"  effective sample      {stats['ess_share'] * 100:.1f} % of units",
            f"  learning-rate factor  {stats['weight_mean']:.2f} under SGD; Adam-type optimisers ignore it",
        ]
        lines += [
            f"  group {g!s:<15} {w * 100:.1f} % of the weight for {n * 100:.1f} % of the units"
            for g, (w, n) in self.group_shares().items()
        ]
        return "\n".join(lines + [f"  ! {finding}" for finding in self.findings()])

    def _look(self) -> None:
        """Bring the pending steps to the host and count them."""
        if not self._pending:
            return
        tally = _Tally()
        for losses, weights, ids, groups, mask in self._pending:
            keep = slice(None) if mask is None else to_numpy(mask).reshape(-1).astype(bool)
            flat = to_numpy(losses).astype(np.float64).reshape(-1)[keep]
            weight = to_numpy(weights).astype(np.float64).reshape(-1)[keep]
            tally.add(flat, weight, self.tau, self.offset)
            self._remember(flat, weight, _names(ids, keep), _names(groups, keep))
        self._pending.clear()
        self._all.merge(tally)
        if self.on_stats is not None:
            self.on_stats(self.steps, tally.stats())

    def _remember(self, losses: Floats, weights: Floats, ids: Any, groups: Any) -> None:
        finite = np.isfinite(losses) & np.isfinite(weights)
        losses, weights = losses[finite], weights[finite]
        self._recent.append(losses)
        while len(self._recent) > 1 and sum(len(r) for r in self._recent[1:]) >= _KEPT_LOSSES:
            self._recent.pop(0)
        if groups is not None:
            groups = groups[finite]
            for group in dict.fromkeys(groups.tolist()):
                chosen = groups == group
                w, n = self._groups.get(group, (0.0, 0))
                self._groups[group] = (w + float(weights[chosen].sum()), n + int(chosen.sum()))
        if ids is not None:
            newest = zip(losses.tolist(), weights.tolist(), strict=True)
            self._by_id.update(zip(ids[finite].tolist(), newest, strict=True))


def _of_criterion(criterion: Any, mask: Any) -> tuple[Array, Array, Array | None]:
    """Losses, weights and mask of the last training call of a re-weighted criterion."""
    if not hasattr(criterion, "weights") or not hasattr(criterion, "losses"):
        raise TypeError(
            f"`weights` must be given with the losses, got {type(criterion).__name__} alone. Call "
            "update(losses, weights), or update(criterion) with a reweigh.torch.Reweighted."
        )
    if criterion.weights is None:
        raise ValueError(
            "the criterion has no losses to take: it has not been called in training since it was last evaluated. Call "
            "update after `criterion(output, target)`, in train() mode and with gradients enabled."
        )
    return criterion.losses, criterion.weights, criterion.mask if mask is None else mask


def _names(values: Any, keep: Any) -> Any:
    if values is None:
        return None
    return (to_numpy(values) if is_array(values) else np.asarray(values)).reshape(-1)[keep]


@dataclass
class _Tally:
    """Sums from which all statistics follow, so that intervals add up."""

    steps: int = 0
    units: int = 0
    nonfinite: int = 0
    negative: int = 0
    clipped: int = 0
    lonely: int = 0  # steps that held one unit
    loss: float = 0.0
    weight: float = 0.0
    square: float = 0.0
    smallest: float = np.inf
    largest: float = -np.inf

    def add(self, losses: Floats, weights: Floats, tau: float | None, offset: float) -> None:
        self.steps += 1
        self.lonely += len(losses) == 1
        finite = np.isfinite(losses) & np.isfinite(weights)
        self.nonfinite += int((~finite).sum())
        losses, weights = losses[finite], weights[finite]
        if not losses.size:
            return
        self.units += losses.size
        self.negative += int((losses < offset).sum())
        self.clipped += int((losses >= tau + offset).sum()) if tau is not None else _clipped(losses, weights)
        self.loss += float(losses.sum())
        self.weight += float(weights.sum())
        self.square += float((weights * weights).sum())
        self.smallest = min(self.smallest, float(weights.min()))
        self.largest = max(self.largest, float(weights.max()))

    def merge(self, other: _Tally) -> None:
        for name in ("steps", "units", "nonfinite", "negative", "clipped", "lonely", "loss", "weight", "square"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)

    def stats(self) -> dict[str, float]:
        if not self.units and not self.nonfinite:
            return {}
        n = self.units or math.nan  # without a single finite unit there is no mean worth using
        return {
            "units": float(self.units),
            "loss": self.loss / n,
            "weight_mean": self.weight / n,
            "weight_min": self.smallest if self.units else math.nan,
            "weight_max": self.largest if self.units else math.nan,
            "ess_share": self.weight**2 / (n * self.square) if self.square else 0.0,
            "clip_share": self.clipped / n,
            "negative_share": self.negative / n,
            "nonfinite": float(self.nonfinite),
        }

    def findings(self, tau: float | None, offset: float, recent: list[Floats]) -> list[str]:
        warnings: list[str] = []
        level = "the clip level" if tau is None else f"tau = {tau:g}"
        level += f" and the offset of {offset:g}" if offset else ""
        if self.nonfinite:
            warnings.append(
                f"{self.nonfinite} losses or weights are NaN or infinite: find out why before anything else."
            )
        if self.units and self.lonely == self.steps:
            warnings.append("every step held one unit: was the loss averaged before it was re-weighted?")
        if self.units and self.negative > 0.5 * self.units:
            warnings.append(
                f"{self.negative / self.units:.0%} of the losses are {_below(offset)} and share the smallest weight: "
                "pass the loss's floor as `offset`."
            )
        if self.units and self.clipped >= 0.99 * self.units:
            warnings.append(
                f"saturated: (nearly) every loss is above {level}, so this is plain training with the learning rate "
                f"times {self.weight / self.units:.2f}, which Adam-type optimisers ignore. {_advice(recent, offset)}"
            )
        elif self.units > 1 and self.largest < 1.02 * self.smallest and self.lonely < self.steps:
            warnings.append(
                f"never active: the weights differ by {self.largest / self.smallest - 1:.1%} at most, because the "
                f"losses are small against tau + 1. {_advice(recent, offset)}"
            )
        return warnings


def _clipped(losses: Floats, weights: Floats) -> int:
    """How many units share the largest weight although their losses differ: the sign of a clip."""
    if weights.max() == 1.0:  # a clipped weight is above one: these units simply count the same
        return 0
    top = weights >= weights.max() * (1 - 1e-6)
    if top.sum() < 2 or np.ptp(losses[top]) <= 1e-6 * max(1.0, float(np.abs(losses[top]).max())):
        return 0
    return int(top.sum())


def _below(offset: float) -> str:
    return f"below the offset of {offset:g}" if offset else "negative"


def _advice(recent: list[Floats], offset: float) -> str:
    losses = np.concatenate(recent) - offset
    if not losses.size or np.quantile(losses, 0.9) <= 0:
        return "Look at the scale of the loss."
    level = float(suggest_tau(losses))
    if level < 0.1:
        return f"Most losses are below {level:.2g}: the self-scaling rgd_auto stays active there."
    return f"The recent losses suggest tau = {level:.2g}."
