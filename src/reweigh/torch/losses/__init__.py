"""Losses: one file each; the file name is the name on the command line."""

from reweigh.torch.losses._base import ClassLoss, Loss
from reweigh.torch.losses.bce import BCE
from reweigh.torch.losses.class_balanced import ClassBalanced, effective_number_weights
from reweigh.torch.losses.class_weights import ClassWeights
from reweigh.torch.losses.cross_entropy import CrossEntropy
from reweigh.torch.losses.deferred import Deferred
from reweigh.torch.losses.focal import Focal
from reweigh.torch.losses.gce import GCE
from reweigh.torch.losses.label_smoothing import LabelSmoothing
from reweigh.torch.losses.large_margin import LargeMargin
from reweigh.torch.losses.ldam import LDAM, CosineLinear
from reweigh.torch.losses.logit_adjusted import LogitAdjusted
from reweigh.torch.losses.mse import MSE
from reweigh.torch.losses.poly import Poly
from reweigh.torch.losses.sce import SCE
from reweigh.torch.losses.vs import VS

__all__ = [
    "Loss",
    "ClassLoss",
    "CrossEntropy",
    "Focal",
    "ClassBalanced",
    "effective_number_weights",
    "ClassWeights",
    "Deferred",
    "LogitAdjusted",
    "VS",
    "LDAM",
    "CosineLinear",
    "LargeMargin",
    "LabelSmoothing",
    "Poly",
    "GCE",
    "SCE",
    "MSE",
    "BCE",
]
