"""Photos and texts through frozen networks: computed once, fitted on training rows, and the same when predicting."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from reweigh.bench import models
from reweigh.bench.catalogue.images import image_folder
from reweigh.bench.compare import features
from reweigh.bench.compare.dealing import deal
from reweigh.bench.compare.features import Frozen
from reweigh.bench.compare.model import Model, train_and_save
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.request import Request, data_question, question
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.errors import MissingPackageError
from reweigh.bench.lab import plan
from reweigh.bench.tables import TableError
from reweigh.bench.train import frozen


class Trunk(nn.Module):
    """Stands for the pretrained network: the mean colour of a photo, over and over."""

    calls = 0

    def forward(self, x):
        Trunk.calls += 1
        return x.mean(dim=(2, 3)).repeat(1, 427)[:, :1280]


@pytest.fixture
def network(monkeypatch):
    monkeypatch.setattr(features, "available", lambda encoder: True)
    monkeypatch.setattr(frozen, "pretrained", lambda model: type("Network", (), {"embed": Trunk()}))
    Trunk.calls = 0


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    draw = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 120)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            pixels = draw.integers(low, low + 130, (9, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_the_last_convolution_is_fine_tuned_on_what_comes_before_it(photos, tmp_path, monkeypatch):
    """A network with random weights stands for the published one."""
    from reweigh.bench.models import efficientnet_lite0

    monkeypatch.setattr(features, "available", lambda encoder: True)
    monkeypatch.setattr(
        efficientnet_lite0, "load_into", lambda model, name: model.load_state_dict(published, strict=False)
    )
    published = efficientnet_lite0.EfficientNetLite0(3, nn.Identity()).state_dict()
    problem = load(data_question(str(photos)))
    task, how = deal(problem, parts_of(problem, 0), features=features.MAPS)
    assert task.x_train.shape[1:] == (8000,)
    # Before training, the two parts together are the whole network.
    whole = frozen.pretrained("efficientnet_lite0:weights=imagenet").eval()
    last = models.build("efficientnet_lite0:part=last,weights=imagenet", (8000,), 2).eval()
    files = [photos / problem.images.files[i] for i in parts_of(problem, 0).test]
    vectors = frozen.activations(whole.embed, image_folder.pixels(files, features._SIDE, False))
    with torch.no_grad():
        np.testing.assert_allclose(last[:-1](task.x_test).numpy(), vectors, atol=1e-4)
    np.testing.assert_allclose(how.photos(files), task.x_test, atol=1e-4)

    request = Request(question=data_question(str(photos)), models=("finetuned",), methods=("rgd",))
    spec = spec_of(request, problem, "finetuned", "mean")
    spec = dataclasses.replace(spec, settings={**spec.settings, "epochs": 2})
    folder = train_and_save(problem, spec, tmp_path / "model", expected={})
    kept = load_file(folder / "weights.safetensors")
    assert not torch.equal(kept["1.0.weight"], published["embed.8.0.weight"]), "it was trained"
    assert len(Model.load(folder).predict(photos)) == 40


def letters(texts, progress):
    """Stands for the text encoder: how often each letter occurs, at some of its 384 places."""
    out = np.zeros((len(texts), 384), np.float32)
    for row, text in enumerate(texts):
        for letter in text.lower():
            out[row, ord(letter) % 384] += 1
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1)


def spec_of(request, problem, column, label):
    asked = question(request, problem)
    return next(s for s in plan.comparison(asked, plan.as_written(asked)) if (s.column, s.label) == (column, label))


@pytest.mark.usefixtures("network")
def test_photos_are_looked_at_once_and_predicted_as_they_were_learnt(photos, tmp_path):
    problem = load(data_question(str(photos)))
    task, how = deal(problem, parts_of(problem, 0), features=features.PHOTOS)
    again, _ = deal(problem, parts_of(problem, 1), features=features.PHOTOS)
    assert Trunk.calls == 1  # one batch, for two splits
    assert task.x_train.shape[1:] == again.x_train.shape[1:] == (1280,)
    np.testing.assert_allclose(task.x_train.mean(0), 0, atol=1e-4)
    assert torch.linalg.vector_norm(task.x_train, dim=1).square().mean().sqrt() == pytest.approx(8, rel=1e-4)
    files = [photos / problem.images.files[i] for i in parts_of(problem, 0).test]
    np.testing.assert_allclose(how.photos(files), task.x_test, atol=1e-5)

    request = Request(question=data_question(str(photos)), methods=("rgd",))
    spec = spec_of(request, problem, "pretrained", "mean")
    model = Model.load(train_and_save(problem, spec, tmp_path / "model", expected={}))
    predicted = model.predict(photos)
    right = [name.split("/")[0] == label for name, label in predicted.select("file", "predicted class").rows()]
    assert np.mean(right) == 1.0


def test_photos_have_a_small_network_where_there_are_no_weights(photos):
    problem, request = load(data_question(str(photos))), Request(question=data_question(str(photos)))
    asked = question(request, problem)
    assert [column.name for column in asked.table.columns] == ["cnn"]
    assert any("reweigh data get efficientnet_lite0" in note for note in asked.table.notes)
    with pytest.raises(MissingPackageError, match="`--model pretrained` needs weights: `reweigh data get"):
        question(Request(question=data_question(str(photos)), models=("pretrained",)), problem)


def test_a_folder_is_decoded_once(photos, monkeypatch):
    (photos / "dark" / "torn.png").write_bytes(b"no image")
    first = load(DataQuestion(source=str(photos), image_size=8))
    load.cache_clear()
    monkeypatch.setattr(features.image_folder, "readable", None)
    second = load(DataQuestion(source=str(photos), image_size=8))
    np.testing.assert_array_equal(first.images.x, second.images.x)
    assert first.images.files == second.images.files
    assert [note for note in first.notes if "torn.png" in note] == [note for note in second.notes if "torn.png" in note]


def sentences(count=80):
    draw = np.random.default_rng(1)
    words = {"praise": ["good", "great", "fine", "lovely"], "blame": ["bad", "awful", "poor", "dull"]}
    rest = ["film", "story", "with", "music", "ending", "plot"]
    labels = ["praise" if i % 3 else "blame" for i in range(count)]
    return [" ".join([*draw.choice(words[y], 2), *draw.choice(rest, 4), str(i)]) for i, y in enumerate(labels)], labels


@pytest.fixture
def texts(tmp_path):
    for i, (text, label) in enumerate(zip(*sentences(), strict=True)):
        (tmp_path / "texts" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / label / f"{i}.txt").write_text(text)
    return tmp_path / "texts"


@pytest.mark.parametrize("embedded", [True, False])
def test_a_folder_of_texts_gets_a_model_that_predicts_texts(texts, tmp_path, monkeypatch, embedded):
    monkeypatch.setattr(features, "available", lambda encoder: embedded)
    monkeypatch.setattr(features, "_embeddings", letters)
    asked = data_question(str(texts))
    problem, request = load(asked), Request(question=asked, methods=("rgd",), models=("mlp",))
    assert (problem.rows, problem.classes) == (80, ("blame", "praise"))
    assert problem.row_name(0) == "blame/0.txt"
    every = question(Request(question=asked), problem).table.columns
    assert [column.name for column in every] == ["logistic", "mlp"]  # trees on topics or embeddings are slow and worse
    spec = spec_of(request, problem, "mlp", "mean")
    assert spec.settings.get("features", "") == ("minilm" if embedded else "")
    model = Model.load(train_and_save(problem, spec, tmp_path / "model", expected={}))
    predicted = model.predict(texts)
    right = [name.split("/")[0] == label for name, label in predicted.select("file", "predicted class").rows()]
    assert np.mean(right) > 0.9
    pl.DataFrame({"text": ["a good great film", "awful dull story"]}).write_csv(tmp_path / "new.csv")
    assert model.predict(tmp_path / "new.csv").columns[:2] == ["text", "predicted class"]


def test_texts_beside_other_columns_keep_them(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "available", lambda encoder: True)
    monkeypatch.setattr(features, "_embeddings", letters)
    text, label = sentences()
    frame = pl.DataFrame({"text": text, "stars": np.arange(80.0) % 7, "label": label})
    frame.write_ndjson(tmp_path / "reviews.jsonl")
    asked = data_question(str(tmp_path / "reviews.jsonl"), target="label")
    problem = load(asked)
    task, how = deal(problem, parts_of(problem, 0), features=features.TEXTS)
    assert isinstance(how, Frozen)
    assert task.x_train.shape[1] == how.width == 385
    rows, tested = parts_of(problem, 0).train, parts_of(problem, 0).test
    stars = frame["stars"].to_numpy()
    by_hand = (stars[tested] - stars[rows].mean()) / stars[rows].std()
    np.testing.assert_allclose(task.x_test[:, 0], by_hand, rtol=1e-5)
    again = Frozen.from_dict(how.to_dict())
    np.testing.assert_array_equal(again.rows(frame, rows), task.x_train)
    with pytest.raises(TableError, match="lacks the column 'text'"):
        how.rows(frame.drop("text"))
    with pytest.raises(ValueError, match="not those of the network"):
        Frozen.from_dict({**how.to_dict(), "mean": [0.0] * 3})
    models = [column.name for column in question(Request(question=asked), problem).table.columns]
    assert models == ["logistic", "lightgbm", "mlp"]


def test_test_texts_do_not_change_what_is_fitted(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "_embeddings", letters)
    text, label = sentences()
    pl.DataFrame({"text": text, "label": label}).write_csv(tmp_path / "a.csv")
    problem = load(DataQuestion(source=str(tmp_path / "a.csv"), target="label"))
    parts = parts_of(problem, 0)
    changed = list(text)
    for i in (*parts.test, *parts.val):
        changed[i] = f"entirely other words here {i}"
    pl.DataFrame({"text": changed, "label": label}).write_csv(tmp_path / "b.csv")
    other = load(DataQuestion(source=str(tmp_path / "b.csv"), target="label"))
    for encoder in ("", features.TEXTS):
        monkeypatch.setattr(features, "available", lambda encoder: True)
        assert deal(problem, parts, features=encoder)[1].to_dict() == deal(other, parts, features=encoder)[1].to_dict()
