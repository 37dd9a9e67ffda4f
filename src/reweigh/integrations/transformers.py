"""Hugging Face Trainer: `Trainer(..., compute_loss_func=loss(tau=1.0))`."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from reweigh.integrations._missing import missing

if find_spec("transformers") is None:
    raise missing("transformers", "transformers")

import torch
from torch import Tensor, nn
from transformers.trainer_callback import ExportableState, TrainerCallback

from reweigh import _validate as validate
from reweigh._array import sum_over_ranks, widen
from reweigh.integrations._plain_loss import PlainLoss, Sums
from reweigh.monitor import Monitor
from reweigh.objectives import Objective
from reweigh.torch._criterion import Criterion
from reweigh.torch.reweighted import Reweighted, Units

__all__ = ["Loss", "WeightLog", "loss", "watch"]

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
AnyTrainer = TypeVar("AnyTrainer")

logger = logging.getLogger(__name__)

#: What the Trainer, its collators and its models mark an ignored label with.
_IGNORED = -100
#: Parts of the class names of outputs whose labels are those of the next position, and of the same position.
_SHIFTED, _ALIGNED = ("CausalLM",), ("TokenClassifier", "MaskedLM", "Seq2Seq")


def loss(
    objective: Objective | None = None,
    *,
    level: Literal["token", "sequence"] | None = None,
    shift: bool | None = None,
    problem_type: Problem | None = None,
    label_smoothing: float = 0.0,
    floor: bool = True,
    router_aux_loss_coef: float | None = None,
    **hyper_parameters: Any,
) -> Loss:
    r"""A loss function for the Hugging Face Trainer: `Trainer(..., compute_loss_func=loss(tau=1.0))`.

    .. math:: \hat L = \frac{1}{N} \sum_i \mathrm{sg}(w_i)\,\ell_i

    with N the Trainer's `num_items_in_batch`: the labels of all micro-batches of the step, on all ranks. A weight that
    comes from a unit's own loss then makes accumulation and data parallel exact. Evaluation reports the plain loss.

    Parameters
    ----------
    objective
        What turns losses into weights; `RGD(**hyper_parameters)` unless given.
    level
        Which unit gets a weight where labels have two axes: `"token"`, each on its own, or `"sequence"`, the row by its
        mean loss. Both divide by the number of tokens. By default a label of rank one is an example, an integer label
        of rank two a token, and a row of numbers (several values or classes per example) an example.
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
    With packed rows a row is not a sequence: keep to tokens there. Before version 5 the Trainer counts the first label
    of a causal model too, which nothing predicts; the loss is divided by that number as the model's own is.
    """
    return Loss(
        objective,
        level=level,
        shift=shift,
        problem_type=problem_type,
        label_smoothing=label_smoothing,
        floor=floor,
        router_aux_loss_coef=router_aux_loss_coef,
        **hyper_parameters,
    )


class Loss(nn.Module):
    """What :func:`loss` returns: a `compute_loss_func`; the objective's state is in its `state_dict()`."""

    def __init__(
        self,
        objective: Objective | None = None,
        *,
        level: Literal["token", "sequence"] | None = None,
        shift: bool | None = None,
        problem_type: Problem | None = None,
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
        self.problem_type: Problem | None = problem_type
        self.label_smoothing = label_smoothing
        self.router_aux_loss_coef = router_aux_loss_coef
        cross_entropy = nn.CrossEntropyLoss(ignore_index=_IGNORED, label_smoothing=label_smoothing)
        # Rows of losses are summed, because the Trainer counts labels and not rows; tokens are flattened beforehand.
        self.reweighted = Reweighted(cross_entropy, objective, level="sequence", floor=floor, **hyper_parameters)
        self._criteria: dict[Problem, Criterion] = {
            "single_label_classification": self.reweighted.criterion,
            "multi_label_classification": Criterion(nn.BCEWithLogitsLoss(), floor=floor),
            "regression": Criterion(nn.MSELoss(), floor=floor),
        }
        self._accumulation_known = self.reweighted.objective.separable

    def forward(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss to descend in training, the plain loss where gradients are disabled."""
        logits, labels, problem = self._read(outputs, labels)
        reweighted = self.reweighted
        criterion = self._criteria[problem]
        if reweighted.criterion is not criterion:
            reweighted.criterion = criterion
        if reweighted.objective.stateful:
            reweighted.to(logits.device)
        count = None if num_items_in_batch is None else _number(num_items_in_batch, logits.device)
        if not self._accumulation_known and torch.is_grad_enabled():
            self._accumulation_known = True
            self._say_what_a_batch_is(_real(labels), count)
        value = reweighted(logits, labels, count=count)
        return self._add_router_loss(value, outputs, labels, count)

    def extra_repr(self) -> str:
        """The options, as one would write them."""
        names = ("level", "shift", "problem_type", "label_smoothing", "router_aux_loss_coef")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _read(self, outputs: Any, labels: Tensor | None) -> tuple[Tensor, Tensor, Problem]:
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
            return *self._classes(outputs, logits, labels), problem
        if logits.shape[-1] == 1 and logits.ndim == labels.ndim + 1:
            logits = logits.squeeze(-1)
        if logits.shape != labels.shape:
            raise _unknown_head(outputs, logits, labels)
        if self.level == "token":
            logits, labels = logits.flatten(), labels.flatten()
        return logits, labels.to(logits.dtype), problem

    def _problem(self, logits: Tensor, labels: Tensor) -> Problem:
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

    def _classes(self, outputs: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores and class indices, shifted, and one per row where each is a unit of its own."""
        if logits.shape[:-1] != labels.shape:
            raise _unknown_head(outputs, logits, labels)
        if labels.ndim == 1:
            return logits, labels
        if self._shifts(outputs):
            # Labels move and logits stay: a slice of the logits would be a copy of the largest tensor there is.
            labels = nn.functional.pad(labels[..., 1:], (0, 1), value=_IGNORED)
        if self.level == "sequence":
            return logits.movedim(-1, 1), labels
        return logits.flatten(0, -2), labels.flatten()

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
    Trainer logs and at no other time; what stands out in the last micro-batches is said once when training ends.

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

    def __init__(self, loss: Loss | Reweighted | None = None, *, window: int = 32) -> None:
        if loss is None:
            raise TypeError(
                "WeightLog needs the loss function. If the Trainer asked, it was rebuilding callbacks from a "
                "checkpoint: leave `restore_callback_states_from_checkpoint` off, the state is restored without it."
            )
        validate.whole("window", window, 1)
        self.loss = loss
        self.reweighted = loss.reweighted if isinstance(loss, Loss) else loss
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
        if not isinstance(self.loss, Loss):
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
    """Log what re-weighting does in a Trainer whose `compute_loss_func` is a :class:`Loss`.

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
    if not isinstance(function, Loss):
        raise TypeError(
            f"`watch` needs a Trainer with compute_loss_func=reweigh.integrations.transformers.loss(...), got "
            f"{type(trainer).__name__} with {function!r}."
        )
    _check_collator(trainer)
    put_in_front(trainer, WeightLog(function, window=window))
    return trainer


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
