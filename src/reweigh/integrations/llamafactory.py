"""LLaMA-Factory: `python -m reweigh.integrations.llamafactory train.yaml`, with `reweigh: rgd:tau=3` in that file."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

if find_spec("llamafactory") is None:
    raise ModuleNotFoundError(
        "this is for LLaMA-Factory, which is not installed: pip install llamafactory.", name="llamafactory"
    )

from reweigh.integrations._plugin import attach

__all__ = ["main", "reweighted"]

#: The trainer of each stage that descends a loss over tokens.
_TRAINERS = {"sft": ("llamafactory.train.sft.workflow", "CustomSeq2SeqTrainer"),
             "pt": ("llamafactory.train.pt.workflow", "CustomTrainer")}  # fmt: skip


def main() -> None:
    """Train as `llamafactory-cli train` does, with the loss that the block `reweigh` of the configuration asks for.

    The block is a method's text or a mapping with `method`, `level` and `reference`; on the command line a mapping is
    changed like any other, `reweigh.method=dft`. For several processes:
    `torchrun --nproc-per-node=2 -m reweigh.integrations.llamafactory train.yaml`.
    """
    from llamafactory.hparams import read_args  # pyright: ignore[reportMissingImports]
    from llamafactory.train.tuner import run_exp  # pyright: ignore[reportMissingImports]

    arguments = read_args()
    if not isinstance(arguments, dict) or "reweigh" not in arguments:
        raise SystemExit(
            "give a YAML or JSON file of LLaMA-Factory with a block `reweigh`, such as `reweigh: rgd:tau=3`: "
            "python -m reweigh.integrations.llamafactory train.yaml"
        )
    block = arguments.pop("reweigh")
    with reweighted(block, stage=arguments.get("stage", "sft")):
        run_exp(arguments)


@contextlib.contextmanager
def reweighted(block: Any, *, stage: str = "sft") -> Generator[None, None, None]:
    """Let the trainers that LLaMA-Factory makes inside this context descend the loss that a block asks for.

    LLaMA-Factory has no place for a loss of one's own in its configuration, so its trainer is replaced by a subclass of
    it while the context lasts.
    """
    if stage not in _TRAINERS:
        raise ValueError(f"only the stages {' and '.join(_TRAINERS)} have a loss over tokens, got stage: {stage}.")
    place, name = _TRAINERS[stage]
    workflow: Any = importlib.import_module(place)
    own: Any = getattr(workflow, name)

    class Trainer(own):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            attach(self, block)

    Trainer.__name__ = Trainer.__qualname__ = name
    setattr(workflow, name, Trainer)
    try:
        yield
    finally:
        setattr(workflow, name, own)


if __name__ == "__main__":
    main()
