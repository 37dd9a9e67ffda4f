"""axolotl: `plugins: [reweigh.integrations.axolotl.ReweighPlugin]` and `reweigh: rgd:tau=3` in its YAML file."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

if find_spec("axolotl") is None:
    raise ModuleNotFoundError(
        "this plug-in is for axolotl, which is not installed: pip install axolotl.", name="axolotl"
    )

from axolotl.integrations.base import BasePlugin  # pyright: ignore[reportMissingImports]
from pydantic import BaseModel

from reweigh.integrations._plugin import attach

__all__ = ["ReweighArgs", "ReweighPlugin"]


class ReweighArgs(BaseModel):
    """What the plug-in adds to axolotl's configuration: a method's text, or `method`, `level` and `reference`."""

    reweigh: str | dict[str, Any] | None = None


class ReweighPlugin(BasePlugin):  # pyright: ignore[reportUntypedBaseClass]
    """Re-weights the loss of axolotl's trainer.

    The block `reweigh` of the configuration is a method's text or a mapping with `method`, `level` and `reference`.
    Packed samples are separated by their positions. Fused losses (Liger, Cut Cross Entropy) never make the logits that
    weights are computed from, and are refused.
    """

    def get_input_args(self) -> str:
        """Where axolotl finds the keys that the plug-in adds to its configuration."""
        return "reweigh.integrations.axolotl.ReweighArgs"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Give the trainer its loss."""
        if not cfg.reweigh:
            raise ValueError(
                "the plug-in reweigh.integrations.axolotl.ReweighPlugin is listed, and the configuration has no block "
                "`reweigh`. Add `reweigh: rgd:tau=3`, or take the plug-in out."
            )
        fused = [name for name in _FUSED if cfg[name]]
        if fused:
            raise ValueError(f"`{fused[0]}` computes the loss without logits, which the weights need. Turn it off.")
        if cfg.rl:
            raise ValueError(f"the plug-in re-weights supervised fine-tuning, got rl: {cfg.rl}.")
        attach(trainer, dict(cfg.reweigh) if isinstance(cfg.reweigh, dict) else cfg.reweigh)


_FUSED = ("liger_fused_linear_cross_entropy", "cut_cross_entropy", "chunked_cross_entropy")
