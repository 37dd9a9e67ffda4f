"""What the scale, the clip and the divergence do: variations of RGD, one knob at a time.

Question: the paper's ablation figure (ViT-S on ImageNet) says that at tau = 1 the scale gamma matters little, that no
clip is worse, and that accuracy falls as tau grows at fixed gamma. Does that shape hold on long-tailed digits?

    reweigh run ablation
    reweigh run ablation --preset smoke

With the tied scale, tau towards infinity is plain training and not "no clip"; so tau is varied both at fixed gamma
and tied. Only the learning rate is tuned, with the same trials for every row.
"""

from __future__ import annotations

from reweigh.bench.lab.table import Column, Table
from reweigh.bench.recipes import longtail
from reweigh.bench.recipes.kinds import supervised

Settings = longtail.Settings
PRESETS = longtail.PRESETS

GAMMA = tuple(f"rgd:gamma={g}" for g in (0.1, 0.25, 1, 2))
UNCLIPPED = tuple(f"rgd:tau=none,gamma={g}" for g in (0.1, 0.25, 0.5, 1, 2))
FIXED_GAMMA = tuple(f"rgd:tau={t},gamma=0.5" for t in (0.5, 3, 5, 9))
TIED = tuple(f"rgd:tau={t}" for t in (0.5, 3, 5, 9, 100))
LITERAL = ("rgd:divergence=chi2", "rgd:tau=3,divergence=chi2")


def table(preset: str) -> Table:
    """Rows and columns; the paper prints no figures for its ablation."""
    smoke = preset == "smoke"
    rows = ("mean", "rgd", *GAMMA, *UNCLIPPED, *FIXED_GAMMA, *TIED, *LITERAL)
    return Table(
        title="Scale, clip and divergence",
        question="Which part of the weight matters?",
        columns=(Column(name="digits, imbalance 100", settings={"imbalance": 100.0}, stand_in="ImageNet with ViT-S"),),
        methods=("mean", "rgd", "rgd:tau=none,gamma=0.5") if smoke else rows,
        metric="test/accuracy",
        metric_name="accuracy on the balanced test set",
        select="val/balanced_accuracy",
        seeds=2 if smoke else 20,
        trials=2 if smoke else 5,
        as_written=True,
        notes=("The row `rgd` is tau = 1 with the tied gamma = 0.5, and belongs to all four series.",),
    )


train, group, train_group = supervised.recipe(longtail.task)
