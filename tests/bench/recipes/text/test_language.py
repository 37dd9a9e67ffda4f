"""Tokens, the loss over them, and pre-training of the two kinds of language model."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from synthetic_runs import results_of

import reweigh
from reweigh.bench.catalogue.texts import Corpus
from reweigh.bench.lab import plan
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.models.blocks.block import TransformerBlock
from reweigh.bench.models.blocks.transformer import Transformer
from reweigh.bench.recipes import bert, gpt
from reweigh.bench.recipes._figures.tokens import token_view
from reweigh.bench.recipes._language import Language, held_out, load
from reweigh.bench.train.programs.tokens import TokenLoss
from reweigh.bench.train.tokens import CLASS, END, MASK, SEPARATOR, SPECIAL, tokens
from reweigh.method import method
from reweigh.torch import Reweighted


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    # One cache for all tests of this file: learning a tokenizer is the slow part.
    folder = tmp_path_factory.getbasetemp() / "language-cache"
    monkeypatch.setenv("REWEIGH_CACHE", str(folder))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def corpus():
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "cat", "sleeps", "in", "warm", "sun"]
    draw = np.random.default_rng(0)
    return Corpus([" ".join(draw.choice(words, 60)) + f" end {i}." for i in range(20)])


# --- tokens ---


def test_tokens_give_the_text_back_and_parts_share_no_document(corpus):
    found = tokens(corpus, 320)
    assert found.vocabulary == 320
    assert (len(found.train), len(found.val), len(found.test)) == (16, 2, 2)
    texts = [found.tokenizer.decode(ids) for ids in found.train]
    assert texts == [text for i, text in enumerate(corpus.documents) if i % 10 not in (3, 7)]
    assert found.tokenizer.decode(found.val[0]) == corpus.documents[3]
    assert found.tokenizer.decode(found.test[1]) == corpus.documents[17]
    stream = found.stream("test")
    assert len(stream) == sum(map(len, found.test)) + 2
    assert stream[-1] == found.special(END)
    assert "".join(found.pieces(found.val[0])) == corpus.documents[3]


def test_tokens_are_kept_and_another_text_is_another_file(corpus):
    def kept():
        folder = Path(os.environ["REWEIGH_CACHE"]) / "tokens"
        return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    first = tokens(corpus, 320)
    before = kept()
    again = tokens(corpus, 320)
    assert kept() == before
    assert all(np.array_equal(a, b) for a, b in zip(first.train, again.train, strict=True))
    tokens(Corpus([*corpus.documents, "one more"]), 320)
    assert len(kept()) == len(before) + 2


def test_what_the_makers_held_out_is_tested_on(corpus):
    found = tokens(Corpus(corpus.documents, ["held out text"]), 320)
    assert [found.tokenizer.decode(ids) for ids in found.test] == ["held out text"]
    assert len(found.train) == 18


def test_held_out_windows_cover_a_text_once():
    windows = held_out(np.arange(101, dtype=np.int32), 10, 100)
    assert windows.shape == (10, 11)
    assert windows[:, 1:].flatten().tolist() == list(range(1, 101))  # every token but the first is predicted once
    assert held_out(np.arange(101, dtype=np.int32), 10, 4)[:, 0].tolist() == [0, 30, 60, 90]
    with pytest.raises(ValueError, match="too few"):
        held_out(np.arange(5), 10, 4)


# --- the loss ---


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("text", ["mean", "rgd", "term:t=0.5", "rgd_auto"])
def test_token_loss_is_that_of_all_logits(text, level):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 6, 8, generator=generator, requires_grad=True)
    weight = torch.randn(30, 8, generator=generator, requires_grad=True)
    targets = torch.randint(30, (4, 6), generator=generator)
    token_loss = TokenLoss(method(text), level)
    criterion = Reweighted(torch.nn.CrossEntropyLoss(), method(text).objective, level=level)
    for _ in range(2):  # a state moves on in both
        ours = token_loss(hidden, weight, targets)
        theirs = criterion(F.linear(hidden, weight).movedim(-1, 1), targets)
        token_loss.live.advance()
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(*(torch.autograd.grad(x, (hidden, weight)) for x in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(token_loss.live.weights, criterion.weights.flatten())
    torch.testing.assert_close(token_loss.live.losses, criterion.losses.flatten())


def test_token_loss_refuses_what_it_would_ignore():
    with pytest.raises(ValueError, match="names a loss too"):
        TokenLoss(method("focal+rgd"), "token")


def test_rates_rise_and_fall():
    cosine = Language(steps=100, every=10, lr=1.0, warmup=0.1)
    assert cosine.rate(0) == pytest.approx(0.1)
    assert cosine.rate(9) == pytest.approx(1.0)
    assert cosine.rate(55) == pytest.approx(0.5)
    root = Language(steps=100, every=10, lr=1.0, warmup=0.1, schedule="rsqrt")
    assert root.rate(39) == pytest.approx(0.5)  # 10 steps of rise, four times as many: half
    with pytest.raises(ValueError, match="`level`"):
        Language(level="word")


# --- models ---


def test_linear_decay_by_hand():
    settings = bert.Settings(steps=100, every=10, warmup=0.2, lr=1.0, schedule="linear")
    assert [settings.rate(step) for step in (0, 9, 19, 20, 60, 99)] == pytest.approx([0.05, 0.5, 1, 1, 0.5, 1 / 80])


def test_post_norm_is_torchs_encoder_layer():
    """BERT's layer against torch's own with norm_first=False."""
    torch.manual_seed(0)
    ours = TransformerBlock(8, 2, post_norm=True).double().eval()
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, dim_feedforward=32, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
    ).double().eval()  # fmt: skip
    pairs = {
        "self_attn.in_proj_weight": ours.qkv.weight, "self_attn.in_proj_bias": ours.qkv.bias,
        "self_attn.out_proj.weight": ours.out.weight, "self_attn.out_proj.bias": ours.out.bias,
        "linear1.weight": ours.up.weight, "linear1.bias": ours.up.bias,
        "linear2.weight": ours.down.weight, "linear2.bias": ours.down.bias,
        "norm1.weight": ours.norm1.weight, "norm1.bias": ours.norm1.bias,
        "norm2.weight": ours.norm2.weight, "norm2.bias": ours.norm2.bias,
    }  # fmt: skip
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.5)
    theirs.load_state_dict(pairs)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_the_papers_bert_is_bert():
    paper = bert.PRESETS["paper"]
    assert (paper.post_norm, paper.tied, paper.schedule, paper.clip) == (True, True, "linear", 1.0)
    small = dataclasses.replace(paper, depth=1, width=8, heads=2, length=16)
    model = bert.PretrainingTransformer(small, 40).eval()
    assert model.tokens.weight is model.body.tokens.weight
    assert model.tokens.bias is not None
    hidden = model.body(torch.arange(6)[None], torch.zeros(1, 6, dtype=torch.long))
    torch.testing.assert_close(hidden.mean(-1), torch.zeros(1, 6), atol=1e-5, rtol=0)  # a layer ends normalised


def test_gradients_are_clipped_to_their_norm(tmp_path, monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def noting(optimizer, *arguments):
        gradients = [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.cat(gradients).norm()))
        return step(optimizer, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", noting)
    settings = dataclasses.replace(bert.PRESETS["smoke"], **SMALL, clip=0.01)
    run_of(bert, settings, "mean", tmp_path)
    assert norms == pytest.approx([0.01] * 12, rel=1e-3)


def test_gpt_keeps_the_papers_tau_and_tunes_rates():
    table = gpt.table("paper")
    settings = dataclasses.asdict(gpt.PRESETS["paper"])
    trials = [s for s in plan.tuning(plan.Question(recipe="gpt", table=table, settings=settings)) if s.label == "rgd"]
    assert {spec.method for spec in trials} == {"rgd"}
    assert len({spec.settings["lr"] for spec in trials}) == 3


def test_a_causal_model_does_not_see_ahead():
    torch.manual_seed(0)
    causal, both = (Transformer(20, 8, depth=2, width=16, heads=2, causal=c).eval() for c in (True, False))
    ids = torch.randint(20, (1, 8))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 20
    for model, blind in ((causal, True), (both, False)):
        difference = (model(ids) - model(changed)).abs().amax(-1)[0]
        assert bool((difference[:5] == 0).all()) == blind
        assert (difference[5:] > 0).all()


def test_pads_are_not_seen():
    torch.manual_seed(0)
    model = Transformer(20, 8, depth=1, width=16, heads=2, causal=False).eval()
    ids = torch.randint(20, (1, 8))
    mask = torch.tensor([[True] * 5 + [False] * 3])
    torch.testing.assert_close(model(ids, mask=mask)[:, :5], model(ids[:, :5]))
    with pytest.raises(ValueError, match="multiple of `heads`"):
        Transformer(20, 8, depth=1, width=15, heads=2, causal=False)


# --- gpt ---


def run_of(recipe, settings, text, folder, *, stop=None, scale=None):
    """A run in this process, stopped after so many records if asked; returns the run and what it yielded."""
    spec = Spec(recipe="r", column="c", label=text, settings=dataclasses.asdict(settings), method=text, seed=0)
    run = Run(spec, folder)
    records = []
    with run.open() as writer:
        for record in recipe.train(settings, method(text), 0, writer, scale):
            writer.record(record)
            records.append(record)
            if stop is not None and len(records) == stop:
                break
    return run, records


SMALL = {"steps": 12, "every": 4, "batch_size": 4, "held": 8}


@pytest.mark.parametrize("recipe", [gpt, bert], ids=["gpt", "bert"])
def test_an_interrupted_run_ends_with_the_same_numbers(recipe, tmp_path):
    settings = dataclasses.replace(recipe.PRESETS["smoke"], **SMALL, dropout=0.1)
    whole, wanted = run_of(recipe, settings, "rgd_auto", tmp_path / "whole")
    # The generator is left after its second record, so the checkpoint is that of the first.
    run_of(recipe, settings, "rgd_auto", tmp_path / "parts", stop=2)
    parts, rest = run_of(recipe, settings, "rgd_auto", tmp_path / "parts")
    assert [r["step"] for r in rest] == [8, 12]
    assert rest == wanted[1:]
    assert np.array_equal(whole.array("mean_weight"), parts.array("mean_weight"))


@pytest.mark.parametrize("recipe", [gpt, bert], ids=["gpt", "bert"])
def test_a_factor_on_the_loss_is_taken_step_by_step(recipe, tmp_path):
    settings = dataclasses.replace(recipe.PRESETS["smoke"], **SMALL)
    _, plain = run_of(recipe, settings, "mean", tmp_path / "plain")
    _, same = run_of(recipe, settings, "mean", tmp_path / "same", scale=np.ones(12))
    _, other = run_of(recipe, settings, "mean", tmp_path / "other", scale=np.linspace(0.1, 4, 12))
    assert same == plain
    assert other[0]["val/loss"] != plain[0]["val/loss"]


def test_steps_after_the_last_whole_look_are_looked_at_too(tmp_path):
    settings = dataclasses.replace(gpt.PRESETS["smoke"], **{**SMALL, "steps": 10})
    run, records = run_of(gpt, settings, "rgd", tmp_path)
    assert [(r["epoch"], r["step"], r["progress"]) for r in records] == [(1, 4, 0.4), (2, 8, 0.8), (3, 10, 1.0)]
    assert len(run.array("mean_weight")) == 10
    assert "view/tokens" in records[-1]


def test_gpt_starts_saturated_and_says_so(tmp_path):
    """At the start every loss is ln V: re-weighting is plain training, which AdamW cannot tell from a larger step."""
    settings = dataclasses.replace(gpt.PRESETS["smoke"], **SMALL)
    _, plain = run_of(gpt, settings, "mean", tmp_path)
    _, weighed = run_of(gpt, settings, "rgd", tmp_path)
    assert plain[0]["train/loss"] == pytest.approx(math.log(400), abs=0.3)
    assert weighed[0]["weights/clip_share"] == 1.0
    assert weighed[0]["weights/mean"] == pytest.approx(math.exp(0.5), abs=1e-5)
    assert weighed[0]["val/loss"] == pytest.approx(plain[0]["val/loss"], abs=1e-3)
    assert len(weighed[-1]["view/tokens"]) == settings.length == len(weighed[-1]["view/weights"])
    assert "view/tokens" not in weighed[1]


def test_gpt_learns_and_judges_by_the_plain_mean(tmp_path):
    settings = dataclasses.replace(gpt.PRESETS["smoke"], steps=60, every=30)
    _, records = run_of(gpt, settings, "rgd", tmp_path)
    assert records[-1]["val/loss"] < math.log(400) - 0.8
    assert records[-1]["test/loss"] == pytest.approx(records[-1]["val/loss"], abs=0.5)


# --- bert ---


def test_masking_is_berts(corpus):
    data = tokens(corpus, 320)
    ids = np.full((400, 50), 100, np.int64)
    ids[:, 0] = data.special(CLASS)
    shown, targets = bert.mask(ids, 0.15, data, np.random.default_rng(0))
    wanted = targets != -100
    assert not wanted[:, 0].any()
    assert (targets[wanted] == 100).all()
    assert float(wanted[:, 1:].float().mean()) == pytest.approx(0.15, abs=0.01)
    masked = float((shown[wanted] == data.special(MASK)).float().mean())
    left = float((shown[wanted] == 100).float().mean())
    assert (masked, left) == pytest.approx((0.8, 0.1), abs=0.02)
    assert (shown[~wanted] == torch.from_numpy(ids)[~wanted]).all()
    assert int(shown[wanted][shown[wanted] != data.special(MASK)].min()) >= len(SPECIAL)


def test_pairs_follow_each_other_or_do_not(corpus):
    data = tokens(corpus, 320)
    settings = dataclasses.replace(bert.PRESETS["smoke"], length=21, masked=0.0)
    batch = bert.pairs(data, "train", settings, 200, np.random.default_rng(0))
    assert (batch.targets == -100).all()
    streams = [" ".join(map(str, ids.tolist())) for ids in data.train]
    for ids, follows in zip(batch.ids.tolist(), batch.follows.tolist(), strict=True):
        assert (ids[0], ids[10], ids[20]) == (data.special(CLASS), data.special(SEPARATOR), data.special(SEPARATOR))
        first, second = ids[1:10], ids[11:20]
        if follows:
            assert any(" ".join(map(str, first + second)) in stream for stream in streams)
        else:
            homes = [i for i, s in enumerate(streams) if " ".join(map(str, first)) in s]
            others = [i for i, s in enumerate(streams) if " ".join(map(str, second)) in s]
            assert set(homes) != set(others) or len(homes) > 1
    assert 0.4 < float(batch.follows.float().mean()) < 0.6
    assert batch.segments[0].tolist() == [0] * 11 + [1] * 10
    assert torch.equal(batch.ids, bert.pairs(data, "train", settings, 200, np.random.default_rng(0)).ids)


def test_bert_adds_two_weighted_means(tmp_path):
    """Written out once more from the logits, on one batch."""
    settings = bert.PRESETS["smoke"]
    data = load(settings.text, settings.vocabulary)
    torch.manual_seed(0)
    model = bert.PretrainingTransformer(settings, data.vocabulary)
    batch = bert.pairs(data, "train", settings, 8, np.random.default_rng(0))
    hidden, targets, pooled = model(batch)
    of_tokens, of_pairs = (TokenLoss(method("rgd"), "token") for _ in range(2))
    ours = of_tokens(hidden, model.tokens.weight, targets, model.tokens.bias)
    ours = ours + of_pairs(pooled, model.next.weight, batch.follows, model.next.bias)
    guesses = F.cross_entropy(model.tokens(hidden), targets, reduction="none")
    nexts = F.cross_entropy(model.next(pooled), batch.follows, reduction="none")
    torch.testing.assert_close(ours, reweigh.rgd(guesses) + reweigh.rgd(nexts))
    assert len(of_tokens.live.weights) == int((batch.targets != -100).sum())
    found = bert.score(model, batch)
    assert found["loss"] == pytest.approx((guesses.mean() + nexts.mean()).item(), rel=1e-5)
    assert 0 <= found["mlm_accuracy"] <= 1
    with pytest.raises(ValueError, match="one by one"):
        bert.train(dataclasses.replace(settings, level="sequence"), method("rgd"), 0, None, None)


# --- the view ---


def test_the_view_shades_by_weight_and_escapes_the_text():
    markup = token_view(["a<b", " c\n", "d"], [1.0, 1.5, 2.0], [0.1, 0.5, 3.0])
    page = ElementTree.fromstring(f"<div>{markup}</div>")
    spans = page.findall(".//span")
    assert [span.text for span in spans] == ["a<b", " c↵ ", "d"]
    shades = [int(span.get("style").split("%")[0].split()[-1]) for span in spans]
    assert shades == sorted(shades)
    assert (shades[0], shades[-1]) == (5, 65)
    assert spans[2].get("title") == "weight 2.000, loss 3.00"
    assert "from 1.000 (pale) to 2.000 (dark)" in markup
    even = ElementTree.fromstring(f"<div>{token_view(['a', 'b'], [1.6487, 1.6487], [5.0, 6.0])}</div>")
    assert len({span.get("style") for span in even.findall(".//span")}) == 1


def test_the_report_of_gpt_shows_the_passage_early_and_late(tmp_path):
    settings = dataclasses.replace(gpt.PRESETS["smoke"], **SMALL)
    spec = Spec(
        recipe="gpt", column="descriptions", label="rgd", settings=dataclasses.asdict(settings), method="rgd", seed=0
    )
    run = Run(spec, tmp_path)
    with run.open() as writer:
        for record in gpt.train(settings, method("rgd"), 0, writer, None):
            writer.record(record)
        writer.finish({"seconds": 1.0})
    (results,) = results_of(tmp_path, "gpt")
    (figure,) = results.extra
    page = ElementTree.fromstring(f"<div>{figure.markup}</div>")
    assert [head.text for head in page.findall("h3")] == ["After 4 steps", "After 12 steps"]
    assert len(page.findall(".//span")) == 2 * settings.length
