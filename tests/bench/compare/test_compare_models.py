"""Boosters, models that are kept, and the hardest rows."""

import dataclasses
import io
import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

from reweigh.bench.cli.main import run_command
from reweigh.bench.compare import hardest, recipe
from reweigh.bench.compare.class_shares import shares_of
from reweigh.bench.compare.dealing import deal
from reweigh.bench.compare.model import Model, train_and_save
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.rows_shown import rows_shown, taken_for
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.tables import TableError
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs import boosting as boosters
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.method import method


def people(n=240):
    draw = np.random.default_rng(3)
    age, city = draw.integers(18, 80, n), draw.choice(["Rom", "Bonn", "Oslo"], n)
    score = age + 12 * (city == "Rom") + draw.normal(0, 8, n)
    return pl.DataFrame(
        {
            "age": age,
            "city": city,
            "band": np.where(score > 65, "c", np.where(score > 45, "b", "a")),
            "old": np.where(score > 55, "yes", "no"),
            "score": score * 100.0,
        }
    )


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    people().write_csv(path)
    return str(path)


def asked(table, target):
    drop = tuple(name for name in ("band", "old", "score") if name != target)
    return DataQuestion(source=table, target=target, drop=drop)


class Kept:
    """A writer that keeps arrays in memory."""

    def __init__(self):
        self.arrays = {}

    def rewind(self, count):
        assert count == 0
        return True

    def array(self, name, values):
        self.arrays[name] = values


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("target", ["old", "band", "score"])
def test_a_plain_booster_is_the_librarys_own(table, library, target):
    """With the mean as objective, the margins are those of the built-in objective trained in one go."""
    problem = load(asked(table, target))
    task, _ = deal(problem, parts_of(problem, 0))
    x, y = task.x_train.numpy(), task.y_train.numpy().reshape(-1)
    booster = boosters.Booster(library, task, method("mean"), OptimizerPlan(lr=0.1, epochs=12), seed=0)
    booster.advance(5)
    booster.advance(7)
    found = booster.margins("test").numpy()
    rest = task.x_test.numpy()
    if library == "lightgbm":
        import lightgbm

        name = {"old": "binary", "band": "multiclass", "score": "regression"}[target]
        params = {"objective": name, "learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 5, "verbose": -1}
        params |= {"num_class": 3} if target == "band" else {}
        own = lightgbm.train(params, lightgbm.Dataset(x, y), 12)
        expected = own.predict(rest, raw_score=True)
    else:
        import xgboost

        name = {"old": "binary:logistic", "band": "multi:softprob", "score": "reg:squarederror"}[target]
        params = {"objective": name, "learning_rate": 0.1, "max_depth": 6} | (
            {"num_class": 3} if target == "band" else {}
        )
        own = xgboost.train(params, xgboost.DMatrix(x, y), 12)
        expected = own.predict(xgboost.DMatrix(rest), output_margin=True)
    if target == "old":
        expected = np.stack([np.zeros(len(expected)), expected], 1)
    if target == "band":  # the start of a class is known up to a constant
        found, expected = (m - m.mean(1, keepdims=True) for m in (found, expected))
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=2e-3)


def test_looks_are_even_and_end_with_the_last_round():
    assert boosters.looks(100) == list(range(10, 101, 10))
    assert boosters.looks(4) == [1, 2, 3, 4]


def test_boosters_take_what_depends_on_a_row_alone():
    for text in ("rgd:tau=2", "redescending", "focal", "class_weights+rgd", "logit_adjusted+threshold"):
        assert boosters.takes(method(text), "binary"), text
    for text in ("rgd:normalize=mean", "term:t=1", "ldam", "rgd+sam", "rgd+tau_norm"):
        assert not boosters.takes(method(text), "binary"), text
    assert not boosters.takes(method("focal"), "regression")


@pytest.mark.parametrize("library", boosters.LIBRARIES)
@pytest.mark.parametrize("text", ["class_weights", "logit_adjusted", "mean+prior"])
def test_a_booster_that_corrects_for_shares_leans_towards_the_rare_class(table, library, text):
    problem = load(asked(table, "old"))
    task, _ = deal(problem, parts_of(problem, 0))
    kept = torch.cat([torch.where(task.y_train == 0)[0], torch.where(task.y_train == 1)[0][:10]])
    task = dataclasses.replace(task, x_train=task.x_train[kept], y_train=task.y_train[kept])
    margins = {}
    for row in ("mean", text):
        writer = Kept()
        training = OptimizerPlan(lr=0.1, epochs=10, final_only=True)
        list(fit(boosters.Boosting(library, task, method(row), training, 0), writer))
        outputs = writer.arrays["test_outputs"]
        margins[row] = (outputs[:, 1] - outputs[:, 0]).mean()
    assert margins[text] > margins["mean"] + 0.5


@pytest.mark.parametrize("library", boosters.LIBRARIES)
@pytest.mark.parametrize("text", ["mean", "class_weights", "logit_adjusted", "focal", "mean+prior"])
@pytest.mark.parametrize("absent", [1, 2])
def test_a_class_that_a_split_does_not_train_on_is_hardly_ever_predicted(table, library, text, absent):
    problem = load(asked(table, "band"))
    task, _ = deal(problem, parts_of(problem, 0))
    kept = task.y_train != absent
    task = dataclasses.replace(task, x_train=task.x_train[kept], y_train=task.y_train[kept])
    writer = Kept()
    training = OptimizerPlan(lr=0.1, epochs=4, final_only=True)
    list(fit(boosters.Boosting(library, task, method(text), training, 0), writer))
    outputs = writer.arrays["test_outputs"]
    assert outputs.shape == (len(task.x_test), 3)
    assert np.isfinite(outputs).all()
    assert not (outputs.argmax(1) == absent).any()


def test_a_booster_keeps_losses_and_weights_of_training_rows(table):
    problem = load(asked(table, "old"))
    task, _ = deal(problem, parts_of(problem, 0))
    writer = Kept()
    records = list(
        fit(boosters.Boosting("xgboost", task, method("rgd:tau=1"), OptimizerPlan(lr=0.1, epochs=6), 0), writer)
    )
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5, 6]
    losses = writer.arrays["loss_trajectory"]
    assert losses.shape == (6, len(task.x_train))
    assert losses[-1].mean() < losses[0].mean()
    assert records[-1]["train/loss"] == pytest.approx(float(losses[-1].mean()), rel=1e-2)
    # RGD's mean weight, from its definition.
    by_hand = np.exp(np.clip(losses[-1].astype(float), 0, 1) / 2).mean()
    assert writer.arrays["mean_weight"][-1] == pytest.approx(by_hand, rel=1e-3)


def spec_of(problem, question, model, text, epochs=4):
    shared = recipe.settings(question, problem, 4)
    settings = {**shared, **recipe.column(model, problem, ("mean",)).settings, "epochs": epochs}
    return Spec(recipe="compare", column=model, label=text, settings=settings, method=text, seed=0)


@pytest.mark.parametrize(
    ("model", "target", "text"),
    [
        ("mlp", "band", "rgd:tau=2"),
        ("mlp", "score", "rgd"),
        ("logistic", "old", "focal+rgd"),
        ("mlp", "band", "ldam"),
        ("lightgbm", "band", "rgd"),
        ("lightgbm", "old", "rgd"),
        ("xgboost", "old", "mean"),
        ("xgboost", "score", "rgd"),
        ("mlp", "band", "mean+prior"),
        ("logistic", "old", "rgd+threshold"),
        ("mlp", "old", "ldam+temperature"),
        ("lightgbm", "old", "mean+threshold"),
        ("xgboost", "band", "rgd+prior"),
    ],
)
def test_a_kept_model_predicts_as_it_did_when_it_was_chosen(table, tmp_path, model, target, text):
    question = asked(table, target)
    problem = load(question)
    folder = train_and_save(problem, spec_of(problem, question, model, text), tmp_path / "model", expected={})
    card = json.loads((folder / "model.json").read_text())
    loaded = Model.load(folder)
    frame = loaded.predict(tmp_path / "people.csv")
    val = parts_of(problem, 0).val
    found, truth = frame[val.tolist()], people()[val.tolist()]
    if target == "score":
        ours = np.sqrt(np.mean((found["predicted score"].to_numpy() - truth["score"].to_numpy()) ** 2))
        assert ours == pytest.approx(card["scores on known rows"]["rmse"], rel=1e-4)
        return
    right = (found[f"predicted {target}"] == truth[target]).to_numpy()
    per_class = [right[(truth[target] == name).to_numpy()].mean() for name in problem.classes]
    assert np.mean(per_class) == pytest.approx(card["scores on known rows"]["balanced_accuracy"], abs=1e-9)
    assert (card["correction"] is None) == (method(text).post is None)
    assert card["rows"]["trained on"] == (240 if method(text).post is None else 240 - len(val))
    probabilities = found.select([f"probability of {name}" for name in problem.classes]).to_numpy()
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-5)
    assert not [p for p in folder.parent.iterdir() if p.name.startswith(".")], "nothing half-written is left"
    assert not [p for p in folder.iterdir() if p.suffix in (".pt", ".pkl", ".bin")]


@pytest.fixture
def kept(table, tmp_path):
    question = asked(table, "old")
    problem = load(question)
    return train_and_save(problem, spec_of(problem, question, "mlp", "rgd"), tmp_path / "model", expected={})


@pytest.mark.processes
def test_another_process_predicts_the_same(kept, table, tmp_path):
    out = tmp_path / "out.csv"
    done = subprocess.run(
        [sys.executable, "-m", "reweigh", "predict", str(kept), table, "-o", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    theirs = pl.read_csv(out)["probability of yes"].to_numpy()
    ours = Model.load(kept).predict(tmp_path / "people.csv")["probability of yes"].to_numpy()
    np.testing.assert_array_equal(theirs, ours)


def test_rows_to_predict_may_be_few_reordered_and_have_new_categories(kept, tmp_path):
    new = pl.DataFrame({"city": ["Paris", None], "surplus": [1, 2], "age": [70, None]})
    new.write_csv(tmp_path / "new.csv")
    notes = []
    frame = Model.load(kept).predict(tmp_path / "new.csv", notes)
    assert frame.columns[:3] == ["city", "surplus", "age"]
    assert frame["predicted old"].is_in(["yes", "no"]).all()
    (summary,) = notes
    assert "'city' has names that training rows did not have in 1 of 2 rows ('Paris')" in summary
    assert "the model does not use 'surplus'" in summary


def test_the_standard_output_has_predictions_and_nothing_else(kept, tmp_path, capsys):
    pl.DataFrame({"city": ["Paris", "Rom"], "age": [70, 30]}).write_csv(tmp_path / "new.csv")
    assert run_command(["predict", str(kept), str(tmp_path / "new.csv"), "-o", "-"]) == 0
    shown = capsys.readouterr()
    assert pl.read_csv(io.StringIO(shown.out)).columns[:3] == ["city", "age", "predicted old"]
    assert "'Paris'" in shown.err
    assert "2 rows predicted: standard output" in shown.err


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda f: (f / "model.json").unlink(), "is not a model"),
        (lambda f: (f / "model.json").write_text("{"), "is damaged"),
        (lambda f: (f / "weights.safetensors").write_bytes(b"\x80\x04pickle"), "hash does not match"),
        (lambda f: (f / "weights.safetensors").unlink(), "is damaged .it is missing"),
        (
            lambda f: (f / "model.json").write_text((f / "model.json").read_text().replace("0.", "1.", 1)),
            "hash does not",
        ),
        (lambda f: (f / "model.json").write_text('{"format": 9}'), "format 9"),
    ],
)
def test_a_broken_model_is_one_clear_sentence(kept, break_it, words):
    break_it(kept)
    with pytest.raises(TableError, match=words):
        Model.load(kept)


def test_a_model_is_replaced_whole(kept, table, tmp_path):
    question = asked(table, "old")
    problem = load(question)
    spec = spec_of(problem, question, "xgboost", "mean")
    train_and_save(problem, spec, kept, expected={"accuracy": 0.5})
    assert sorted(p.name for p in kept.iterdir()) == ["booster.json", "model.json"]


def test_the_hardest_rows_are_found_over_splits_and_explained(table, tmp_path):
    """A row whose label was swapped keeps a high loss in every split that trains on it."""
    question = asked(table, "old")
    problem = load(question)
    wrong, runs = 17, []
    for seed in range(4):
        run = Run(Spec(recipe="compare", column="mlp", label="mean", settings={}, method="mean", seed=seed), tmp_path)
        rows = parts_of(problem, seed).train
        draw = np.random.default_rng(seed)
        losses = np.linspace(1.0, 0.05, 12)[:, None] * draw.uniform(0.8, 1.2, (12, len(rows)))
        losses[:, rows == wrong] = 3.0
        with run.open() as writer:
            writer.array("loss_trajectory", losses.astype(np.float16))
        runs.append(run)
    ranking = hardest.write(problem, runs, tmp_path / "hardest.csv", weighed_by="rgd:tau=2")
    assert int(ranking.order[0]) == wrong
    found = pl.read_csv(tmp_path / "hardest.csv")
    first = found.row(0, named=True)
    assert first["row"] == wrong + 1
    assert "kind" not in found.columns, "whether a label is wrong is for a person to say"
    assert "hardest 5 %" in first["reason"]
    assert first["loss at 100%"] == pytest.approx(3.0)
    assert first["weight at 100%"] == pytest.approx(np.exp(2 / 3), abs=1e-3)  # clipped at tau = 2
    assert first["city"] == people()["city"][wrong]


@pytest.mark.parametrize("test_file", [False, True])
def test_hard_rows_have_the_numbers_of_the_users_file(tmp_path, test_file):
    """Rows without a target are in the file and not among those that are learnt."""
    frame = people(120).with_columns(old=pl.when(pl.int_range(120) % 3 > 0).then(pl.col("old")))
    frame.write_csv(tmp_path / "people.csv")
    given = {}
    if test_file:
        people(40).with_columns(old=pl.when(pl.int_range(40) > 9).then(pl.col("old"))).write_csv(tmp_path / "test.csv")
        given["test"] = str(tmp_path / "test.csv")
    problem = load(DataQuestion(source=str(tmp_path / "people.csv"), target="old", drop=("band", "score"), **given))
    parts = parts_of(problem, 0)
    wrong = int(parts.train[20])
    losses = np.linspace(1.0, 0.05, 12)[:, None] * np.random.default_rng(0).uniform(0.8, 1.2, (12, len(parts.train)))
    losses[:, parts.train == wrong] = 3.0
    run = Run(Spec(recipe="compare", column="mlp", label="mean", settings={}, method="mean", seed=0), tmp_path)
    with run.open() as writer:
        writer.array("loss_trajectory", losses.astype(np.float16))
    ranking = hardest.write(problem, [run], tmp_path / "hardest.csv", weighed_by="rgd")
    listed = pl.read_csv(tmp_path / "hardest.csv")
    number = listed["row"][0]
    assert number != wrong + 1, "the test needs a row below one without a target"
    for row in listed.iter_rows(named=True):
        own = frame.row(row["row"] - 1, named=True)
        assert (own["age"], own["city"]) == (row["age"], row["city"])
    drawn, shown = rows_shown(ranking, problem, hardest.trajectories(problem, [run]), [run])
    assert f'<th scope="row">{number}</th>' in shown.markup
    assert f"row {number}: mean loss 3" in drawn.markup
    own = frame.row(number - 1, named=True)
    assert f"<b>age </b>{own['age']}" in shown.markup, "the cells of the row"
    if test_file:
        assert [problem.row_name(i) for i in problem.test_rows] == list(range(11, 41)), "in the file of their own"


def test_hard_rows_show_what_models_that_did_not_see_them_take_them_for(table, tmp_path):
    problem = load(asked(table, "old"))
    runs = []
    for seed in range(5):
        rows = parts_of(problem, seed).test
        outputs = np.zeros((len(rows), 2), np.float32)
        outputs[:, 1] = np.log(3.0)  # three to one for the second class
        run = Run(Spec(recipe="compare", column="mlp", label="mean", settings={}, method="mean", seed=seed), tmp_path)
        with run.open() as writer:
            writer.array("test_outputs", outputs)
        runs.append(run)
    taken = taken_for(problem, runs)
    assert set(taken) == set(range(problem.rows)), "a round tests every row"
    assert set(taken.values()) == {f"{problem.classes[1]} (75 %)"}


def test_shares_of_classes_in_the_gradient_by_hand():
    # Two rows of class 0 with probabilities 0.5 and 0.8, one of class 1 with 0.1: pulls 0.5, 0.2 and 0.9.
    losses, classes = -np.log([[0.5, 0.8, 0.1]]), np.array([0, 0, 1])
    assert shares_of(losses, classes, 2, method("mean")) == pytest.approx(np.array([[0.7, 0.9]]) / 1.6)
    # Class weights are in inverse proportion to 2 and 1 rows: class 1 counts twice as much.
    assert shares_of(losses, classes, 2, method("class_weights")) == pytest.approx(np.array([[0.7, 1.8]]) / 2.5)
    weights = np.exp(np.minimum(losses[0], 1.0) / 2)
    pull = weights * np.array([0.5, 0.2, 0.9])
    found = shares_of(losses, classes, 2, method("rgd"))
    assert found == pytest.approx(np.array([[pull[:2].sum(), pull[2]]]) / pull.sum())


def test_columns_that_look_like_formulas_are_defused(tmp_path):
    frame = people().with_columns(pl.lit("=HYPERLINK()").alias("city"))
    frame.write_csv(tmp_path / "people.csv")
    problem = load(DataQuestion(source=str(tmp_path / "people.csv"), target="old", drop=("band", "score")))
    run = Run(Spec(recipe="compare", column="mlp", label="mean", settings={}, method="mean", seed=0), tmp_path)
    with run.open() as writer:
        writer.array("loss_trajectory", np.ones((3, len(parts_of(problem, 0).train)), np.float16))
    hardest.write(problem, [run], tmp_path / "hardest.csv", weighed_by="rgd")
    text = (tmp_path / "hardest.csv").read_text()
    assert "'=HYPERLINK" in text
    assert ",=HYPERLINK" not in text


def test_areas_by_ranks_are_those_of_another_library():
    from sklearn import metrics as sk

    draw = np.random.default_rng(0)
    targets = draw.integers(0, 3, 60)
    probabilities = draw.dirichlet(np.ones(4), 60).round(1)  # ties, and a class without a row
    found = metrics.auroc(probabilities, targets, np.array([True, True, True, False]))
    expected = np.mean([sk.roc_auc_score(targets == c, probabilities[:, c]) for c in range(3)])
    assert found == pytest.approx(expected, abs=1e-12)
    broken = probabilities.copy()
    broken[0, 0] = np.nan
    assert np.isnan(metrics.auroc(broken, targets, np.ones(4, bool)))


def test_grouped_splits_of_other_widths_train_as_programs_of_their_own(tmp_path):
    """A gap is a feature only in the splits that train on it, which makes matrices of different widths."""
    draw = np.random.default_rng(0)
    numbers = [None, *draw.normal(size=99)]
    frame = pl.DataFrame({"x": numbers, "z": draw.normal(size=100), "y": draw.choice(["a", "b"], 100)})
    frame.write_csv(tmp_path / "t.csv")
    question = DataQuestion(source=str(tmp_path / "t.csv"), target="y")
    problem = load(question)
    widths = [deal(problem, parts_of(problem, seed))[0].x_train.shape[1] for seed in range(12)]
    assert len(set(widths)) > 1, "the test needs splits of different widths"
    seeds = [widths.index(min(widths)), widths.index(max(widths))]
    settings = recipe.Settings(**{**recipe.settings(question, problem, 4), "model": "mlp", "epochs": 2})
    members = [(settings, method("rgd"), seed, None) for seed in seeds]
    together = list(recipe.train_group(members))
    assert len(together) == 2
    for k, seed in enumerate(seeds):
        alone = list(recipe.train_group([(settings, method("rgd"), seed, None)]))
        assert together[-1][k]["train/loss"] == pytest.approx(alone[-1][0]["train/loss"], rel=1e-5)
