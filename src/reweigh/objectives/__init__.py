"""Objectives: one file each; the file name is the name on the command line."""

from reweigh.objectives._base import Objective, State, Weighed

__all__ = ["Objective", "State", "Weighed"]
