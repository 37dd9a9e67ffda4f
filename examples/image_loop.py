"""An image training loop with warm-up, mixup, label smoothing and an EMA of the weights, in plain PyTorch.

    python examples/image_loop.py               # plain
    python examples/image_loop.py --tau 1.0     # re-weighted

Small hand-written digits from scikit-learn, a small convolutional network, AdamW with a cosine schedule. Mixup and
label smoothing keep the loss above the entropy of its target; the weight sees what is above that, so the same `tau`
serves with and without them. A few seconds on one core.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from reweigh.torch import Reweighted

Criterion = Callable[[Tensor, Tensor], Tensor]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tau", type=float, help="re-weight with this clip level; plain training without it")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--mixup", type=float, default=0.2, help="both parameters of the beta distribution; 0 is off")
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--ema-decay", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


# --- data and model ---


def load_data(batch_size: int, seed: int) -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0 - 0.3, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    order = torch.tensor(np.random.default_rng(seed).permutation(len(labels)))
    train, test = order[:1280], order[1280:]
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        TensorDataset(images[train], labels[train]), batch_size, shuffle=True, drop_last=True, generator=generator
    )
    return loader, DataLoader(TensorDataset(images[test], labels[test]), batch_size=512)


def block(channels_in: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def make_model(width: int, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        *block(1, width),
        *block(width, width),
        nn.MaxPool2d(2),
        *block(width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


class Mixup:
    """Mixes each image and its one-hot label with another one of the batch."""

    def __init__(self, alpha: float, classes: int, seed: int) -> None:
        self.alpha = alpha
        self.classes = classes
        self.rng = np.random.default_rng(seed)

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        targets = one_hot(labels, self.classes).to(images.dtype)
        if not self.alpha:
            return images, targets
        share = float(self.rng.beta(self.alpha, self.alpha))
        return images.lerp(images.flip(0), 1 - share), targets.lerp(targets.flip(0), 1 - share)


def warmup_then_cosine(warmup: int, total: int) -> Callable[[int], float]:
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    return factor


# --- training ---


def train_one_epoch(
    model: nn.Module,
    ema: AveragedModel,
    criterion: Criterion,
    loader: DataLoader,
    mixup: Mixup,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    model.train()
    total = torch.zeros(())
    for images, labels in loader:
        images, targets = mixup(images, labels)
        loss = criterion(model(images), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        ema.update_parameters(model)
        total += loss.detach()
    return float(total) / len(loader)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Plain cross entropy and accuracy."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in loader:
        logits = model(images)
        loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        right += int((logits.argmax(1) == labels).sum())
        count += len(labels)
    return loss / count, right / count


def prepare(arguments: argparse.Namespace) -> tuple[tuple, DataLoader]:
    """What an epoch of training takes, in its order, and the images to evaluate on."""
    torch.manual_seed(arguments.seed)
    loader, test = load_data(arguments.batch_size, arguments.seed)
    model = make_model(arguments.width)
    criterion: Criterion = nn.CrossEntropyLoss(label_smoothing=arguments.label_smoothing)
    if arguments.tau:
        criterion = Reweighted(criterion, tau=arguments.tau)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, weight_decay=arguments.weight_decay)
    factor = warmup_then_cosine(arguments.warmup_epochs * len(loader), arguments.epochs * len(loader))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(arguments.ema_decay), use_buffers=True)
    mixup = Mixup(arguments.mixup, 10, arguments.seed)
    return (model, ema, criterion, loader, mixup, optimizer, schedule), test


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    parts, test = prepare(arguments)
    model, ema, criterion = parts[:3]
    for epoch in range(arguments.epochs):
        loss = train_one_epoch(*parts)
        share = f", {criterion.stats()['clip_share']:.0%} clipped" if arguments.tau else ""
        print(f"epoch {epoch + 1}: training loss {loss:.3f}, accuracy {evaluate(model, test)[1]:.3f}{share}")
    loss, accuracy = evaluate(ema, test)
    kind = f"re-weighted, tau = {arguments.tau:g}" if arguments.tau else "plain"
    print(f"{kind}: average of the weights, evaluation loss {loss:.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
