"""Hugging Face Trainer: `Trainer(..., compute_loss_func=loss(tau=1.0))`."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from reweigh.integrations._missing import missing

if find_spec("transformers") is None:
    raise missing("transformers", "transformers")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.trainer_callback import ExportableState, TrainerCallback

from reweigh import _validate as validate
from reweigh._array import sum_over_ranks, widen
from reweigh._carry import carried, with_hyper_parameters
from reweigh.integrations._batch_segments import BatchSegments, after_the_first
from reweigh.integrations._batch_signal import BatchSignal, check_signal
from reweigh.integrations._counts import count_classes
from reweigh.integrations._data_weights import weigh_messages
from reweigh.integrations._plain_loss import PlainLoss, Sums
from reweigh.integrations._step_weights import StepWeights
from reweigh.method import Method, ObjectiveLike
from reweigh.monitor import Monitor
from reweigh.objectives import Objective
from reweigh.objectives.entropy import Entropy
from reweigh.post import Correction
from reweigh.torch import entropy, losses
from reweigh.torch._criterion import Criterion
from reweigh.torch.reweighted import Reweighted, Units

__all__ = ["TrainerLoss", "WeightLog", "loss", "watch", "weigh_messages"]

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
AnyTrainer = TypeVar("AnyTrainer")

logger = logging.getLogger(__name__)

#: The parts of a method that the Trainer carries, and why not the others.
_CARRIED = ("loss", "objective", "post")
_WHY = {
    "sampler": "a loss function sees batches that the Trainer has drawn; override its `get_train_dataloader`",
    "step": "the Trainer calls backward once per micro-batch and steps itself",
    "average": "a loss function does not see the model's weights",
}

#: What the Trainer, its collators and its models mark an ignored label with.
_IGNORED = -100
#: Parts of the class names of outputs whose labels are those of the next position, and of the same position.
_SHIFTED, _ALIGNED = ("CausalLM",), ("TokenClassifier", "MaskedLM", "Seq2Seq")


def loss(
    objective: ObjectiveLike | None = None,
    *,
    class_counts: Sequence[int] | Literal["auto"] | None = None,
    weight_column: str | None = None,
    signal_column: str | None = None,
    reference: nn.Module | None = None,
    level: Literal["token", "sequence"] | None = None,
    shift: bool | None = None,
    problem_type: ProblemType | None = None,
    label_smoothing: float = 0.0,
    floor: bool = True,
    router_aux_loss_coef: float | None = None,
    **hyper_parameters: Any,
) -> TrainerLoss:
    r"""A loss function for the Hugging Face Trainer: `Trainer(..., compute_loss_func=loss(tau=1.0))`.

    .. math:: \hat L = \frac{1}{N} \sum_i \mathrm{sg}(w_i)\,\ell_i

    with N the Trainer's `num_items_in_batch`: the labels of all micro-batches of the step, on all ranks. A weight that
    comes from a unit's own loss then makes accumulation and data parallel exact. Evaluation reports the plain loss.

    Parameters
    ----------
    objective
        What turns losses into weights, or a method that names a loss and a correction too,
        `"class_balanced+rgd:tau=3+prior"`; `RGD(**hyper_parameters)` unless given.
    class_counts
        Training examples of each class, for losses and corrections that need them; with `"auto"`, `watch` counts the
        training set once.
    weight_column
        The column of the data that holds weights, one per row or one per token, which multiply those of the objective.
        The loss is divided by their sum over all micro-batches and ranks of the step. Needs `watch`; weights of
        messages become weights of tokens by :func:`weigh_messages`.
    signal_column
        The column of the data that holds what the objective weighs by besides the loss, one number per row or one per
        token: for :class:`~reweigh.objectives.rho.Rho` the losses of a reference model.
        Needs `watch`. :class:`~reweigh.objectives.entropy.Entropy` needs none: it looks at the logits.
    reference
        A causal language model of the same tokens instead, run without gradients on every training batch; needs
        `watch`.
    level
        Which unit gets a weight where labels have two axes: `"token"`, each on its own, or `"sequence"`, the row by its
        mean loss. Both divide by the number of tokens. Where rows hold several sequences, in packed or padding-free
        training, `watch` separates them by the batch's `position_ids` or `cu_seq_lens_q`. By default a label of rank
        one is an example, an integer label of rank two a token, and a row of numbers (several values or classes per
        example) an example.
    shift
        Whether position t predicts label t + 1. By default as the class of the model's output says: causal language
        models do; token classifiers, masked and sequence-to-sequence models do not. The last need the collator
        `DataCollatorForSeq2Seq(tokenizer, model=model)`.
    problem_type
        As in `model.config.problem_type`. Needed only for rows of floating-point labels, which are either several
        classes or several values; one output is a regression, integer labels are a classification.
    label_smoothing
        The Trainer's `label_smoothing_factor`, which it ignores once it has a loss function.
    floor
        Whether the weight sees a smoothed loss less its smallest value: :class:`~reweigh.torch.Reweighted`.
    router_aux_loss_coef
        Factor of the auxiliary loss of a mixture-of-experts router, `model.config.router_aux_loss_coef`; `watch` reads
        it there. The auxiliary loss is not re-weighted; each micro-batch counts with its share of the labels.
    **hyper_parameters
        `tau`, `divergence` and the other fields of :class:`~reweigh.RGD`, in place of `objective`.

    Returns
    -------
    Loss
        A callable `(outputs, labels, num_items_in_batch=None)`.

    Examples
    --------
    >>> import torch
    >>> from transformers.modeling_outputs import SequenceClassifierOutput
    >>> outputs = SequenceClassifierOutput(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True))
    >>> compute_loss = loss(tau=1.0)
    >>> round(compute_loss(outputs, torch.tensor([0, 0]), num_items_in_batch=2).item(), 4)
    1.1502

    Notes
    -----
    An objective that normalises over the batch normalises over one micro-batch here, on all ranks, and warns once.
    Before version 5 the Trainer counts the first label
    of a causal model too, which nothing predicts; the loss is divided by that number as the model's own is.
    """
    return TrainerLoss(
        objective,
        class_counts=class_counts,
        weight_column=weight_column,
        signal_column=signal_column,
        reference=reference,
        level=level,
        shift=shift,
        problem_type=problem_type,
        label_smoothing=label_smoothing,
        floor=floor,
        router_aux_loss_coef=router_aux_loss_coef,
        **hyper_parameters,
    )


class TrainerLoss(nn.Module):
    """What :func:`loss` returns: a `compute_loss_func`; the objective's state is in its `state_dict()`."""

    def __init__(
        self,
        objective: ObjectiveLike | None = None,
        *,
        class_counts: Sequence[int] | Literal["auto"] | None = None,
        weight_column: str | None = None,
        signal_column: str | None = None,
        reference: nn.Module | None = None,
        level: Literal["token", "sequence"] | None = None,
        shift: bool | None = None,
        problem_type: ProblemType | None = None,
        label_smoothing: float = 0.0,
        floor: bool = True,
        router_aux_loss_coef: float | None = None,
        **hyper_parameters: Any,
    ) -> None:
        super().__init__()
        validate.one_of("level", level, (None, "token", "sequence"))
        kinds = ("single_label_classification", "multi_label_classification", "regression")
        validate.one_of("problem_type", problem_type, (None, *kinds))
        validate.fraction("label_smoothing", label_smoothing, zero=True, one=False)
        if router_aux_loss_coef is not None:
            validate.non_negative("router_aux_loss_coef", router_aux_loss_coef)
        self.level: Literal["token", "sequence"] | None = level
        self.shift = shift
        self.label_smoothing = label_smoothing
        self.router_aux_loss_coef = router_aux_loss_coef
        self.weight_column = weight_column
        named = None if objective is None else carried(objective, _CARRIED, "the Hugging Face Trainer", why=_WHY)
        chosen = with_hyper_parameters(named, hyper_parameters)
        criteria: dict[ProblemType, Any] = {
            "single_label_classification": nn.CrossEntropyLoss(ignore_index=_IGNORED, label_smoothing=label_smoothing),
            "multi_label_classification": nn.BCEWithLogitsLoss(),
            "regression": nn.MSELoss(),
        }
        if chosen.loss is not None:
            problem_type, criteria = _with_loss(chosen, problem_type, criteria, label_smoothing)
        self.problem_type: ProblemType | None = problem_type
        whole = dataclasses.replace(chosen, loss=criteria[problem_type or "single_label_classification"])
        # Rows of losses are summed, because the Trainer counts labels and not rows; tokens are flattened beforehand.
        self.reweighted = Reweighted(whole, level="sequence", floor=floor, class_counts=class_counts)
        self._criteria = {problem: Criterion(criterion, floor=floor) for problem, criterion in criteria.items()}
        self._criteria[problem_type or "single_label_classification"] = self.reweighted.criterion
        self._accumulation_known = self.reweighted.objective.separable
        self._step: StepWeights | None = None
        check_signal(self.reweighted.objective, signal_column, reference)
        self.signal_column = signal_column
        self._reference = (reference,)  # in a tuple: it is not part of this module
        self._signal: BatchSignal | None = None
        self._segments: BatchSegments | None = None

    def forward(
        self,
        outputs: Any,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None = None,
        *,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """The loss to descend in training, the plain loss where gradients are disabled.

        `sample_weight` are weights that a host has itself, one per prediction: they multiply the others and are not
        divided by their sum.
        """
        logits, labels, problem = self._read(outputs, labels)
        shifts = problem == "single_label_classification" and labels.ndim > 1 and self._shifts(outputs)
        reweighted = self.reweighted
        criterion = self._criteria[problem]
        if reweighted.criterion is not criterion:
            reweighted.criterion = criterion
        if reweighted.objective.stateful:
            reweighted.to(logits.device)
        count = None if num_items_in_batch is None else _number(num_items_in_batch, logits.device)
        weights = self._weights(logits.device, shifts, count) if torch.is_grad_enabled() else None
        signal = self._beside(logits, labels, problem) if torch.is_grad_enabled() else None
        if shifts and signal is not None:
            # What belongs to a label moves with it; what belongs to a prediction stays where the logits are.
            stays = isinstance(reweighted.objective, Entropy)
            signal = signal if stays else F.pad(signal[:, 1:], (0, 1))
        labels, weights = _aligned(labels, weights, shifts)
        if sample_weight is not None and torch.is_grad_enabled():
            own = sample_weight.to(logits.device).reshape(labels.shape)
            weights = own if weights is None else weights * own
        if not self._accumulation_known and torch.is_grad_enabled():
            self._accumulation_known = True
            self._say_what_a_batch_is(_real(labels), count)
        logits, targets, weights = self._units(logits, labels, weights, problem)
        if signal is not None and targets.ndim == 1 and signal.ndim > 1:
            signal = signal.flatten()
        numbers = self._numbers(targets, shifts) if torch.is_grad_enabled() else None
        value = reweighted(logits, targets, sample_weight=weights, signal=signal, segments=numbers, count=count)
        return self._add_router_loss(value, outputs, labels, count)

    def correction(self, predictions: Any, labels: Any, *, classifier: tuple[Any, Any] | None = None) -> Correction:
        """What the method does after training, fitted to held-out rows: `correction(*trainer.predict(held_out)[:2])`.

        Call the result with the `predictions` of any rows. `classifier` is the weight and bias of the model's last
        layer, for `tau_norm`.
        """
        return self.reweighted.correction(predictions, labels, classifier=classifier)

    def follow(self, trainer: Any) -> None:
        """Read from a Trainer what the function is not given: the classes of its data, and their weights."""
        if self.reweighted.class_counts == "auto" and trainer.train_dataset is not None:
            self.reweighted.bind(count_classes(trainer.train_dataset, classes=_classes(trainer.model)))
        if self._step is None and (self.weight_column is not None or self._weighs_classes()):
            self._step = StepWeights(trainer, self.weight_column)
        (reference,) = self._reference
        if self._signal is None and (self.signal_column is not None or reference is not None):
            self._signal = BatchSignal(trainer, self.signal_column, reference)
        if self._segments is None and self.level == "sequence":
            self._segments = BatchSegments(trainer)

    def extra_repr(self) -> str:
        """The options, as one would write them."""
        names = (
            "weight_column",
            "signal_column",
            "level",
            "shift",
            "problem_type",
            "label_smoothing",
            "router_aux_loss_coef",
        )
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _read(self, outputs: Any, labels: Tensor | None) -> tuple[Tensor, Tensor, ProblemType]:
        """Logits and labels as the criterion wants them, and which criterion."""
        logits = outputs.get("logits") if isinstance(outputs, dict) else outputs[0]
        if not isinstance(logits, Tensor):
            keys = f", only {', '.join(outputs)}" if isinstance(outputs, dict) else ""
            raise ValueError(
                f"{type(outputs).__name__} holds no tensor of `logits`{keys}, so its head is not one this loss knows: "
                "classification, regression, token classification and language models. Write the loss of this head "
                "with reweigh.torch.Reweighted and pass that as `compute_loss_func`."
            )
        if labels is None:
            raise ValueError(
                "there are no labels. The Trainer passes on the batch's `labels`: give the data set a column of that "
                "name, and leave `remove_unused_columns` from dropping it."
            )
        logits, labels = widen(logits), labels.to(logits.device)
        problem = self._problem(logits, labels)
        if problem != "single_label_classification" and self.label_smoothing:
            raise ValueError(f"`label_smoothing` smooths classes, got {self.label_smoothing:g} with a {problem}.")
        if labels.ndim == logits.ndim and labels.shape[-1] == 1:  # a column of labels is a vector
            labels = labels.squeeze(-1)
        if problem == "single_label_classification":
            if logits.shape[:-1] != labels.shape:
                raise _unknown_head(outputs, logits, labels)
            return logits, labels, problem
        if logits.shape[-1] == 1 and logits.ndim == labels.ndim + 1:
            logits = logits.squeeze(-1)
        if logits.shape != labels.shape:
            raise _unknown_head(outputs, logits, labels)
        return logits, labels.to(logits.dtype), problem

    def _problem(self, logits: Tensor, labels: Tensor) -> ProblemType:
        if self.problem_type is not None:
            return self.problem_type
        if logits.ndim == 2 and logits.shape[1] == 1:
            return "regression"
        if labels.is_floating_point():
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} and dtype {labels.dtype} for logits of shape "
                f"{tuple(logits.shape)} can mean several classes or several values per example. Pass "
                "problem_type='multi_label_classification' or problem_type='regression'; class indices are integers."
            )
        return "single_label_classification"

    def _units(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None, problem: ProblemType
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Scores, labels and weights as the criterion wants them: one per row where each is a unit of its own."""
        if problem != "single_label_classification":
            if self.level != "token":
                return logits, labels, weights
        elif labels.ndim == 1:
            return logits, labels, weights
        elif self.level == "sequence":
            return logits.movedim(-1, 1), labels, weights
        flat = logits.flatten() if logits.ndim == labels.ndim else logits.flatten(0, -2)
        return flat, labels.flatten(), None if weights is None else weights.flatten()

    def _weights(self, device: torch.device, shifts: bool, count: Tensor | None) -> Tensor | None:
        """The weight of each label of this micro-batch, of mean one over the whole step; None where all count alike."""
        by_class = self._weighs_classes()
        if self._step is None:
            if self.weight_column is not None or (by_class and count is not None):
                what = f"weight_column={self.weight_column!r}" if self.weight_column else repr(self._inner)
                raise ValueError(
                    f"{what} gives labels weights, and only the Trainer knows the labels of the whole step, which they "
                    "are divided by. Call watch(trainer) before trainer.train()."
                )
            return None
        if self.weight_column is not None and self._step.current is None:
            raise ValueError(
                f"the batch has no weights, though weight_column={self.weight_column!r} was asked for: the training "
                "rows have no such column, or another collator was set after watch(trainer)."
            )

        def amount(labels: Tensor, weights: Tensor | None) -> Tensor:
            labels, weights = _aligned(labels.to(device), weights, shifts)
            amounts = (labels != _IGNORED).to(torch.float32)
            if weights is not None:
                amounts = amounts * weights
            of_class = self._inner.sample_weight(labels, self.reweighted.progress) if by_class else None
            return (amounts if of_class is None else amounts * of_class).sum()

        factor = self._step.factor(amount)
        return factor if self._step.current is None else factor * self._step.current.to(device)

    def _beside(self, logits: Tensor, labels: Tensor, problem: ProblemType) -> Tensor | None:
        """What the objective weighs by besides the loss, one number per label; None where it needs nothing."""
        objective = self.reweighted.objective
        if "signal" not in objective.takes:
            return None
        if isinstance(objective, Entropy):
            if problem != "single_label_classification":
                raise ValueError(f"{objective!r} weighs by the entropy of classes, and this is a {problem}.")
            return entropy(logits)
        signal = None if self._signal is None else self._signal.current
        if signal is None:
            what = f"signal_column={self.signal_column!r}" if self.signal_column else "the reference model"
            raise ValueError(
                f"the batch has no signal, though {what} was given. Call watch(trainer) before trainer.train(), and "
                "set no other collator after it."
            )
        return signal.to(logits.device)

    def _numbers(self, targets: Tensor, shifts: bool) -> Tensor | None:
        """The sequence of each target, where rows hold several and one weight is for each."""
        numbers = None if self._segments is None else self._segments.current
        if numbers is None or targets.ndim == 1:
            return None
        return (after_the_first(numbers) if shifts else numbers).to(targets.device)

    @property
    def _inner(self) -> Any:
        return self.reweighted.criterion.inner

    def _weighs_classes(self) -> bool:
        inner = self._inner
        return isinstance(inner, losses.Loss) and type(inner).sample_weight is not losses.Loss.sample_weight

    def _shifts(self, outputs: Any) -> bool:
        if self.shift is not None:
            return self.shift
        name = type(outputs).__name__
        if any(part in name for part in (*_SHIFTED, *_ALIGNED)):
            return any(part in name for part in _SHIFTED)
        raise ValueError(
            f"an output of type {name} does not say whether position t predicts label t or label t + 1. Pass "
            "shift=True for a causal language model, shift=False otherwise."
        )

    def _add_router_loss(self, value: Tensor, outputs: Any, labels: Tensor, count: Tensor | None) -> Tensor:
        """The loss with the router's auxiliary loss, if there is one.

        The micro-batches of a step, over all ranks, have shares that sum to one, so the Trainer's scaling by ranks
        comes out right for it as it does for the loss itself.
        """
        auxiliary = outputs.get("aux_loss") if isinstance(outputs, dict) else None
        if auxiliary is None:
            return value
        if self.router_aux_loss_coef is None:
            raise ValueError(
                "the model returned an auxiliary loss of its router, and its factor is not known. Pass "
                "router_aux_loss_coef=model.config.router_aux_loss_coef, or let `watch(trainer)` read it; 0.0 drops it."
            )
        share = 1.0 if count is None else _real(labels) / count
        return value + self.router_aux_loss_coef * share * auxiliary.to(value.device)

    def _say_what_a_batch_is(self, units: Tensor, count: Tensor | None) -> None:
        # Older Trainers count the label that is shifted out as well, so a little more is not yet a second micro-batch.
        if count is None or bool(count <= 1.5 * sum_over_ranks(units)):
            return
        warn_about_micro_batches(self.reweighted.objective)


class WeightLog(TrainerCallback, ExportableState):
    """A Trainer callback that logs what re-weighting does and keeps the state of the objective.

    Every log of the training loss gains `plain_loss`, the mean loss without weights, `weight_mean`, `ess_share`, the
    effective sample size as a share of the units, and `clip_share`, the share of units at the clip level. They describe
    what this process saw since the last log, `window` micro-batches at most. Values are brought to the host when the
    Trainer logs and at no other time; what stands out in the last micro-batches is logged once when training ends.

    A stateful objective moves once per optimiser step, also under accumulation; its state is saved in each checkpoint's
    `trainer_state.json` and restored by `train(resume_from_checkpoint=...)`.

    Parameters
    ----------
    loss
        The function the Trainer got, or any :class:`~reweigh.torch.Reweighted`.
    window
        Micro-batches the statistics look back on at most.

    Notes
    -----
    The Trainer calls loggers such as TensorBoard before the callbacks it was given: `watch(trainer)` puts this
    one in front, so that they see its numbers too.
    """

    def __init__(self, loss: TrainerLoss | Reweighted | None = None, *, window: int = 32) -> None:
        if loss is None:
            raise TypeError(
                "WeightLog needs the loss function. If the Trainer asked, it was rebuilding callbacks from a "
                "checkpoint: leave `restore_callback_states_from_checkpoint` off, the state is restored without it."
            )
        validate.whole("window", window, 1)
        self.loss = loss
        self.reweighted = loss.reweighted if isinstance(loss, TrainerLoss) else loss
        self._recent: deque[tuple[Units, Tensor, Sums]] = deque(maxlen=window)
        self._unlogged = 0
        self.reweighted.register_forward_hook(self._remember)

    def state(self) -> dict[str, Any]:
        """The objective's state as plain numbers: what goes into a checkpoint."""
        saved = {name: value.tolist() for name, value in self.reweighted.state_dict().items() if _of_objective(name)}
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Restore the state, and take over from the Trainer's settings what the function cannot see."""
        self._recent.clear()
        self._unlogged = 0
        self.reweighted.accumulation = args.gradient_accumulation_steps
        # A checkpoint written without this callback has no entry for it, which the Trainer would trip over on saving.
        entry = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._restore(entry["attributes"]["saved"])
        if not isinstance(self.loss, TrainerLoss):
            return
        if args.label_smoothing_factor and not self.loss.label_smoothing:
            raise ValueError(
                f"label_smoothing_factor={args.label_smoothing_factor:g} is ignored by the Trainer once it has a loss "
                f"function. Pass label_smoothing={args.label_smoothing_factor:g} to the function instead."
            )
        if self.loss.router_aux_loss_coef is None and model is not None:
            self.loss.router_aux_loss_coef = getattr(model.config.get_text_config(), "router_aux_loss_coef", None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass on how far training is, for losses whose class weights start late."""
        self.reweighted.progress = state.global_step / max(state.max_steps, 1)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advance the state with the optimiser, also where an epoch ends with fewer micro-batches than a step has."""
        self.reweighted.flush()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the statistics to a log of the training loss."""
        if not logs or "loss" not in logs or not self._unlogged:
            return
        new = list(self._recent)[-self._unlogged :]
        self._unlogged = 0
        stats = self._monitor(new).stats()
        plain = PlainLoss()
        for _, _, sums in new:
            plain.add(sums)
        added = {"plain_loss": plain.value()} | {key: stats[key] for key in ("weight_mean", "ess_share", "clip_share")}
        logs.update(added)
        if state.log_history:  # written before the callbacks are called
            state.log_history[-1].update(added)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report what stands out."""
        if self._recent and state.is_world_process_zero:
            for finding in self._monitor(list(self._recent)).findings():
                logger.warning("re-weighting in the last %d micro-batches: %s", len(self._recent), finding)

    def _remember(self, module: nn.Module, inputs: Any, output: Any) -> None:
        units, weights, sums = self.reweighted.units, self.reweighted.weights, self.reweighted.plain
        if units is not None and weights is not None and sums is not None:
            self._recent.append((units, weights, sums))
            self._unlogged += 1

    def _monitor(self, seen: list[tuple[Units, Tensor, Sums]]) -> Monitor:
        monitor = Monitor.of(self.reweighted.objective, every=len(seen) + 1)
        for units, weights, _ in seen:
            monitor.update(units.seen, weights, mask=None if units.measure is None else units.measure != 0)
        return monitor

    def _restore(self, saved: dict[str, Any]) -> None:
        buffers = self.reweighted.state_dict()
        for name, value in saved.items():
            if name not in buffers:
                raise ValueError(
                    f"the checkpoint holds {name!r} of another objective than {self.reweighted.objective!r}. Resume "
                    "with the objective it was trained with."
                )
            buffers[name].copy_(torch.as_tensor(value))


def watch(trainer: AnyTrainer, *, window: int = 32) -> AnyTrainer:
    """Log what re-weighting does in a Trainer whose `compute_loss_func` is a :class:`TrainerLoss`.

    Puts a :class:`WeightLog` in front of the Trainer's callbacks, so that every logger sees its numbers.

    Parameters
    ----------
    trainer
        A `transformers.Trainer`.
    window
        Micro-batches the statistics look back on at most.

    Returns
    -------
    Trainer
        The same trainer.
    """
    function: Any = getattr(trainer, "compute_loss_func", None)
    if not isinstance(function, TrainerLoss):
        raise TypeError(
            f"`watch` needs a Trainer with compute_loss_func=reweigh.integrations.transformers.loss(...), got "
            f"{type(trainer).__name__} with {function!r}."
        )
    follow_and_log(trainer, function, window=window)
    return trainer


def follow_and_log(trainer: Any, function: TrainerLoss, *, window: int = 32) -> None:
    """Let a loss take over from its trainer what it is not told, and put a log of its weights among the callbacks."""
    _check_collator(trainer)
    function.follow(trainer)
    put_in_front(trainer, WeightLog(function, window=window))


def _check_collator(trainer: Any) -> None:
    """A sequence-to-sequence model makes its decoder's inputs of the labels, which the Trainer keeps from it."""
    collator = trainer.data_collator
    known = (getattr(collator, "__module__", None) or type(collator).__module__).startswith("transformers.")
    encodes = getattr(getattr(trainer.model, "config", None), "is_encoder_decoder", False)
    if encodes and known and getattr(collator, "model", None) is None:
        name = getattr(collator, "__name__", None) or type(collator).__name__
        raise ValueError(
            f"a Trainer with a loss function does not show the labels to the model, and {type(trainer.model).__name__} "
            f"makes the inputs of its decoder from them; {name} does not. Pass "
            "data_collator=DataCollatorForSeq2Seq(tokenizer, model=model), which does, to the Trainer."
        )


def put_in_front(trainer: Any, callback: TrainerCallback) -> None:
    """Add a callback that is called before the loggers."""
    trainer.callback_handler.callbacks.insert(0, callback)


def warn_about_micro_batches(objective: Objective) -> None:
    """Say what a batch is for an objective that looks at all of it."""
    warnings.warn(
        f"{objective!r} weighs a unit against the others of its batch, and under gradient accumulation a batch is one "
        "micro-batch (on all ranks), not the whole step. Use larger micro-batches, or an objective whose weights come "
        "from a unit's own loss, such as RGD.",
        UserWarning,
        stacklevel=3,
    )


def _number(num_items: Tensor | int, device: torch.device) -> Tensor:
    """The denominator on the device; under `nn.DataParallel` it comes once per device, and one loss is for all."""
    number = torch.as_tensor(num_items, device=device)
    return (number.sum() if number.ndim else number).clamp(min=1)


def _with_loss(
    named: Method, problem: ProblemType | None, criteria: dict[ProblemType, Any], label_smoothing: float
) -> tuple[ProblemType, dict[ProblemType, Any]]:
    """The problem that a named loss is for, and the criteria with that loss among them."""
    part: Any = named.loss
    if label_smoothing:
        raise ValueError(
            f"`label_smoothing` smooths the cross entropy, got {label_smoothing:g} with the loss of {str(named)!r}. "
            "Use the loss `label_smoothing`, or leave it out."
        )
    kind: ProblemType = "single_label_classification"
    if isinstance(part, losses.ClassLoss):
        part = dataclasses.replace(part, ignore_index=_IGNORED)
    elif isinstance(part, losses.MSE):  # the Trainer counts values, and our loss gives one per row
        kind, part = "regression", nn.MSELoss()
    elif isinstance(part, losses.BCE):
        positive = None if part.pos_weight is None else torch.as_tensor(part.pos_weight)
        kind, part = "multi_label_classification", nn.BCEWithLogitsLoss(pos_weight=positive)
    if problem not in (None, kind):
        raise ValueError(f"the loss of {str(named)!r} is for a {kind}, got problem_type={problem!r}. Keep one.")
    return kind, {**criteria, kind: part}


def _classes(model: Any) -> int | None:
    """The number of a model's classes: tokens, if it is a language model."""
    config = getattr(model, "config", None)
    if config is None:
        return None
    if type(model).__name__.endswith("LM") or getattr(config, "is_encoder_decoder", False):
        return config.get_text_config().vocab_size
    return config.num_labels


def _aligned(labels: Tensor, weights: Tensor | None, shifts: bool) -> tuple[Tensor, Tensor | None]:
    """Labels and their weights, in one shape, at the positions that predict them."""
    if weights is not None:
        weights = weights.to(labels.device)
        weights = weights.reshape(weights.shape + (1,) * (labels.ndim - weights.ndim)).expand(labels.shape)
    if not shifts:
        return labels, weights
    # Labels move and logits stay: a slice of the logits would be a copy of the largest tensor there is.
    labels = nn.functional.pad(labels[..., 1:], (0, 1), value=_IGNORED)
    return labels, None if weights is None else nn.functional.pad(weights[..., 1:], (0, 1))


def _real(labels: Tensor) -> Tensor:
    """How many labels count."""
    return (labels != _IGNORED).sum()


def _of_objective(name: str) -> bool:
    return name.startswith("state_")


def _unknown_head(outputs: Any, logits: Tensor, labels: Tensor) -> ValueError:
    return ValueError(
        f"the head of {type(outputs).__name__} is not recognised: logits of shape {tuple(logits.shape)} and labels of "
        f"shape {tuple(labels.shape)}, {labels.dtype}. Known are integer labels in the shape of the logits without the "
        "last axis, and floating-point labels in the shape of the logits. For others write the loss with "
        "reweigh.torch.Reweighted and pass that as `compute_loss_func`."
    )
