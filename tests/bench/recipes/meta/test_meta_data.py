"""Omniglot and miniImageNet from tiny official files, splits of classes, and frozen pools of tasks."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from reweigh.bench import catalogue, models
from reweigh.bench.draws.few_shot import class_split, draw_tasks, sha256_of_tasks
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.models.conv4 import BatchStatistics, Pool
from reweigh.bench.recipes._few_shot import ImageTasks, Shape

#: sha256 of the frozen test pools: 423 characters, 20 drawings each; 5 and 20 ways, 1 shot, 15 queries.
POOLS = {
    5: "7062b54aa25ffd0ac321b9cd9e028c960205d638b5feeb5365978cbd91418f94",
    20: "69b8366dd90dcac04091d8babbccc87ab7a683e63869a9ed0eafd15be44eff0d",
}


# --- Omniglot ---


def drawing(ink):
    """An official drawing: 105 x 105, one bit, ink black; here a bar at a height of its own."""
    pixels = np.ones((105, 105), bool)
    pixels[ink : ink + 8] = False
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_omniglot(folder, drawers=20):
    """Four background and three evaluation characters in alphabets of their own."""
    folder.mkdir(parents=True)
    parts = {"images_background": ["0001", "0002", "0003", "0004"], "images_evaluation": ["0965", "0966", "0967"]}
    for part, characters in parts.items():
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/", "")
            for i, number in enumerate(characters):
                alphabet = f"Alphabet_{i % 2}/character{i // 2 + 1:02d}"
                for drawer in reversed(range(drawers)):
                    name = f"{part}/{alphabet}/{number}_{drawer + 1:02d}.png"
                    archive.writestr(name, drawing(10 * i + drawer))


def test_omniglot_as_the_official_archives_have_it(tmp_path):
    write_omniglot(tmp_path / "omniglot")
    found = catalogue.load("omniglot", root=tmp_path)
    assert found.x_train.shape == (80, 28, 28, 1)
    assert found.x_test.shape == (60, 28, 28, 1)
    assert found.classes == ("0001", "0002", "0003", "0004", "0965", "0966", "0967")
    assert np.bincount(found.y_train, minlength=7).tolist() == [20] * 4 + [0] * 3
    assert np.bincount(found.y_test, minlength=7).tolist() == [0] * 4 + [20] * 3
    # Ink is bright; drawers in order: the bar of character c and drawer d starts at 10 c + d of 105.
    rows = found.x_train[25, :, 14, 0].astype(float)
    assert rows.max() > 200
    assert rows[20:].max() == 0
    centre = (rows * np.arange(28)).sum() / rows.sum()
    assert centre == pytest.approx((10 * 1 + 5 + 3.5 + 0.5) * 28 / 105 - 0.5, abs=0.1)
    assert found.licence == "MIT"


def test_omniglot_in_another_size_and_with_a_missing_half(tmp_path):
    write_omniglot(tmp_path / "omniglot-py", drawers=2)
    assert catalogue.load("omniglot:size=14", root=tmp_path).x_train.shape == (8, 14, 14, 1)
    (tmp_path / "omniglot-py" / "images_evaluation.zip").unlink()
    with pytest.raises(FileNotFoundError, match=r"has images_background\.zip but no images_evaluation\.zip"):
        catalogue.load("omniglot", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"images_background\.zip and images_evaluation\.zip into"):
        catalogue.load("omniglot", root=tmp_path / "omniglot-py")


def test_an_archive_without_drawings_is_refused(tmp_path):
    (tmp_path / "omniglot").mkdir()
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(tmp_path / "omniglot" / f"{part}.zip", "w") as archive:
            archive.writestr("readme.txt", "")
    with pytest.raises(ValueError, match="holds 0 characters"):
        catalogue.load("omniglot", root=tmp_path)


# --- miniImageNet ---


PHOTOGRAPHS = {"train": ["n01", "n05", "n07"], "val": ["n02"], "test": ["n03", "n04"]}


def photograph(path, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (100, 90), colour).save(path, quality=95)


def colour_of(part, label, i):
    return (10 * int(label[1:]), 40 * ["train", "val", "test"].index(part), 20 * i)


@pytest.mark.parametrize("layout", ["folders", "tables"])
def test_miniimagenet_in_both_official_layouts(tmp_path, layout):
    folder = tmp_path / "miniimagenet"
    for part, labels in PHOTOGRAPHS.items():
        lines = ["filename,label"]
        for label in labels:
            for i in range(3):
                name = f"{label}{i:08d}.jpg"
                photograph(
                    folder / (f"{part}/{label}" if layout == "folders" else "images") / name, colour_of(part, label, i)
                )
                lines.append(f"{name},{label}")
        if layout == "tables":
            (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    found = catalogue.load("miniimagenet", root=tmp_path)
    assert found.classes == ("train/n01", "train/n05", "train/n07", "val/n02", "test/n03", "test/n04")
    assert found.x_train.shape == (12, 84, 84, 3)
    assert found.x_test.shape == (6, 84, 84, 3)
    assert found.y_train.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert found.y_test.tolist() == [4] * 3 + [5] * 3
    expected = colour_of("train", "n05", 2)
    assert np.abs(found.x_train[5].astype(int) - expected).max() <= 4  # JPEG
    split = class_split(found.classes)
    assert [part.tolist() for part in split] == [[0, 1, 2], [3], [4, 5]]
    assert catalogue.load("miniimagenet:size=20", root=tmp_path).shape == (3, 20, 20)


def test_a_table_that_names_a_missing_photograph(tmp_path):
    folder = tmp_path / "miniimagenet"
    folder.mkdir()
    for part in PHOTOGRAPHS:
        (folder / f"{part}.csv").write_text("filename,label\nnone.jpg,n01\n")
    with pytest.raises(FileNotFoundError, match=r"train\.csv names none\.jpg"):
        catalogue.load("miniimagenet", root=tmp_path)


# --- splits and pools ---


def test_characters_are_split_by_the_hash_of_their_names():
    names = [f"{i:04d}" for i in range(1, 1624)]
    split = class_split(names, (1028, 172, 423))
    assert [len(part) for part in split] == [1028, 172, 423]
    assert sorted(np.concatenate(split).tolist()) == list(range(1623))
    order = sorted(range(1623), key=lambda i: hashlib.sha256(names[i].encode()).digest())
    assert set(split.train.tolist()) == set(order[:1028])
    assert set(split.test.tolist()) == set(order[-423:])
    assert split.sha256 == class_split(names, (1028, 172, 423)).sha256
    assert split.sha256 != class_split(names, (1029, 171, 423)).sha256
    with pytest.raises(ValueError, match="`sizes` must be three positive numbers with the sum 1623"):
        class_split(names, (1000, 172, 423))


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_tasks_have_different_classes_and_different_examples(ways, images, seed):
    sizes = np.array([5, 6, 7, 8, 9, 10, 11])
    tasks = draw_tasks(sizes, ways, images, 5, np.random.default_rng(seed))
    assert tasks.shape == (5, ways, 1 + images)
    for task in tasks:
        assert len(set(task[:, 0].tolist())) == ways
        for label, *members in task.tolist():
            assert len(set(members)) == images
            assert min(members) >= 0
            assert max(members) < sizes[label]


def test_tasks_that_cannot_be():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="`ways` must be at most 3"):
        draw_tasks(np.array([5, 5, 5]), 4, 2, 1, rng)
    with pytest.raises(ValueError, match="needs 6 examples of a class, but one class has 5"):
        draw_tasks(np.array([5, 9, 9]), 2, 6, 1, rng)
    with pytest.raises(ValueError, match="`ways` must be"):
        Shape(ways=1, shots=1, queries=1)


@pytest.mark.parametrize("ways", POOLS)
def test_the_frozen_pool_is_the_frozen_pool(ways):
    """Another hash means that numbers are not comparable with those of published reports."""
    tasks = draw_tasks(np.full(423, 20), ways, 16, 1024, Seeds(2024).numpy("test pool"))
    assert sha256_of_tasks(tasks) == POOLS[ways]


@pytest.fixture(scope="module")
def omniglot(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_omniglot(root / "omniglot")
    return catalogue.load("omniglot", root=root)


def image_tasks(dataset, **more):
    shape = Shape(ways=3, shots=2, queries=4)
    test_shape = Shape(ways=2, shots=1, queries=5)
    return ImageTasks(dataset, shape, test_shape, sizes=(3, 2, 2), pools=(4, 6), **more)


def test_episodes_hold_the_images_that_the_indices_name(omniglot):
    tasks = image_tasks(omniglot, rotations=True)
    everything = np.concatenate([omniglot.x_train, omniglot.x_test])
    indices = tasks._tasks("train", tasks.test_shape, 4, np.random.default_rng(0))
    found = tasks._episodes("train", indices, tasks.test_shape)
    assert {label % 4 for label in indices[:, :, 0].flatten()} == {0, 1, 2, 3}
    assert found.support_x.shape == (4, 2, 1, 28, 28)
    assert found.query_x.shape == (4, 10, 1, 28, 28)
    assert found.query_y.tolist() == [[0] * 5 + [1] * 5] * 4
    for k, task in enumerate(indices.tolist()):
        for way, (label, *members) in enumerate(task):
            character, turn = tasks.split.train[label // 4], label % 4
            for i, member in enumerate(members):
                image = np.rot90(everything[20 * character + member, :, :, 0], turn) / 255
                shown = found.support_x[k, way] if i == 0 else found.query_x[k, 5 * way + i - 1]
                assert np.allclose(shown[0].numpy(), image)


@pytest.mark.parametrize("part", ["val", "test"])
def test_no_task_to_choose_by_or_to_report_holds_a_character_twice(omniglot, part):
    tasks = image_tasks(omniglot, rotations=True)
    assert {len(set(task[:, 0])) for task in tasks.pools[part]} == {2}
    # Classes are characters, and not their turns.
    assert tasks.pools[part][:, :, 0].max() < len(getattr(tasks.split, part))
    everything = np.concatenate([omniglot.x_train, omniglot.x_test])
    upright = {image.tobytes() for image in everything}
    for found in tasks.pool(part):
        shown = (255 * torch.cat([found.support_x, found.query_x], 1)).round().byte().permute(0, 1, 3, 4, 2)
        assert {image.numpy().tobytes() for image in shown.flatten(0, 1)} <= upright


def test_turned_characters_would_be_twice_in_every_third_task():
    # Of 20 out of 423 characters in four turns, every third task would hold one twice: 1 - prod(1 - 3 i / (1692 - i)).
    turned = draw_tasks(np.full(4 * 423, 20), 20, 16, 1024, Seeds(2024).numpy("test pool"))
    assert sum(len(set(task[:, 0] // 4)) < 20 for task in turned) == 319


def test_training_tasks_are_of_training_characters_and_pools_never_change(omniglot):
    tasks, again = image_tasks(omniglot), image_tasks(omniglot)
    assert tasks.facts() == again.facts()
    drawn = tasks.draw(np.random.default_rng(0), 50)
    assert drawn.support_x.shape == (50, 6, 1, 28, 28)
    everything = np.concatenate([omniglot.x_train, omniglot.x_test])
    labels = np.concatenate([omniglot.y_train, omniglot.y_test])
    allowed = {everything[i].tobytes() for i in range(140) if labels[i] in tasks.split.train}
    seen = {(255 * image).round().byte().numpy().tobytes() for image in drawn.query_x.flatten(0, 1)}
    assert seen <= allowed
    assert tasks.scores(torch.eye(2)[None], torch.tensor([[0, 0]])).tolist() == [0.5]


# --- Conv-4 ---


def test_batch_statistics_are_batch_normalisation_without_a_memory():
    x = torch.randn(5, 3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    own, theirs = BatchStatistics(3).double(), torch.nn.BatchNorm2d(3, track_running_stats=False).double()
    with torch.no_grad():
        for layer in (own, theirs):
            layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
            layer.bias.copy_(torch.tensor([0.1, -0.2, 0.3]))
    assert torch.allclose(own(x), theirs(x), atol=1e-12)
    torch.autograd.gradgradcheck(own, x)


@pytest.mark.parametrize("side", [4, 7])
def test_pooling_is_the_same_with_and_without_gradients(side):
    x = torch.randn(3, 2, 5, side, side, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.MaxPool2d(2)(x.flatten(0, 1)).unflatten(0, (3, 2))
    assert torch.equal(torch.func.vmap(Pool())(x), expected)
    with torch.no_grad():
        assert torch.equal(torch.func.vmap(Pool())(x), expected)


@pytest.mark.parametrize(("shape", "downsample", "features"), [((1, 28, 28), "pool", 64), ((3, 84, 84), "pool", 1600),
                                                               ((1, 28, 28), "stride", 64)])  # fmt: skip
def test_features_of_conv4(shape, downsample, features):
    model = models.build("conv4", shape, 5, downsample=downsample, statistics="batch")
    assert model.embed(torch.zeros(2, *shape)).shape == (2, features)
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, 5)
