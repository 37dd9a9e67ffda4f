"""ms-swift: a plug-in file that calls `register("rgd:tau=3")`, and `loss_type: reweigh` in the configuration."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

if find_spec("swift") is None:
    raise ModuleNotFoundError(
        "this plug-in is for ms-swift, which is not installed: pip install ms-swift.", name="swift"
    )

from swift.loss import BaseLoss, loss_map  # pyright: ignore[reportMissingImports]
from torch import Tensor

from reweigh.integrations._plugin import loss_of
from reweigh.integrations.transformers import follow_and_log

__all__ = ["register"]


def register(
    method: str,
    *,
    level: Literal["token", "sequence"] | None = None,
    reference: str | None = None,
    name: str = "reweigh",
) -> None:
    """Make a re-weighted loss known to ms-swift under a name for `loss_type`.

    Call it in a file that the configuration names in `external_plugins`.

    Parameters
    ----------
    method
        A method's text, such as `"rgd:tau=3"`.
    level
        Which unit gets a weight: a token, unless given, or a sequence by its mean loss; packed and padding-free
        sequences are separated by their positions.
    reference
        A Hugging Face folder with the model whose losses objectives such as `rho` weigh by.
    name
        What `loss_type` calls it.

    Notes
    -----
    Weights that ms-swift has itself (`loss_scale`, which may come per message from the data) multiply those of the
    objective; as always there, they are not divided by their sum.
    """
    block = {"method": method, "level": level, "reference": reference}

    class ReweighedLoss(BaseLoss):  # pyright: ignore[reportUntypedBaseClass]
        """What ms-swift calls with the outputs of the model and its labels."""

        def __init__(self, args: Any, trainer: Any) -> None:
            super().__init__(args, trainer)
            if self.is_megatron or trainer.template.sequence_parallel_size > 1:
                raise ValueError("a re-weighted loss does not work with Megatron or sequence parallelism.")
            if level == "sequence":
                args.use_logits_to_keep = False  # which takes away positions, and with them where sequences start
            self.loss = loss_of(block)
            train = trainer.train

            def train_and_log(*arguments: Any, **keywords: Any) -> Any:
                # ms-swift makes its loss before the trainer is complete.
                trainer.train = train
                follow_and_log(trainer, self.loss)
                return train(*arguments, **keywords)

            trainer.train = train_and_log

        def __call__(
            self,
            outputs: Any,
            labels: Tensor,
            *,
            num_items_in_batch: Any = None,
            loss_scale: Tensor | None = None,
            **keywords: Any,
        ) -> Tensor:
            """The loss to descend in training, the plain loss in evaluation."""
            return self.loss(outputs, labels, num_items_in_batch, sample_weight=loss_scale)

    loss_map[name] = ReweighedLoss
