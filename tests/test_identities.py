"""Which method is which setting of another: every line of the identity table, and no line without a test."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from reweigh import KL, RGD, ChiSquare, Context, ReverseKL, method
from reweigh.objectives._base import state_like
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import Closure, TrainingRows

LOSSES = np.array([0.05, 0.2, 0.7, 1.5, 1.5, 2.2, 4.0, 6.5])
GROUPS = np.array([0, 1, 0, 1, 0, 1, 0, 1])
DOCS = Path(__file__).parent.parent / "docs" / "identities.md"
IDENTITIES = {}


def identity(test):
    IDENTITIES[test.__name__.removeprefix("test_")] = test
    return test


def weights(text, losses=LOSSES, steps=1, groups=None):
    """The weights of a method's objective after some steps on the same batch."""
    objective = method(text).objective
    state = objective.init()
    for _ in range(steps):
        weighed = objective.weigh(losses, state_like(state, losses), groups=groups)
        state = weighed.state
    return weighed.weights


def same(ours, theirs, tolerance=1e-9):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@identity
def test_dft():
    same(weights("dft"), KL(tau=None, gamma=-1.0)(LOSSES))


@identity
def test_term():
    for t in (0.3, 1.0, -0.5):
        same(weights(f"term:t={t}"), weights(f"rgd:tau=none,gamma={t},normalize=mean"))


@identity
def test_term_within_clip():
    same(weights("term:t=0.1"), weights("rgd:tau=9,normalize=mean"))


@identity
def test_min_min():
    for tau in (1.0, 3.0):
        same(KL(tau=tau, gamma=-1 / (tau + 1))(LOSSES), 1 / KL(tau=tau)(LOSSES))


@identity
def test_rgd_small_tau():
    for weight in (KL(tau=1e-9), ReverseKL(tau=1e-9)):
        same(weight(LOSSES), np.ones(8), 1e-8)


@identity
def test_rgd_large_tau():
    for weight in (KL(tau=1e9), ReverseKL(tau=1e9), ChiSquare(tau=1e9, scaled=True)):
        same(weight(LOSSES), np.ones(8), 1e-7)


@identity
def test_rgd_saturated():
    same(RGD(tau=1.0)(LOSSES + 1.0), np.exp(0.5) * np.mean(LOSSES + 1.0))


@identity
def test_rgd_equal_losses():
    same(weights("rgd:tau=3,normalize=mean", np.full(5, 0.7)), np.ones(5))


@identity
def test_chi2_scaled():
    same(ChiSquare(tau=3.0, scaled=True)(LOSSES), ChiSquare(tau=3.0)(LOSSES) / 3.0)


@identity
def test_revkl_first_order():
    small = np.array([1e-4, 2e-4])
    difference = ReverseKL(tau=3.0)(small) - KL(tau=3.0)(small)
    same(difference / (small / 4) ** 2, np.full(2, 0.5), 1e-3)  # what is left is of second order: x² - x²/2


@identity
def test_absgd():
    same(weights("absgd:lam=2,rate=1", steps=3), weights("term:t=0.5"))
    same(weights("absgd:lam=2"), weights("term:t=0.5"))


@identity
def test_term_ema():
    same(weights("term_ema:t=0.5,rate=1", steps=3), weights("term:t=0.5"))
    same(weights("term_ema:t=0.5"), weights("term:t=0.5"))


@identity
def test_scdro():
    same(weights("scdro:lam=2,lam_lr=0,rate=1", steps=3), weights("term:t=0.5"))
    same(weights("scdro:lam=2"), weights("term:t=0.5"))


@identity
def test_term_hierarchical():
    same(weights("term_hierarchical:n_groups=2,t_in=0.5,t_out=0.5", groups=GROUPS), weights("term:t=0.5"))


@identity
def test_kl_dro():
    ours = weights("kl_dro:rho=0.2")
    # The temperature follows from any two weights: log(w_i / w_j) = (l_i - l_j) / beta.
    t = np.log(ours[-1] / ours[0]) / (LOSSES[-1] - LOSSES[0])
    same(ours, weights(f"term:t={t}"))
    same(np.mean(ours * np.log(ours)), 0.2)


@identity
def test_kl_dro_small():
    same(weights("kl_dro:rho=1e-12"), np.ones(8), 1e-5)
    same(weights("chi2_dro:rho=1e-12"), np.ones(8), 1e-5)


@identity
def test_kl_dro_large():
    alone = np.eye(8)[-1] * 8
    same(weights("kl_dro:rho=50"), alone)
    same(weights("chi2_dro:rho=50"), alone)
    same(weights("cvar:alpha=0.125"), alone)


@identity
def test_cvar_all():
    same(weights("cvar:alpha=1"), np.ones(8))
    same(weights("ohem:keep=1"), np.ones(8))


@identity
def test_cvar_ohem():
    same(weights("cvar:alpha=0.375"), weights("ohem:keep=0.375"))


@identity
def test_cvar_small_price():
    same(weights("cvar:alpha=0.3,reg=1e-4"), weights("cvar:alpha=0.3"), 1e-8)


@identity
def test_cvar_large_price():
    same(weights("cvar:alpha=0.3,reg=1e9"), np.ones(8), 1e-7)


@identity
def test_cvar_term():
    same(weights("cvar:alpha=0.05,reg=2"), weights("term:t=0.5"))
    same(method("cvar:alpha=0.05,reg=2").objective(LOSSES), method("term:t=0.5").objective(LOSSES))


@identity
def test_doro_cvar():
    same(weights("doro:eps=1e-12,alpha=0.3"), weights("cvar:alpha=0.3"), 1e-8)


@identity
def test_doro_chi2():
    alpha = 0.4
    rho = (1 / alpha - 1) ** 2 / 2
    same(weights(f"doro:eps=1e-12,alpha={alpha},divergence=chi2"), weights(f"chi2_dro:rho={rho}"), 1e-6)


@identity
def test_group_dro():
    same(weights("group_dro:n_groups=2,eta=1e-12", groups=GROUPS), np.ones(8))


@identity
def test_superloss():
    same(weights("superloss:T=1,lam=1e9"), np.ones(8), 1e-7)


@identity
def test_self_paced():
    # The threshold starts at the median and grows tenfold after the first step.
    same(weights("self_paced:growth=10,every=1", steps=3), np.ones(8))


@identity
def test_redescending():
    same(weights("redescending:tau=3,power=0"), weights("rgd:tau=3"))
    same(weights("redescending:tau=6.5"), weights("rgd:tau=6.5"))


@identity
def test_rgd_auto():
    objective = method("rgd_auto").objective
    first = objective.weigh(LOSSES, state_like(objective.init(), LOSSES))
    q = float(first.state["q"])
    same(objective.weigh(LOSSES, first.state).weights, KL(tau=q, gamma=1 / q)(LOSSES), 1e-6)


OUTPUT = torch.linspace(-2, 3, 24).reshape(6, 4).sin() * 3
TARGET = torch.tensor([0, 1, 2, 3, 0, 1])
CROSS_ENTROPY = F.cross_entropy(OUTPUT, TARGET, reduction="none")


@identity
def test_focal():
    same(method("focal:gamma=0").loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)


@identity
def test_poly():
    same(method("poly:e1=0").loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)


@identity
def test_label_smoothing():
    same(method("label_smoothing:eps=0").loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)


@identity
def test_class_balanced():
    loss = method("class_balanced:beta=0").loss.bind([100, 10, 5, 1])
    same(loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)
    same(loss.sample_weight(TARGET), np.ones(6))


@identity
def test_ldam():
    loss = method("ldam:margin=0,scale=1").loss.bind([100, 10, 5, 1])
    same(loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)
    deferred = method("deferred").loss.bind([100, 10, 5, 1])
    assert loss.sample_weight(TARGET, progress=0.79) is deferred.sample_weight(TARGET, progress=0.79) is None
    same(loss.sample_weight(TARGET, progress=0.8), deferred.sample_weight(TARGET, progress=0.8), 1e-6)


@identity
def test_large_margin():
    same(method("large_margin:lam=0").loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)


COUNTS = [100, 10, 5, 1]
SHARES = torch.tensor(COUNTS) / sum(COUNTS)


def loss_of(text, counts=COUNTS):
    return method(text).loss.bind(counts)


@identity
def test_balanced_softmax():
    # Ren et al.: counts times exponentials, normalised.
    odds = torch.tensor(COUNTS) * OUTPUT.exp()
    balanced = -(odds / odds.sum(1, keepdim=True)).gather(1, TARGET[:, None])[:, 0].log()
    same(loss_of("logit_adjusted")(OUTPUT, TARGET), balanced, 1e-5)


@identity
def test_logit_adjusted():
    same(loss_of("logit_adjusted:t=0")(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)
    same(loss_of("logit_adjusted:t=2", [7, 7, 7, 7])(OUTPUT, TARGET), CROSS_ENTROPY, 1e-5)


@identity
def test_vs():
    same(loss_of("vs:gamma=0,t=1.5")(OUTPUT, TARGET), loss_of("logit_adjusted:t=1.5")(OUTPUT, TARGET), 1e-6)


@identity
def test_vs_temperature():
    # Ye et al.: the logit of class j times (n_j / n_max) to a power.
    factor = (torch.tensor(COUNTS) / 100) ** 0.2
    same(loss_of("vs:gamma=0.2,t=0")(OUTPUT, TARGET), F.cross_entropy(OUTPUT * factor, TARGET, reduction="none"), 1e-5)


@identity
def test_class_weights():
    for loss in (loss_of("class_weights:power=0"), loss_of("class_weights", [3, 3, 3, 3])):
        same(loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)
        same(loss.sample_weight(TARGET), np.ones(6), 1e-6)


@identity
def test_class_weights_limit():
    ours = loss_of("class_weights").sample_weight(torch.arange(4))
    theirs = loss_of("class_balanced:beta=0.99999999").sample_weight(torch.arange(4))
    same(ours / ours.sum(), theirs / theirs.sum(), 1e-5)


@identity
def test_deferred():
    ours, theirs = loss_of("deferred:start=0"), loss_of("class_balanced")
    same(ours(OUTPUT, TARGET), theirs(OUTPUT, TARGET), 1e-6)
    same(ours.sample_weight(TARGET, progress=0.0), theirs.sample_weight(TARGET), 1e-6)


@identity
def test_gce():
    same(method("gce:q=1e-5").loss(OUTPUT.double(), TARGET), CROSS_ENTROPY, 1e-4)


@identity
def test_sce():
    same(method("sce:alpha=1,beta=0").loss(OUTPUT, TARGET), CROSS_ENTROPY, 1e-6)


@identity
def test_small_loss():
    same(weights("small_loss:forget=0"), np.ones(8))


@identity
def test_small_loss_ohem():
    distinct = LOSSES + np.arange(8) / 100
    kept, hardest = (weights(text, distinct) > 0 for text in ("small_loss:forget=0.25", "ohem:keep=0.25"))
    assert (kept == ~hardest).all()


def signalled(text, signal, losses=LOSSES):
    return method(text).objective.weigh(losses, (), signal=signal).weights


@identity
def test_rho():
    same(signalled("rho:keep=1", np.arange(8.0)), np.ones(8))


@identity
def test_rho_ohem():
    distinct = LOSSES + np.arange(8) / 100
    same(signalled("rho:keep=0.4", np.full(8, 0.3), distinct), weights("ohem:keep=0.4", distinct))


@identity
def test_entropy():
    same(signalled("entropy:power=0", np.linspace(0.1, 0.9, 8)), np.ones(8))
    same(signalled("entropy", np.ones(8)), np.ones(8))


@identity
def test_lin_upper():
    same(weights("lin_upper:r=1e9"), np.ones(8))
    same(weights("lin_upper", np.full(8, 2.0)), np.ones(8))


def _second_visit(text, later):
    """Weights at a second visit to every unit."""
    objective, index = method(text).build(Context(n=8)).objective, np.arange(8)
    first = objective.weigh(LOSSES, state_like(objective.init(), LOSSES), index=index)
    return first.weights, objective.weigh(later, first.state, index=index).weights


@identity
def test_gain():
    same(np.stack(_second_visit("gain:beta=0", LOSSES[::-1].copy())), np.ones((2, 8)))
    same(_second_visit("gain:beta=3", LOSSES)[0], np.ones(8))


@identity
def test_gain_rising():
    same(_second_visit("gain:beta=1e6", LOSSES + 0.1)[1], np.full(8, 2.0))


def corrected(text, counts=COUNTS, classifier=None):
    context = Context(class_counts=counts, classifier=classifier)
    return method(text).post.fit(OUTPUT, TARGET, context)(OUTPUT)


@identity
def test_prior():
    same(corrected("prior:t=0"), OUTPUT, 1e-6)
    same(F.softmax(torch.tensor(corrected("prior:t=2", [9, 9, 9, 9])), 1), F.softmax(OUTPUT.double(), 1), 1e-6)


@identity
def test_prior_adjusted():
    undone = torch.tensor(corrected("prior:t=-1.5"))
    same(loss_of("logit_adjusted:t=1.5")(OUTPUT, TARGET), F.cross_entropy(undone, TARGET, reduction="none"), 1e-5)


@identity
def test_tau_norm():
    same(corrected("tau_norm:tau=0", classifier=(np.diag([3.0, 2.0, 1.0, 0.5]), None)), OUTPUT, 1e-6)


def _one_step(text):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = method(text).step.start(model)
    for _ in range(3):
        step.step(optimizer, lambda: F.cross_entropy(model(OUTPUT), TARGET))
    return model.weight.detach()


@identity
def test_sam():
    same(_one_step("sam:rho=1e-9"), _one_step("plain"), 1e-5)


def _steps(text, count=4, **decay):
    """The weights after some steps of a method that looks at losses, rows or their numbers."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, **decay)
    n = len(OUTPUT)
    step = method(text).build(Context(n=n, steps=4, class_counts=(2, 2, 1, 1))).step.start(model)
    closure = Closure(
        model=model,
        batch=(OUTPUT, TARGET),
        losses=CrossEntropy(),
        training_rows=TrainingRows(inputs=OUTPUT, targets=TARGET),
        index=torch.arange(n),
    )
    for _ in range(count):
        step.step(optimizer, closure)
    return model.weight.detach()


@identity
def test_elr():
    same(_steps("elr:lam=0"), _steps("plain"), 1e-6)


@identity
def test_coteaching():
    same(_steps("coteaching:forget=0"), _steps("plain"), 1e-6)


@identity
def test_weight_decay():
    same(_steps("weight_decay:strength=0.01"), _steps("plain", weight_decay=0.01), 1e-6)


@identity
def test_crt():
    plain = _steps("plain")
    same(_steps("crt:share=1e-9"), plain, 1e-6)
    with pytest.raises(AssertionError):
        same(_steps("crt:share=0.25"), plain, 1e-6)


@identity
def test_projected():
    same(_steps("projected:radius=1e9"), _steps("plain"), 1e-6)


@identity
def test_group_balanced():
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    by_class, by_group = (
        method(name).sampler.start(8, batch_size=4, **given)
        for name, given in (("class_uniform", {"targets": labels}), ("group_balanced", {"groups": labels}))
    )
    same(by_class.probabilities(), by_group.probabilities())
    assert list(by_class) == list(by_group)


@identity
def test_afr():
    same(_steps("afr:iterations=0"), _steps("plain"), 1e-6)
    same(_steps("afr:pull=1e4,lr=1e-7"), _steps("plain"), 1e-4)


@identity
def test_jtt():
    same(_steps("jtt:first=0.5,up=0"), _steps("plain", count=2), 1e-6)


@identity
def test_ema():
    model = torch.nn.Linear(2, 2)
    average = method("ema:decay=0").average.start(model)
    with torch.no_grad():
        model.weight += 1.0
    average.update(model)
    same(average.average()["weight"], model.weight.detach())


def test_every_line_of_the_table_is_a_test_and_every_test_a_line():
    lines = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), flags=re.MULTILINE)
    assert sorted(lines) == sorted(IDENTITIES)
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("name", ["term", "dft"])
def test_the_identities_can_fail(name):
    with pytest.raises(AssertionError):
        same(weights(name), np.ones(8))
