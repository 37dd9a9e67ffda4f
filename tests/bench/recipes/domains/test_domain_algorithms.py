"""Every algorithm against references that know nothing of it: hand-worked numbers, NumPy, finite differences."""

import copy
import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from reweigh.bench.recipes import _domains
from reweigh.bench.recipes.algorithms import domains
from reweigh.bench.recipes.algorithms.domains import DomainBatch, DomainNetwork, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._reconstruction import reconstruction
from reweigh.bench.recipes.algorithms.domains.coral import moments_apart
from reweigh.bench.recipes.algorithms.domains.irm import gradient_penalty
from reweigh.bench.recipes.algorithms.domains.miro import unlikelihood
from reweigh.bench.recipes.algorithms.domains.mixup import mixed
from reweigh.bench.recipes.algorithms.domains.mldg import split
from reweigh.bench.recipes.algorithms.domains.mmd import discrepancy
from reweigh.bench.recipes.algorithms.domains.rsc import RSC, challenged
from reweigh.bench.recipes.algorithms.domains.sagnet import randomised
from reweigh.bench.recipes.algorithms.domains.vrex import variance_of_risks
from reweigh.bench.train.objective import LiveObjective
from reweigh.method import Context, method

CLASSES, DOMAINS, EACH, FEATURES = 3, 3, 8, 5


def network(channels=0, dtype=torch.float64):
    embed = nn.Sequential(nn.Linear(4 + channels, FEATURES), nn.Tanh())
    return DomainNetwork(embed, FEATURES, CLASSES).to(dtype)


def sgd(parameters, lr=0.1, **_):
    groups = [g if isinstance(g, dict) else {"params": [g]} for g in parameters]
    for group in groups:
        group["lr"] = group.get("lr", lr) * group.pop("rate", 1.0)
    return torch.optim.SGD(groups, lr=lr)


def setup(steps=10, lr=0.1, count=DOMAINS):
    return Setup(
        network=network,
        optimizer=functools.partial(sgd, lr=lr),
        domains=count,
        classes=CLASSES,
        steps=steps,
        shape=(4,),
    )


def batch(seed=0, count=DOMAINS):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count * EACH, 4, generator=draw, dtype=torch.float64)
    return DomainBatch(x=x, y=torch.randint(CLASSES, (count * EACH,), generator=draw), domains=count)


def weigher(text="mean"):
    built = method(text).build(Context(n=100, class_counts=(1,) * CLASSES, n_groups=DOMAINS, steps=10))
    return Weigher(built.loss, LiveObjective(built.objective))


def started(name, seed=0, steps=10, lr=0.1, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return domains.build(name, **options).start(setup(steps, lr)).double()


def moved(learner, before):
    """What a step of plain gradient descent with rate 0.1 must have had as a gradient."""
    after = dict(learner.network.named_parameters())
    return {name: (before[name] - after[name].detach()) / 0.1 for name in before}


def snapshot(learner):
    return {name: value.detach().clone() for name, value in learner.network.named_parameters()}


def cross_entropies(logits, labels):
    """In NumPy, from the definition."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]


# --- the registry, and what holds for all ---


def test_the_folder_is_the_registry():
    known = "arm cdann coral dann erm frr frr_l groupdro irm miro mixup mldg mmd mtl rsc sagnet vrex"
    assert " ".join(domains.names()) == known
    with pytest.raises(ValueError, match=r"'irm' has no option 'wieght'. Did you mean 'weight'"):
        domains.build("irm", wieght=1.0)
    with pytest.raises(ValueError, match=r"no algorithm named 'corals'. Did you mean 'coral'"):
        domains.build("corals")


@pytest.mark.parametrize("name", domains.names())
def test_random_search_draws_what_the_law_allows_and_nothing_else(name):
    config = domains.build(name)
    recipe = {"lr": domains.power_of_ten(-5.0, -3.5)}
    one, same, other = (config.drawn(np.random.default_rng(seed), recipe) for seed in (1, 1, 2))
    assert one == same
    assert (one != other) == bool(config.law)
    for field in dataclasses.fields(config):
        if field.name not in {*config.law, *config.recipe_law}:
            assert getattr(one, field.name) == getattr(config, field.name)


def test_laws_have_their_ranges():
    rng = np.random.default_rng(0)
    irm = [domains.build("irm").drawn(rng, {}) for _ in range(300)]
    assert 0.1 <= min(c.weight for c in irm) < 1 < 1e4 < max(c.weight for c in irm) <= 1e5
    dann = [domains.build("dann").drawn(rng, {"lr": domains.power_of_ten(-5.0, -3.5)}) for _ in range(100)]
    assert {c.discriminator_steps for c in dann} <= set(range(1, 9))
    assert max(c.discriminator_steps for c in dann) > 4
    # The whole of DomainBed's law: three to five layers there are two to four hidden ones.
    assert {c.depth for c in dann} == {2, 3, 4}
    assert {c.dropout for c in dann} == {0.0, 0.1, 0.5}
    assert {c.beta1 for c in dann} == {0.0, 0.5}
    assert all(64 <= c.width < 1024 and 1e-6 <= c.discriminator_decay <= 1e-2 for c in dann)
    rates = [c.discriminator_lr for c in dann]
    assert 1e-5 <= min(rates) < 2e-5 < 2e-4 < max(rates) <= 10**-3.5


@pytest.mark.parametrize("name", domains.names())
@pytest.mark.parametrize("text", ["mean", "rgd", "rgd_auto", "group_dro"])
def test_every_algorithm_takes_every_objective(name, text):
    learner, weigh = started(name), weigher(text)
    before = copy.deepcopy(learner.state_dict())
    learner.train()
    for step in range(6):
        learner.update(batch(step), weigh)
        found = weigh.collect()
        if found is not None:
            losses, weights = found
            assert losses.shape == weights.shape
            assert not losses.requires_grad
            if text == "mean":
                assert torch.allclose(weights, torch.ones_like(weights))
    after = learner.state_dict()
    assert learner.updates == 6
    assert any(not torch.equal(before[key], after[key]) for key in before if key.startswith("network"))
    assert all(torch.isfinite(value).all() for value in after.values())
    assert learner.eval()(batch().x).shape == (DOMAINS * EACH, CLASSES)


class HostReads(TorchDispatchMode):
    """Counts values that are brought to the host."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", domains.names())
def test_no_step_reads_a_value(name, monkeypatch):
    """A read would make an accelerator wait; the count of steps is the host's own."""
    # On the processor alone one_hot looks for negative labels, and distributions check what the host made.
    monkeypatch.setattr(F, "one_hot", lambda y, classes: (y[:, None] == torch.arange(classes)).long())
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    learner, weigh = started(name), weigher("rgd")
    learner.train()
    with HostReads() as reads:
        for step in range(4):
            learner.update(batch(step), weigh)
            weigh.collect()
        assert reads.count == 0
        float(batch().x.sum())
        assert reads.count == 1  # and a read would be seen


@pytest.mark.parametrize("name", [n for n in domains.names() if n not in ("frr", "frr_l")])
def test_every_algorithm_learns(name):
    """Labels that one coordinate decides, in all domains alike: anything that classifies must find it."""
    # At the default weights plain gradient descent with so large a rate would follow the penalties alone.
    options = {"weight": 0.1} if "weight" in domains.build(name).law else {}
    learner, weigh = started(name, lr=0.5, **options), weigher()
    torch.manual_seed(0)

    def easy(seed):
        drawn = batch(seed)
        return DomainBatch(x=drawn.x, y=(drawn.x[:, 0] > 0).long(), domains=DOMAINS)

    learner.train()
    for step in range(200):
        learner.update(easy(step), weigh)
        weigh.collect()
    held = easy(10_000)
    assert (learner.eval()(held.x).argmax(1) == held.y).double().mean() > 0.8


@pytest.mark.parametrize("name", ["erm", "coral", "irm", "vrex", "mmd"])
def test_a_constant_weight_multiplies_the_classification_loss_and_no_penalty(name):
    """With the factor 3 on classification losses, the step is that of classification times three plus the penalty."""
    gradients = []
    for factor in (1.0, 2.0, 3.0):
        learner, weigh = started(name), weigher()
        weigh.live.factor = factor
        before = snapshot(learner)
        learner.update(batch(), weigh)
        gradients.append(moved(learner, before))
    for key in gradients[0]:
        one, two, three = (g[key] for g in gradients)
        assert torch.allclose(three - two, two - one, atol=1e-10)  # linear in the factor
        plain = two - one
        if name == "erm":
            assert torch.allclose(one, plain, atol=1e-10)
    if name != "erm":  # and what is left over is the penalty, which is there
        assert any(
            (g1 - (g2 - g1)).abs().max() > 1e-6
            for g1, g2 in zip(gradients[0].values(), gradients[1].values(), strict=True)
        )


def test_rgd_weighs_examples_one_by_one():
    learner, weigh = started("erm"), weigher("rgd:tau=1")
    seen, before = batch(), snapshot(learner)
    logits = learner.network(seen.x).detach().numpy()
    losses = cross_entropies(logits, seen.y.numpy())
    weights = np.exp(np.minimum(losses, 1.0) / 2.0)
    learner.update(seen, weigh)
    assert np.allclose(weigh.collect()[1], weights)
    # The bias of the last layer by hand: the mean of w (p - onehot).
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    expected = (weights[:, None] * (probabilities - np.eye(CLASSES)[seen.y.numpy()])).mean(0)
    assert np.allclose(moved(learner, before)["head.bias"], expected)


def test_batches_are_dealt_by_domain():
    seen = batch()
    assert seen.domain.tolist() == [0] * EACH + [1] * EACH + [2] * EACH
    assert torch.equal(seen.of([2, 0]).x, torch.cat([seen.x[2 * EACH :], seen.x[:EACH]]))
    with pytest.raises(ValueError, match="equally many of each of 3 domains, got 7"):
        DomainBatch(x=torch.zeros(7, 1), y=torch.zeros(7), domains=3)


# --- IRM ---


def test_irm_penalty_is_a_product_of_derivatives():
    draw = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(6, CLASSES, generator=draw, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])

    def risk(rows, factor):
        return cross_entropies(outputs[rows].numpy() * factor, y[rows].numpy()).mean()

    h = 1e-5
    slopes = [(risk(rows, 1 + h) - risk(rows, 1 - h)) / (2 * h) for rows in (slice(0, None, 2), slice(1, None, 2))]
    assert gradient_penalty(outputs, y).item() == pytest.approx(slopes[0] * slopes[1], rel=1e-6)


def test_irm_penalty_by_hand():
    """Two classes, outputs (z, 0), both examples of class 0: dR/ds = -z / (1 + e^z)."""
    z = torch.tensor([[2.0, 0.0], [0.5, 0.0]])
    expected = (2.0 / (1 + math.exp(2.0))) * (0.5 / (1 + math.exp(0.5)))
    assert gradient_penalty(z, torch.tensor([0, 0])).item() == pytest.approx(expected, rel=1e-6)


def test_irm_penalty_has_a_gradient_that_differences_confirm():
    outputs = torch.randn(4, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    y = torch.tensor([0, 1, 2, 0])
    assert torch.autograd.gradcheck(lambda z: gradient_penalty(z, y), outputs.requires_grad_())


@pytest.mark.parametrize("name", ["irm", "vrex"])
def test_the_penalty_comes_in_with_a_fresh_optimizer(name):
    learner, weigh = started(name, weight=50.0, anneal=0.3), weigher()
    assert [learner.weight(step) for step in (0, 2, 3, 9)] == [1.0, 1.0, 50.0, 50.0]
    first = learner.optimizers["all"]
    for step in range(3):
        learner.update(batch(step), weigh)
    assert learner.optimizers["all"] is first
    learner.update(batch(3), weigh)
    assert learner.optimizers["all"] is not first


# --- VREx and GroupDRO ---


def test_vrex_variance_by_hand():
    assert float(variance_of_risks(torch.tensor([1.0, 2.0, 6.0]))) == pytest.approx((4 + 1 + 9) / 3)


def test_vrex_step_is_that_of_the_whole_expression():
    learner, weigh = started("vrex", weight=4.0, anneal=0.0), weigher()
    seen, before = batch(), snapshot(learner)
    twin = copy.deepcopy(learner.network)
    risks = [F.cross_entropy(twin(x), y) for x, y in zip(seen.parts(seen.x), seen.parts(seen.y), strict=True)]
    mean = sum(risks) / DOMAINS
    (mean + 4.0 * sum((risk - mean) ** 2 for risk in risks) / DOMAINS).backward()
    learner.update(seen, weigh)
    for name, gradient in moved(learner, before).items():
        assert torch.allclose(gradient, dict(twin.named_parameters())[name].grad, atol=1e-10)


def test_groupdro_weights_follow_exponentiated_gradient():
    learner, weigh = started("groupdro", eta=0.7), weigher()
    q = np.full(DOMAINS, 1 / DOMAINS)
    for step in range(3):
        seen, before = batch(step), snapshot(learner)
        twin = copy.deepcopy(learner.network)
        risks = [F.cross_entropy(twin(x), y) for x, y in zip(seen.parts(seen.x), seen.parts(seen.y), strict=True)]
        q = q * np.exp(0.7 * np.array([risk.item() for risk in risks]))
        q /= q.sum()
        sum(float(p) * risk for p, risk in zip(q, risks, strict=True)).backward()
        learner.update(seen, weigh)
        assert np.allclose(learner.q.numpy(), q)
        for name, gradient in moved(learner, before).items():
            assert torch.allclose(gradient, dict(twin.named_parameters())[name].grad, atol=1e-10)


# --- CORAL and MMD ---


def test_coral_by_hand():
    first = torch.tensor([[0.0, 0.0], [2.0, 0.0]])  # mean (1, 0), covariance [[2, 0], [0, 0]]
    second = torch.tensor([[0.0, 1.0], [0.0, 3.0]])  # mean (0, 2), covariance [[0, 0], [0, 2]]
    assert float(moments_apart(first, second)) == pytest.approx((1 + 4) / 2 + (4 + 4) / 4)


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 6), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_coral_is_what_numpy_says(seed, n, m, width):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(n, width)), rng.normal(size=(m, width))
    spread = np.atleast_2d(np.cov(a.T)) - np.atleast_2d(np.cov(b.T))
    expected = ((a.mean(0) - b.mean(0)) ** 2).mean() + (spread**2).mean()
    assert float(moments_apart(torch.tensor(a), torch.tensor(b))) == pytest.approx(expected, rel=1e-8)


def test_mmd_by_hand():
    """One point each, at distance 1: every kernel is one on itself, and exp(-b) across."""
    bands = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
    expected = 2 * len(bands) - 2 * sum(math.exp(-b) for b in bands)
    assert float(discrepancy(torch.tensor([[0.0]]), torch.tensor([[1.0]]))) == pytest.approx(expected, rel=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_mmd_is_what_brute_force_says(seed, n, m):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))

    def mean(left, right):
        return np.mean([[sum(math.exp(-g * ((x - y) ** 2).sum()) for g in 10.0 ** np.arange(-3, 4)) for y in right]
                        for x in left])  # fmt: skip

    expected = mean(a, a) + mean(b, b) - 2 * mean(a, b)
    assert float(discrepancy(torch.tensor(a), torch.tensor(b))) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("name", "penalty"), [("coral", moments_apart), ("mmd", discrepancy)])
def test_pairwise_penalties_are_averaged_over_pairs(name, penalty):
    learner, weigh = started(name, weight=2.0), weigher()
    seen, before = batch(), snapshot(learner)
    twin = copy.deepcopy(learner.network)
    a, b, c = (twin.embed(x) for x in seen.parts(seen.x))
    total = F.cross_entropy(twin(seen.x), seen.y) + 2.0 * (penalty(a, b) + penalty(a, c) + penalty(b, c)) / 3
    total.backward()
    learner.update(seen, weigh)
    for key, gradient in moved(learner, before).items():
        assert torch.allclose(gradient, dict(twin.named_parameters())[key].grad, atol=1e-9)


# --- DANN and CDANN ---


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_the_discriminator_descends_where_the_network_ascends(name):
    learner, weigh = started(name, weight=0.5), weigher()
    seen = batch()
    loss = learner.discriminator_loss(learner.network.embed(seen.x), seen)
    parameters = [*learner.discriminator.parameters(), *learner.network.embed.parameters()]
    gradients = torch.autograd.grad(loss, parameters)
    own = len(list(learner.discriminator.parameters()))
    before = [p.detach().clone() for p in parameters]
    learner.update(seen, weigh)  # the discriminator's turn
    assert weigh.collect() is None
    for k, (was, now) in enumerate(zip(before, parameters, strict=True)):
        expected = was - 0.1 * gradients[k] if k < own else was
        assert torch.allclose(now, expected, atol=1e-10)
    # Now the network's: the classification gradient minus half of the discriminator's.
    twin = copy.deepcopy(learner)
    classified = F.cross_entropy(twin.network(seen.x), seen.y)
    discerned = twin.discriminator_loss(twin.network.embed(seen.x), seen)
    embed = list(twin.network.embed.parameters())
    plain, adversary = torch.autograd.grad(classified, embed), torch.autograd.grad(discerned, embed)
    frozen = [p.detach().clone() for p in learner.discriminator.parameters()]
    learner.update(seen, weigh)
    assert weigh.collect() is not None
    for now, was, g, a in zip(learner.network.embed.parameters(), embed, plain, adversary, strict=True):
        assert torch.allclose(now, was - 0.1 * (g - 0.5 * a), atol=1e-10)
    assert all(torch.equal(p, q) for p, q in zip(learner.discriminator.parameters(), frozen, strict=True))


def test_dann_gradient_penalty_is_the_squared_gradient_of_its_input():
    learner = started("dann", gradient_penalty=2.0)
    plain = started("dann")
    plain.load_state_dict(learner.state_dict())
    seen = batch()
    features = learner.network.embed(seen.x).detach()
    with_penalty = learner.discriminator_loss(features.clone().requires_grad_(), seen).item()
    without = plain.discriminator_loss(features, seen).item()
    h, squares = 1e-5, []
    for i in range(len(features)):
        slopes = []
        for j in range(FEATURES):
            values = []
            for sign in (1, -1):
                moved_to = features[i].clone()
                moved_to[j] += sign * h
                out = learner.discriminator(moved_to[None]).detach().numpy()
                values.append(cross_entropies(out, seen.domain[i : i + 1].numpy())[0])
            slopes.append((values[0] - values[1]) / (2 * h))
        squares.append(np.square(slopes).sum())
    assert with_penalty - without == pytest.approx(2.0 * np.mean(squares), rel=1e-5)


def test_the_discriminator_has_its_own_layers_rate_and_decay():
    own = {"width": 6, "depth": 3, "dropout": 0.5, "discriminator_lr": 0.3, "discriminator_decay": 0.01}
    learner = started("dann", **own)
    kinds = "Linear ReLU Dropout"
    assert [type(part).__name__ for part in learner.discriminator] == [*(3 * kinds.split()), "Linear"]
    assert learner.discriminator[0].out_features == 6
    groups = {name: optimizer.param_groups[0] for name, optimizer in learner.optimizers.items()}
    assert (groups["discriminator"]["lr"], groups["discriminator"]["weight_decay"]) == (0.3, 0.01)
    assert (groups["network"]["lr"], groups["network"]["weight_decay"]) == (0.1, 0)


def test_cdann_counts_classes_evenly_and_sees_them():
    learner = started("cdann")
    drawn = batch()
    y = torch.tensor([0] * 20 + [1] * 3 + [2])
    seen = DomainBatch(x=drawn.x, y=y, domains=DOMAINS)
    features = learner.network.embed(seen.x)
    shown = features + learner.classes.weight[y]
    losses = cross_entropies(learner.discriminator(shown).detach().numpy(), seen.domain.numpy())
    expected = np.mean([losses[y.numpy() == k].mean() for k in range(CLASSES)])
    assert learner.discriminator_loss(features, seen).item() == pytest.approx(expected)


# --- the others ---


def test_mixup_is_a_convex_combination_of_inputs_and_losses():
    first, second = torch.ones(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    assert mixed(first, second, torch.tensor([0.25, 1.0]))[:, 0, 0, 0].tolist() == [0.25, 1.0]
    learner, weigh = started("mixup", alpha=1.0), weigher()
    seen, before = batch(), copy.deepcopy(learner.network)
    torch.manual_seed(5)
    learner.update(seen, weigh)
    torch.manual_seed(5)  # the same draws, in the order of the algorithm
    order = torch.randperm(DOMAINS).tolist()
    shares = torch.distributions.Beta(1.0, 1.0).sample((DOMAINS,)).double()
    expected = []
    for k, share in enumerate(shares):
        a, b = seen.of([order[k]]), seen.of([order[(k + 1) % DOMAINS]])
        logits = before(share * a.x + (1 - share) * b.x).detach().numpy()
        both = cross_entropies(logits, a.y.numpy()), cross_entropies(logits, b.y.numpy())
        expected.append(float(share) * both[0] + (1 - float(share)) * both[1])
    assert np.allclose(weigh.collect()[0], np.concatenate(expected))


def test_mldg_pairs_and_first_order_gradient():
    assert split([3, 1, 0, 2], 2) == [(3, 0), (1, 2)]
    assert split([2, 0, 1], 2) == [(2, 0)]
    assert split([1, 0], 2) == [(1, 0)]
    learner, weigh = started("mldg", beta=0.5, tested=1), weigher()
    seen, before = batch(), snapshot(learner)
    twin = copy.deepcopy(learner.network)
    torch.manual_seed(7)
    learner.update(seen, weigh)
    torch.manual_seed(7)
    chosen = split(torch.randperm(DOMAINS).tolist(), 1)
    total = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for i, j in chosen:
        inner, a, b = copy.deepcopy(twin), seen.of([i]), seen.of([j])
        names = [name for name, _ in inner.named_parameters()]
        first = torch.autograd.grad(F.cross_entropy(inner(a.x), a.y), list(inner.parameters()))
        stepped = {n: p - 0.1 * g for (n, p), g in zip(inner.named_parameters(), first, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(inner, stepped, (b.x,)), b.y)
        second = torch.autograd.grad(loss, [stepped[n] for n in names])
        for n, g, s in zip(names, first, second, strict=True):
            total[n] += (g + 0.5 * s) / 3  # by the three domains, though there are two pairs
    for name, gradient in moved(learner, before).items():
        assert torch.allclose(gradient, total[name], atol=1e-10)


def test_mtl_remembers_means_and_predicts_with_those_at_hand():
    learner, weigh = started("mtl", ema=0.75), weigher()
    seen = batch()
    features = [learner.network.embed(x).detach() for x in seen.parts(seen.x)]
    learner.update(seen, weigh)
    assert torch.allclose(learner.means, 0.75 * torch.stack([f.mean(0) for f in features]))
    held = batch(1).x[:5]
    beside = learner.network.embed(held).mean(0).expand(5, FEATURES)
    expected = learner.network.head(torch.cat([learner.network.embed(held), beside], 1))
    assert torch.allclose(learner(held), expected)


def test_mtl_adds_up_the_risks_of_the_domains():
    learner = started("mtl", ema=1.0)
    seen, before = batch(), snapshot(learner)
    twin = copy.deepcopy(learner.network)
    parts = zip(seen.parts(seen.x), seen.parts(seen.y), strict=True)
    risks = []
    for x, y in parts:
        features = twin.embed(x)
        risks.append(F.cross_entropy(twin.head(torch.cat([features, features.mean(0).expand_as(features)], 1)), y))
    (risks[0] + risks[1] + risks[2]).backward()
    learner.update(seen, weigher())
    for name, gradient in moved(learner, before).items():
        assert torch.allclose(gradient, dict(twin.named_parameters())[name].grad, atol=1e-10)


def test_sagnet_style_and_content():
    features = torch.randn(16, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
    torch.manual_seed(0)
    restyled = randomised(features, style=True)
    normal = [(f - f.mean(1, keepdim=True)) / f.std(1, keepdim=True) for f in (features, restyled)]
    assert torch.allclose(*normal, atol=1e-4)  # the content is untouched
    assert not torch.allclose(features.mean(1), restyled.mean(1), atol=1e-3)
    torch.manual_seed(0)
    recontented = randomised(features, style=False)
    assert torch.allclose(features.mean(1), recontented.mean(1))
    assert torch.allclose(features.std(1), recontented.std(1), atol=1e-4)
    assert not torch.allclose(features, recontented, atol=1e-2)


def test_sagnet_adversary_wants_the_style_head_clueless():
    """The last of its three steps moves features so that the style head's outputs come nearer to uniform."""
    learner, weigh = started("sagnet", weight=5.0), weigher()
    seen = batch()

    def doubt():
        outputs = F.log_softmax(learner.style(randomised(learner.network.embed(seen.x), style=False)), 1)
        return float(-outputs.mean().detach())

    with torch.no_grad():
        learner.style.weight.mul_(20)
    torch.manual_seed(0)
    start = np.mean([doubt() for _ in range(20)])
    for _ in range(30):
        learner.update(seen, weigh)
    assert np.mean([doubt() for _ in range(20)]) < start


def test_arm_shares_contexts_within_a_support():
    learner = started("arm", support=4)
    x = batch().x[:8]
    context = learner.context(x).detach()
    channel = torch.cat([context[:4].mean(0).expand(4, 1), context[4:].mean(0).expand(4, 1)])
    assert torch.allclose(learner(x), learner.network(torch.cat([x, channel], 1)))
    uneven = torch.cat([x[:6], learner.context(x[:6]).mean(0).expand(6, 1)], 1)
    assert torch.allclose(learner(x[:6]), learner.network(uneven))


def test_arm_normalises_over_all_domains_together_and_mixes_none():
    """Constant images, brighter by domain: joined, the context tells the domains apart; apart, it could not."""
    embed = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Flatten())
    config = Setup(
        network=lambda channels: DomainNetwork(copy.deepcopy(embed), 16, 2).double(),
        optimizer=sgd,
        domains=3,
        classes=2,
        steps=2,
        shape=(1, 2, 2),
    )
    torch.manual_seed(0)
    learner = domains.build("arm", support=4, width=3).start(config).double().train()
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64).repeat_interleave(4).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    seen = DomainBatch(x=x.contiguous(), y=torch.tensor([0, 1] * 6), domains=3)
    contexts = []
    learner.network.register_forward_pre_hook(lambda _, inputs: contexts.append(inputs[0][:, 1].detach()))
    twin = copy.deepcopy(learner.context)
    learner.update(seen, weigher())
    (shared,) = contexts
    joined = twin(seen.x).detach()[:, 0]
    expected = torch.cat([joined[i : i + 4].mean(0).expand(4, 2, 2) for i in (0, 4, 8)])
    assert torch.allclose(shared, expected)
    assert shared[[0, 4, 8]].flatten(1).std(0).min() > 0.01
    # Three of a domain cannot be dealt in fours: each domain shares one context, and none is mixed with another.
    contexts.clear()
    uneven = DomainBatch(x=x.reshape(3, 4, 1, 2, 2)[:, :3].flatten(0, 1), y=torch.tensor([0, 1, 0] * 3), domains=3)
    learner.update(uneven, weigher())
    for part in contexts[0].chunk(3):
        assert torch.allclose(part, part[:1].expand_as(part))
    assert not torch.allclose(contexts[0][0], contexts[0][3])


def test_rsc_mutes_what_is_leant_on_most():
    head = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 1.0, -1.0], [0.0, 0.0, 0.0]]))
    features = torch.tensor([[1.0, 1.0, 1.0], [0.1, 1.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    mask = challenged(features, torch.tensor([0, 0, 0]), head, RSC(features=1 / 3, examples=1 / 3))
    # Feature 0 has the largest derivative; only the example that lives on it stays muted.
    assert mask.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


def test_miro_by_hand_and_its_faster_rate():
    raw = torch.log(torch.expm1(torch.tensor([2.0, 0.5], dtype=torch.float64)))  # variances 2 and 1/2
    features = torch.tensor([[1.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    anchor = torch.zeros_like(features)
    expected = np.mean([1 / 2 + np.log(2), 0 + np.log(0.5), 9 / 2 + np.log(2), 2 + np.log(0.5)]) / 2
    assert float(unlikelihood(features, anchor, raw)) == pytest.approx(expected, rel=1e-4)
    learner = started("miro", rate=10.0)
    assert [group["lr"] for group in learner.optimizers["all"].param_groups] == [0.1, 1.0]
    assert [len(raw) for raw in learner.raw] == [FEATURES]
    # Softplus of the raw value and the floor together are the authors' first variance.
    assert [float(F.softplus(raw.detach()[0]) + 1e-5) for raw in learner.raw] == pytest.approx([0.1], rel=1e-6)
    anchors = copy.deepcopy(learner.pretrained.state_dict())
    learner.update(batch(), weigher())
    assert all(torch.equal(anchors[k], v) for k, v in learner.pretrained.state_dict().items())


def test_miro_has_one_term_for_stem_and_each_stage_before_dropout():
    """ResNet-50: five terms; with dropout in training the untouched network is no further away."""
    network = functools.partial(_domains.network, "resnet50:width=4", (3, 32, 32), 2, dropout=0.5, options={})
    config = Setup(network=network, optimizer=sgd, domains=1, classes=2, steps=2, shape=(3, 32, 32))
    torch.manual_seed(0)
    learner = domains.build("miro").start(config).train()
    assert [len(raw) for raw in learner.raw] == [4, 16, 32, 64, 128]
    learner.network.fixed_statistics = learner.pretrained.fixed_statistics = True
    x = torch.randn(2, 3, 32, 32)
    mine, _ = learner.train().network.layers(x)
    theirs, _ = learner.pretrained.layers(x)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_frr_phases_move_what_they_should():
    learner, weigh = started("frr", steps=4, features=0.25, head=0.75), weigher()
    settled = []
    for step, expected in enumerate([("embed", "head"), ("head", "decoder"), ("head", "decoder"), ("embed",)]):
        before = copy.deepcopy(learner.state_dict())
        learner.update(batch(step), weigh)
        after = learner.state_dict()
        changed = {
            key.removeprefix("network.").split(".")[0] for key in before if not torch.equal(before[key], after[key])
        }
        assert changed == set(expected)
        settled.append(learner.settled)
    assert settled == [False, False, False, True]
    linear = started("frr_l", steps=4, features=0.5)
    assert [linear.update(batch(k), weigh) or linear.settled for k in range(4)] == [False, False, True, True]


def test_frr_penalty_reaches_the_head():
    assert float(reconstruction(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]]))) == 1.5
    steps = {}
    for weight in (0.0, 10.0):
        learner = started("frr_l", steps=2, features=0.0, weight=weight)
        before = snapshot(learner)
        learner.update(batch(), weigher())
        steps[weight] = moved(learner, before)
    assert torch.allclose(steps[0.0]["embed.0.weight"], torch.zeros(FEATURES, 4, dtype=torch.float64))
    assert not torch.allclose(steps[0.0]["head.weight"], steps[10.0]["head.weight"])


def test_fixed_statistics_stay():
    embed = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    for fixed in (True, False):
        one = DomainNetwork(copy.deepcopy(embed), 2, 2, fixed_statistics=fixed).train()
        one.embed(torch.randn(4, 1, 3, 3))
        assert bool((one.embed[1].running_mean == 0).all()) == fixed


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("irm", {"weight": -1.0}, "`weight` must be"),
        ("dann", {"discriminator_steps": 0}, "`discriminator_steps` must be"),
        ("cdann", {"dropout": 1.0}, "`dropout` must be"),
        ("rsc", {"features": 1.0}, "`features` must be"),
        ("frr", {"features": 0.9, "head": 0.5}, "must not exceed"),
        ("mixup", {"alpha": 0.0}, "`alpha` must be"),
    ],
)
def test_errors_name_the_hyperparameter(name, options, message):
    with pytest.raises(ValueError, match=message):
        domains.build(name, **options)
