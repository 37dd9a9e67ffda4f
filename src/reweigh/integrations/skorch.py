"""skorch: criteria that it recognises for what they are, and their statistics in its history."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from reweigh import _validate as validate
from reweigh.integrations._counts import count_classes
from reweigh.integrations._missing import missing
from reweigh.method import ObjectiveLike
from reweigh.monitor import Monitor

if find_spec("skorch") is None:
    raise missing("skorch", "skorch")

from skorch.callbacks import Callback
from skorch.utils import to_tensor
from torch import Tensor, nn

from reweigh.integrations._plain_loss import PlainLoss
from reweigh.torch import Reweighted

__all__ = ["ReweightedCrossEntropy", "ReweightedNLL", "ReweightedBCEWithLogits", "SampleWeights", "WeightLog"]


class ReweightedCrossEntropy(nn.CrossEntropyLoss):
    """Cross entropy with re-weighting, as a criterion for skorch; the module gives logits.

    skorch looks at the *type* of the criterion to choose what `predict_proba` applies to the module's output. This one
    is an `nn.CrossEntropyLoss`, so it gets its softmax. Training is re-weighted; `valid_loss` is the plain loss, since
    skorch validates in `eval()` mode and without gradients.

    Parameters
    ----------
    objective
        What turns losses into weights, as in :class:`~reweigh.torch.Reweighted`; :class:`~reweigh.RGD` of the
        hyper-parameters unless given.
    weight, ignore_index, label_smoothing
        As in `torch.nn.CrossEntropyLoss`.
    **options
        Those of :class:`~reweigh.torch.Reweighted`: `tau`, `divergence`, `level`, `floor`, `nonfinite` and so on.

    Returns
    -------
    Tensor
        The loss to descend in training, the plain one otherwise.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=4, module__out_features=3,
    ...                           criterion=ReweightedCrossEntropy, criterion__tau=1.0).initialize()
    >>> net.criterion_.reweighted.objective.tau
    1.0
    """

    def __init__(
        self,
        objective: ObjectiveLike | None = None,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)
        plain = nn.CrossEntropyLoss(weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)
        self.reweighted = Reweighted(plain, objective, **options)

    def forward(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a batch of logits."""
        return self.reweighted(input, target, sample_weight=sample_weight)


class ReweightedNLL(nn.NLLLoss):
    """Negative log-likelihood with re-weighting, as a criterion for skorch; the module gives probabilities.

    This replaces the default criterion of `NeuralNetClassifier`. skorch takes the logarithm of the module's output
    itself, if the criterion is an `nn.NLLLoss`, which this one is.

    Parameters
    ----------
    objective
        What turns losses into weights, as in :class:`~reweigh.torch.Reweighted`; :class:`~reweigh.RGD` of the
        hyper-parameters unless given.
    weight, ignore_index
        As in `torch.nn.NLLLoss`.
    **options
        Those of :class:`~reweigh.torch.Reweighted`.

    Returns
    -------
    Tensor
        The loss to descend in training, the plain one otherwise.

    Examples
    --------
    >>> import torch
    >>> criterion = ReweightedNLL(tau=1.0)
    >>> log_probabilities = torch.log(torch.tensor([[0.5, 0.5], [0.1, 0.9]])).requires_grad_()
    >>> round(criterion(log_probabilities, torch.tensor([0, 0])).item(), 4)
    2.3883
    """

    def __init__(
        self,
        objective: ObjectiveLike | None = None,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        **options: Any,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index)
        self.reweighted = Reweighted(nn.NLLLoss(weight=weight, ignore_index=ignore_index), objective, **options)

    def forward(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a batch of log-probabilities."""
        return self.reweighted(input, target, sample_weight=sample_weight)


class ReweightedBCEWithLogits(nn.BCEWithLogitsLoss):
    """Binary cross entropy with re-weighting, as a criterion for `NeuralNetBinaryClassifier`; the module gives logits.

    It is an `nn.BCEWithLogitsLoss`, so skorch applies the sigmoid in `predict_proba`.

    Parameters
    ----------
    objective
        What turns losses into weights, as in :class:`~reweigh.torch.Reweighted`; :class:`~reweigh.RGD` of the
        hyper-parameters unless given.
    pos_weight
        As in `torch.nn.BCEWithLogitsLoss`.
    **options
        Those of :class:`~reweigh.torch.Reweighted`.

    Returns
    -------
    Tensor
        The loss to descend in training, the plain one otherwise.

    Examples
    --------
    >>> import torch
    >>> criterion = ReweightedBCEWithLogits(tau=1.0)
    >>> round(criterion(torch.zeros(2, requires_grad=True), torch.tensor([0.0, 1.0])).item(), 4)
    0.9803
    """

    def __init__(
        self, objective: ObjectiveLike | None = None, *, pos_weight: Tensor | None = None, **options: Any
    ) -> None:
        super().__init__(pos_weight=pos_weight)
        self.reweighted = Reweighted(nn.BCEWithLogitsLoss(pos_weight=pos_weight), objective, **options)

    def forward(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a batch of logits."""
        return self.reweighted(input, target, sample_weight=sample_weight)


class SampleWeights:
    """Weights of rows for a skorch net: `class Net(SampleWeights, NeuralNetClassifier): pass`.

    The net takes them with its inputs, `net.fit({"X": X, "sample_weight": w}, y)`, as skorch users are used to. They
    go to a re-weighted criterion, where they multiply the objective's weights and the mean divides by their sum; the
    module does not get them. Without them the net is as before, so that `predict` takes plain inputs. Validation counts
    rows by their weights too.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> class Net(SampleWeights, NeuralNetClassifier): pass
    >>> net = Net(torch.nn.Linear, module__in_features=2, module__out_features=2, max_epochs=1, train_split=None,
    ...           criterion=ReweightedCrossEntropy, criterion__tau=1.0, lr=10.0, verbose=0)
    >>> X, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    >>> net = net.fit({"input": X, "sample_weight": np.array([1.0, 0.0, 1.0, 0.0])}, y)
    >>> print(net.predict(X))
    [0 0 0 0]
    """

    def infer(self, x: Any, **fit_params: Any) -> Any:
        """The module's output, of all inputs but the weights."""
        inputs = {name: part for name, part in x.items() if name != "sample_weight"} if isinstance(x, dict) else x
        return super().infer(inputs, **fit_params)  # pyright: ignore[reportAttributeAccessIssue]

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of a batch with its weights, if it has any."""
        host: Any = super()
        net: Any = self
        weights = X.get("sample_weight") if isinstance(X, dict) else None
        if weights is None:
            return host.get_loss(y_pred, y_true, X, *args, **kwargs)
        if not any(isinstance(part, Reweighted) for part in net.criterion_.modules()):
            raise TypeError(
                f"`sample_weight` goes to a re-weighted criterion, got {type(net.criterion_).__name__}. Use for "
                "example criterion=reweigh.integrations.skorch.ReweightedCrossEntropy."
            )
        if not bool((weights >= 0).all()):  # NaN is not either; they come from the host, so that looking is cheap
            raise ValueError(
                f"`sample_weight` must be zero or more, got {float(weights.min()):g}. Give one weight per row, zero "
                "for rows that are not to count."
            )
        own = to_tensor(weights, device=net.device)

        def pass_on(_: nn.Module, inputs: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return inputs, keywords | {"sample_weight": own}

        # skorch calls the criterion with outputs and targets, after what its type asks for.
        handle = net.criterion_.register_forward_pre_hook(pass_on, with_kwargs=True)
        try:
            return host.get_loss(y_pred, y_true, X, *args, **kwargs)
        finally:
            handle.remove()


class WeightLog(Callback):
    """A skorch callback that adds the statistics of re-weighting to the history, one row per epoch.

    skorch's `train_loss` is the number that is descended, which is re-weighted. This adds `plain_loss`, and
    `weight_mean`, `clip_share` and `ess_share`, over the training batches of the epoch. They are printed with the rest.
    A criterion with `class_counts="auto"` gets the number of examples of each class in the rows trained on.

    Parameters
    ----------
    every
        Batches between two looks at the values: how rarely a device is made to wait.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=2, module__out_features=2,
    ...                           criterion=ReweightedCrossEntropy, criterion__tau=1e-3, callbacks=[WeightLog()],
    ...                           max_epochs=1, train_split=None, verbose=0)
    >>> net = net.fit(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))
    >>> net.history[-1, "clip_share"]
    1.0
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Look for the criterion."""
        validate.whole("every", self.every, 1)
        parts = net.criterion_.modules() if isinstance(net.criterion_, nn.Module) else ()
        self.criterion_ = next((part for part in parts if isinstance(part, Reweighted)), None)
        if self.criterion_ is None:
            raise TypeError(
                f"WeightLog needs a re-weighted criterion, got {type(net.criterion_).__name__}. "
                "Use for example criterion=reweigh.integrations.skorch.ReweightedCrossEntropy."
            )
        self.monitor_ = Monitor.of(self.criterion_.objective, every=self.every)
        self.plain_ = PlainLoss()

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Start a new row, and pass on what criteria ask for: the classes of the data, and how far training is."""
        self.monitor_.reset()
        self.plain_ = PlainLoss()
        assert self.criterion_ is not None
        if self.criterion_.class_counts == "auto":
            self.criterion_.bind(count_classes(dataset_train))
        self.criterion_.progress = (len(net.history) - 1) / net.max_epochs

    def on_batch_end(self, net: Any, batch: Any = None, training: bool | None = False, **kwargs: Any) -> None:
        """Take note of a training batch."""
        assert self.criterion_ is not None
        if training and self.criterion_.weights is not None:
            self.monitor_.update(self.criterion_)
            self.plain_.add(self.criterion_)

    def on_epoch_end(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Write the row."""
        stats = self.monitor_.stats()
        if stats:
            net.history.record("plain_loss", self.plain_.value())
            for name in ("weight_mean", "clip_share", "ess_share"):
                net.history.record(name, stats[name])
