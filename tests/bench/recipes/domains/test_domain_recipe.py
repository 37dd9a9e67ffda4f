"""The recipe end to end: nobody looks too early, the rule chooses, runs resume, and the page says what arrays say."""

import base64
import copy
import dataclasses
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic_runs import results_of
from torch import nn

from reweigh.bench.catalogue.domains import pacs
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import plan
from reweigh.bench.lab.experiment import Options, question
from reweigh.bench.lab.plan import Trial
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.recipes import _domains, domains
from reweigh.bench.recipes._figures import domains as report
from reweigh.bench.recipes._figures import domains_paper
from reweigh.bench.recipes.algorithms import domains as algorithms
from reweigh.bench.recipes.algorithms.domains import DomainNetwork, Setup
from reweigh.bench.train.driver import Driver
from reweigh.bench.train.programs.domains import (
    DomainExamples,
    DomainProblem,
    HeldOutDomain,
    LeaveOneOut,
    LookedTooEarlyError,
    Schedule,
    TrainingDomain,
)
from reweigh.method import method

SMOKE = domains.PRESETS["smoke"]
CELL = domains.table("smoke").columns[0].name


def run(folder, text="mean", seed=0, label=None, scale=None, stop=None, **changes):
    """One run in this process, killed after `stop` records if given; returns the run and its records."""
    settings = dataclasses.replace(SMOKE, **changes)
    spec = Spec(
        recipe="domains",
        column=CELL,
        label=label or text,
        settings=dataclasses.asdict(settings),
        method=text,
        seed=seed,
    )
    one, records = Run(spec, folder), []
    with one.open() as writer:
        for record in domains.train(settings, method(text), seed, writer, scale):
            records.append(record)
            writer.record(record)
            if len(records) == stop:
                return one, records
        writer.finish({"seconds": 0.0})
    return one, records


# --- one domain left out ---


def pool(n=20, seed=0, tensor=lambda x: torch.from_numpy(x)):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    return DomainExamples(x=x, y=(x[:, 0] > 0).astype(np.int64), tensor=tensor)


def problem(watched=None):
    """Two domains to learn from; what is read of the third is written down."""

    def noted(x):
        if watched is not None:
            watched.append(len(x))
        return torch.from_numpy(x)

    sources = [TrainingDomain(name=n, train=pool(seed=k), held=pool(seed=k + 10)) for k, n in enumerate("ab")]
    target = HeldOutDomain("c", pool(seed=20, tensor=noted), pool(seed=21, tensor=noted))
    return DomainProblem(sources=sources, target=target, classes=("no", "yes"))


def training(found, text="mean", schedule=None, algorithm="erm", **options):
    def network(channels):
        return DomainNetwork(nn.Sequential(nn.Linear(2 + channels, 4), nn.ReLU()), 4, 2)

    setup = Setup(
        network=network, optimizer=lambda p, **_: torch.optim.SGD(p, lr=0.2), domains=2, classes=2, steps=6, shape=(2,)
    )
    schedule = schedule or Schedule(steps=6, check=2, batch_size=4)
    torch.manual_seed(0)
    learner = algorithms.build(algorithm, **options).start(setup)
    return LeaveOneOut(lambda _: (found, learner), 1, method(text), schedule, Seeds(0))


def segments(one, curve=()):
    """The records of a training, segment by segment; `curve` is what held-out examples give until the end."""
    looks, true = iter(curve), one._held
    one._held = lambda: next(looks, None) or true()
    driver = Driver(one)
    while not driver.over:
        yield driver.run_epoch()


def test_the_domain_left_out_cannot_be_looked_at_too_early():
    found = problem()
    for part in ("report", "held"):
        with pytest.raises(LookedTooEarlyError, match="'c', were requested during training"):
            found.target.pool(part)
    one = training(found)
    next(segments(one))
    with pytest.raises(LookedTooEarlyError, match="training is not over"):
        one.finish()
    with pytest.raises(LookedTooEarlyError):
        found.target.pool("report")


@pytest.mark.parametrize("algorithm", algorithms.names())
@pytest.mark.parametrize("text", ["mean", "rgd+swad"])
def test_no_algorithm_reads_the_domain_left_out_before_the_end(algorithm, text):
    watched = []
    one = training(problem(watched), text, algorithm=algorithm)
    finish, before = one.finish, []
    one.finish = lambda: before.append(list(watched)) or finish()
    list(segments(one))
    assert before == [[]]
    assert watched


def test_the_checkpoint_that_training_domains_prefer_is_reported():
    """A curve that rises and falls: weights of the middle look are put back, whatever the last ones are."""
    one = training(problem())
    states, seen = [], []
    for _ in segments(one, [(0.4, 1.0), (0.9, 1.0), (0.5, 1.0)]):
        states.append({k: v.clone() for k, v in one.learner.state_dict().items()})
    true_score = one._score

    def noting(which):
        seen.append({k: v.clone() for k, v in one.learner.state_dict().items()})
        return true_score(which)

    one._score = noting
    result = one.finish()
    chosen = seen[-1]
    assert all(torch.equal(chosen[k], states[1][k]) for k in chosen)
    assert all(torch.equal(v, states[2][k]) for k, v in one.learner.state_dict().items())  # and put back
    assert np.asarray(result.confusion).sum() == 20
    assert np.trace(result.confusion) / 20 == pytest.approx(result.test)


def test_a_tie_goes_to_the_earlier_look_and_phases_that_are_not_over_are_not_chosen():
    one = training(problem(), algorithm="frr", features=0.3, head=0.5)
    states = []
    for _ in segments(one, [(0.99, 1.0), (0.5, 1.0), (0.5, 1.0)]):
        states.append({k: v.clone() for k, v in one.learner.state_dict().items()})
    assert one.best[0] == 0.5
    chosen = one.best[1]["network.embed.0.weight"]
    assert [torch.equal(chosen, state["network.embed.0.weight"]) for state in states] == [False, True, False]


def test_the_oracle_takes_the_last_step_and_says_its_own_number():
    one = training(problem(), schedule=Schedule(steps=6, check=2, batch_size=4, selection="oracle"))
    list(segments(one, [(0.9, 1.0), (0.1, 1.0), (0.1, 1.0)]))
    result = one.finish()
    assert (result.test, result.val) == (result.last, result.oracle)


def test_swad_starts_and_ends_where_the_validation_loss_says():
    """Losses 5, 1, 1.1, 1.2, 9, 9 with N = M = 2: the mean over the segments whose losses are 1 to 1.2."""
    schedule = Schedule(steps=12, check=2, batch_size=4)
    one = training(problem(), "swad:n_converge=2,n_tolerance=2,ratio=0.3", schedule)
    weights = []
    true_update = one.learner.update

    def noting(batch, weigh):
        true_update(batch, weigh)
        weights.append(one.learner.network.head.weight.detach().clone())

    one.learner.update = noting
    list(segments(one, [(0.5, loss) for loss in (5.0, 1.0, 1.1, 1.2, 9.0, 9.0)]))
    assert (one.averager.start_step, one.averager.end_step) == (3, 8)
    expected = torch.stack(weights[2:8]).mean(0)
    with one._chosen():
        assert torch.allclose(one.learner.network.head.weight, expected, atol=1e-6)
    assert torch.equal(one.learner.network.head.weight, weights[-1])


def test_a_segment_in_which_nothing_is_classified_has_no_losses():
    driver = Driver(training(problem(), algorithm="dann", discriminator_steps=3))
    assert ["train/loss" in driver.run_epoch() for _ in range(3)] == [False, True, False]
    assert driver.mean_weights == [1.0] * 6


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_optimisers_follow_parameters_to_another_device(algorithm, monkeypatch):
    """Some devices make new parameters of a module that moves; what is trained must be those."""
    monkeypatch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    one = training(problem(), algorithm=algorithm)
    own = {id(parameter) for parameter in one.learner.parameters()}
    trained = [p for o in one.learner.optimizers.values() for group in o.param_groups for p in group["params"]]
    assert {id(parameter) for parameter in trained} <= own
    before = copy.deepcopy(one.learner.state_dict())
    list(segments(one))
    assert any(not torch.equal(before[k], v) for k, v in one.learner.state_dict().items() if "embed" in k)


def test_methods_have_no_sampler_or_step_here():
    with pytest.raises(ValueError, match="a loss, an objective and an average here, got sam with a step"):
        training(problem(), "sam")
    with pytest.raises(ValueError, match="`check` must divide `steps`, got 4 and 10"):
        Schedule(steps=10, check=4, batch_size=2)


def test_predictions_are_not_made_class_by_class():
    """Folders come sorted by class; what is predicted at once is mixed, and every example is predicted once."""
    one, seen = training(problem()), []
    y = np.repeat([0, 1], 300)
    sorted_by_class = DomainExamples(
        x=y[:, None].repeat(2, 1).astype(np.float32), y=y, tensor=lambda x: torch.from_numpy(x)
    )
    one.learner.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0].numpy()))
    _, labels = one._outputs(sorted_by_class)
    assert [len(part) for part in seen] == [256, 256, 88]
    assert all(0.3 < part.mean() < 0.7 for part in seen)
    assert np.array_equal(np.concatenate(seen), labels.numpy())
    assert labels.sum() == 300


def test_rows_are_taken_in_the_order_asked_for():
    found = DomainExamples(x=np.arange(10.0)[:, None], y=np.arange(10), tensor=lambda x: torch.from_numpy(x))
    x, y = found.take(np.array([7, 2, 2, 9]))
    assert x[:, 0].tolist() == y.tolist() == [7, 2, 2, 9]


# --- runs ---


def test_a_run_reports_once_and_says_everything_of_every_domain(tmp_path):
    one, records = run(tmp_path)
    assert len(records) == 4 * SMOKE.steps // SMOKE.check
    assert all("val/accuracy" not in r and "test/accuracy" not in r for r in records[:-1])
    last = records[-1]
    assert last["domain_names"] == ["0°", "15°", "30°", "45°"]
    assert last["test/accuracy"] == pytest.approx(np.mean(last["domain_test"]))
    assert last["val/accuracy"] == pytest.approx(np.mean(last["domain_val"]))
    confusion = one.array("confusion")
    assert np.allclose([np.trace(table) / table.sum() for table in confusion], last["domain_test"])
    assert len(one.array("mean_weight")) == 4 * SMOKE.steps
    assert one.array("samples").shape == (4, 10, 8, 8, 1)
    assert [r["left_out"] for r in records] == [n for n in last["domain_names"] for _ in range(2)]


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize(
    ("text", "algorithm"),
    [("rgd_auto", "erm"), ("rgd+swad", "erm"), ("mean", "dann"), ("mean", "irm"), ("mean", "mtl")],
)
def test_a_killed_run_ends_with_the_same_numbers(text, algorithm, stop, tmp_path):
    whole, _ = run(tmp_path / "whole", text, algorithm=algorithm)
    run(tmp_path / "broken", text, algorithm=algorithm, stop=stop)
    broken, again = run(tmp_path / "broken", text, algorithm=algorithm)
    assert len(again) == 8 - (stop - 1)  # the last record before the kill had no checkpoint yet
    assert broken.records() == whole.records()
    assert np.array_equal(broken.array("confusion"), whole.array("confusion"))
    assert np.array_equal(broken.array("mean_weight"), whole.array("mean_weight"))


def test_methods_of_one_seed_start_and_draw_alike(tmp_path):
    first = [run(tmp_path, text)[1][0] for text in ("mean", "rgd:tau=9", "swad")]
    # Weights between 1 and e^0.9 change little in four steps of Adam, and other draws would change much.
    assert first[0]["train/loss"] == pytest.approx(first[1]["train/loss"], rel=0.02)
    assert first[0]["train/loss"] == first[2]["train/loss"]
    assert run(tmp_path, seed=1)[1][0]["train/loss"] != first[0]["train/loss"]


def test_the_scale_control_multiplies_every_step_of_every_training(tmp_path):
    weights = np.linspace(1, 3, 4 * SMOKE.steps)
    plain = run(tmp_path / "a")[1]
    scaled = run(tmp_path / "b", scale=weights, label="scaled")[1]
    constant = run(tmp_path / "c", scale=np.ones(4 * SMOKE.steps), label="ones")[1]
    assert [r["train/loss"] for r in constant] == [r["train/loss"] for r in plain]
    assert [r["train/loss"] for r in scaled] != [r["train/loss"] for r in plain]


# --- hyper-parameters ---


def test_draw_zero_is_as_written_and_others_come_from_the_laws():
    settings = dataclasses.replace(SMOKE, algorithm="irm", batch_law=(3.0, 5.5), regularised_law=True)
    assert domains.hyperparameters(settings) == (settings, algorithms.build("irm"))
    draws = [domains.hyperparameters(dataclasses.replace(settings, draw=k)) for k in range(1, 60)]
    assert all(10**-4.5 <= s.lr <= 10**-2.5 and 8 <= s.batch_size <= 45 for s, _ in draws)
    assert {s.dropout for s, _ in draws} == {0.0, 0.1, 0.5}
    assert len({a.weight for _, a in draws}) == len(draws)
    coral = domains.hyperparameters(dataclasses.replace(settings, draw=3, algorithm="coral"))
    assert coral[0].lr == draws[2][0].lr  # what all algorithms have is drawn alike
    fixed = domains.hyperparameters(dataclasses.replace(settings, draw=3, weight=7.0))
    assert fixed[1].weight == 7.0
    small = domains.hyperparameters(dataclasses.replace(SMOKE, draw=3))[0]
    assert (small.batch_size, small.dropout, small.weight_decay) == (SMOKE.batch_size, 0.0, 0.0)


def test_trials_are_draws_and_every_row_has_as_many():
    asked = question("domains", Options(preset="smoke"))
    specs = plan.tuning(asked)
    by_row = {}
    for spec in specs:
        by_row.setdefault(spec.label, []).append(spec)
    assert {len(found) for found in by_row.values()} == {2}
    assert all([s.settings["draw"] for s in found] == [0, 1] for found in by_row.values())
    assert [s.method for s in by_row["rgd"]] == ["rgd", "rgd:tau=3"]
    assert {s.settings["lr"] for s in specs} == {SMOKE.lr}
    chosen = {(CELL, label): Trial(method=found[1].method, lr=SMOKE.lr, draw=1) for label, found in by_row.items()}
    final = plan.comparison(asked, chosen)
    assert {s.settings["draw"] for s in final} == {1}
    assert {s.label for s in final} == set(by_row) | {plan.NORMALISED}
    controls = plan.scale_controls(asked, final)
    assert {s.settings["draw"] for s in controls} == {1}


def test_the_best_draw_is_chosen_by_training_domains(tmp_path):
    asked = question("domains", Options(preset="smoke"))
    specs = [s for s in plan.tuning(asked) if s.label in ("mean", "IRM")]
    scores = {("mean", 0): 0.3, ("mean", 1): 0.6, ("IRM", 0): 0.5, ("IRM", 1): 0.2}
    for spec in specs:
        with Run(spec, tmp_path).open() as writer:
            writer.record({"epoch": 1, "held/accuracy": 0.9})  # a look on the way says nothing
            writer.record({"epoch": 2, "val/accuracy": scores[spec.label, spec.settings["draw"]]})
            writer.finish({"seconds": 0.0})
    chosen = plan.choose(asked, specs, tmp_path)
    assert chosen[CELL, "mean"].draw == 1
    assert chosen[CELL, "IRM"].draw == 0


# --- networks ---


def test_networks_take_more_channels_as_those_there_are():
    torch.manual_seed(0)
    plain = _domains.network("cnn:width=2", (2, 8, 8), 3, 0, dropout=0.0, options={})
    torch.manual_seed(0)
    wide = _domains.network("cnn:width=2", (2, 8, 8), 3, 3, dropout=0.5, options={})
    assert plain.embed[0].weight.shape[1] == 2
    assert wide.embed[0].weight.shape[1] == 5
    assert torch.equal(wide.embed[0].weight[:, :2], plain.embed[0].weight)
    assert torch.equal(wide.embed[0].weight[:, 2:], plain.embed[0].weight[:, [0, 1, 0]])
    assert isinstance(wide.embed[-1], nn.Dropout)
    layers, features = plain.layers(torch.zeros(2, 2, 8, 8))
    assert [x.shape[1] for x in layers] == [2, 4, 64]
    assert features.shape == (2, 64)
    rows = _domains.network("mlp", (6,), 3, 1, dropout=0.0, options={"hidden": (4,)})
    assert rows.embed[1].weight.shape == (4, 7)
    assert not rows.fixed_statistics


def test_the_adam_of_the_recipe_knows_rates():
    layers = nn.Linear(2, 2), nn.Linear(2, 2)
    one = domains._adam(0.1, 0.01, layers[0].parameters(), betas=(0.5, 0.9))
    assert [(g["lr"], g["betas"], g["weight_decay"]) for g in one.param_groups] == [(0.1, (0.5, 0.9), 0.01)]
    groups = [{"params": list(layers[0].parameters()), "lr": 0.3, "weight_decay": 0.2}]
    (own,) = domains._adam(0.1, 0.01, groups).param_groups
    assert (own["lr"], own["weight_decay"]) == (0.3, 0.2)
    groups = [{"params": list(layers[0].parameters())}, {"params": list(layers[1].parameters()), "rate": 10.0}]
    assert [g["lr"] for g in domains._adam(0.1, 0.0, groups).param_groups] == [0.1, 1.0]


# --- the table and the page ---


def test_the_papers_figures_are_its_own():
    """Printed means agree with printed domains; by up to 0.25 where the paper's own rows do not."""
    for data, rows in domains_paper.FIGURES.items():
        means = domains_paper.averages(data)
        for label, figures in rows.items():
            assert np.mean(figures) == pytest.approx(means[label], abs=0.3), (data, label)
    assert domains_paper.averages("PACS")["FRR, rgd"] == 88.2
    assert domains_paper.FIGURES["PACS"]["FRR-L"][3] == 83.5
    assert domains_paper.averages("DomainNet")["SWAD, rgd"] == 44.0


def test_the_paper_preset_has_the_authors_segments_and_steps():
    preset, table = domains.PRESETS["paper"], domains.table("paper")
    columns = {c.name: dataclasses.replace(preset, **c.settings) for c in table.columns}
    assert {name: (s.steps, s.check) for name, s in columns.items()} == {
        "PACS": (5000, 100),
        "VLCS": (5000, 50),
        "OfficeHome": (5000, 100),
        "DomainNet": (5000, 500),
        "DomainNet, 15,000 steps": (15_000, 500),
    }
    quoted, long = table.columns[3:]
    # DomainBed's figures stand beside DomainBed's steps, all others beside the long training.
    assert (quoted.paper["ARM"], quoted.paper["mean"]) == (35.5, 40.9)
    assert (long.paper["MIRO"], long.paper["FRR, rgd"], long.paper["SWAD"]) == (44.3, 45.8, 43.8)
    assert not set(quoted.paper) & set(long.paper)
    assert set(quoted.paper) | set(long.paper) == set(domains_paper.averages("DomainNet"))


def test_arm_has_eight_of_each_domain_in_every_draw():
    paper = dataclasses.replace(domains.PRESETS["paper"], algorithm="arm")
    sizes = {domains.hyperparameters(dataclasses.replace(paper, draw=k))[0].batch_size for k in range(20)}
    assert sizes == {8}


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_the_discriminators_rate_is_drawn_from_the_recipes_law_of_rates(name):
    paper = dataclasses.replace(domains.PRESETS["paper"], algorithm=name)
    drawn = [domains.hyperparameters(dataclasses.replace(paper, draw=k)) for k in range(1, 60)]
    own, rates = np.array([(a.discriminator_lr, s.lr) for s, a in drawn]).T
    for found in (own, rates):
        assert 1e-5 <= found.min() < 2e-5 < 2e-4 < found.max() <= 10**-3.5
    assert abs(np.corrcoef(np.log(own), np.log(rates))[0, 1]) < 0.4
    assert domains.hyperparameters(paper)[1].discriminator_lr == 0  # draw 0: the network's own


@pytest.mark.parametrize("preset", domains.PRESETS)
def test_tables_are_whole(preset):
    table = domains.table(preset)
    for column in table.columns:
        labels = table.methods_of(column)
        assert {"mean", "rgd"} <= set(labels)
        for label in labels:
            row = table.row(label)
            method(row.method)
            settings = dataclasses.replace(domains.PRESETS[preset], **{**column.settings, **row.settings})
            assert settings.steps % settings.check == 0
            algorithms.build(settings.algorithm)
        assert set(column.paper) <= set(table.methods)
    assert set(domains.PLAIN_OF) | set(domains.PLAIN_OF.values()) <= set(domains.METHODS)
    assert {a for a, _ in domains._ROWS.values()} == set(algorithms.names())


def test_the_page_says_what_the_arrays_say(tmp_path):
    found = {}
    for label, text, more in (
        ("mean", "mean", {}), ("rgd", "rgd", {}), ("IRM", "mean", {"algorithm": "irm"}),
        ("SWAD", "swad", {}), ("SWAD, rgd", "rgd+swad", {}),
    ):  # fmt: skip
        for seed in range(2):
            found[label, seed] = run(tmp_path, text, seed=seed, label=label, **more)
    (results,) = results_of(tmp_path, "domains")
    assert [set(column.rows) for column in results.columns] == [{"mean", "rgd", "IRM", "SWAD", "SWAD, rgd"}]
    figures = {figure.title: figure for figure in results.extra}
    trees = {title: ElementTree.fromstring(f"<div>{figure.markup}</div>") for title, figure in figures.items()}
    table = trees[f"{CELL}: every domain left out"]
    lines = {
        tr.find("th").text: [td.text for td in tr.findall("td")] for tr in table.iter("tr") if tr.find("td") is not None
    }
    values = np.array([found["IRM", seed][1][-1]["domain_test"] for seed in range(2)]) * 100
    assert lines["IRM"][2] == f"{values[:, 2].mean():.1f} ± {values[:, 2].std(ddof=1):.1f}"
    assert lines["IRM"][4].startswith(f"{values.mean():.1f} ±")
    own = "".join(trees["Re-weighted rows against their own plain ones"].itertext())
    change = np.mean(
        [found["SWAD, rgd", s][1][-1]["test/accuracy"] - found["SWAD", s][1][-1]["test/accuracy"] for s in range(2)]
    )
    assert f"{100 * change:+.2f} [" in own
    gaps = "".join(trees["In the training domains, and outside"].itertext())
    last = [found["mean", s][1][-1] for s in range(2)]
    inside, outside = (100 * np.mean([r[k] for r in last]) for k in ("val/accuracy", "test/accuracy"))
    assert f"{inside:.1f} → {outside:.1f} ({outside - inside:+.1f})" in gaps
    confusion = trees[f"{CELL}: what is taken for what"]
    counts = sum(found["mean", s][0].array("confusion").sum(0) for s in range(2))
    share = 100 * counts[3, 3] / counts[3].sum()
    line = next(tr for tr in confusion.iter("tr") if tr.find("th").text == "3")
    assert (line.findall("td")[3].text or "") == (f"{share:.0f}" if share >= 0.5 else "")
    pictures = trees[f"{CELL}: what the domains look like"]
    image = next(pictures.iter("img")).get("src")
    with Image.open(io.BytesIO(base64.b64decode(re.sub("^data:image/png;base64,", "", image)))) as png:
        assert png.size == (10 * 10, 8)


def test_the_papers_domains_stand_under_their_own_names(tmp_path):
    for label in ("mean", "rgd"):
        run(tmp_path, label)
    (results,) = results_of(tmp_path, "domains")
    printed = report.Printed(names=("sea", "land"), rows={"mean": (50.0, 61.0), "IRM": (1.0, 2.0)})
    (first, *_) = report.figures(results, {CELL: printed}, {})
    tree = ElementTree.fromstring(f"<div>{first.markup}</div>")
    ours, theirs = tree.iter("table")
    assert [th.text for th in next(ours.iter("tr"))] == [None, "0°", "15°", "30°", "45°", "mean"]
    lines = [[column.text for column in tr] for tr in theirs.iter("tr")]
    assert lines == [[f"the paper, {CELL}", "sea", "land", "mean"], ["mean", "50.0", "61.0", "55.5"]]


@pytest.mark.slow
def test_learning_on_turned_digits_beats_chance_and_a_broken_twin(tmp_path):
    """Trained long enough, unseen angles between seen ones are known; with labels shuffled nothing is."""
    _, records = run(tmp_path, steps=300, check=100, batch_size=32)
    assert records[-1]["test/accuracy"] > 0.8
    assert records[-1]["val/accuracy"] > 0.85


def test_official_folders_train_as_the_paper_preset_does(tmp_path, monkeypatch):
    """A tiny tree, a narrow network without published weights; everything else as in the preset."""
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    for domain in pacs.OFFICIAL.domains:
        for label in ("dog", "house"):
            place = tmp_path / "data" / "PACS" / domain / label
            place.mkdir(parents=True)
            for i in range(5):
                Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(place / f"{i}.png")
    _domains.load.cache_clear()
    paper = dataclasses.asdict(domains.PRESETS["paper"])
    changes = {**paper, "data": "pacs:size=32", "model": "resnet50:width=4", "steps": 2, "check": 1, "draw": 1}
    one, records = run(tmp_path / "runs", "rgd", **changes)
    last = records[-1]
    assert last["domain_names"] == list(pacs.OFFICIAL.domains)
    assert one.array("confusion").sum((1, 2)).tolist() == [8] * 4  # four fifths of each class
    assert 1e-5 <= last["lr"] <= 10**-3.5
    _domains.load.cache_clear()
