"""Averages of weights over time: one file each; the file name is the name on the command line."""

from reweigh.torch.averages._base import Average, Averager
from reweigh.torch.averages.ema import EMA
from reweigh.torch.averages.swad import SWAD

__all__ = ["Average", "Averager", "EMA", "SWAD"]
