"""What is drawn before training: random streams, splits, long tails, wrong labels, colours and few-shot tasks."""

from __future__ import annotations

from reweigh.bench.draws.colours import coloured, spurious_colours
from reweigh.bench.draws.longtail import longtail_counts, longtail_indices, rank_within_class
from reweigh.bench.draws.noise import NoisyLabels, noisy_labels
from reweigh.bench.draws.splitting import (
    fixed_split,
    folds,
    grouped_folds,
    grouped_split,
    load_indices,
    sampled_split,
    save_indices,
    split,
    subset,
    timed_split,
)

__all__ = [
    "NoisyLabels",
    "coloured",
    "fixed_split",
    "folds",
    "grouped_folds",
    "grouped_split",
    "load_indices",
    "longtail_counts",
    "longtail_indices",
    "noisy_labels",
    "rank_within_class",
    "sampled_split",
    "save_indices",
    "split",
    "spurious_colours",
    "subset",
    "timed_split",
]
