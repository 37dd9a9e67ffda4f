"""What the two lines cost in whole programs: time of a training step with them against without.

    python benchmarks/hosts.py [--quick] [--out benchmarks/results/hosts.json]

The programs are `examples/huggingface_classification.py`, whose second line also logs statistics, and
`examples/image_loop.py`. Stretches of steps with and without re-weighting take turns in one process, each measured in
processor time on one thread; which side of a pair goes first changes from turn to turn. Reported are the lower
quartiles over the turns, their ratio, and the interquartile range of the pairs' ratios, which says how quiet it was
on the machine. The aim is a ratio of at most 1.01.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import runpy
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from _timing import write
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

EXAMPLES = Path(__file__).parent.parent / "examples"
AIM = 1.01
Stretch = Callable[[], float]  # runs some steps and returns the milliseconds of one


@dataclass(frozen=True)
class Result:
    program: str
    plain: float  # milliseconds per step
    reweighted: float
    ratio: float
    quartiles: tuple[float, float]  # of the ratios of single pairs
    turns: int


def in_turns(program: str, plain: Stretch, reweighted: Stretch, turns: int) -> Result:
    plain(), reweighted()  # warm up
    times: dict[Stretch, list[float]] = {plain: [], reweighted: []}
    gc.collect()
    gc.disable()  # a collection in one side's turn would be charged to it
    try:
        for turn in range(turns):
            for stretch in (plain, reweighted)[:: 1 if turn % 2 else -1]:
                times[stretch].append(stretch())
            gc.collect()
    finally:
        gc.enable()
    without, with_ = np.array(times[plain]), np.array(times[reweighted])
    low, high = np.quantile(with_ / without, (0.25, 0.75)).tolist()
    best = [float(np.quantile(values, 0.25)) for values in (without, with_)]
    return Result(program, *best, best[1] / best[0], (low, high), turns)


def image_stretch(*options: str) -> Stretch:
    """One epoch of the image program."""
    program = runpy.run_path(str(EXAMPLES / "image_loop.py"), run_name="image_loop")
    parts, _ = program["prepare"](program["parse_arguments"]([*options]))
    train_one_epoch, loader = program["train_one_epoch"], parts[3]

    def stretch() -> float:
        start = time.process_time()
        train_one_epoch(*parts)
        return (time.process_time() - start) / len(loader) * 1e3

    return stretch


class StepTimer(TrainerCallback):
    """Processor time from the first step's begin to the last step's end, in milliseconds per step."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.start, self.first = 0.0, state.global_step

    def on_step_begin(self, args, state, control, **kwargs):
        self.start = self.start or time.process_time()

    def on_train_end(self, args, state, control, **kwargs):
        self.milliseconds = (time.process_time() - self.start) / (state.global_step - self.first) * 1e3


def trainer_stretch(folder: str, *options: str) -> Stretch:
    """Twenty steps of the Trainer of the text program."""
    program = runpy.run_path(str(EXAMPLES / "huggingface_classification.py"), run_name="huggingface_classification")
    steps = ["--max-steps", "20", "--logging-steps", "10", "--out", folder]
    trainer = program["make_trainer"](program["parse_arguments"]([*steps, *options]))
    trainer.remove_callback(PrinterCallback)
    timer = StepTimer()
    trainer.add_callback(timer)

    def stretch() -> float:
        trainer.train()
        return timer.milliseconds

    return stretch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hosts.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("reweigh").setLevel(logging.ERROR)  # twenty steps are too few for advice
    turns = 4 if options.quick else 24
    with tempfile.TemporaryDirectory() as folder:
        results = [
            in_turns("image loop", image_stretch(), image_stretch("--tau", "1.0"), 3 * turns),
            in_turns("text Trainer", trainer_stretch(folder), trainer_stretch(folder, "--tau", "1.0"), turns),
        ]
    for result in results:
        low, high = result.quartiles
        print(
            f"{result.program}: {result.plain:.2f} ms a step plain, {result.reweighted:.2f} ms re-weighted, ratio "
            f"{result.ratio:.4f} (pairs {low:.3f} to {high:.3f}), {'within' if result.ratio <= AIM else 'above'} {AIM}"
        )
    content = {"quick": options.quick, "aim": AIM, "results": [asdict(result) for result in results]}
    write(options.out, ("torch", "transformers"), content)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
