"""Features of images from a frozen network: computed once, and kept in the cache for every later run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from reweigh.bench import models
from reweigh.bench.catalogue.cache import cache_folder
from reweigh.bench.catalogue.card import Array
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.files import locked, replacing, reserve
from reweigh.bench.train.pixels import as_tensor, normalize

__all__ = ["IMAGENET_DEVIATION", "IMAGENET_MEAN", "activations", "kept", "kept_rows", "pretrained", "vectors"]

#: Mean and standard deviation of ImageNet's channels, as pre-trained networks expect them.
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Images of the data set are enlarged to this side: pre-trained on larger ones, the network sees little in 32 pixels.
SIDE = 128
#: Principal components that are kept of the features. On CIFAR-10 more of them add nothing to a linear classifier.
COMPONENTS = 64
_BATCH = 64


def kept(key: str, compute: Callable[[], Array]) -> Array:
    """The array of this key, mapped from the cache, or else computed and put there."""

    def save(path: Path) -> None:
        features = compute()
        with path.open("wb") as file:
            np.save(file, features, allow_pickle=False)

    return _from_cache(key, save)


def kept_rows(key: str, shape: tuple[int, ...], fill: Callable[[Array], object]) -> Array:
    """Bytes of this key, mapped from the cache, or else put there by `fill`: they need not fit into memory."""

    def save(path: Path) -> None:
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        reserve(path)
        fill(rows)
        rows.flush()

    return _from_cache(key, save)


def _from_cache(key: str, save: Callable[[Path], None]) -> Array:
    """The array of this key; processes that need it at the same time wait for the one that computes it."""
    path = _path(key)
    if not path.exists():
        lock = path.with_suffix(".lock")
        with locked(lock):
            if not path.exists():
                with replacing(path) as temporary, _every_core():
                    save(temporary)
        lock.unlink(missing_ok=True)  # who still waits for it, or makes it anew, finds the array
    return _mapped(path)


@contextlib.contextmanager
def _every_core() -> Generator[None]:
    """Threads for all cores: runs have one each, but those that need the array are waiting."""
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(before, cores))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _path(key: str) -> Path:
    return cache_folder() / "features" / f"activations-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"


def _mapped(path: Path) -> Array:
    # Private pages only where somebody writes, which nobody does.
    return np.load(path, mmap_mode="c", allow_pickle=False)


def pretrained(model: str) -> Any:
    """A network with published weights, such as `"efficientnet_lite0:weights=imagenet"`; its last layer is random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the last layer, which nobody uses
        return models.build(model, (3, 64, 64), 2)


@torch.no_grad()
def activations(trunk: nn.Module, images: Array, *, side: int = 0) -> Array:
    """The features of colour images, uint8 in NHWC order, enlarged to `side` pixels if it is given."""
    trunk = _folded(trunk.eval()).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def outputs(part: Array) -> Array:
        pixels: Tensor = normalize(as_tensor(np.ascontiguousarray(part)), IMAGENET_MEAN, IMAGENET_DEVIATION)
        if side:
            pixels = F.interpolate(pixels, size=(side, side), mode="bilinear", align_corners=False)
        return trunk(pixels.contiguous(memory_format=torch.channels_last)).numpy()

    return np.concatenate([outputs(images[i : i + _BATCH]) for i in range(0, len(images), _BATCH)])


def _folded(trunk: nn.Module) -> nn.Module:
    """A copy whose convolutions do what their normalisations did: a third less time on a processor."""
    trunk = copy.deepcopy(trunk)
    for chain in [module for module in trunk.modules() if isinstance(module, nn.Sequential)]:
        layers = list(chain)
        for i, (layer, following) in enumerate(itertools.pairwise(layers)):
            if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                chain[i], chain[i + 1] = fuse_conv_bn_eval(layer, following), nn.Identity()
    return trunk


def vectors(dataset: Dataset, encoder: str) -> Dataset:
    """The data set with a frozen network's features in place of its images.

    The features are those before the last layer, reduced to their first principal components over all training images,
    which needs no labels, and divided by the deviation of the first of them.
    """
    count = len(dataset.x_train)

    def compute() -> Array:
        from sklearn.decomposition import PCA

        features = activations(pretrained(encoder).embed, np.concatenate([dataset.x_train, dataset.x_test]), side=SIDE)
        reduction = PCA(COMPONENTS, svd_solver="covariance_eigh").fit(features[:count])
        reduced = reduction.transform(features) / np.sqrt(reduction.explained_variance_[0])
        return reduced.astype(np.float32)

    x = kept(f"1 vectors {encoder} {SIDE} {COMPONENTS} {dataset.name} {dataset.source}", compute)
    name = f"{dataset.name}, features of {encoder}"
    return dataclasses.replace(dataset, name=name, x_train=x[:count], x_test=x[count:])
