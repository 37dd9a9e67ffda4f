"""Data with several domains: built by the published rules, read from official folders, held out without leaks."""

import importlib
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from reweigh.bench import catalogue
from reweigh.bench.catalogue.cache import package_path
from reweigh.bench.catalogue.domains import Domain, Domains, colored_mnist, emoji4d, pacs, rotated_mnist, vader
from reweigh.bench.catalogue.domains.rotated_mnist import dealt, shrunk, turned
from reweigh.bench.catalogue.images import Arrays, Dataset, mnist
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.files import sha256_of
from reweigh.bench.recipes import _domains
from reweigh.bench.train import domain_pixels as _augment


def small_mnist(monkeypatch, n=240):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, 28, 28, 1), np.uint8)
    x[:, 0, 0, 0] = np.arange(n) % 256  # a corner that tells examples apart
    y = rng.integers(0, 10, n).astype(np.int64)
    half = n // 2
    arrays = Arrays(x[:half], y[:half], x[half:], y[half:], tuple("0123456789"))
    monkeypatch.setattr(mnist, "CARD", replace(mnist.CARD, official="", packages=()))  # as if installed
    monkeypatch.setattr(mnist, "read", lambda: arrays)
    return x[..., 0], y


def test_the_folder_is_the_registry_and_in_the_catalogue(tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    assert catalogue.names("domains") == [
        "colored_mnist", "domainnet", "emoji4d", "officehome", "pacs", "rotated_digits", "rotated_mnist", "vader",
        "vlcs",
    ]  # fmt: skip
    rows = {row.name: row for row in catalogue.describe(root=tmp_path)}
    assert set(catalogue.names("domains")) <= set(rows)
    assert rows["rotated_digits"].present == "installed"
    assert rows["emoji4d"].present is None
    assert len(rows["emoji4d"].card.packages) == 4
    assert (rows["emoji4d"].card.stand_in_for, rows["pacs"].card.stand_in_for) == ("PACS", None)
    with pytest.raises(ValueError, match=r"no data set named 'emoji'.*'emoji4d'"):
        catalogue.load("emoji", Domains)
    with pytest.raises(FileNotFoundError, match="reweigh data get vader"):
        catalogue.load("vader")


# --- digits ---


def test_dealing_gives_every_example_to_one_domain(monkeypatch):
    x, _ = small_mnist(monkeypatch)
    parts = dealt(catalogue.load("mnist", Dataset), 6, 0)
    corners = np.concatenate([images[:, 0, 0] for images, _ in parts])
    assert sorted(corners) == sorted(x[:, 0, 0])
    assert [len(y) for _, y in parts] == [40] * 6
    assert [len(y) for _, y in dealt(catalogue.load("mnist", Dataset), 6, 7)] == [7] * 6


def test_rotated_mnist_turns_counter_clockwise_by_its_angle(monkeypatch):
    small_mnist(monkeypatch)
    found = catalogue.load("rotated_mnist:rows=20")
    assert [domain.name for domain in found.domains] == ["0°", "15°", "30°", "45°", "60°", "75°"]
    plain = dealt(catalogue.load("mnist", Dataset), 6, 20)
    assert np.array_equal(found.domains[0].x[..., 0], plain[0][0])
    for domain, (images, labels), angle in zip(found.domains, plain, rotated_mnist.ANGLES, strict=True):
        assert np.array_equal(domain.y, labels)
        # Another library, whose rotation has the same sense; the corners of random pixels are left out.
        reference = ndimage.rotate(images.astype(float), angle, axes=(1, 2), reshape=False, order=1)
        middle = (slice(None), slice(8, 20), slice(8, 20))
        assert np.corrcoef(domain.x[..., 0][middle].ravel(), reference[middle].ravel())[0, 1] > 0.99
    dot = np.zeros((1, 29, 29), np.uint8)
    dot[0, 14, 24] = 255  # to the right of the middle
    there = np.unravel_index(turned(dot, 90)[0].argmax(), (29, 29))
    assert there == (4, 14)  # above it
    tilted = np.array(np.unravel_index(turned(dot, 30)[0].argmax(), (29, 29)))
    assert np.abs(tilted - [14 - 10 * np.sin(np.pi / 6), 14 + 10 * np.cos(np.pi / 6)]).max() <= 1


def test_shrinking_takes_means_of_areas():
    image = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    expected = image.reshape(1, 2, 2, 2, 2).mean((2, 4))
    assert np.abs(shrunk(image, 2) - expected).max() <= 0.5
    assert shrunk(image, 0) is image


def test_colored_mnist_has_its_shares(monkeypatch):
    _x, _y = small_mnist(monkeypatch, n=9000)
    found = catalogue.load("colored_mnist")
    assert [domain.name for domain in found.domains] == ["+90%", "+80%", "-90%"]
    small = dealt(catalogue.load("mnist", Dataset), 3, 0)
    for domain, (images, digits), share in zip(found.domains, small, colored_mnist.CONTRADICTIONS, strict=True):
        truth = (digits < 5).astype(int)
        assert np.mean(domain.y != truth) == pytest.approx(0.25, abs=0.03)
        lit = domain.x.sum((1, 2)) > 0
        assert (lit.sum(1) == 1).all()  # one channel, and the image in it
        colour = lit[:, 1].astype(int)
        assert np.mean(colour != domain.y) == pytest.approx(share, abs=0.03)
        assert np.array_equal(domain.x.max(-1), images)
    assert found.classes[1] == "0 to 4"


# --- emoji ---


def package(icons, categories=None):
    """A package as npm has them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in {"icons.json": icons, "metadata.json": {"categories": categories}}.items():
            text = json.dumps(content).encode()
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return file.getvalue()


def cache(monkeypatch, folder, module, contents):
    """Put packages of a test's own into the cache, pinned as they are."""
    monkeypatch.setenv("REWEIGH_CACHE", str(folder))
    pinned = []
    for one, content in zip(module.CARD.packages, contents, strict=True):
        path = package_path(one)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        pinned.append(replace(one, sha256=sha256_of(path)))
    monkeypatch.setattr(module, "CARD", replace(module.CARD, packages=tuple(pinned)))


def test_all_packages_are_needed_where_each_carries_a_part(monkeypatch, tmp_path):
    cache(monkeypatch, tmp_path, emoji4d, [b"a", b"b", b"c", b"d"])
    assert {entry.name: entry for entry in catalogue.describe()}["emoji4d"].present is not None
    package_path(emoji4d.CARD.packages[2]).unlink()
    assert {entry.name: entry for entry in catalogue.describe()}["emoji4d"].present is None
    with pytest.raises(FileNotFoundError, match=r"openmoji 1.2.29.*7 MB\)"):
        catalogue.load("emoji4d")


def rectangle(colour):
    return {"body": f'<rect width="8" height="16" fill="{colour}"/>'}


def test_emoji_are_those_that_all_styles_share(monkeypatch, tmp_path):
    pytest.importorskip("resvg_py")
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    categories = {"Food": ["apple", "pear"], "Animals": ["cat", "dog", "only noto"], "Flags": ["flag"]}
    names = ["apple", "pear", "cat", "dog", "flag"]
    noto = package({"icons": {n: rectangle("red") for n in [*names, "only noto"]}}, categories)
    others = [package({"icons": {n: rectangle(c) for n in names}, "width": 16, "height": 16}) for c in ("lime", "blue")]
    # The last set knows the pear by another name only, and takes its colour from the text.
    icons = {n: rectangle("currentColor") for n in names if n != "pear"}
    last = package({"icons": icons, "aliases": {"pear": {"parent": "apple"}, "odd": {"parent": "cat", "rotate": 1}}})
    cache(monkeypatch, tmp_path, emoji4d, [noto, *others, last])
    found = catalogue.load("emoji4d:size=16")
    assert found.classes == ("Animals", "Food")
    assert [domain.name for domain in found.domains] == list(emoji4d.STYLES)
    for domain, colour in zip(found.domains, [(255, 0, 0), (0, 255, 0), (0, 0, 255), (0, 0, 0)], strict=True):
        assert domain.x.shape == (4, 16, 16, 3)
        assert domain.y.tolist() == [1, 0, 0, 1]  # apple, cat, dog, pear
        assert tuple(domain.x[0, 8, 3]) == colour
        assert tuple(domain.x[0, 8, 13]) == (255, 255, 255)
    monkeypatch.setattr(emoji4d, "_drawn", None)  # the second time nothing is drawn
    assert np.array_equal(catalogue.load("emoji4d:size=16").domains[1].x, found.domains[1].x)


# --- text ---


def test_vader_labels_are_signs_of_ratings(monkeypatch, tmp_path):
    lines = "1\t2.5\tgood stuff\n2\t-1.0\tbad stuff\n3\t0.0\tno stuff\n4\t0.1\tg\xf6od\n".encode("latin-1")

    def archive(files):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as made:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                made.addfile(entry, io.BytesIO(content))
        return file.getvalue()

    inner = archive({f"hutto/{name}": lines for name in vader._FILES.values()})
    whole = archive({"vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": inner})
    cache(monkeypatch, tmp_path, vader, [whole])
    found = catalogue.load("vader:features=64")
    assert [domain.name for domain in found.domains] == ["tweets", "films", "products", "editorials"]
    assert found.domains[2].y.tolist() == [1, 0, 1]
    assert np.allclose(np.linalg.norm(found.domains[0].x, axis=1), 1)
    assert len(catalogue.load("vader:features=64,rows=2").domains[0].y) == 2
    cache(monkeypatch, tmp_path, vader, [archive({"other": b""})])
    with pytest.raises(ValueError, match="no file hutto"):
        catalogue.load("vader")


# --- folders ---


def tree(folder, names, classes=("dog", "house"), each=3):
    for k, domain in enumerate(names):
        for c, label in enumerate(classes):
            place = folder / domain / label
            place.mkdir(parents=True)
            for i in range(each):
                Image.new("RGB", (10 + i, 12), (40 * k, 100 * c, 10 * i)).save(place / f"{i}.png")


@pytest.mark.parametrize(
    ("name", "folder", "count"), [("pacs", "PACS", 4), ("vlcs", "VLCS", 4), ("officehome", "office_home", 4),
                                  ("domainnet", "domain_net", 6)],
)  # fmt: skip
def test_official_folders(name, folder, count, tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    root.mkdir()
    official = importlib.import_module(f"{pacs.__package__}.{name}").OFFICIAL
    with pytest.raises(FileNotFoundError, match=f"DATA_ROOT/{folder}/"):
        catalogue.load(name, root=root)
    tree(root / folder, official.domains)
    assert {entry.name: entry for entry in catalogue.describe(root=root)}[name].present == str(root / folder)
    found = catalogue.load(f"{name}:size=8", root=root)
    assert [domain.name for domain in found.domains] == list(official.domains)
    assert len(found.domains) == count
    assert found.classes == ("dog", "house")
    for k, domain in enumerate(found.domains):
        assert domain.x.shape == (6, 8, 8, 3)
        assert isinstance(domain.x, np.memmap)  # a data set larger than memory is read a batch at a time
        assert domain.y.tolist() == [0, 0, 0, 1, 1, 1]
        assert domain.x[4, 4, 4].tolist() == [40 * k, 100, 10]


# --- values ---


def test_domains_must_fit_together():
    def one(name, n=3, width=2, y=None):
        return Domain(name=name, x=np.zeros((n, width)), y=np.zeros(n, int) if y is None else np.array(y))

    def many(*parts):
        return Domains(name="d", domains=parts, classes=("a", "b"), licence="", source="")

    with pytest.raises(ValueError, match=r"takes at least two, got 1"):
        many(one("a"))
    with pytest.raises(ValueError, match="inputs of one shape"):
        many(one("a"), one("b", width=3))
    with pytest.raises(ValueError, match="b has no labels or labels out of range"):
        many(one("a"), one("b", y=[0, 1, 2]))
    with pytest.raises(ValueError, match="one label per example"):
        Domain(name="a", x=np.zeros((2, 1)), y=np.zeros(3))


def test_things_are_held_out_in_all_domains_alike():
    y = np.repeat([0, 1], 50)
    shuffled = np.random.default_rng(0).permutation(100)
    found = Domains(
        name="d", classes=("a", "b"), licence="", source="",
        domains=[
            Domain(name="one", x=np.zeros((100, 1)), y=y, identity=np.arange(100)),
            Domain(name="two", x=np.zeros((100, 1)), y=y[shuffled], identity=np.arange(100)[shuffled]),
        ],
    )  # fmt: skip
    first, second = _domains.parts(found, 0.2, Seeds(0))
    for name, size in (("train", 64), ("held", 16), ("report", 20)):
        a, b = getattr(first, name), getattr(second, name)
        assert len(a) == size
        assert set(a) == set(shuffled[b])  # the same things, in another order
    used = np.concatenate([first.train, first.held, first.report])
    assert sorted(used) == list(range(100))
    assert np.bincount(y[first.report]).tolist() == [10, 10]
    other = _domains.parts(found, 0.2, Seeds(1))[0]
    assert not np.array_equal(other.report, first.report)


def test_without_things_a_fifth_of_each_domain_is_held_out():
    found = catalogue.load("rotated_digits")
    for domain, part in zip(found.domains, _domains.parts(found, 0.2, Seeds(0)), strict=True):
        assert sorted(np.concatenate([part.train, part.held])) == list(range(len(domain.y)))
        assert len(part.held) == pytest.approx(0.2 * len(domain.y), abs=5)
        assert np.array_equal(part.report, part.train)


def test_augmentation_keeps_shapes_changes_pictures_and_follows_the_generator():
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    torch.manual_seed(0)
    one = _augment.augmented(images)
    torch.manual_seed(0)
    assert np.array_equal(one, _augment.augmented(images))
    assert one.dtype == np.uint8
    assert one.shape == images.shape
    assert not np.array_equal(one, images)
    grey = (one == one[..., :1]).all((1, 2, 3))
    assert 0 < grey.sum() < 15


def test_hue_turns_about_grey():
    x = torch.tensor([[0.3, 0.3, 0.3], [0.9, 0.2, 0.1]]).reshape(2, 3, 1, 1)
    turned_by = _augment._turned(x, torch.full((2,), 2 * np.pi / 3))
    assert torch.allclose(turned_by[0], x[0], atol=1e-2)
    assert not torch.allclose(turned_by[1], x[1], atol=0.1)
    assert torch.allclose(_augment._luminance(turned_by), _augment._luminance(x), atol=1e-2)
    assert torch.allclose(_augment._turned(x, torch.zeros(2)), x, atol=1e-5)
