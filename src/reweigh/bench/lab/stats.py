"""Honest statistics: paired by seed, intervals first, and "no evidence" is a verdict.

The comparison that counts is declared before any run: the tuned method against tuned plain training. Where a report
declares several, they are corrected for their number, and so, as a family of their own, are all others (Holm). What
scipy and statsmodels do is left to them.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

K = TypeVar("K", bound=Hashable)
Floats = np.ndarray[Any, np.dtype[np.float64]]

#: "undecided" means that the design could hardly have seen a difference that matters; "no evidence", that it could.
Finding = Literal["better", "no evidence", "undecided", "worse", "too few pairs"]
#: From this chance of seeing a difference on, not having seen it is worth saying.
ENOUGH_POWER = 0.8

#: Below this many pairs a sign-flip test cannot reach p < 0.005 and says little.
_LEAST_FOR_PERMUTATION = 9


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How two methods differ over the same seeds: `mean` is ours minus the baseline's.

    `low` and `high` are the ends of the 95 % interval, `effect` the mean in units of the differences' standard
    deviation, `p` the paired t-test's, `p_permutation` the sign-flip test's (None with few pairs), `p_holm` the
    t-test's corrected for the number of comparisons (None where it was the only one). `primary` says that the
    comparison was declared beforehand.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    effect: float
    p: float
    p_permutation: float | None = None
    p_holm: float | None = None
    primary: bool = False

    @property
    def decisive_p(self) -> float:
        """The p-value the verdict rests on."""
        return self.p if self.p_holm is None else self.p_holm

    @property
    def constant(self) -> bool:
        """Whether every pair differs by the same: an interval of no width says nothing of how sure that is."""
        return self.n > 1 and self.sd == 0.0

    def power(self, gain: float) -> float:
        """The chance that this design, with the spread that was seen, finds a true difference of this size."""
        if self.n < 2:
            return 0.0
        freedom = self.n - 1
        threshold = float(stats.t.ppf(0.975, freedom))
        error = (self.high - self.low) / (2.0 * threshold)
        if error == 0.0:
            return 1.0
        if gain == 0:
            return 0.05
        # The square of t; the lower tail of t itself is not a number where the gain is eight standard errors or more.
        return float(stats.ncf.sf(threshold**2, 1, freedom, (gain / error) ** 2))

    def conclusion(self, *, smallest: bool = False, gain: float | None = None) -> Finding:
        """What the numbers allow to say; with `smallest`, less is better.

        Without a difference seen, a `gain` that matters tells designs that would have seen it from those that would
        not.
        """
        if self.n < 2:
            return "too few pairs"
        if self.decisive_p >= 0.05 or self.low <= 0 <= self.high:
            return "no evidence" if gain is None or self.power(gain) >= ENOUGH_POWER else "undecided"
        return "better" if (self.mean > 0) != smallest else "worse"

    def verdict(
        self,
        ours: str,
        baseline: str,
        metric: str,
        *,
        scale: float = 1.0,
        unit: str = "",
        digits: int = 2,
        smallest: bool = False,
        gain: float | None = None,
    ) -> str:
        """One plain sentence; `scale` and `unit` turn shares into points, `smallest` says that less is better.

        A `gain` that matters separates "no evidence" from "undecided", as in `conclusion`.
        """
        conclusion = self.conclusion(smallest=smallest, gain=gain)
        if conclusion == "too few pairs":
            return f"One pair says nothing about {ours} against {baseline}: run more seeds."
        mean, low, high = (f"{value * scale:+.{digits}f}" for value in (self.mean, self.low, self.high))
        span = f"{mean}{unit} {'in every pair' if self.constant else f'[{low}, {high}]'}, n = {self.n}"
        if conclusion == "no evidence":
            return f"No evidence of a difference in {metric} between {ours} and {baseline}: {span}."
        if conclusion == "undecided":
            return f"Undecided whether {ours} and {baseline} differ in {metric}: {span}."
        word = "improves on" if conclusion == "better" else "is worse than"
        return f"{ours} {word} {baseline} in {metric}: {span}."


def paired(ours: Sequence[float], baseline: Sequence[float], *, primary: bool = False) -> Difference:
    """The difference of two methods over the same seeds, in the same order.

    Parameters
    ----------
    ours, baseline
        One number per seed.
    primary
        Whether this comparison was declared before the runs.

    Returns
    -------
    Difference
        Mean, sample standard deviation, 95 % paired-t interval, effect size and p-values.

    Examples
    --------
    >>> d = paired([0.82, 0.85, 0.88], [0.80, 0.84, 0.85])
    >>> round(d.mean, 4), round(d.low, 4), round(d.high, 4)
    (0.02, -0.0048, 0.0448)
    """
    by_t = _by_t(ours, baseline, primary=primary)
    if by_t.n < _LEAST_FOR_PERMUTATION or by_t.constant:
        return by_t
    return replace(by_t, p_permutation=_sign_flip(_differences(ours, baseline)))


def _by_t(ours: Sequence[float], baseline: Sequence[float], *, primary: bool) -> Difference:
    """The paired difference without the sign-flip test, which takes longer than all the rest."""
    differences = _differences(ours, baseline)
    n = len(differences)
    mean = float(differences.mean())
    if n < 2:
        return Difference(n=n, mean=mean, sd=np.nan, low=-np.inf, high=np.inf, effect=np.nan, p=1.0, primary=primary)
    sd = float(differences.std(ddof=1))
    rounding = 1e-12 * float(np.abs(ours).max())
    if sd <= rounding:
        # Identical differences: the t statistic is 0/0 or infinite, and two equal pairs are no proof. What is left
        # is the smallest p a sign-flip test can have, below 0.05 from six pairs on.
        return _without_spread(mean, rounding, n=n, smallest_p=2.0 ** (1 - n), primary=primary)
    test: Any = stats.ttest_1samp(differences, 0.0)
    low, high = (float(x) for x in test.confidence_interval(0.95))
    return Difference(
        n=n,
        mean=mean,
        sd=sd,
        low=low,
        high=high,
        effect=mean / sd,
        p=float(test.pvalue),
        primary=primary,
    )


def _without_spread(mean: float, rounding: float, *, n: int, smallest_p: float, primary: bool = False) -> Difference:
    """A difference whose standard error is zero, which does not make it certain."""
    mean = 0.0 if abs(mean) <= rounding else mean
    p, effect = (1.0, np.nan) if mean == 0 else (smallest_p, float(np.copysign(np.inf, mean)))
    return Difference(n=n, mean=mean, sd=0.0, low=mean, high=mean, effect=effect, p=p, primary=primary)


def resampled(
    ours: Sequence[float], baseline: Sequence[float], *, test_over_train: float, primary: bool = False
) -> Difference:
    r"""The difference over repeated random splits of *one* data set, whose training sets overlap.

    The plain t interval is too narrow there. The corrected one multiplies the variance of the mean by
    :math:`1 + n\,n_{test}/n_{train}`, that is, uses :math:`\sigma^2 (1/n + n_{test}/n_{train})`. For k folds, repeated
    r times, give all r k differences and a ratio of 1 / (k - 1).

    The interval is about new rows *and* new training sets. Where every split tests on the same rows it is conditional
    on those: it shows how the difference varies with the training rows and the seed, and not how it would vary with
    other test rows. `reweigh.bench.lab.intervals.rowwise` is about other test rows.

    Parameters
    ----------
    ours, baseline
        One number per split.
    test_over_train
        The rows that each split tests on, over the rows it *trains* on; rows held out for validation are neither.
    primary
        Whether this comparison was declared before the runs.

    Notes
    -----
    References: Nadeau and Bengio, *Inference for the Generalization Error*, Machine Learning 52, 2003; Bouckaert and
    Frank, *Evaluating the Replicability of Significance Tests*, PAKDD 2004, for repeated folds.
    """
    if not 0 < test_over_train < math.inf:
        raise ValueError(f"`test_over_train` must be a positive number, got {test_over_train!r}.")
    plain = _by_t(ours, baseline, primary=primary)
    if plain.n < 2 or plain.constant:  # no factor widens an interval of no width
        return plain
    error = plain.sd * math.sqrt(1.0 / plain.n + test_over_train)
    return from_error(plain.mean, error, n=plain.n, sd=plain.sd, freedom=plain.n - 1, primary=primary)


def from_error(
    mean: float, error: float, *, n: int, sd: float, freedom: float, level: float = 0.95, primary: bool = False
) -> Difference:
    """A difference from its standard error and the degrees of freedom with which that was estimated."""
    width = float(stats.t.ppf(0.5 + level / 2, freedom)) * error
    p = 2.0 * float(stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0.0)
    effect = mean / sd if sd else math.nan
    return Difference(n=n, mean=mean, sd=sd, low=mean - width, high=mean + width, effect=effect, p=p, primary=primary)


def unpaired(ours: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The difference of two methods whose trainings have no partners (Welch's t interval); two of each at least."""
    if min(len(ours), len(baseline)) < 2:
        raise ValueError(
            f"a comparison without pairs needs two numbers of each method, got {len(ours)} and {len(baseline)}. Run "
            "more seeds."
        )
    (mean, sd), (other, other_sd) = mean_and_sd(ours), mean_and_sd(baseline)
    a, b = sd**2 / len(ours), other_sd**2 / len(baseline)
    error, n = math.sqrt(a + b), min(len(ours), len(baseline))
    rounding = 1e-12 * float(np.abs(ours).max())
    if error <= rounding:
        # As with pairs: what is left is the smallest p that exchanging the labels can have.
        smallest_p = 2.0 / math.comb(len(ours) + len(baseline), n)
        return _without_spread(mean - other, rounding, n=n, smallest_p=smallest_p)
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(baseline) - 1))
    return from_error(mean - other, error, n=n, sd=math.sqrt((sd**2 + other_sd**2) / 2), freedom=freedom)


def at_level(difference: Difference, alpha: float) -> Difference:
    """The same difference where a look may spend only `alpha` of the five percent: wider, and with a larger p.

    All values can be read as before: the interval is a 95 % one over all looks, and p is compared with 0.05.
    """
    if difference.n < 2:
        return difference
    p, holm = (None if q is None else min(1.0, q * 0.05 / alpha) for q in (difference.p, difference.p_holm))
    spent = replace(difference, p=1.0 if p is None else p, p_holm=holm)
    if difference.constant:  # no factor widens an interval of no width
        return spent
    freedom = difference.n - 1
    wider = float(stats.t.ppf(1 - alpha / 2, freedom) / stats.t.ppf(0.975, freedom))
    low, high = (difference.mean + wider * (end - difference.mean) for end in (difference.low, difference.high))
    return replace(spent, low=low, high=high)


def corrected(differences: Mapping[K, Difference]) -> dict[K, Difference]:
    """The same differences with Holm's correction over all that were not declared beforehand."""
    others = holm({name: d for name, d in differences.items() if not d.primary})
    return {name: others.get(name, d) for name, d in differences.items()}


def holm(differences: Mapping[K, Difference]) -> dict[K, Difference]:
    """The same differences with Holm's correction over all of them."""
    if not differences:
        return {}
    with _little_to_collect():
        adjusted: Any = multipletests([d.p for d in differences.values()], method="holm")[1]
    return {name: replace(d, p_holm=float(p)) for (name, d), p in zip(differences.items(), adjusted, strict=True)}


@contextlib.contextmanager
def _little_to_collect() -> Generator[None]:
    """`multipletests` collects garbage, half a second each time where torch is loaded: hide what is there already."""
    hidden = gc.get_freeze_count() == 0  # else somebody has done so for reasons of their own, and it stays so
    if hidden:
        gc.freeze()
    try:
        yield
    finally:
        if hidden:
            gc.unfreeze()


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (NaN for a single value)."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")


def _differences(ours: Sequence[float], baseline: Sequence[float]) -> Floats:
    first, second = np.asarray(ours, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(
            f"paired statistics need the same seeds for both methods, got {first.shape} and {second.shape} values."
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("paired statistics need finite numbers; a diverged run has to be reported as such.")
    return first - second


def _sign_flip(differences: Floats) -> float:
    """The share of all sign assignments whose mean is at least as far from zero; exact up to 2^14 of them."""
    result: Any = stats.permutation_test(
        (differences,),  # of a single sample, "samples" flips signs
        np.mean,
        permutation_type="samples",
        n_resamples=2**14,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)
