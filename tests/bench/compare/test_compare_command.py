"""`reweigh compare` and `reweigh predict` as a person meets them: answers, files, and one sentence for bad input."""

import hashlib
import itertools
import json
import re
import shutil
import signal
import sys

import numpy as np
import polars as pl
import pytest
from children import moments, output_of, started
from scipy import stats

from reweigh.bench.cli.main import run_command
from reweigh.bench.compare import recipe
from reweigh.bench.compare import search as searching
from reweigh.bench.compare.request import Request, data_question
from reweigh.bench.lab.budget import seconds
from reweigh.bench.report.numbers import typeset
from reweigh.bench.train.programs import boosting


def people(n=200):
    draw = np.random.default_rng(5)
    age, city = draw.integers(18, 80, n), draw.choice(["Rom", "Bonn", "Oslo"], n)
    score = age + 12 * (city == "Rom") + draw.normal(0, 8, n)
    return pl.DataFrame({"age": age, "city": city, "old": np.where(score > 60, "yes", "no"), "score": score})


def said(capsys):
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    people().write_csv(path)
    return path


@pytest.mark.processes
def test_a_table_gets_an_answer_a_report_the_hardest_rows_and_a_model(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(searching, "MOST", 5)
    arguments = ["compare", str(table), "--target", "old", "--drop", "score", "--group", "city", "--model", "logistic"]
    arguments += ["--method", "rgd", "--budget", "10m", "--runs-dir", str(tmp_path / "runs")]
    assert run_command(arguments) == 0
    shown = said(capsys)
    assert "200 rows, binary of 2 classes" in shown
    assert "declared beforehand: rgd against mean" in shown
    assert "tuning over 3 learning rates" in shown
    assert "balanced accuracy" in shown
    (root,) = (tmp_path / "runs").iterdir()
    assert {"report.html", "hardest.csv", "answer.json", "compare.json", "model", "compare"} <= {
        p.name for p in root.iterdir()
    }
    found = json.loads((root / "answer.json").read_text())
    assert found["models"][0]["splits"] == 5
    assert {part["name"] for part in found["groups"]} == {"Bonn", "Oslo", "Rom"}
    markup = (root / "report.html").read_text()
    assert typeset(found["headline"]) in markup
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", markup)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), "a screen reader's outline has no gaps"
    # The two scale controls explain, and are not among what can be used.
    assert {action["label"] for action in found["actions"]} == {"mean", "rgd"}
    assert found["strength"] in ("decided", "leading", "undecided")

    # The same command has nothing left to do, and the report can be made again from the folder alone.
    before = (root / "answer.json").read_text()
    assert run_command(arguments) == 0
    shown = said(capsys)
    assert "0 runs" in shown
    assert json.loads((root / "answer.json").read_text())["models"] == json.loads(before)["models"]
    assert run_command(["report", str(root), "-o", str(tmp_path / "again.html")]) == 0
    assert typeset(found["headline"]) in (tmp_path / "again.html").read_text()

    # The kept model predicts.
    capsys.readouterr()
    assert run_command(["predict", str(root / "model"), str(table), "-o", str(tmp_path / "out.parquet")]) == 0
    shown = said(capsys)
    assert "200 rows predicted" in shown
    card = (root / "model" / "README.md").read_text()
    check_card(card, root, hashlib.sha256(table.read_bytes()).hexdigest()[:16])
    assert typeset(card.splitlines()[0].removeprefix("# ")) in typeset(shown)
    assert "predicted old" in pl.read_parquet(tmp_path / "out.parquet").columns


def check_card(card, root, fingerprint):
    """The card has the data's fingerprint, and the mean and interval that the runs' own records give by hand."""
    kept = json.loads((root / "model" / "model.json").read_text())
    used = json.loads((root / "compare.json").read_text())["runs"]
    values = []
    for folder in (run for run in (root / "compare").rglob("*") if run.name in used):
        spec = json.loads((folder / "spec.json").read_text())
        if spec["method"] == kept["method"] and spec["label"] in ("mean", "rgd"):
            records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
            values.append(records[-1]["test/balanced_accuracy"])
    assert len(values) == 5
    # Nadeau and Bengio (2003): 20 % of the rows test, 20 % validate, 60 % train.
    half = stats.t.ppf(0.975, 4) * np.std(values, ddof=1) * np.sqrt(1 / 5 + 0.2 / 0.6)
    mean, low, high = 100 * np.clip(np.mean(values) + np.array([0, -half, half]), 0, 1)
    assert f"balanced accuracy | {mean:.1f} % [{low:.1f}, {high:.1f}] | 5 |" in card
    assert f"`{fingerprint}`" in card
    assert f"with {kept['method']}, balanced accuracy" in card.splitlines()[0]
    assert "only the groups of the report were scored" in card


@pytest.mark.processes
def test_numbers_are_predicted_too(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(searching, "ROUND", 2)
    monkeypatch.setattr(searching, "MOST", 2)
    monkeypatch.setattr(searching, "_TUNING_SHARE", -1.0)
    arguments = ["compare", str(table), "--target", "score", "--drop", "old", "--model", "mlp", "--model", "xgboost"]
    assert run_command([*arguments, "--method", "rgd", "--budget", "10m", "--runs-dir", str(tmp_path / "runs")]) == 0
    shown = said(capsys)
    assert "regression" in shown
    assert "root mean squared error" in shown
    assert "Not tuned: the budget was too short" in shown


@pytest.mark.processes
def test_a_folder_of_images_gets_an_answer_and_a_model(tmp_path, capsys, monkeypatch):
    from PIL import Image

    draw = np.random.default_rng(0)
    for name, shade, count in (("dark", 60, 14), ("light", 190, 9)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(shade - 40, shade + 40, (9, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.setattr(searching, "ROUND", 2)
    monkeypatch.setattr(searching, "MOST", 2)
    monkeypatch.setattr(searching, "_TUNING_SHARE", -1.0)
    arguments = ["compare", str(tmp_path / "photos"), "--image-size", "8", "--method", "rgd", "--budget", "10m"]
    assert run_command([*arguments, "--runs-dir", str(tmp_path / "runs")]) == 0
    assert "with cnn by balanced accuracy" in said(capsys)
    (root,) = (tmp_path / "runs").iterdir()
    assert pl.read_csv(root / "hardest.csv")["row"].str.contains(r"^(dark|light)/\d+\.png$").all()
    # New images lie in a folder of their own, without classes.
    for file in (tmp_path / "photos" / "light").iterdir():
        file.rename(tmp_path / "photos" / file.name)
    (tmp_path / "photos" / "light").rmdir()
    shutil.rmtree(tmp_path / "photos" / "dark")
    assert run_command(["predict", str(root / "model"), str(tmp_path / "photos"), "-o", str(tmp_path / "out.csv")]) == 0
    found = pl.read_csv(tmp_path / "out.csv")
    assert found.columns == ["file", "predicted class", "probability of dark", "probability of light"]
    assert found["predicted class"].to_list() == ["light"] * 9


@pytest.mark.processes
def test_an_interruption_still_reports(table, tmp_path):
    runs = tmp_path / "runs"
    arguments = ["compare", str(table), "--target", "old", "--drop", "score", "--model", "logistic", "--method", "rgd"]
    command = [sys.executable, "-m", "reweigh", *arguments, "--budget", "1h", "--runs-dir", runs, "--jobs", "1"]
    with started(command, stderr=None) as process:
        for _ in moments(200, every=0.2):
            if len(list(runs.glob("*/compare/*/done"))) >= 12 or process.poll() is not None:
                break
        process.send_signal(signal.SIGINT)
        shown = output_of(process, code=130)
    words = " ".join(shown.split())
    assert "Interrupted: the answer uses what had finished" in words
    assert "report:" in words
    (report,) = runs.glob("*/report.html")
    assert "Interrupted: the answer uses what had finished" in report.read_text()


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


ROWS = "\n".join(f"{i % 7},{i * 3 % 11},{'ab'[i % 2]}" for i in range(60))


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (f"x,z,y\n{ROWS}", [], "`--target` must name the column"),
        (f"x,z,y\n{ROWS}", ["--target", "Y2"], "Did you mean 'y'"),
        ("x,y\n" + "\n".join(f"{i},a" for i in range(60)), ["--target", "y"], "class"),
        ("x,y\n" + "\n".join(f"1,{'ab'[i % 2]}" for i in range(60)), ["--target", "y"], "'x' is constant"),
        ("x,y\n" + "\n".join(f",{'ab'[i % 2]}" for i in range(60)), ["--target", "y"], "'x' is empty"),
        ("x,y\n1,a\n2,b\n3,a", ["--target", "y"], "3 rows"),
        (b"\x7fELF\x00\x01\x02\x03" * 40, ["--target", "y"], "binary"),
        (b"", ["--target", "y"], "empty"),
        ("x,y\n" + "\n".join(f"{i},nan" for i in range(60)), ["--target", "y"], "missing"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--drop", "w"], "'w'"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--budget", "soon"], "such as 90s, 2m or 1h"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--metric", "rmse"], "`--metric` must be one of balanced_accuracy"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--metric", "worst_group"], "Give `--group`"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--metric", "cost"], "Give `--cost`"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--cost", "fp=1"], 'such as "fp=1,fn=20"'),
        (f"x,z,y\n{ROWS}", ["--target", "z", "--cost", "fp=1,fn=2"], "for two classes"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--model", "cnn"], "for a table must be one of"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--method", "rgf"], "Did you mean 'rgd'"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--method", "mean"], "other than mean"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--model", "lightgbm", "--method", "ldam"], "--model mlp"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--method", "group_dro"], "n_groups"),
        (f"x,z,y\n{ROWS}", ["--target", "y", "--test", "nowhere.csv"], "nowhere.csv"),
        (f"x,z,y\n{ROWS}", ["--target", "x", "--task", "regression", "--method", "focal"], "is for classes"),
    ],
)
def test_bad_input_gets_one_sentence_exit_code_two_and_nothing_is_written(
    content, arguments, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    path = write(tmp_path / "t.csv", content)
    assert run_command(["compare", str(path), *arguments]) == 2
    shown = said(capsys)
    assert words in shown
    assert "Traceback" not in shown
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(("source", "words"), [("nowhere.csv", "nowhere.csv"), ("adlt", "adlt")])
def test_a_source_that_is_not_there_is_named(source, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["compare", source, "--target", "y"]) == 2
    assert words in said(capsys)


def test_an_empty_folder_says_how_images_should_lie(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    assert run_command(["compare", str(tmp_path / "photos")]) == 2
    assert "folder named after it" in said(capsys)


def test_wrong_rows_at_predict_leave_the_old_file_alone(table, tmp_path, capsys):
    from test_compare_models import spec_of

    from reweigh.bench.compare.model import train_and_save
    from reweigh.bench.compare.reading import load

    question = data_question(str(table), target="old", drop=("score",))
    problem = load(question)
    model = train_and_save(problem, spec_of(problem, question, "logistic", "rgd", 1), tmp_path / "model", expected={})
    out = write(tmp_path / "out.csv", "precious")
    write(tmp_path / "new.csv", "agee,city\n3,Rom")
    assert run_command(["predict", str(model), str(tmp_path / "new.csv"), "-o", str(out)]) == 2
    shown = said(capsys)
    assert "lacks the column 'age'" in shown
    assert "Did you mean 'agee'" in shown
    assert out.read_text() == "precious"
    assert run_command(["predict", str(model), str(table), "-o", str(tmp_path / "out.docx")]) == 2
    assert ".csv, .tsv or .parquet" in said(capsys)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("text", "expected"), [("90s", 90.0), ("2m", 120.0), (" 1.5H ", 5400.0), ("120", 120.0)])
def test_budgets(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["0s", "-3m", "0", "1w", ""])
def test_wrong_budgets(text):
    with pytest.raises(ValueError, match="a budget must be a time"):
        seconds(text)


def test_a_changed_file_is_another_question(table):
    first = data_question(str(table), target="old")
    people(201).write_csv(table)
    assert data_question(str(table), target="old") != first


def test_other_methods_and_models_have_a_folder_of_their_own(table):
    """An answer is not overwritten by that to another question."""
    question = data_question(str(table), target="old")
    requests = [
        Request(question=question),
        Request(question=question, methods=("focal",)),
        Request(question=question, models=("logistic",)),
    ]
    assert len({request.folder("accuracy") for request in requests}) == 3
    longer = Request(question=question, budget=600.0, jobs=1)
    assert longer.folder("accuracy") == requests[0].folder("accuracy")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as leaving:
        run_command(["compare", "--help"])
    assert leaving.value.code == 0
    shown = said(capsys)
    for word in ("people.csv", "--budget", "--group", "balanced_accuracy", "digits", "--cost", "jsonl", "undecided"):
        assert word in shown
    for model in (*recipe.NETWORKS, *boosting.LIBRARIES):
        assert model in shown.partition("--model STR")[2].partition("--method STR")[0]
