"""One rank of a Trainer with weights: two processes with two micro-batches of two rows each. Run by `torchrun`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests of the Trainer
sys.path.insert(0, str(Path(__file__).parents[2]))  # and what they import

import torch
import torch.distributed as dist
from test_transformers import TAU, arguments, bert, llama, parameters
from test_transformers_weights import METHOD, labelled, sentences, tokenizer
from transformers import DataCollatorForSeq2Seq, Trainer

from reweigh.integrations.transformers import loss, watch


def main() -> None:
    folder = Path(sys.argv[1])
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "ddp_backend": "gloo"}
    cases = {
        "rows": (bert(num_labels=3), labelled(True), loss(METHOD, class_counts="auto", weight_column="weight"), None),
        "tokens": (
            llama(), sentences(True), loss(tau=TAU, weight_column="weight"), DataCollatorForSeq2Seq(tokenizer("right")),
        ),
    }  # fmt: skip
    for name, (model, data, function, collator) in cases.items():
        trainer = Trainer(
            model,
            arguments(folder, **settings),
            train_dataset=data,
            compute_loss_func=function,
            data_collator=collator,
        )
        watch(trainer).train()
        assert trainer.args.world_size == 2
        if dist.get_rank() == 0:
            torch.save(parameters(model), folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # What the test wants is on disk. Threads of the process group now and then keep an interpreter from ending.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
