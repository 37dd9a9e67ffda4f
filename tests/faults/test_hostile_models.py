"""Models that somebody made up: their hashes are right, and no memory is taken or index followed that does not fit."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save

from reweigh.bench.compare import booster_files, manifest, recipe
from reweigh.bench.compare.model import Model, train_and_save, write_predictions
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.errors import UserError
from reweigh.bench.lab.runs import Spec
from reweigh.bench.tables import TableError


def people(n: int = 240) -> pl.DataFrame:
    draw = np.random.default_rng(3)
    age, city = draw.integers(18, 80, n), draw.choice(["Rom", "Bonn", "Oslo"], n)
    score = age + 12 * (city == "Rom") + draw.normal(0, 8, n)
    band = np.where(score > 65, "c", np.where(score > 45, "b", "a"))
    return pl.DataFrame({"age": age, "city": city, "band": band, "old": np.where(score > 55, "yes", "no"), "s": score})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """One kept model of each sort, by model and target."""
    root = tmp_path_factory.mktemp("models")
    people().write_csv(root / "people.csv")
    folders: dict[str, Path] = {"rows": root / "people.csv"}
    targets = {"mlp": "old", "lightgbm": "band", "xgboost": "band", "lightgbm binary": "old", "xgboost number": "s"}
    for name, target in targets.items():
        model = name.split()[0]
        drop = tuple(other for other in ("band", "old", "s") if other != target)
        question = DataQuestion(source=str(root / "people.csv"), target=target, drop=drop)
        problem = load(question)
        settings = recipe.settings(question, problem, 5) | recipe.column(model, problem, ("mean",)).settings
        spec = Spec(
            recipe="compare", column=model, label="mean", settings=settings | {"epochs": 3}, method="mean", seed=0
        )
        folders[name] = train_and_save(problem, spec, root / name.replace(" ", "-"), expected={})
    return folders


@pytest.fixture
def copied(trained, tmp_path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(trained[name], tmp_path / "model"))

    return copy


def sign(folder: Path, **changes: Any) -> None:
    """Write the card anew with right hashes, as anybody can who knows the format."""
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").unlink()
    manifest.write(folder, {name: value for name, value in (card | changes).items() if name not in ("files", "sha256")})


@pytest.mark.parametrize("name", ["mlp", "lightgbm", "xgboost", "lightgbm binary", "xgboost number"])
def test_a_signed_copy_predicts_the_same(trained, copied, name):
    """So that the refusals below are about what was changed; and trees that were written anew are the same trees."""
    folder = copied(name)
    sign(folder)
    frames = [Model.load(place).predict(trained["rows"]) for place in (trained[name], folder)]
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "lightgbm binary", "xgboost number"])
def test_trees_written_anew_predict_as_the_library_reads_them(trained, name):
    card = json.loads((trained[name] / "model.json").read_text())
    fits = {"kind": card["kind"], "width": card["shape"][0], "classes": len(card["classes"])}
    x = np.random.default_rng(0).normal(size=(500, fits["width"])).astype(np.float32)
    if name.startswith("lightgbm"):
        import lightgbm

        path = trained[name] / "booster.txt"
        ours = lightgbm.Booster(model_str=booster_files.lightgbm_text(path, **fits)).predict(x)
        theirs = lightgbm.Booster(model_file=str(path)).predict(x)
    else:
        import xgboost

        path = trained[name] / "booster.json"
        made, own = xgboost.Booster(), xgboost.Booster()
        made.load_model(booster_files.xgboost_json(path, **fits))
        own.load_model(str(path))
        ours, theirs = made.predict(xgboost.DMatrix(x)), own.predict(xgboost.DMatrix(x))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": [10**9]},
        {"hidden": [100_000] * 32},
        {"hidden": ["64"]},
        {"hidden": [1.5]},
        {"hidden": [[64]]},
        {"hidden": -1},
        {"shape": [10**12]},
        {"shape": [10**7]},
        {"shape": []},
        {"shape": "4"},
        {"shape": [True]},
        {"classes": ["no"]},
        {"classes": [1, 2]},
        {"classes": "no"},
        {"classes": [str(i) for i in range(5000)], "kind": "multiclass"},
        {"kind": "other"},
        {"kind": ["binary"]},
        {"model": "wrn:depth=10000,width=1000"},
        {"model": "../mlp"},
        {"model": None},
        {"head": "no such head"},
        {"head": 3},
        {"correction": {"kind": "knots", "classes": 2, "x": [[]], "y": [[]]}},
        {"correction": {"kind": "knots", "classes": 2, "x": [[0.0, 1.0]], "y": [[0.0]]}},
        {"correction": {"kind": "affine", "scale": [1.0], "offset": [0.0, 0.0]}},
        {"preprocessing": {}},
        {"preprocessing": []},
        {"preprocessing": {"pixels": {"size": 10**9, "mean": [0.0], "deviation": [1.0]}}},
        {"preprocessing": {"pixels": {"size": 32, "mean": [0.0], "deviation": [1.0]}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_card_that_does_not_fit_the_weights_takes_no_memory(copied, changes, monkeypatch):
    folder = copied("mlp")
    sign(folder, **changes)
    empty = torch.empty

    def small(*size: Any, **options: Any) -> Any:
        made = empty(*size, **options)
        assert made.device.type == "meta" or made.numel() < 10**6, "memory was taken"
        return made

    monkeypatch.setattr(torch, "empty", small)
    with pytest.raises(TableError):
        Model.load(folder)


def test_an_encoder_of_another_width_is_refused(copied):
    folder = copied("mlp")
    preprocessing = json.loads((folder / "model.json").read_text())["preprocessing"]
    preprocessing["encoder"]["columns"].pop()
    sign(folder, preprocessing=preprocessing)
    with pytest.raises(TableError, match="rows have shape"):
        Model.load(folder)


#: A place in the preprocessing or in the profile of the training rows, and what it cannot hold.
WRONG_PLACES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a name that is a number": (("preprocessing", "encoder", "columns", 0, "name"), 3),
    "a name that is a list": (("preprocessing", "encoder", "columns", 0, "name"), ["age"]),
    "a mean that is a text": (("preprocessing", "encoder", "columns", 0, "scale", "mean"), "40"),
    "a mean for each row": (("preprocessing", "encoder", "columns", 0, "scale", "mean"), [40.0] * 240),
    "no median": (("preprocessing", "encoder", "columns", 0, "scale", "median"), None),
    "a flag that is a number": (("preprocessing", "encoder", "columns", 0, "indicator"), 0),
    "a level that is a number": (("preprocessing", "encoder", "columns", 1, "levels", 0), 7),
    "a level twice": (("preprocessing", "encoder", "columns", 1, "levels"), ["Rom", "Rom", "Oslo"]),
    "levels that are one text": (("preprocessing", "encoder", "columns", 1, "levels"), "Rom"),
    "a field too many": (("preprocessing", "encoder", "columns", 1, "kinds"), []),
    "a target that is a list": (("preprocessing", "encoder", "target", "name"), []),
    "rows without end": (("training rows", "rows"), math.inf),
    "numbers with names": (("training rows", "columns", 0, "levels"), ["a"]),
    "names with a range": (("training rows", "columns", 1, "low"), 0.0),
    "lists in lists": (("training rows", "columns"), functools.reduce(lambda inner, _: [inner], range(900), 0)),
}


@pytest.mark.parametrize("what", WRONG_PLACES)
def test_preprocessing_that_cannot_be_is_damage_and_not_a_bug(copied, what):
    folder = copied("mlp")
    card = json.loads((folder / "model.json").read_text())
    (*way, last), value = WRONG_PLACES[what]
    functools.reduce(lambda inner, key: inner[key], way, card)[last] = value
    sign(folder, **card)
    with pytest.raises(TableError, match="is damaged"):
        Model.load(folder)


def test_weights_whose_header_lies_are_refused(copied):
    folder = copied("mlp")
    path = folder / "weights.safetensors"
    whole = path.read_bytes()
    tensors = load_file(path)
    first = next(iter(tensors))
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    huge = {**header, first: {**header[first], "shape": [10**6, 10**6]}}
    renamed = {f"{name}x": entry for name, entry in header.items()}
    contents = [
        b"", b"\0" * 8, struct.pack("<Q", 2**63) + whole[8:], struct.pack("<Q", 10) + b"[" * 10, whole[:-4],
        whole + b"x",
        *(struct.pack("<Q", len(text)) + text + whole[8 + length :] for text in
          (json.dumps(h).encode() for h in (huge, renamed, {}, {first: 3}, {first: {"shape": "a", "dtype": "F32"}}))),
        save({name: value[..., :1].contiguous() for name, value in tensors.items()}),
    ]  # fmt: skip
    for content in contents:
        path.write_bytes(content)
        sign(folder)
        with pytest.raises(TableError, match="cannot be read"):
            Model.load(folder)


LIGHTGBM = {
    "feature outside": lambda t: _first_number(t, "split_feature", "100000"),
    "feature below zero": lambda t: _first_number(t, "split_feature", "-5"),
    "child outside": lambda t: _first_number(t, "left_child", "99999999"),
    "leaf outside": lambda t: _first_number(t, "left_child", "-99999999"),
    "cycle": lambda t: _first_number(t, "left_child", "0"),
    "fewer thresholds": lambda t: t.replace("\nthreshold=", "\nthreshold=1 \nx=", 1),
    "more leaves than values": lambda t: _first_number(t, "num_leaves", "100000"),
    "no leaves": lambda t: _first_number(t, "num_leaves", "0"),
    "not a number": lambda t: _first_number(t, "leaf_value", "nan"),
    "categories": lambda t: _first_number(t, "num_cat", "3"),
    "a split by category": lambda t: _first_number(t, "decision_type", "1"),
    "linear": lambda t: _first_number(t, "is_linear", "1"),
    "other features": lambda t: _first_number(t, "max_feature_idx", "100"),
    "a tree fewer": lambda t: t.replace("\nTree=0", "\nTrie=0", 1),
    "no trees": lambda t: t.partition("\nTree=0")[0],
    "nothing": lambda t: "",
}


def _first_number(text: str, name: str, value: str) -> str:
    before, found, after = text.partition(f"\n{name}=")
    assert found, name
    line, newline, rest = after.partition("\n")
    return before + found + " ".join([value, *line.split(" ")[1:]]) + newline + rest


@pytest.mark.parametrize("what", LIGHTGBM)
def test_crafted_trees_of_lightgbm_are_refused(copied, what):
    folder = copied("lightgbm")
    path = folder / "booster.txt"
    path.write_text(LIGHTGBM[what](path.read_text()))
    sign(folder)
    with pytest.raises(TableError, match="cannot be read"):
        Model.load(folder)


def _tree(change: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda model: change(model["learner"]["gradient_booster"]["model"]["trees"][0])


def _model(change: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda model: change(model["learner"]["gradient_booster"]["model"])


XGBOOST: dict[str, Callable[[Any], object]] = {
    "feature outside": _tree(lambda t: t["split_indices"].__setitem__(0, 10**6)),
    "feature below zero": _tree(lambda t: t["split_indices"].__setitem__(0, -1)),
    "child outside": _tree(lambda t: t["left_children"].__setitem__(0, 10**6)),
    "cycle": _tree(lambda t: t["left_children"].__setitem__(0, 0)),
    "one child": _tree(lambda t: t["left_children"].__setitem__(0, -1)),
    "shorter list": _tree(lambda t: t["split_conditions"].pop()),
    "more nodes": _tree(lambda t: t["tree_param"].update(num_nodes="1000000")),
    "a text": _tree(lambda t: t["split_indices"].__setitem__(0, "a")),
    "not a number": _tree(lambda t: t["split_conditions"].__setitem__(0, float("nan"))),
    "categories": _tree(lambda t: t["split_type"].__setitem__(0, 1)),
    "other output": _model(lambda m: m["tree_info"].__setitem__(0, 99)),
    "other rounds": _model(lambda m: m["iteration_indptr"].__setitem__(-1, 10**6)),
    "a tree fewer": _model(lambda m: m["trees"].pop()),
    "no trees": _model(lambda m: m.update(trees=[], tree_info=[], iteration_indptr=[0])),
    "base score": lambda model: model["learner"]["learner_model_param"].update(base_score="[nan,0,0]"),
    "two base scores of three": lambda model: model["learner"]["learner_model_param"].update(base_score="[0,0]"),
    "nothing": lambda model: model.clear(),
}


def test_one_base_score_for_all_classes_of_xgboost_is_accepted(copied):
    """As earlier versions of the library write it."""
    folder = copied("xgboost")
    path = folder / "booster.json"
    model = json.loads(path.read_text())
    model["learner"]["learner_model_param"].update(base_score="5E-1")
    path.write_text(json.dumps(model))
    sign(folder)
    assert Model.load(folder).card["kind"] == "multiclass"


@pytest.mark.parametrize("what", XGBOOST)
def test_crafted_trees_of_xgboost_are_refused(copied, what):
    folder = copied("xgboost")
    path = folder / "booster.json"
    model = json.loads(path.read_text())
    XGBOOST[what](model)
    path.write_text(json.dumps(model))
    sign(folder)
    with pytest.raises(TableError, match="cannot be read"):
        Model.load(folder)


def test_a_tree_deeper_than_any_is_refused(copied):
    folder = copied("lightgbm")
    leaves = 2000
    chain = {
        "num_leaves": [leaves], "num_cat": [0], "split_feature": [0] * (leaves - 1), "threshold": [0.5] * (leaves - 1),
        "decision_type": [2] * (leaves - 1), "left_child": [-(k + 1) for k in range(leaves - 1)],
        "right_child": [*range(1, leaves - 1), -leaves], "leaf_value": [0.1] * leaves,
    }  # fmt: skip
    text = (folder / "booster.txt").read_text()
    head, _, rest = text.partition("\nTree=0\n")
    tree = "\n".join(f"{name}={' '.join(map(str, values))}" for name, values in chain.items())
    (folder / "booster.txt").write_text(f"{head}\nTree=0\n{tree}\n\n\nTree=1{rest.partition('Tree=1')[2]}")
    sign(folder)
    with pytest.raises(TableError, match="too deep"):
        Model.load(folder)


@pytest.mark.parametrize("card", ["[" * 100_000, "null", '"model"', "[]", '{"format": 3, "files": 3}'])
def test_a_card_that_is_not_one_is_damaged(copied, card):
    folder = copied("mlp")
    (folder / "model.json").write_text(card)
    with pytest.raises(TableError, match="is damaged"):
        Model.load(folder)


def test_predictions_follow_no_link_and_leave_nothing_behind(trained, tmp_path):
    """Links under every name that could be guessed point to a file of the user's."""
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in (".out.csv.tmp", "out.csv.tmp", f".out.csv.{os.getpid()}.tmp", "out.csv.draft"):
        (folder / name).symlink_to(precious)
    before = sorted(folder.iterdir())
    write_predictions(trained["mlp"], trained["rows"], folder / "out.csv")
    assert precious.read_text() == "keep me"
    assert sorted(folder.iterdir()) == sorted([*before, folder / "out.csv"])


def test_predictions_run_nothing_in_a_spreadsheet(trained, tmp_path):
    rows = people(20).with_columns(note=pl.lit('=HYPERLINK("http://x","y")')).rename({"note": "@note"})
    rows.write_csv(tmp_path / "rows.csv")
    write_predictions(trained["mlp"], tmp_path / "rows.csv", tmp_path / "out.csv")
    header, first, *_ = (tmp_path / "out.csv").read_text().splitlines()
    assert "'@note" in header.split(",")
    assert "\"'=HYPERLINK(" in first
    write_predictions(trained["mlp"], tmp_path / "rows.csv", tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet")["@note"][0].startswith("=HYPERLINK")


def test_one_function_of_a_correction_that_is_too_short_is_refused():
    whole = {"kind": "knots", "classes": 3, "x": [[0.0, 1.0]] * 3, "y": [[0.0, 1.0]] * 3}
    manifest._correction(whole, 3)
    for name in ("x", "y"):
        for k in range(3):
            short = [[0.0] if i == k else row for i, row in enumerate(whole[name])]
            with pytest.raises(UserError, match="correction"):
                manifest._correction({**whole, name: short}, 3)


def test_two_classes_may_be_called_many(copied):
    """A table whose task was given as multiclass may have two classes."""
    folder = copied("mlp")
    sign(folder, kind="multiclass")
    assert Model.load(folder).card["kind"] == "multiclass"


def test_a_file_of_weights_may_hold_no_tensor(tmp_path):
    (tmp_path / "empty.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert manifest.shapes_in(tmp_path / "empty.safetensors") == {}
    (tmp_path / "short.safetensors").write_bytes(struct.pack("<Q", 3) + b"{}")
    with pytest.raises(UserError, match="no header"):
        manifest.shapes_in(tmp_path / "short.safetensors")
