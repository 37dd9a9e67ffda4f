"""Pre-trained networks on disk, by what made them: comparisons that share a pre-training pay for it once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reweigh.bench.files import replacing
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork

#: Raised by one whenever the same inputs make another network.
FORMAT = 1


def pretrained(
    folder: Path, transformer: SelfSupervised, rows: np.ndarray[Any, Any], made_of: Mapping[str, Any], scale: Any
) -> tuple[RowNetwork, list[float], list[float], list[float]]:
    """The network of a transformer fitted on rows, with its losses, mean weights and clipped shares.

    Parameters
    ----------
    folder
        Where networks are kept; a file is whole or not there.
    transformer, rows, scale
        What is fitted, on what, with which factors on the loss.
    made_of
        Plain values that say where the rows come from. With the transformer's own parameters, the rows' shape and the
        scale they are the network's identity.
    """
    identity = {
        "format": FORMAT,
        "kind": type(transformer).__name__,
        "parameters": {name: str(value) for name, value in transformer.get_params().items()},
        "rows": list(rows.shape),
        "made of": dict(made_of),
        "scale": None if scale is None else hashlib.sha256(np.asarray(scale, np.float32).tobytes()).hexdigest(),
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"{name}.pt"
    if path.exists():
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        network = transformer.network(rows.shape[1])
        network.load_state_dict(saved["network"])
        return network.eval(), saved["losses"], saved["mean_weights"], saved["clip_shares"]
    fitted = transformer.fit(rows, scale=scale)
    history = (fitted.losses_, fitted.mean_weights_, fitted.clip_shares_)
    keys = ("losses", "mean_weights", "clip_shares")
    with replacing(path) as temporary:
        torch.save({"network": fitted.network_.state_dict(), **dict(zip(keys, history, strict=True))}, temporary)
    return fitted.network_, *history
