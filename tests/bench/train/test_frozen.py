"""Features of a frozen network: computed once, principal components of the training images, and trained on."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from reweigh.bench import catalogue, models
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.recipes import longtail
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.train import frozen
from reweigh.bench.train.pixels import as_tensor, normalize


@pytest.fixture
def colours(monkeypatch, tmp_path):
    """Digits in three colours, a cache of their own, and an encoder that counts the images it sees."""
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    digits = catalogue.load("digits", Dataset)
    coloured = dataclasses.replace(
        digits,
        x_train=np.repeat(digits.x_train[:300], 3, -1),
        y_train=digits.y_train[:300],
        x_test=np.repeat(digits.x_test[:100], 3, -1),
        y_test=digits.y_test[:100],
    )
    seen: list[int] = []

    class Encoder(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return x.mean(1).flatten(1)

    network = nn.Module()
    network.embed = Encoder()
    monkeypatch.setattr(frozen, "pretrained", lambda model: network)
    monkeypatch.setattr(frozen, "SIDE", 0)
    monkeypatch.setattr(frozen, "COMPONENTS", 8)
    return coloured, seen


def test_features_are_principal_components_of_the_training_images_and_computed_once(colours):
    dataset, seen = colours
    features = frozen.vectors(dataset, "encoder")
    assert sum(seen) == 400
    assert features.x_train.shape == (300, 8)
    assert features.shape == (8,)
    pixels = dataset.x_train.mean(-1).reshape(300, -1) / 255
    shift = np.mean([m / s for m, s in zip(frozen.IMAGENET_MEAN, frozen.IMAGENET_DEVIATION, strict=True)])
    rate = np.mean([1 / s for s in frozen.IMAGENET_DEVIATION])
    reference = PCA(8, svd_solver="full").fit_transform(pixels * rate - shift)
    reference /= reference[:, 0].std(ddof=1)
    np.testing.assert_allclose(np.abs(features.x_train), np.abs(reference), atol=1e-3)
    again = frozen.vectors(dataset, "encoder")
    assert sum(seen) == 400
    np.testing.assert_array_equal(again.x_test, features.x_test)


def test_a_recipe_learns_from_features(colours, monkeypatch):
    features = frozen.vectors(colours[0], "encoder")
    monkeypatch.setattr(supervised, "load", lambda data, encoder: features)
    task = longtail.task(longtail.Settings(encoder="encoder", imbalance=2.0, meta=0), Seeds(0))
    assert task.x_train.shape[1:] == (8,)
    assert task.x_train.dtype == torch.float32
    assert len(task.x_test) == 100


def test_folding_normalisations_into_convolutions_changes_nothing():
    torch.manual_seed(0)
    trunk = models.build("efficientnet_lite0", (3, 32, 32), 2).embed
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics and factors that are not those of a fresh network
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
            module.bias.data.normal_(0, 0.1)
    images = np.random.default_rng(0).integers(0, 256, (70, 32, 32, 3), dtype=np.uint8)
    pixels = normalize(as_tensor(images), frozen.IMAGENET_MEAN, frozen.IMAGENET_DEVIATION)
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    features = frozen.activations(trunk, images)
    with torch.no_grad():
        reference = trunk.double().eval()(pixels.double()).numpy()
    np.testing.assert_allclose(features, reference, rtol=1e-3, atol=1e-4 * np.abs(reference).max())
    trunk.float()
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())  # the caller's own stays


def test_pixels_are_not_augmented_where_none_are_learnt_from():
    with pytest.raises(ValueError, match="Leave one out"):
        longtail.Settings(encoder="efficientnet_lite0:weights=imagenet", augment=True)


def test_who_needs_features_that_are_being_computed_waits_for_them(monkeypatch, tmp_path):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    begun, calls = threading.Event(), []

    def compute():
        calls.append(1)
        begun.set()
        second_asks.wait(60)
        threading.Event().wait(0.2)  # the second has time to look whether the features are there
        return np.arange(3.0)

    def ask_second():
        begun.wait(60)
        second_asks.set()
        return frozen.kept("key", compute)

    second_asks = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(frozen.kept, "key", compute), threads.submit(ask_second)
        np.testing.assert_array_equal(first.result(), second.result())
    assert len(calls) == 1
    assert [path.suffix for path in (tmp_path / "features").iterdir()] == [".npy"]


def test_features_are_computed_on_every_core_though_runs_have_one_thread(monkeypatch, tmp_path):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    monkeypatch.setattr(frozen.os, "sched_getaffinity", lambda process: range(3), raising=False)
    monkeypatch.setattr(frozen.os, "cpu_count", lambda: 3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        np.testing.assert_array_equal(frozen.kept("threads", lambda: np.array([torch.get_num_threads()])), [3])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
