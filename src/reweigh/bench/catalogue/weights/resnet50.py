"""ResNet-50, trained on ImageNet. Official file only."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench.catalogue.card import DataCard

CARD = DataCard(
    size="25.6 million parameters, ImageNet-1k",
    licence="BSD-3-Clause",
    source="ResNet-50 of torchvision, first weights",
    official="resnet50-0676ba61.pth into DATA_ROOT/resnet50/.",
)


def find(root: Path) -> dict[str, Path]:
    """The official file."""
    return {path.name: path for path in sorted((root / "resnet50").glob("*.pth"))}
