"""Objectives: one file each; the file name is the name on the command line.

The classes can be imported from here too, `from reweigh.objectives import TERM`; a file is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reweigh.objectives._base import Objective, State, Weighed

if TYPE_CHECKING:  # for editors and type checkers; a test keeps this list and the folder the same
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

__all__ = [
    "Objective",
    "State",
    "Weighed",
    "Mean",
    "RGD",
    "RGDAuto",
    "Redescending",
    "TERM",
    "TERMEma",
    "TERMHierarchical",
    "ABSGD",
    "SCDRO",
    "KLDRO",
    "CVaR",
    "Chi2DRO",
    "DORO",
    "GroupDRO",
    "DFT",
    "SuperLoss",
    "SelfPaced",
    "OHEM",
    "SmallLoss",
    "LinUpper",
    "Rho",
    "Entropy",
    "Gain",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # The folder is the registry: a class is found in the file that has it first in its `__all__`.
    if not name.startswith("_"):
        from pathlib import Path  # takes longer to import than the objectives

        for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
            module = importlib.import_module(f"{__name__}.{path.stem}")
            if module.__all__[0] == name:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
