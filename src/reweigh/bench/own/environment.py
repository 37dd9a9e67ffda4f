"""`reweigh.from_environment()`: a program that is compared learns its method in one line."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.files import write_atomically
from reweigh.bench.own import script
from reweigh.bench.own.training import Training
from reweigh.method import method


def from_environment(*, default: str = "mean", seed: int = 0) -> Training:
    """The run that this program is a training of, as `reweigh compare --script` has put it into the environment.

    Started by hand, the program trains with `default` and `seed`, so the same code serves both.

    Parameters
    ----------
    default
        The method's text where the environment names none.
    seed
        The seed where the environment names none.

    Returns
    -------
    Training
        `run.criterion(nn.CrossEntropyLoss())`, `run.seed`, `run.lr_factor`, `run.directory` and the rest.

    Examples
    --------
    >>> run = from_environment(default="rgd:tau=3")
    >>> run.seed, run.lr_factor, str(run.method)
    (0, 1.0, 'rgd:tau=3')
    """
    known = os.environ
    directory = script.scores_directory()
    factors = known.get(script.SCALE)
    training = Training(
        method(known.get(script.METHOD, default)),
        int(known.get(script.SEED, seed)),
        lr_factor=float(known.get(script.LR_FACTOR, 1.0)),
        store=None if directory is None else _Folder(directory),
        scale=None if factors is None else np.load(factors, allow_pickle=False),
        device=known.get(script.DEVICE),
    )
    if directory is not None:
        atexit.register(_keep_mean_weights, training, directory)
    return training


def _keep_mean_weights(training: Training, directory: Path) -> None:
    weights = training.mean_weights()
    if weights is not None:
        np.save(directory / script.MEAN_WEIGHTS, weights, allow_pickle=False)


class _Folder:
    """Checkpoints as a file of the training's own folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def checkpoint(self, state: Any) -> None:
        import io

        import torch

        content = io.BytesIO()
        torch.save(state, content)
        write_atomically(self.directory / "checkpoint.pt", content.getbuffer())

    def resume(self) -> Any | None:
        import torch

        path = self.directory / "checkpoint.pt"
        return torch.load(path, weights_only=True) if path.exists() else None
