"""Steps: one file each; the file name is the name on the command line."""

from reweigh.torch.steps._base import Closure, Step, Stepper, TrainingRows
from reweigh.torch.steps.afr import AFR
from reweigh.torch.steps.coteaching import Coteaching
from reweigh.torch.steps.crt import CRT
from reweigh.torch.steps.dfr import DFR
from reweigh.torch.steps.elr import ELR
from reweigh.torch.steps.fine_tune import FineTune
from reweigh.torch.steps.jtt import JTT
from reweigh.torch.steps.l2rw import L2RW
from reweigh.torch.steps.meta_weight_net import MetaWeightNet
from reweigh.torch.steps.plain import Plain
from reweigh.torch.steps.projected import Projected
from reweigh.torch.steps.recover import RECOVER
from reweigh.torch.steps.sam import SAM
from reweigh.torch.steps.weight_decay import WeightDecay

__all__ = [
    "Closure",
    "Step",
    "Stepper",
    "TrainingRows",
    "Plain",
    "SAM",
    "RECOVER",
    "L2RW",
    "MetaWeightNet",
    "FineTune",
    "CRT",
    "JTT",
    "AFR",
    "DFR",
    "Coteaching",
    "ELR",
    "WeightDecay",
    "Projected",
]
