"""Losses: one file each; the file name is the name on the command line."""

from reweigh.torch.losses._base import ClassLoss, Loss
from reweigh.torch.losses.bce import BCE
from reweigh.torch.losses.class_balanced import ClassBalanced, effective_number_weights
from reweigh.torch.losses.cross_entropy import CrossEntropy
from reweigh.torch.losses.focal import Focal
from reweigh.torch.losses.label_smoothing import LabelSmoothing
from reweigh.torch.losses.large_margin import LargeMargin
from reweigh.torch.losses.ldam import LDAM, CosineLinear
from reweigh.torch.losses.mse import MSE
from reweigh.torch.losses.poly import Poly

__all__ = [
    "Loss",
    "ClassLoss",
    "CrossEntropy",
    "Focal",
    "ClassBalanced",
    "effective_number_weights",
    "LDAM",
    "CosineLinear",
    "LargeMargin",
    "LabelSmoothing",
    "Poly",
    "MSE",
    "BCE",
]
