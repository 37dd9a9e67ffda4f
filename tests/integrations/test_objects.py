"""Objects work wherever texts do: one method as a text, a method, an objective and a weight function, in every host."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

import reweigh

#: One objective in four spellings, and a method with a loss in two.
OBJECTIVES = ["rgd:tau=2", reweigh.method("rgd:tau=2"), reweigh.RGD(tau=2.0), reweigh.KL(tau=2.0)]
METHODS = ["focal:gamma=1+rgd:tau=2", reweigh.method("focal:gamma=1+rgd:tau=2")]


def batch():
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(16, 3, generator=generator), torch.randint(3, (16,), generator=generator)


def of_reweighted(method):
    from reweigh.torch import Reweighted

    logits, labels = batch()
    loss = Reweighted(method, level="sample") if _has_loss(method) else Reweighted(torch.nn.CrossEntropyLoss(), method)
    return loss(logits.requires_grad_(), labels).item()


def of_trainer(method):
    from transformers.modeling_outputs import SequenceClassifierOutput

    from reweigh.integrations.transformers import loss

    logits, labels = batch()
    return loss(method)(SequenceClassifierOutput(logits=logits.requires_grad_()), labels, 16).item()


def of_skorch(method):
    from reweigh.integrations.skorch import ReweightedCrossEntropy

    logits, labels = batch()
    return ReweightedCrossEntropy(method)(logits.requires_grad_(), labels).item()


def of_jax(method):
    import jax.numpy as jnp

    from reweigh.integrations.jax import init, value_and_grad

    losses = jnp.asarray(np.linspace(0.0, 4.0, 9))
    (value, _), _ = value_and_grad(lambda scale: scale * losses, method)(init(method), jnp.asarray(1.0))
    return float(value)


def of_xgboost(method):
    import xgboost as host

    from reweigh.integrations.boosting import xgboost

    rows = host.DMatrix(np.zeros((6, 1)), label=np.array([0, 1, 1, 0, 1, 0]))
    gradient, hessian = xgboost("binary", objective=method, class_counts=[3, 3])(np.linspace(-3, 3, 6), rows)
    return float(np.abs(gradient).sum() + hessian.sum())


def of_network(method):
    from reweigh.integrations.sklearn import RGDClassifier

    logits, labels = batch()
    network = RGDClassifier(
        objective=method, hidden_layer_sizes=(4,), max_iter=20, learning_rate_init=0.05, random_state=0
    )
    return float(network.fit(logits.numpy(), labels.numpy()).predict_proba(logits.numpy()).var())


def of_refits(method):
    from sklearn.linear_model import LogisticRegression

    from reweigh.integrations.sklearn import ReweightedClassifier

    logits, labels = batch()
    refitted = ReweightedClassifier(LogisticRegression(), objective=method, cv=None, max_iter=5, tol=1e-2)
    return float(refitted.fit(logits.numpy(), labels.numpy()).predict_proba(logits.numpy()).var())


def _has_loss(method):
    return (method if isinstance(method, str) else str(method)).startswith("focal")


HOSTS = {
    "torch": of_reweighted, "transformers": of_trainer, "skorch": of_skorch, "jax": of_jax, "xgboost": of_xgboost,
    "sklearn, a network": of_network, "sklearn, refits": of_refits,
}  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_an_objective_in_every_spelling(host):
    if find_spec(host.partition(",")[0]) is None:
        pytest.skip(f"needs {host}, which is not installed")
    values = [HOSTS[host](spelling) for spelling in OBJECTIVES]
    assert values == pytest.approx([values[0]] * len(values), rel=1e-12)
    assert values[0] != pytest.approx(HOSTS[host]("rgd:tau=0.5"), rel=1e-4)  # the method is heard at all


@pytest.mark.parametrize("host", ["torch", "transformers", "xgboost", "sklearn, a network"])
def test_a_method_with_a_loss_in_both_spellings(host):
    if find_spec(host.partition(",")[0]) is None:
        pytest.skip(f"needs {host}, which is not installed")
    values = [HOSTS[host](spelling) for spelling in METHODS]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert values[0] != pytest.approx(HOSTS[host]("rgd:tau=2"), rel=1e-4)
