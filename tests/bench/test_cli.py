"""The command: help that teaches, exit codes a script can rely on, one clear sentence for a wrong call."""

import subprocess
import sys

import pytest

from reweigh.bench.cli import run_command


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
    from reweigh.bench import recipes
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
        (["run", "longtail", "--tune", "lots"], "number, none or grid"),
        (["report", "nowhere"], "no folder nowhere"),
        (["data", "get", "cifar11"], "cifar1"),
    ],
)
def test_a_wrong_call_gets_one_sentence_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command([*arguments]) == 2
    shown = said(capsys)
    assert words in " ".join(shown.split())
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())


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
    # Two methods with four trials each, then both on three seeds. TERM's weights have mean one: nothing to control.
    assert "8 to tune, 6 to compare" in shown
    assert "0 scale controls" in shown
    assert not list(tmp_path.iterdir())


def test_some_columns_alone_have_the_runs_that_they_have_among_all(capsys, tmp_path, monkeypatch):
    from reweigh.bench import experiment, plan

    def runs_of(**options):
        asked = experiment.question("longtail", experiment.Options(**options))
        return {spec.id: spec.cell for spec in plan.tuning(asked)}

    some = runs_of(only=("fashion", "QUICK"))
    assert {name.split(",")[0] for name in some.values()} == {"Fashion-MNIST", "QuickDraw-345"}
    assert some.items() <= runs_of().items()
    monkeypatch.chdir(tmp_path)
    assert run_command(["run", "longtail", "--only", "imbalance 20", "--only", "svhn"]) == 2
    shown = said(capsys)
    assert "'svhn'" in shown
    assert "Fashion-MNIST, imbalance 100" in shown
    assert not list(tmp_path.iterdir())


def test_settings_of_the_call_reach_the_plan(capsys, tmp_path, monkeypatch):
    from reweigh.bench import experiment

    options = experiment.Options(preset="cpu", changes=(("imbalance", "20"), ("hidden", "32,16"), ("data", "digits")))
    asked = experiment.question("longtail", options)
    assert asked.settings["imbalance"] == 20.0
    assert asked.settings["hidden"] == (32, 16)
    assert all("imbalance" not in cell.settings for cell in asked.table.cells)


@pytest.mark.processes
def test_help_is_quick_to_import_and_names_every_command():
    code = (
        "import sys; from reweigh.bench.cli import run_command\ntry: run_command(['--help'])\nexcept SystemExit: pass\n"
    )
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
