"""Masking is exact, the loss of MET is the one worked out by hand, and its adversary stays in its ball."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reweigh.bench.recipes.algorithms.tabular._masked_autoencoder import (
    MaskedAutoencoder,
    Masking,
    PostNormBlock,
    masking,
)
from reweigh.bench.recipes.algorithms.tabular.met import AdversarialAutoencoder


def network(columns: int, **sizes: float) -> MaskedAutoencoder:
    defaults = {"embedding": 3, "blocks": 1, "decoder_blocks": 1, "feed_forward": 4, "dropout": 0.0, "masked": 0.7}
    torch.manual_seed(0)
    return MaskedAutoencoder(columns, **{**defaults, **sizes})  # pyright: ignore[reportArgumentType]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 40), st.integers(1, 12), st.floats(0.01, 0.99), st.integers(0, 2**31))
@settings(max_examples=80, deadline=None)
def test_masks_part_the_columns_of_every_row(columns: int, rows: int, share: float, seed: int) -> None:
    kept, hidden = masking(rows, columns, share, generator(seed))
    assert kept.shape[1] >= 1
    assert abs(hidden.shape[1] - share * columns) <= 1
    for row in range(rows):
        assert sorted(kept[row].tolist() + hidden[row].tolist()) == list(range(columns))
        assert kept[row].tolist() == sorted(kept[row].tolist())
        assert hidden[row].tolist() == sorted(hidden[row].tolist())


@pytest.mark.parametrize(("columns", "kept"), [(784, 235), (196, 58), (10, 3), (2, 1), (1, 1)])
def test_seventy_in_a_hundred_are_hidden(columns: int, kept: int) -> None:
    """The authors keep the whole part of 30 % of the columns; a row of few columns keeps one."""
    assert masking(2, columns, 0.7, generator()).kept.shape == (2, kept)


def test_every_column_is_hidden_equally_often_and_rows_differ() -> None:
    _, hidden = masking(4000, 10, 0.7, generator())
    shares = torch.bincount(hidden.flatten(), minlength=10) / 4000
    assert (shares - 0.7).abs().max() < 0.03  # four standard deviations
    assert len({tuple(row) for row in hidden.tolist()}) == 120  # all ways to hide seven of ten


class Told(nn.Module):
    """In the decoder's place: passes tokens on, so that what is told of a column is known."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


def test_loss_of_two_rows_of_three_columns_by_hand() -> None:
    """Encoder and decoder pass tokens on, embeddings are 10, 20 and 30, a hidden value is 5, and what is told is
    the value plus a tenth of the embedding:

    row (1, 2, 3), kept 2:       told 2+2=4 of column 2, 5+1=6 of column 1, 5+3=8 of column 3; errors 2, 5, 5: 54/3
    row (0, 4, 1), kept 3:       told 1+3=4 of column 3, 5+1=6 of column 1, 5+2=7 of column 2; errors 3, 6, 3: 54/3
    """
    model = network(3, embedding=1)
    model.encoder = nn.Sequential(Told())
    model.decoder = nn.Sequential(Told())
    with torch.no_grad():
        model.position.weight.copy_(torch.tensor([[10.0], [20.0], [30.0]]))
        model.of_ones.weight.fill_(2.0)  # of one kept column
        model.of_ones.bias.fill_(3.0)
        model.output.weight.copy_(torch.tensor([[1.0, 0.1]]))
        model.output.bias.zero_()
    x = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, 1.0]])
    mask = Masking(torch.tensor([[1], [2]]), torch.tensor([[0, 2], [0, 1]]))
    values = x.gather(1, mask.kept)
    np.testing.assert_allclose(model.reconstruct(values, mask).detach(), [[4, 6, 8], [4, 6, 7]], atol=1e-6)
    np.testing.assert_allclose(model.row_losses(values, mask, x).detach(), [54 / 3, 54 / 3], rtol=1e-6)
    x[0, 2] = 6.0  # hidden: what is told stays, its error becomes 2, and the loss is (4 + 25 + 4) / 3
    assert model.row_losses(values, mask, x)[0].item() == pytest.approx(11.0)


def test_the_hidden_value_is_the_authors_layer_of_ones() -> None:
    """Keras's Dense(1) on k ones: Glorot-uniform weights of variance 2 / (k + 1), so 2 k / (k + 1) for their sum."""
    assert float(network(3, masked=0.5).of_ones.weight.detach().abs().max()) <= (6 / 2) ** 0.5
    kept, values = 30, []
    for seed in range(400):
        torch.manual_seed(seed)
        model = MaskedAutoencoder(100, embedding=1, blocks=1, decoder_blocks=1, feed_forward=1, dropout=0.0, masked=0.7)
        values.append(model.hidden_value.item())
    assert np.var(values) == pytest.approx(2 * kept / (kept + 1), rel=0.3)  # four standard deviations
    # A step of Adam moves each of 30 weights and the bias by the rate.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.hidden_value.sum().backward()
    optimizer.step()
    assert values[-1] - model.hidden_value.item() == pytest.approx(31e-3, rel=1e-3)


def test_hidden_values_are_not_seen() -> None:
    model, x = network(8), torch.randn(5, 8, generator=generator())
    mask = masking(5, 8, 0.7, generator(1))
    told = model.reconstruct(x.gather(1, mask.kept), mask)
    other = x.scatter(1, mask.hidden, 100.0)
    torch.testing.assert_close(model.reconstruct(other.gather(1, mask.kept), mask), told, rtol=0, atol=0)
    changed = x.clone()
    changed[:, 0] += 1.0
    assert not torch.equal(model.encode(changed), model.encode(x))  # the encoder of whole rows sees all


def test_order_of_columns_is_known_by_their_embedding_only() -> None:
    """Permuting columns together with their embeddings permutes the encoded tokens and nothing else."""
    model, x = network(6), torch.randn(4, 6, generator=generator())
    tokens = model.encode(x).view(4, 6, 4)
    order = torch.randperm(6, generator=generator(1))
    with torch.no_grad():
        model.position.weight.copy_(model.position.weight[order])
    torch.testing.assert_close(model.encode(x[:, order]).view(4, 6, 4), tokens[:, order], rtol=1e-5, atol=1e-6)


def test_block_against_torch() -> None:
    """One head, normalisation after each part: torch's own layer with the same parameters."""
    torch.manual_seed(0)
    ours, x = PostNormBlock(6, 10, 0.0), torch.randn(3, 5, 6)
    theirs = nn.TransformerEncoderLayer(6, 1, 10, dropout=0.0, layer_norm_eps=1e-6, batch_first=True)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(ours.query_key_value.weight)
        theirs.self_attn.in_proj_bias.copy_(ours.query_key_value.bias)
        theirs.self_attn.out_proj.load_state_dict(ours.out.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward[2].state_dict())
        theirs.norm1.load_state_dict(ours.after_attention.state_dict())
        theirs.norm2.load_state_dict(ours.after_feed_forward.state_dict())
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)


def adversary(columns: int = 9, **changes: float) -> AdversarialAutoencoder:
    defaults = {"radius": 0.3, "ascent_steps": 4, "ascent_rate": 0.2, "warmup": 1}
    return AdversarialAutoencoder(network(columns, masked=0.4), **{**defaults, **changes})  # pyright: ignore[reportArgumentType]


@given(st.floats(0.01, 3.0), st.floats(0.01, 2.0), st.integers(0, 5), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_the_adversary_stays_in_its_ball(radius: float, rate: float, steps: int, seed: int) -> None:
    model = adversary(radius=radius, ascent_rate=rate, ascent_steps=steps)
    x = torch.randn(6, 9, generator=generator(seed))
    mask = masking(6, 9, 0.4, generator(seed))
    values = x.gather(1, mask.kept)
    climbed = model.climb(values, mask, x, generator(seed))
    assert ((climbed - values).norm(dim=1) <= radius + 2e-6).all()


def test_the_adversary_climbs() -> None:
    model = adversary(radius=1.0, ascent_rate=0.05, ascent_steps=10)
    x = torch.randn(50, 9, generator=generator(1))
    mask = masking(50, 9, 0.4, generator(2))
    values = x.gather(1, mask.kept)
    start = adversary(radius=1.0, ascent_steps=0).climb(values, mask, x, generator(3))
    climbed = model.climb(values, mask, x, generator(3))
    before, after = (model.inner.row_losses(v, mask, x).detach() for v in (start, climbed))
    assert (after > before).float().mean() > 0.95


def test_a_steep_row_does_not_use_up_the_ball_of_the_others() -> None:
    """Every row has its own gradient norm and ball: company changes nothing."""
    model = adversary(ascent_steps=1)
    x = torch.randn(2, 9, generator=generator(1))
    x[1] *= 100.0
    mask = masking(2, 9, 0.4, generator(2))
    values = x.gather(1, mask.kept)
    together = model.climb(values, mask, x, generator(3))
    first = Masking(mask.kept[:1], mask.hidden[:1])
    alone = model.climb(values[:1], first, x[:1], generator(3))
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-5)


def test_adversarial_steps_come_every_second_time_after_the_warm_up() -> None:
    model, x = adversary(warmup=1), torch.randn(7, 9, generator=generator())

    def extra(epoch: int, step: int) -> float:
        found = model.losses(x, generator(5), epoch, step).detach()
        return float((found - model.inner.losses(x, generator(5), epoch, step).detach()).sum())

    assert [extra(0, 0), extra(0, 1), extra(1, 0), extra(1, 2)] == [0.0] * 4
    assert extra(1, 1) > 0
    assert extra(2, 3) > 0
