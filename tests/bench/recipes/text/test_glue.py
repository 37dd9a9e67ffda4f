"""Fine-tuning through the Hugging Face Trainer: cached layers, metrics, the loss function, and the recipe."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from reweigh.bench.catalogue.texts import TextPart
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.recipes import glue
from reweigh.bench.train.text_encoder import RANDOM, TextEncoder, collate, cut
from reweigh.method import method

TEXTS = ("the cat sat on the mat", "a dog", "birds sing in the old tree at dawn", "fish swim")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path_factory.getbasetemp() / "glue-cache"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def part(labels=(0, 1, 0, 1), second=None):
    return TextPart(list(TEXTS), np.array(labels), second)


# --- cached layers ---


@pytest.mark.parametrize("second", [None, ["one", "two words", "three", "four"]])
@pytest.mark.parametrize("frozen", [0, 1])
def test_cached_layers_and_the_first_token_give_the_whole_model(frozen, second):
    """Logits from kept hidden states, last layer for one token only, against the model as Hugging Face runs it."""
    texts = part(second=second)
    encoder = TextEncoder(RANDOM, frozen, 16, TEXTS)
    inputs = encoder.inputs(texts)
    model = encoder.model(3).eval()
    whole = encoder._load(3).eval()  # random weights, but the same each time
    pairs = () if second is None else (second,)
    encoded = encoder.tokenizer(list(TEXTS), *pairs, padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = whole(**encoded).logits
        found = model(**cut(inputs.arguments)).logits
    assert inputs.arguments["inputs_embeds"].dtype == torch.float16
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=0)  # hidden states are kept in half precision
    assert float((wanted - wanted.mean(0)).abs().max()) > 0.01  # or there would be nothing to tell apart
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in whole.parameters())


def test_features_are_computed_once(monkeypatch):
    encoder = TextEncoder(RANDOM, 1, 16, TEXTS)
    first = encoder.inputs(part())
    monkeypatch.setattr(TextEncoder, "_features", lambda *_: pytest.fail("computed again"))
    again = TextEncoder(RANDOM, 1, 16, TEXTS).inputs(part())
    assert torch.equal(first.arguments["inputs_embeds"], again.arguments["inputs_embeds"])


def test_training_everything_starts_from_tokens():
    encoder = TextEncoder(RANDOM, -1, 16, TEXTS)
    inputs = encoder.inputs(part())
    assert "input_ids" in inputs.arguments
    assert encoder.model(2)(**cut(inputs.arguments)).logits.shape == (4, 2)
    with pytest.raises(ValueError, match="less than the 2 layers"):
        TextEncoder(RANDOM, 2, 16, TEXTS).model(2)


def test_batches_are_cut_to_their_longest():
    inputs = TextEncoder(RANDOM, 1, 16, TEXTS).inputs(part())
    batch = collate([inputs[1], inputs[3]])
    assert batch["inputs_embeds"].shape[1] == int(inputs.lengths()[[1, 3]].max()) < 16
    assert batch["labels"].tolist() == [1, 1]
    assert inputs.take([2, 0]).labels.tolist() == [0, 0]


# --- the recipe ---


def records_of(settings, text, folder, *, scale=None, seed=0):
    spec = Spec(recipe="r", column="c", label=text, settings=dataclasses.asdict(settings), method=text, seed=seed)
    run = Run(spec, folder)
    with run.open() as writer:
        records = list(glue.train(settings, method(text), seed, writer, scale))
    return run, records


@pytest.mark.parametrize("text", ["mean", "rgd", "rgd_auto", "term:t=0.5", "focal"])
def test_every_row_trains_through_the_trainer(text, tmp_path):
    settings = glue.PRESETS["smoke"]
    run, records = records_of(settings, text, tmp_path)
    assert [record["epoch"] for record in records] == [1, 2]
    assert len(run.array("mean_weight")) == 2 * -(-settings.rows // settings.batch_size)
    assert all(0 <= record["test/score"] <= 1 for record in records)
    assert (records[0]["weights/mean"] > 1.2) == (text in ("rgd", "rgd_auto"))
    assert sum(records[0]["class_counts"]) == settings.rows


def test_the_trainer_takes_the_steps_of_a_loop_written_by_hand(tmp_path, monkeypatch):
    """One epoch of the recipe against AdamW, clipping and decay written out: the adapter's loss divides rightly."""
    settings = dataclasses.replace(glue.PRESETS["smoke"], epochs=1, warmup=0.0, weight_decay=0.0)
    kept: list[torch.nn.Module] = []
    build = TextEncoder.model

    def without_dropout(self, classes):
        model = build(self, classes)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        kept.append(model)
        return model

    batches: list[dict[str, torch.Tensor]] = []

    def noted(rows):
        batches.append(collate(rows))
        return batches[-1]

    monkeypatch.setattr(TextEncoder, "model", without_dropout)
    monkeypatch.setattr(glue, "collate", noted)
    records_of(settings, "rgd:tau=3", tmp_path)
    trained = kept[0]
    from reweigh.bench.draws.seeds import Seeds

    encoder, *_, data = glue.load(settings)
    with Seeds(0).ambient("init"):
        model = without_dropout(encoder, len(data.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * (1 - step / len(batches))
        labels = batch["labels"]
        logits = model(batch["inputs_embeds"], batch["attention_mask"]).logits
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        loss = (torch.exp(losses.detach().clip(0, 3) / 4) * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert len(batches) == -(-settings.rows // settings.batch_size)
    for found, wanted in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_methods_of_one_seed_share_draw_and_order_and_seeds_do_not(tmp_path, monkeypatch):
    seen: list[list[int]] = []

    def noted(rows):
        seen[-1].extend(int(row["labels"]) for row in rows)
        return collate(rows)

    monkeypatch.setattr(glue, "collate", noted)
    for text, seed in (("mean", 0), ("rgd", 0), ("mean", 1)):
        seen.append([])
        records_of(glue.PRESETS["smoke"], text, tmp_path, seed=seed)
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def test_draws_are_disjoint_and_as_large_as_asked():
    from reweigh.bench.draws.seeds import Seeds

    settings = dataclasses.replace(glue.PRESETS["smoke"], rows=10, validation=5)
    train, val = glue.draw(settings, 30, Seeds(0))
    assert (len(train), len(val), len({*train} & {*val})) == (10, 5, 0)
    assert len(glue.draw(dataclasses.replace(settings, rows=0), 30, Seeds(0))[0]) == 25
    with pytest.raises(ValueError, match="`validation` must be less than the 5"):
        glue.draw(settings, 5, Seeds(0))


def test_small_tasks_keep_nine_tenths_of_their_texts():
    """RTE has 2,490 training texts, of which 2,000 were held out before; MNLI has plenty."""
    paper = glue.PRESETS["paper"]
    sizes = {rows: tuple(map(len, glue.draw(paper, rows, Seeds(0)))) for rows in (2_490, 392_702)}
    assert sizes == {2_490: (2_241, 249), 392_702: (390_702, 2_000)}


def test_a_factor_on_the_loss_is_taken(tmp_path):
    settings = glue.PRESETS["smoke"]
    steps = 2 * -(-settings.rows // settings.batch_size)
    _, plain = records_of(settings, "mean", tmp_path / "a")
    _, same = records_of(settings, "mean", tmp_path / "b", scale=np.ones(steps))
    _, none = records_of(settings, "mean", tmp_path / "c", scale=np.zeros(steps))
    assert [r["test/loss"] for r in same] == [r["test/loss"] for r in plain]
    assert none[0]["test/loss"] == pytest.approx(none[1]["test/loss"], abs=1e-3)  # weight decay alone


def test_what_the_trainer_cannot_do_is_refused():
    with pytest.raises(ValueError, match="names a step too"):
        glue.Notes(method("rgd+sam"), 10, None)


def test_the_papers_columns_are_the_seven_tasks():
    columns = glue.table("paper").columns
    assert [column.name for column in columns] == list(glue.TASKS)
    assert np.mean([column.paper["mean"] for column in columns]) == pytest.approx(80.11, abs=0.01)
    assert np.mean([column.paper["rgd"] for column in columns]) == pytest.approx(82.08, abs=0.01)  # printed as 82.05
