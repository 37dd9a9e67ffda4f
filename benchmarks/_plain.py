"""What one would write by hand for each objective: the shortest correct lines, in torch and in JAX.

A line makes a number to descend of a vector of losses without masks, measures or ranks; a stateful one keeps its state
in a dictionary, which is empty before the first call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GROUPS = 8
State = dict[str, Any]

#: Objectives with hyper-parameters at which shares of 256 and 65,536 units are whole numbers.
TEXTS = {
    "mean": "mean",
    "rgd": "rgd:tau=1",
    "rgd, chi2": "rgd:divergence=chi2,tau=3",
    "rgd, revkl": "rgd:divergence=revkl,tau=3",
    "redescending": "redescending:tau=1",
    "dft": "dft",
    "term": "term:t=1",
    "term_ema": "term_ema:t=1,rate=0.5",
    "term_hierarchical": "term_hierarchical:t_in=-1,t_out=1",
    "absgd": "absgd:lam=5,rate=0.9",
    "scdro": "scdro:rho=0.5,lam=5",
    "kl_dro": "kl_dro:rho=0.5",
    "cvar": "cvar:alpha=0.25",
    "chi2_dro": "chi2_dro:rho=1",
    "chi2_dro, penalty": "chi2_dro:reg=1",
    "doro": "doro:eps=0.125,alpha=0.25",
    "ohem": "ohem:keep=0.25",
    "group_dro": "group_dro:eta=0.01",
    "superloss": "superloss",
    "self_paced": "self_paced",
    "rgd_auto": "rgd_auto:quantile=0.75",
}


# --- torch ---


def _tilted(losses: Tensor, state: State, t: float, rate: float) -> Tensor:
    weights = torch.exp(t * losses.detach())
    state["u"] = (1 - rate) * state["u"] + rate * weights.mean() if state else weights.mean()
    return (weights / state["u"] * losses).mean()


def _kl_dro(losses: Tensor, rho: float) -> Tensor:
    """Forty halvings of the logarithm of the temperature."""
    with torch.no_grad():
        centred = losses - losses.max()
        low, high = -10.0, 10.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            p = torch.softmax(centred * math.exp(middle), 0)
            far = (p * torch.log(p * len(p) + 1e-30)).sum() > rho
            low, high = (low, middle) if far else (middle, high)
    return (p * losses).sum()


def _chi2_sorted(losses: Tensor, rho: float) -> Tensor:
    """The closed form of the threshold for each number of units above it; the right one is the last that fits."""
    with torch.no_grad():
        ordered = losses.sort(descending=True).values.double()
        k = torch.arange(1, len(losses) + 1)
        mean = ordered.cumsum(0) / k
        variance = ((ordered * ordered).cumsum(0) / k - mean * mean).clamp(min=0)
        room = (1 + 2 * rho) * k / len(losses) - 1
        eta = torch.where(room > 0, mean - (variance / room.clamp(min=1e-12)).sqrt(), -math.inf)
        size = (ordered > eta).nonzero()[-1, 0]
        excess = (losses - eta[size].float()).clamp(min=0)
        p = excess / excess.sum()
    return (p * losses).sum()


def _chi2_halved(losses: Tensor, rho: float) -> Tensor:
    """Forty halvings of the threshold."""
    with torch.no_grad():
        high = losses.max()
        low = losses.mean() - (losses.var(correction=0) / (2 * rho)).sqrt()
        for _ in range(40):
            middle = 0.5 * (low + high)
            excess = (losses - middle).clamp(min=0)
            near = (excess * excess).mean() <= (1 + 2 * rho) * excess.mean() ** 2
            low, high = (middle, high) if near else (low, middle)
        p = excess / excess.sum()
    return (p * losses).sum()


def _chi2_penalty(losses: Tensor, reg: float) -> Tensor:
    with torch.no_grad():
        low, high = losses.min() - reg, losses.max()
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if (losses - middle).clamp(min=0).mean() > reg else (low, middle)
        density = (losses - middle).clamp(min=0) / reg
        price = 0.5 * reg * ((density - 1) ** 2).mean()
    return (density * losses).mean() - price


def _group_dro(losses: Tensor, state: State, groups: Tensor, eta: float) -> Tensor:
    counts = torch.bincount(groups, minlength=GROUPS).clamp(min=1)
    means = torch.zeros(GROUPS).index_add(0, groups, losses) / counts
    q = state.get("q", torch.full((GROUPS,), 1 / GROUPS)) * torch.exp(eta * means.detach())
    state["q"] = q / q.sum()
    return (state["q"] * means).sum()


def _term_hierarchical(losses: Tensor, groups: Tensor, t_in: float, t_out: float) -> Tensor:
    counts = torch.bincount(groups, minlength=GROUPS)
    sums = torch.zeros(GROUPS).index_add(0, groups, torch.exp(t_in * losses))
    inner = torch.log(sums / counts) / t_in
    return torch.logsumexp(t_out * inner + torch.log(counts / len(losses)), 0) / t_out


def _scdro(losses: Tensor, state: State, rho: float, lam: float, rate: float = 0.5) -> Tensor:
    lam = state.get("lam", torch.tensor(lam))
    weights = torch.exp(losses.detach() / lam)
    s = (1 - rate) * state["s"] + rate * weights.mean() if state else weights.mean()
    slope = torch.log(s) + rho - (weights * losses.detach()).mean() / (s * lam)
    u = (1 - rate) * state["u"] + rate * slope if state else slope
    state.update(s=s, u=u, lam=(lam - 0.01 * u).clamp(min=1e-3))
    return (weights / s * losses).mean()


def _superloss(losses: Tensor, state: State, lam: float = 1.0, rate: float = 0.1) -> Tensor:
    """Lambert's function by SciPy, as in the public ports."""
    from scipy.special import lambertw

    average = losses.detach().mean()
    state["mean"] = (1 - rate) * state["mean"] + rate * average if state else average
    excess = losses - state["mean"]
    y = 0.5 * torch.clamp(excess.detach() / lam, min=-2 / math.e)
    w = torch.from_numpy(lambertw(y.numpy()).real).float()
    return (excess * torch.exp(-w) + lam * w * w).mean()


def _self_paced(losses: Tensor, state: State) -> Tensor:
    state.setdefault("K", losses.detach().median())
    state["step"] = state.get("step", 0) + 1
    loss = (losses * (losses.detach() <= state["K"])).mean()
    if state["step"] % 1000 == 0:
        state["K"] = state["K"] * 1.1
    return loss


def _rgd_auto(losses: Tensor, state: State, rate: float = 0.1) -> Tensor:
    current = torch.quantile(losses.detach(), 0.75)
    weights = torch.exp(torch.clamp(losses.detach() / state.get("q", current), 0, 1))
    state["q"] = (1 - rate) * state["q"] + rate * current if state else current
    return (weights * losses).mean()


def _redescending(losses: Tensor) -> Tensor:
    seen = losses.detach()
    weights = torch.exp(seen.clamp(0, 1) / 2) / seen.clamp(min=1)
    return (weights * losses).mean()


def torch_lines(size: int, groups: Tensor) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    """For each objective the lines one would write; where two are natural, both."""

    def kept(line: Callable[..., Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
        state: State = {}
        return lambda losses: line(losses, state, **options)

    def cut(losses: Tensor) -> Tensor:
        return torch.topk(losses, size // 8 + (size - size // 8) // 4).values[size // 8 :].mean()

    return {
        "mean": [lambda v: v.mean()],
        "rgd": [lambda v: (torch.exp(v.detach().clamp(0, 1) / 2) * v).mean()],
        "rgd, chi2": [lambda v: ((v.detach().clamp(0, 3) + 3) * v).mean()],
        "rgd, revkl": [lambda v: (v / (1 - v.detach().clamp(0, 3) / 4)).mean()],
        "redescending": [_redescending],
        "dft": [lambda v: (torch.exp(-v.detach()) * v).mean()],
        "term": [lambda v: torch.logsumexp(v, 0) - math.log(size)],
        "term_ema": [kept(_tilted, t=1.0, rate=0.5)],
        "term_hierarchical": [functools.partial(_term_hierarchical, groups=groups, t_in=-1.0, t_out=1.0)],
        "absgd": [kept(_tilted, t=0.2, rate=0.9)],
        "scdro": [kept(_scdro, rho=0.5, lam=5.0)],
        "kl_dro": [functools.partial(_kl_dro, rho=0.5)],
        "cvar": [lambda v: torch.topk(v, size // 4).values.mean()],
        "chi2_dro": [functools.partial(_chi2_sorted, rho=1.0), functools.partial(_chi2_halved, rho=1.0)],
        "chi2_dro, penalty": [functools.partial(_chi2_penalty, reg=1.0)],
        "doro": [cut],
        "ohem": [lambda v: torch.topk(v, size // 4).values.mean()],
        "group_dro": [kept(_group_dro, groups=groups, eta=0.01)],
        "superloss": [kept(_superloss)],
        "self_paced": [kept(_self_paced)],
        "rgd_auto": [kept(_rgd_auto)],
    }


# --- JAX: pure functions of (losses, state), a state being what the first call returns for None ---


def jax_lines(size: int, groups: Any) -> dict[str, Callable[[Any, Any], tuple[Any, Any]]]:
    """The same in JAX, for those objectives whose line is another one there than "multiply and take the mean"."""
    import jax
    import jax.numpy as jnp

    sg = jax.lax.stop_gradient

    def plain(line: Callable[[Any], Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
        return lambda v, state: (line(v), ())

    def tilted(t: float, rate: float) -> Callable[[Any, Any], tuple[Any, Any]]:
        def line(v: Any, state: Any) -> tuple[Any, Any]:
            weights = jnp.exp(t * sg(v))
            u = (1 - rate) * state[0] + rate * weights.mean()
            return (weights / u * v).mean(), (u,)

        return line

    def kl_dro(v: Any) -> Any:
        centred = sg(v) - sg(v).max()

        def halve(_: int, ends: Any) -> Any:
            low, high = ends
            middle = 0.5 * (low + high)
            p = jax.nn.softmax(centred * jnp.exp(middle))
            far = (p * jnp.log(p * size + 1e-30)).sum() > 0.5
            return jnp.where(far, low, middle), jnp.where(far, middle, high)

        low, _ = jax.lax.fori_loop(0, 40, halve, (-10.0, 10.0))
        return (jax.nn.softmax(centred * jnp.exp(low)) * v).sum()

    def halved(v: Any, near: Callable[[Any], Any], low: Any) -> Any:
        def halve(_: int, ends: Any) -> Any:
            middle = 0.5 * (ends[0] + ends[1])
            is_near = near(jnp.clip(v - middle, 0, None))
            return jnp.where(is_near, middle, ends[0]), jnp.where(is_near, ends[1], middle)

        return jnp.clip(v - jax.lax.fori_loop(0, 40, halve, (low, v.max()))[0], 0, None)

    def chi2_dro(v: Any) -> Any:
        c = sg(v)
        excess = halved(c, lambda e: (e * e).mean() <= 3 * e.mean() ** 2, c.mean() - jnp.sqrt(c.var() / 2))
        return (excess / excess.sum() * v).sum()

    def chi2_penalty(v: Any) -> Any:
        c = sg(v)
        density = halved(c, lambda e: e.mean() > 1.0, c.min() - 1.0)
        return (density * v).mean() - 0.5 * ((density - 1) ** 2).mean()

    def cut(v: Any) -> Any:
        return jax.lax.top_k(v, size // 8 + (size - size // 8) // 4)[0][size // 8 :].mean()

    def group_dro(v: Any, state: Any) -> tuple[Any, Any]:
        counts = jnp.bincount(groups, length=GROUPS)
        means = jax.ops.segment_sum(v, groups, GROUPS) / counts
        q = state[0] * jnp.exp(0.01 * sg(means))
        q = q / q.sum()
        return (q * means).sum(), (q,)

    def term_hierarchical(v: Any) -> Any:
        counts = jnp.bincount(groups, length=GROUPS)
        inner = -jnp.log(jax.ops.segment_sum(jnp.exp(-v), groups, GROUPS) / counts)
        return jax.nn.logsumexp(inner + jnp.log(counts / size))

    def scdro(v: Any, state: Any) -> tuple[Any, Any]:
        s, u, lam = state
        weights = jnp.exp(sg(v) / lam)
        s = 0.5 * s + 0.5 * weights.mean()
        u = 0.5 * u + 0.5 * (jnp.log(s) + 0.5 - (weights * sg(v)).mean() / (s * lam))
        return (weights / s * v).mean(), (s, u, jnp.clip(lam - 0.01 * u, 1e-3, None))

    def self_paced(v: Any, state: Any) -> tuple[Any, Any]:
        k, step = state
        k = jnp.where(step == 0, jnp.median(sg(v)), k)
        return (v * (sg(v) <= k)).mean(), (jnp.where((step + 1) % 1000 == 0, k * 1.1, k), step + 1)

    def rgd_auto(v: Any, state: Any) -> tuple[Any, Any]:
        q, step = state
        current = jnp.quantile(sg(v), 0.75)
        weights = jnp.exp(jnp.clip(sg(v) / jnp.where(step == 0, current, q), 0, 1))
        return (weights * v).mean(), (jnp.where(step == 0, current, 0.9 * q + 0.1 * current), step + 1)

    return {
        "mean": plain(lambda v: v.mean()),
        "rgd": plain(lambda v: (jnp.exp(jnp.clip(sg(v), 0, 1) / 2) * v).mean()),
        "dft": plain(lambda v: (jnp.exp(-sg(v)) * v).mean()),
        "term": plain(lambda v: jax.nn.logsumexp(v) - math.log(size)),
        "term_ema": tilted(1.0, 0.5),
        "term_hierarchical": plain(term_hierarchical),
        "absgd": tilted(0.2, 0.9),
        "scdro": scdro,
        "kl_dro": plain(kl_dro),
        "cvar": plain(lambda v: jax.lax.top_k(v, size // 4)[0].mean()),
        "chi2_dro": plain(chi2_dro),
        "chi2_dro, penalty": plain(chi2_penalty),
        "doro": plain(cut),
        "ohem": plain(lambda v: jax.lax.top_k(v, size // 4)[0].mean()),
        "group_dro": group_dro,
        "self_paced": self_paced,
        "rgd_auto": rgd_auto,
    }


def jax_state(name: str) -> tuple[Any, ...]:
    """The state of a JAX line before its first call."""
    import jax.numpy as jnp

    one, step = jnp.ones(()), jnp.zeros((), jnp.int32)
    return {
        "term_ema": (one,),
        "absgd": (one,),
        "scdro": (one, one, 5 * one),
        "group_dro": (jnp.full(GROUPS, 1 / GROUPS),),
        "self_paced": (one, step),
        "rgd_auto": (one, step),
    }.get(name, ())
