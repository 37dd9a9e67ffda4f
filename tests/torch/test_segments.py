"""Packed sequences are weighed as the same sequences are in rows of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import reweigh
from reweigh.torch import Reweighted, chunked_cross_entropy, segments

LENGTHS = [[3, 4, 2], [5, 4]]  # sequences of two packed rows of nine tokens
CLASSES, WIDTH = 7, 4


def packed():
    """Hidden states and targets of the packed rows, and their positions; one target of each sequence is ignored."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 9, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (2, 9), generator=generator)
    positions = torch.tensor([[p for n in row for p in range(n)] for row in LENGTHS])
    targets[positions == 0] = -100
    return hidden, targets, positions


def unpacked(values, pad):
    """The same, one sequence per row, padded."""
    parts = [part for row, lengths in zip(values, LENGTHS, strict=True) for part in row.split(lengths)]
    return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=pad)


def head():
    return torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()


def test_numbers_from_positions_and_from_lengths_agree():
    _, _, positions = packed()
    by_hand = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [3, 3, 3, 3, 3, 4, 4, 4, 4]])
    assert torch.equal(segments(positions), by_hand)
    assert torch.equal(
        segments(cu_seqlens=torch.tensor([0, 3, 7, 9, 14, 18], dtype=torch.int32), shape=(2, 9)), by_hand
    )
    assert segments(cu_seqlens=torch.tensor([0, 2]), shape=(1, 4)).tolist() == [[0, 0, 1, 1]]
    assert segments(torch.tensor([0, 1, 0, 0, 0])).tolist() == [0, 0, 1, 2, 3]  # pads at position zero


@pytest.mark.parametrize("text", ["mean", "rgd:tau=2", "term:t=0.5", "cvar:alpha=0.4", "rgd:surrogate=true"])
@pytest.mark.parametrize("chunked", [False, True])
def test_packed_equals_padded(text, chunked):
    hidden, targets, positions = packed()
    objective, weight = reweigh.method(text).objective, head()

    def loss(hidden, targets, **options):
        if chunked:
            return chunked_cross_entropy(hidden, weight, targets, objective, level="sequence", chunk=4, **options)
        criterion = Reweighted(nn.CrossEntropyLoss(), objective, level="sequence")
        return criterion((hidden @ weight.T).movedim(-1, 1), targets, **options)

    ours = loss(hidden, targets, segments=segments(positions))
    theirs = loss(unpacked(hidden, 0.0), unpacked(targets, -100))
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(x, weight)[0] for x in (ours, theirs)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunked", [False, True])
def test_signals_and_weights_are_those_of_the_sequences(chunked):
    hidden, targets, positions = packed()
    weight, generator = head(), torch.Generator().manual_seed(2)
    signal, own = (torch.rand(2, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    objective = reweigh.method("rho:keep=0.4").objective
    numbers, real = segments(positions), targets != -100
    losses = nn.functional.cross_entropy((hidden @ weight.T).movedim(-1, 1), targets, reduction="none")
    # By hand: the two of five sequences whose mean loss is most above their mean signal, scaled to the weight of all.
    excess = torch.stack([(losses.detach() - signal)[real & (numbers == k)].mean() for k in range(5)])
    kept = torch.isin(numbers, excess.topk(2).indices) & real
    expected = (own * losses)[kept].sum() / own[kept].sum()
    if chunked:
        ours = chunked_cross_entropy(
            hidden, weight, targets, objective, level="sequence", segments=numbers, signal=signal, sample_weight=own
        )
    else:
        criterion = Reweighted(nn.CrossEntropyLoss(), objective, level="sequence")
        ours = criterion(
            (hidden @ weight.T).movedim(-1, 1), targets, segments=numbers, signal=signal, sample_weight=own
        )
    assert ours.item() == pytest.approx(expected.item(), abs=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(x, weight)[0] for x in (ours, expected)), rtol=0, atol=1e-12)


def test_units_beyond_the_last_do_not_count():
    hidden, targets, positions = packed()
    criterion = Reweighted(nn.CrossEntropyLoss(), level="sequence")
    logits = (hidden @ head().T).movedim(-1, 1)
    criterion(logits, targets, segments=segments(positions))
    assert criterion.mask.sum() == 5
    assert criterion.stats()["clip_share"] <= 1.0
    criterion.eval()
    plain = nn.functional.cross_entropy(logits, targets).item()
    assert criterion(logits, targets, segments=segments(positions)).item() == pytest.approx(plain)
    assert criterion(logits, targets, segments=segments(positions), count=13).item() == pytest.approx(plain)


def test_errors_name_what_is_wrong():
    hidden, targets, positions = packed()
    with pytest.raises(TypeError, match="either `position_ids` or `cu_seqlens`"):
        segments()
    with pytest.raises(TypeError, match="needs `shape`"):
        segments(cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"`position_ids` must have shape \(B, T\)"):
        segments(torch.zeros(3, 2, 9))
    with pytest.raises(ValueError, match="level='token'"):
        chunked_cross_entropy(hidden, head(), targets, segments=segments(positions))
    with pytest.raises(ValueError, match=r"`segments` must have the shape of the targets, \(2, 9\), got \(18,\)"):
        chunked_cross_entropy(hidden, head(), targets, level="sequence", segments=segments(positions).flatten())
    logits = (hidden @ head().T).movedim(-1, 1)
    with pytest.raises(ValueError, match="for level='sequence'; got level='sample'"):
        Reweighted(nn.CrossEntropyLoss())(logits, targets, segments=segments(positions))
    with pytest.raises(ValueError, match=r"shape of the losses, \(2, 9\), got \(2, 8\)"):
        Reweighted(nn.CrossEntropyLoss(), level="sequence")(logits, targets, segments=segments(positions)[:, 1:])
