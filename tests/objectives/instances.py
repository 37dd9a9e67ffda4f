"""One list of objectives for the suites that treat them all alike; the folder of objectives must be covered by it."""

from __future__ import annotations

import importlib
from pathlib import Path

import reweigh.objectives
from reweigh.objectives import Objective
from reweigh.objectives.absgd import ABSGD
from reweigh.objectives.chi2_dro import Chi2DRO
from reweigh.objectives.cvar import CVaR
from reweigh.objectives.dft import DFT
from reweigh.objectives.doro import DORO
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.gain import Gain
from reweigh.objectives.group_dro import GroupDRO
from reweigh.objectives.kl_dro import KLDRO
from reweigh.objectives.lin_upper import LinUpper
from reweigh.objectives.mean import Mean
from reweigh.objectives.ohem import OHEM
from reweigh.objectives.redescending import Redescending
from reweigh.objectives.rgd import RGD
from reweigh.objectives.rgd_auto import RGDAuto
from reweigh.objectives.rho import Rho
from reweigh.objectives.scdro import SCDRO
from reweigh.objectives.self_paced import SelfPaced
from reweigh.objectives.small_loss import SmallLoss
from reweigh.objectives.superloss import SuperLoss
from reweigh.objectives.term import TERM
from reweigh.objectives.term_ema import TERMEma
from reweigh.objectives.term_hierarchical import TERMHierarchical

N_GROUPS = 3

INSTANCES: tuple[Objective, ...] = (
    Mean(),
    RGD(tau=1.0),
    RGD(tau=3.0, divergence="chi2"),
    RGD(tau=3.0, divergence="chi2", scaled=True),
    RGD(tau=3.0, divergence="revkl"),
    RGD(tau=None, gamma=0.5),
    RGD(tau=2.0, gamma=-0.5),
    RGD(tau=2.0, normalize="mean"),
    RGD(tau=2.0, surrogate=True),
    RGD(tau=2.0, warmup=1),
    TERM(t=1.0),
    TERM(t=-0.5),
    TERMEma(t=0.7),
    TERMEma(t=-0.5, rate=0.25),
    TERMHierarchical(n_groups=N_GROUPS),
    ABSGD(lam=2.0),
    ABSGD(lam=-3.0, rate=0.25),
    SCDRO(lam=2.0, lam_lr=0.1),
    KLDRO(rho=0.2),
    CVaR(alpha=0.3),
    CVaR(alpha=0.4, reg=0.5),
    Chi2DRO(rho=0.4),
    Chi2DRO(reg=0.8),
    Chi2DRO(rho=0.3, reg=0.2),
    DORO(eps=0.15, alpha=0.3),
    DORO(eps=0.15, alpha=0.5, divergence="chi2"),
    GroupDRO(n_groups=N_GROUPS, eta=0.3),
    GroupDRO(n_groups=N_GROUPS, eta=0.3, adjustment=2.0, group_counts=(4, 16, 100)),
    DFT(),
    SuperLoss(),
    SuperLoss(T=1.0, lam=0.5),
    SelfPaced(every=1),
    SelfPaced(every=2, soft="linear"),
    OHEM(keep=0.3),
    LinUpper(),
    LinUpper(delta=0.5, r=0.4, warmup=1),
    SmallLoss(forget=0.3),
    SmallLoss(forget=0.4, gradual=0.5, steps=4),
    RGDAuto(),
    RGDAuto(gamma=0.5, quantile=0.5, normalize="mean"),
    Redescending(tau=1.0),
    Redescending(tau=1.0, power=2.0, surrogate=True),
)

#: Those that weigh by more than the loss, with a suite of their own.
SIGNALLED: tuple[Objective, ...] = (Rho(keep=0.3), Rho(keep=0.6), Entropy(), Entropy(power=0.5))

#: Those that remember each unit by its number, with a suite of their own.
INDEXED: tuple[Objective, ...] = (Gain(n=20), Gain(beta=3.0, n=20))


def listed_classes() -> set[type[Objective]]:
    """The objective of every file in the folder."""
    folder = Path(reweigh.objectives.__file__).parent
    modules = [
        importlib.import_module(f"reweigh.objectives.{path.stem}")
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith("_")
    ]
    return {getattr(module, module.__all__[0]) for module in modules}
