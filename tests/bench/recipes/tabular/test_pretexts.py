"""What the other methods make of a row before they learn from it, against brute force and counting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from reweigh.bench.recipes.algorithms.tabular import RandomFourier
from reweigh.bench.recipes.algorithms.tabular._contrast import nt_xent
from reweigh.bench.recipes.algorithms.tabular._sparsemax import sparsemax
from reweigh.bench.recipes.algorithms.tabular.dacl import mixed
from reweigh.bench.recipes.algorithms.tabular.subtab import SubTab, column_subsets
from reweigh.bench.recipes.algorithms.tabular.tabnet import GhostNorm, HiddenCells, TabNetClassifier, TabNetEncoder
from reweigh.bench.recipes.algorithms.tabular.vime import VIME, corrupt, shuffled_columns
from reweigh.bench.train.programs.rows import batches, steps_of


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- batches ---


@given(st.integers(2, 60), st.integers(1, 70))
@settings(deadline=None)
def test_batches_have_every_row_once_and_none_alone(rows: int, size: int) -> None:
    parts = list(batches(rows, size, generator()))
    assert sorted(torch.cat(parts).tolist()) == list(range(rows))
    assert len(parts) == steps_of(rows, size)
    assert size == 1 or min(map(len, parts)) > 1
    assert max(map(len, parts)) <= size + 1


# --- VIME ---


def test_corruption_statistics() -> None:
    x = torch.randn(2000, 5, generator=generator())
    replaced, changed = corrupt(x, 0.3, generator(1))
    # Of the cells chosen, one in 2000 gets its own value back, so nearly 30 % change: within four deviations.
    assert abs(float(changed.mean()) - 0.3) < 4 * (0.21 / 10_000) ** 0.5
    assert torch.equal(changed.bool(), replaced != x)
    for column in range(5):
        assert set(replaced[:, column].tolist()) <= set(x[:, column].tolist())  # real values of the same column
    # Columns are shuffled apart: what came from one row does not come together.
    source = [{float(v): i for i, v in enumerate(x[:, c])} for c in range(2)]
    both = (changed[:, 0] * changed[:, 1]).bool()
    rows = [(source[0][float(a)], source[1][float(b)]) for a, b in replaced[both][:, :2]]
    assert np.mean([a == b for a, b in rows]) < 0.03


def test_values_that_repeat_are_not_said_to_have_changed() -> None:
    x = torch.ones(50, 3)
    _, changed = corrupt(x, 0.9, generator())
    assert changed.sum() == 0


def test_shuffling_keeps_every_column() -> None:
    x = torch.randn(30, 4, generator=generator())
    found = shuffled_columns(x, generator(1))
    torch.testing.assert_close(found.sort(0).values, x.sort(0).values)
    assert not torch.equal(found, x)


def test_loss_of_vime_by_hand() -> None:
    """An encoder and layers that tell nothing: half a chance for every cell, and zeros for values."""
    network = VIME(alpha=2.0).network(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    found = network.losses(x, generator(), 0, 0).detach()
    np.testing.assert_allclose(found, [np.log(2) + 2 * 2.5, np.log(2) + 2 * 4.5], rtol=1e-6)


# --- contrast ---


def test_contrast_against_loops() -> None:
    first, second = (torch.randn(4, 3, generator=generator(s)).double() for s in (0, 1))
    both = [v / v.norm() for v in torch.cat([first, second])]
    expected = np.zeros(4)
    for i, partner in [(i, i + 4) for i in range(4)] + [(i + 4, i) for i in range(4)]:
        others = [float(torch.exp(both[i] @ both[k] / 0.2)) for k in range(8) if k != i]
        expected[i % 4] -= 0.5 * np.log(float(torch.exp(both[i] @ both[partner] / 0.2)) / sum(others))
    np.testing.assert_allclose(nt_xent(first, second, 0.2), expected, rtol=1e-10)


def test_contrast_is_small_when_views_agree_and_large_when_they_are_swapped() -> None:
    z = torch.eye(6)
    agreeing, swapped = nt_xent(z, z, 0.1), nt_xent(z, z.roll(1, 0), 0.1)
    assert agreeing.max() < 1e-2
    assert swapped.min() > 9


# --- DACL+ ---


def test_mixed_rows_are_between_the_two_they_come_from() -> None:
    x = torch.randn(400, 3, generator=generator())
    view = mixed(x, 0.9, generator(1))
    assert torch.isfinite(view).all()
    assert (view.amin(0) >= x.amin(0) - 1e-5).all()
    assert (view.amax(0) <= x.amax(0) + 1e-5).all()
    assert 0.0 < float((view - x).abs().mean()) < 0.2
    same = (view == x).all(1).float().mean()
    assert 0.15 < same < 0.45  # of the third that is mixed cell by cell, most rows stay whole at 95 %
    torch.testing.assert_close(mixed(x, 1.0, generator(1)), x, rtol=1e-5, atol=1e-5)


# --- SubTab ---


@given(st.integers(1, 60), st.integers(1, 8), st.floats(0.0, 1.0))
@settings(deadline=None)
def test_subsets_cover_all_columns_and_are_of_one_width(columns: int, subsets: int, overlap: float) -> None:
    found = column_subsets(columns, subsets, overlap)
    assert len(found) == min(subsets, columns)
    assert len({len(subset) for subset in found}) == 1
    assert set(itertools.chain(*found)) == set(range(columns))
    assert all(subset == list(range(subset[0], subset[0] + len(subset))) for subset in found)


def test_subsets_of_the_paper() -> None:
    """784 columns in four: 196 each, and 147 of the neighbour's."""
    found = column_subsets(784, 4, 0.75)
    assert [(s[0], s[-1] + 1) for s in found] == [(0, 343), (49, 392), (245, 588), (441, 784)]


def test_shapes_of_subsets_and_pooled_features() -> None:
    model = SubTab(hidden=7, subsets=4, overlap=0.5, random_state=0).fit(np.random.default_rng(0).normal(size=(9, 8)))
    network, x = model.network_, torch.randn(3, 8, generator=generator())
    parts = network.parts(x)
    assert parts.shape == (4, 3, 3)
    torch.testing.assert_close(parts[2], x[:, 3:6])
    torch.testing.assert_close(network.encode(x), sum(network.encoder(part) for part in parts) / 4)
    assert network.losses(x, generator(), 0, 0).shape == (3,)
    assert [type(part).__name__ for part in network.encoder] == ["Linear", "LeakyReLU"]
    assert isinstance(network.decoder, torch.nn.Linear)


def test_loss_of_subtab_against_loops() -> None:
    """The authors' three terms for each pair of subsets: sums over columns, of two stacked batches, by their number."""
    rows, subsets = 3, 2
    model = SubTab(hidden=4, subsets=subsets, overlap=0.0, noise=0.0, temperature=0.1, random_state=0)
    network = model.fit(np.random.default_rng(0).normal(size=(9, 4))).network_
    x = torch.randn(rows, 4, generator=generator(1))
    with torch.no_grad():
        encoded = [network.encoder(x[:, :2]), network.encoder(x[:, 2:])]
        z = [p / np.linalg.norm(p, axis=1, keepdims=True) for p in (network.project(e).numpy() for e in encoded)]
        recon = sum(((network.decoder(e).numpy() - x.numpy()) ** 2).sum() for e in encoded) / (2 * rows)
        both = np.concatenate(z)
        contrast = 0.0
        for i in range(2 * rows):
            partner = (i + rows) % (2 * rows)
            others = [np.exp(both[i] @ both[k] / 0.1) for k in range(2 * rows) if k != i]
            contrast -= np.log(np.exp(both[i] @ both[partner] / 0.1) / np.sum(others)) / (2 * rows)
        apart = ((z[0] - z[1]) ** 2).sum() / rows
        ours = network.losses(x, generator(), 0, 0)
    assert float(ours.mean()) == pytest.approx(recon + contrast + apart, rel=1e-5)


# --- TabNet ---


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_sparsemax_against_brute_force(scores: list[float]) -> None:
    """The nearest point of the simplex: over every support, the projection onto its plane, if it is inside."""
    z = np.array(scores)
    best, nearest = np.inf, np.zeros_like(z)
    for size in range(1, len(z) + 1):
        for support in map(list, itertools.combinations(range(len(z)), size)):
            point = np.zeros_like(z)
            point[support] = z[support] + (1 - z[support].sum()) / size
            if point.min() >= -1e-12 and (distance := ((point - z) ** 2).sum()) < best:
                best, nearest = distance, point
    np.testing.assert_allclose(sparsemax(torch.tensor(z)), nearest, atol=1e-9)


def test_sparsemax_against_a_solver_and_finite_differences() -> None:
    z = np.array([0.4, 1.1, -0.3, 0.9, 0.2])
    solved = optimize.minimize(
        lambda p: ((p - z) ** 2).sum(), np.full(5, 0.2), bounds=[(0, 1)] * 5, tol=1e-12,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
    )  # fmt: skip
    np.testing.assert_allclose(sparsemax(torch.tensor(z)), solved.x, atol=1e-6)
    assert torch.autograd.gradcheck(sparsemax, torch.tensor(z, requires_grad=True))


def encoder(**changes: float) -> TabNetEncoder:
    torch.manual_seed(0)
    sizes = {"decision": 4, "attention": 3, "steps": 3, "gamma": 1.0, "ghost_batch": 8}
    return TabNetEncoder(6, **{**sizes, **changes})  # pyright: ignore[reportArgumentType]


def test_masks_are_shares_and_used_columns_are_lowered() -> None:
    x, model, scores = torch.randn(16, 6, generator=generator()), encoder(gamma=1.5), []
    for attend in model.attend:
        attend.register_forward_hook(lambda module, given, found: scores.append(found))
    decisions, masks = model(x)
    assert decisions.shape == (3, 16, 4)
    assert masks.shape == (3, 16, 6)
    assert (decisions >= 0).all()
    torch.testing.assert_close(masks.sum(-1), torch.ones(3, 16))
    torch.testing.assert_close(masks[0], sparsemax(scores[0]))
    torch.testing.assert_close(masks[2], sparsemax((1.5 - masks[0]) * (1.5 - masks[1]) * scores[2]))


def test_hidden_cells_do_not_reach_the_encoder() -> None:
    torch.manual_seed(0)
    network = HiddenCells(encoder(), 0.5)
    x = torch.randn(16, 6, generator=generator())
    hidden = torch.rand(x.shape, generator=generator(9)) < 0.5
    told: list[torch.Tensor] = []
    forward = network.encoder.forward
    network.encoder.forward = lambda a, b=None: told.append(a) or forward(a, b)  # pyright: ignore[reportAttributeAccessIssue]
    losses = network.losses(x, generator(9), 0, 0)
    assert (told[0][hidden] == 0).all()
    torch.testing.assert_close(told[0][~hidden], x[~hidden])
    assert losses.shape == (16,)


def test_steps_share_weights_and_no_statistics() -> None:
    """Each step's cells are distributed differently, so that common running statistics would fit none of them."""
    model = encoder(ghost_batch=256)
    first = [transformer.layers[0] for transformer in model.transformers]
    assert len({id(layer.linear) for layer in first}) == 1
    assert len({id(layer.norm) for layer in first}) == len(first)
    for module in model.modules():
        if isinstance(module, GhostNorm):
            module.norm.momentum = 0.5
    x = torch.randn(256, 6, generator=generator())
    with torch.no_grad():
        for _ in range(40):
            trained, _ = model(x)
        model.eval()
        # A hair's difference may move a row across a mask's edge, so that the mean is looked at.
        assert (model(x)[0] - trained).abs().mean() < 0.05 * trained.mean()


def test_a_row_alone_is_normalised_by_what_came_before() -> None:
    model = TabNetClassifier(encoder(), 3, 1e-3)
    model(torch.randn(16, 6, generator=generator()))
    model(torch.randn(1, 6, generator=generator(1))).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_ghost_batches_are_normalised_apart() -> None:
    norm, x = GhostNorm(2, 4), torch.randn(8, 2, generator=generator()) * 3 + 5
    found = norm(x)
    for part in found.split(4):
        np.testing.assert_allclose(part.detach().mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(part.detach().var(0, unbiased=False), 1, atol=1e-3)
    assert norm(torch.randn(5, 2)).shape == (5, 2)  # a rest joins the piece before it


def test_penalty_of_the_classifier_is_the_entropy_of_its_masks() -> None:
    model, x = TabNetClassifier(encoder(), 3, 0.5), torch.randn(8, 6, generator=generator())
    torch.manual_seed(0)
    assert model(x).shape == (8, 3)
    _, masks = model.encoder(x)
    p = masks.detach().double().numpy()
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1).mean()
    assert model.penalty.item() == pytest.approx(0.5 * entropy, rel=1e-4)


# --- random features ---


def test_inner_products_of_random_features_approximate_the_gaussian_kernel() -> None:
    X = np.random.default_rng(0).normal(size=(20, 5))
    features = RandomFourier(features=20_000, random_state=0).fit(X).transform(X).astype(float)
    gamma = 1 / (5 * X.astype(np.float32).var())
    kernel = np.exp(-gamma * ((X[:, None] - X[None]) ** 2).sum(-1))
    np.testing.assert_allclose(features @ features.T / 10_000, kernel, atol=0.05)
