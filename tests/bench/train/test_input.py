"""Input that scales: folders and shards give the same images, in an order that does not depend on who reads."""

from __future__ import annotations

import io
import math
import multiprocessing
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from children import answers
from PIL import Image

from reweigh.bench.catalogue import streams
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.input import pipeline
from reweigh.bench.train.input import transforms as images
from reweigh.bench.train.input.pipeline import BLOCK, ImageTransform, Pipeline, mixed
from reweigh.torch.losses import CrossEntropy


def picture(number):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8))


def png(number):
    content = io.BytesIO()
    picture(number).save(content, "PNG")
    return content.getvalue()


def member(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


@pytest.fixture
def root(tmp_path):
    """The same twelve images of two classes as folders and as three shards."""
    for number in range(12):
        name = ("bird", "cat")[number % 2]
        for part in ("train", "val"):
            folder = tmp_path / "plain" / part / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:02d}.png").write_bytes(png(number))
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "classes.txt").write_text("bird\ncat\n")
    for part in ("train", "val"):
        for shard in range(3):
            with tarfile.open(packed / f"{part}-{shard}.tar", "w") as archive:
                for number in range(4 * shard, 4 * shard + 4):
                    member(archive, f"{number:02d}.cls", str(number % 2).encode())
                    member(archive, f"{number:02d}.png", png(number))
    return tmp_path


def test_folders_and_shards_hold_the_same(root):
    plain, packed = (
        streams.parts(f"{kind}:path={path}", root) for kind, path in (("folder", "plain"), ("shards", "packed"))
    )
    for part in ("train", "test"):
        assert len(plain[part]) == len(packed[part]) == 12
        assert plain[part].classes == packed[part].classes == ("bird", "cat")
        assert packed[part].labels.tolist() == [number % 2 for number in range(12)]
        assert np.bincount(plain[part].labels).tolist() == [6, 6]
        for number in range(12):
            assert np.array_equal(np.asarray(packed[part].read(number)), np.asarray(picture(number)))
    assert np.array_equal(np.asarray(plain["train"].read(6)), np.asarray(picture(1)))  # the first cat


@pytest.mark.parametrize("damage", ["cut in a header", "cut in an image", "no label", "empty"])
def test_an_unreadable_shard_is_named(root, damage):
    path = root / "packed" / "train-1.tar"
    if damage == "no label":
        with tarfile.open(path, "w") as archive:
            member(archive, "a.png", png(0))
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        # A shard's members begin at multiples of 512 bytes; images are longer than that.
        path.write_bytes(path.read_bytes()[: 2048 + (100 if damage == "cut in a header" else 700)])
    with pytest.raises(ValueError, match=rf"{path} (is damaged|holds no images)"):
        streams.parts("shards:path=packed", root)


def test_an_unreadable_image_of_a_shard_is_named(root):
    path = root / "packed" / "train-1.tar"
    content = bytearray(path.read_bytes())
    start = content.index(b"\x89PNG")
    content[start : start + 8] = bytes(8)
    path.write_bytes(content)
    train = streams.parts("shards:path=packed", root)["train"]
    with pytest.raises(ValueError, match=rf"member at byte {start} of {path} is not an image"):
        [train.read(number) for number in range(12)]


def test_members_that_point_elsewhere_are_left_alone(root):
    with tarfile.open(root / "packed" / "train-9.tar", "w") as archive:
        link = tarfile.TarInfo("../../evil.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        member(archive, "../../outside.cls", b"1")
        member(archive, "../../outside.png", png(3))
    before = sorted(root.rglob("*"))
    train = streams.parts("shards:path=packed", root)["train"]
    assert len(train) == 13  # the regular member is an image like any other: it is read in place, wherever it points
    train.read(12)
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shards:path=../elsewhere", "under the data root"),
        ("folder:path=nowhere", "Put images into DATA_ROOT/PATH/train/CLASS/"),
        ("shards:path=nowhere", "Put shards into DATA_ROOT/PATH/"),
        ("shards:folder=packed", "no option 'folder'"),
        ("adult:rows=3", "no option"),
        ("descriptions", "must name images"),
    ],
)
def test_wrong_names(root, name, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        streams.parts(name, root)


def jpg(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(path)


def test_food101_as_handed_out(tmp_path):
    lists = {"train": ["apple_pie/3", "waffles/1", "apple_pie/2"], "test": ["waffles/9"]}
    for part, lines in lists.items():
        for line in lines:
            jpg(tmp_path / "food-101" / "images" / f"{line}.jpg", int(line[-1]))
        (tmp_path / "food-101" / "meta").mkdir(exist_ok=True)
        (tmp_path / "food-101" / "meta" / f"{part}.txt").write_text("\n".join(lines) + "\n")
    found = streams.parts("food101", tmp_path)
    assert found["train"].classes == ("apple_pie", "waffles")
    assert found["train"].labels.tolist() == [0, 1, 0]
    assert found["test"].labels.tolist() == [1]
    assert found["test"].read(0).size == (24, 20)


def test_cars_as_handed_out(tmp_path):
    from scipy.io import savemat

    base = tmp_path / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    names = np.array(["AM General Hummer", "Acura RL", "Audi TT"], dtype=object)
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})
    kind = [("class", "O"), ("fname", "O")]
    for part, name, rows in (
        ("train", "cars_train_annos.mat", [(3, "00001.jpg"), (1, "00002.jpg")]),
        ("test", "cars_test_annos_withlabels.mat", [(2, "00001.jpg")]),
    ):
        savemat(base / "devkit" / name, {"annotations": np.array(rows, dtype=kind)})
        for _, file in rows:
            jpg(base / f"cars_{part}" / file, 0)
    found = streams.parts("cars", tmp_path)
    assert found["train"].classes == tuple(names)
    assert found["train"].labels.tolist() == [2, 0]  # the annotations count from one
    assert found["test"].labels.tolist() == [1]
    found["test"].read(0)


def test_grocery_has_the_innermost_folder_as_class(tmp_path):
    jpg(tmp_path / "grocery" / "train" / "Fruit" / "Apple" / "Golden" / "1.jpg", 1)
    jpg(tmp_path / "grocery" / "train" / "Fruit" / "Lime" / "1.jpg", 2)
    jpg(tmp_path / "grocery" / "test" / "Fruit" / "Lime" / "5.jpg", 2)
    found = streams.parts("grocery", tmp_path)
    assert found["train"].classes == ("Golden", "Lime")
    assert found["test"].labels.tolist() == [1]
    jpg(tmp_path / "grocery" / "test" / "Fruit" / "Plum" / "1.jpg", 3)
    with pytest.raises(ValueError, match="class 'Plum' that the training part does not have"):
        streams.parts("grocery", tmp_path)


@pytest.mark.parametrize("name", ["food101", "cars", "grocery"])
def test_what_is_not_there_is_named(tmp_path, name):
    for root in (tmp_path, None):
        with pytest.raises(FileNotFoundError, match=rf"^{name} is not under (the|a) data root.*Put the folder"):
            streams.parts(name, root)
    (tmp_path / {"food101": "food-101", "cars": "stanford_cars", "grocery": "grocery"}[name]).mkdir()
    with pytest.raises(FileNotFoundError, match="Unpack the official archive"):
        streams.parts(name, tmp_path)


def make(source, **changes):
    options = {
        "rows": np.arange(2, 12),
        "look": ImageTransform(size=16, augment="inception"),
        "batch_size": 8,
        "seed": 3,
    }
    return Pipeline(source, **(options | changes))


@pytest.mark.parametrize("augment", ["none", "shift", "inception"])
def test_batches_do_not_depend_on_the_number_of_processes(root, monkeypatch, augment):
    train = streams.parts("shards:path=packed", root)["train"]
    look = ImageTransform(size=16, augment=augment, randaugment=(2, 10))
    ((whole, labels, numbers),) = make(train, look=look).epoch(5)
    assert whole.shape == (8, 3, 16, 16)
    assert labels.tolist() == [number % 2 for number in numbers.tolist()]
    shares = []
    for rank in range(2):
        monkeypatch.setattr(processes, "world", lambda: 2)
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        ((x, _, mine),) = make(train, look=look).epoch(5)
        shares.append((x, mine))
    assert torch.equal(torch.cat([mine for _, mine in shares]), numbers)
    torch.testing.assert_close(torch.cat([x for x, _ in shares]), whole)


def test_epochs_differ_and_repeat(root):
    train = streams.parts("folder:path=plain", root)["train"]
    (first,) = make(train).epoch(0)
    (again,) = make(train).epoch(0)
    (second,) = make(train).epoch(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    assert set(first[2].tolist()) <= set(range(2, 12))
    assert list(make(train).epoch(0, start=1)) == []


def _read(root, results):
    train = streams.parts("shards:path=packed", root)["train"]
    results.put([next(make(train, readers=readers).epoch(2))[0].numpy() for readers in (0, 1)])


@pytest.mark.processes
def test_readers_beside_this_process_give_the_same(root):
    # Readers are forked, which a process may not do in which another test has left threads.
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ((alone, helped),) = answers([context.Process(target=_read, args=(root, results))], results)
    np.testing.assert_array_equal(alone, helped)


def test_evaluation_sees_everything_once(root, monkeypatch):
    test = streams.parts("shards:path=packed", root)["test"]
    seen = []
    monkeypatch.setattr(processes, "world", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        seen += [n for _, _, numbers in make(test).on(test).evaluation(np.arange(11)) for n in numbers.tolist()]
    assert sorted(seen) == list(range(11))


def test_mixup_by_hand():
    x = torch.arange(8.0).view(8, 1)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    draw = SimpleNamespace(beta=lambda a, b: 0.25)
    inputs, soft, share = mixed(x, y, 3, 0.2, 0.0, draw)
    assert float(share) == 0.75  # the larger part comes first
    assert BLOCK == 4
    # Neighbours within blocks of four: 0 with 3, 1 with 0, 2 with 1, 3 with 2; 4 with 7, …
    partners = [3, 0, 1, 2, 7, 4, 5, 6]
    assert inputs[:, 0].tolist() == [0.75 * k + 0.25 * p for k, p in enumerate(partners)]
    assert soft[1].tolist() == [0.25, 0.75, 0.0]
    assert soft[3].tolist() == [0.75, 0.0, 0.25]
    assert torch.allclose(soft.sum(1), torch.ones(8))


def test_mixup_is_the_same_in_shares():
    x, y = torch.randn(16, 3), torch.randint(0, 5, (16,))
    whole = mixed(x, y, 5, 0.2, 0.1, np.random.default_rng(0))
    parts = [mixed(x[k : k + 8], y[k : k + 8], 5, 0.2, 0.1, np.random.default_rng(0)) for k in (0, 8)]
    for together, apart in zip(whole[:2], zip(*(part[:2] for part in parts), strict=True), strict=True):
        torch.testing.assert_close(torch.cat(apart), together)


@pytest.mark.parametrize("seed", range(5))
def test_cutmix_shares_targets_by_area(seed):
    x = torch.stack([torch.full((3, 10, 12), float(k)) for k in (0, 1, 0, 1)])
    before = x.clone()
    inputs, soft, share = mixed(x, torch.tensor([0, 1, 0, 1]), 2, 0.0, 0.0, np.random.default_rng(seed), cutmix=1.0)
    assert torch.equal(x, before)  # what came in is left alone
    assert set(inputs.unique().tolist()) <= {0.0, 1.0}  # pixels are one image's or the other's
    # A black image with a white rectangle: its mean is the rectangle's share, and that is the other label's.
    assert inputs[0].mean().item() == pytest.approx(1 - share.item(), abs=1e-6)
    assert soft[0].tolist() == pytest.approx([share.item(), 1 - share.item()], abs=1e-6)
    assert soft[1].tolist() == pytest.approx([1 - share.item(), share.item()], abs=1e-6)


def test_mixup_and_cutmix_take_turns():
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    cut = 0
    for seed in range(200):
        inputs, _, _ = mixed(x, y, 4, 0.8, 0.0, np.random.default_rng(seed), cutmix=1.0)
        cut += bool((inputs[0] == x[0]).any()) or bool((inputs[0] == x[3]).all())
    assert 70 <= cut <= 130


@pytest.mark.parametrize(("classes", "floor"), [(10, 0.500), (100, 0.778), (1000, 1.015)])
def test_the_floor_of_smoothed_targets(classes, floor):
    """Entropy of 0.9 + 0.1/C and C - 1 times 0.1/C: no loss goes below it."""
    _, soft, _ = mixed(torch.zeros(4, 1), torch.arange(4), classes, 0.0, 0.1, np.random.default_rng(0))
    high, low = 0.9 + 0.1 / classes, 0.1 / classes
    by_hand = -high * math.log(high) - (classes - 1) * low * math.log(low)
    assert by_hand == pytest.approx(floor, abs=1e-3)
    assert CrossEntropy().floor(soft) == pytest.approx(by_hand, abs=1e-5)
    best = soft.log()  # the best logits there are
    assert CrossEntropy()(best, soft).min().item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_change_of_randaugment_keeps_size_and_mode(mode):
    image = picture(0).convert(mode)
    for change in images._CHANGES:
        for strength in (0.0, 1 / 3, 1.0):
            changed = change(image, strength, -1.0)
            assert (changed.size, changed.mode) == (image.size, mode)
    draw = np.random.default_rng(0)
    assert len({images.randaugment(image, 2, 10, draw).tobytes() for _ in range(20)}) > 10


def test_parts_of_images_lie_inside_and_cover_what_they_should():
    marked = Image.new("L", (60, 40))
    sizes = []

    class Spy:
        size = marked.size

        def resize(self, size, method, box=None):
            sizes.append(box)
            return marked

    draw = np.random.default_rng(0)
    for _ in range(300):
        images.inception_crop(Spy(), 16, draw)
    for left, top, right, bottom in sizes:
        assert 0 <= left < right <= 60
        assert 0 <= top < bottom <= 40
        area, shape = (right - left) * (bottom - top) / 2400, (right - left) / (bottom - top)
        assert 0.06 <= area <= 1.0
        assert 0.65 <= shape <= 1.55  # three to four, up to whole pixels
    assert np.std([(r - l) * (b - t) for l, t, r, b in sizes]) > 200  # noqa: E741


def test_the_middle_of_an_image():
    wide = Image.fromarray(np.tile(np.arange(40, dtype=np.uint8), (20, 1)))
    middle = np.asarray(images.central(wide, 20, 1.0))
    assert middle.shape == (20, 20)
    assert middle[0, 0] == 10
    assert middle[0, -1] == 29
    assert images.central(wide, 14, 0.875).size == (14, 14)


def test_inputs_are_normalised():
    grey = Image.fromarray(np.full((4, 4), 255, np.uint8))
    assert pipeline._tensor(grey)[0, 0, 0].item() == pytest.approx(2.0)
    mean = Image.fromarray(np.round(np.full((4, 4, 3), pipeline.MEAN) * 255).astype(np.uint8))
    assert pipeline._tensor(mean).abs().max().item() < 0.01
