"""What re-weighting costs: training steps with it against the same steps with a plain mean.

    python benchmarks/overhead.py [--quick] [--threads 1] [--out benchmarks/results/overhead.json]

All forms of one setting are timed in turns within one run, in processor time, so that a busy machine disturbs
little and all forms alike; the lower quartile of the turns is reported, in microseconds a call, and each form's
ratio to the plain mean. Read the ratios, not the microseconds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F
from _timing import Call, console, in_turns, table, write
from torch import Tensor, nn

import reweigh
from reweigh.torch import Reweighted

SIZES, CLASSES = (32, 256, 4096, 65536), (10, 1000, 32000)
#: Logits, their gradient and two passes of softmax have to fit.
LARGEST_BYTES, COPIES = 2.5e9, 4
FORMS = ("plain", "rgd()", "RGD", "Reweighted")


@dataclass(frozen=True)
class Result:
    setting: str
    microseconds: dict[str, float]  # of each form

    def ratio(self, form: str) -> float:
        return self.microseconds[form] / self.microseconds["plain"]

    def extra(self, form: str) -> float:
        return self.microseconds[form] - self.microseconds["plain"]


# --- the loss alone: forward and backward of cross entropy ---


def torch_losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    objective, module = reweigh.RGD(tau=1.0), Reweighted(nn.CrossEntropyLoss(), tau=1.0)
    return {
        "plain": F.cross_entropy,
        "rgd()": lambda x, y: reweigh.rgd(F.cross_entropy(x, y, reduction="none"), tau=1.0),
        "RGD": lambda x, y: objective(F.cross_entropy(x, y, reduction="none")),
        "Reweighted": module,
    }


def torch_calls(losses: dict[str, Callable[[Tensor, Tensor], Tensor]], b: int, c: int) -> dict[str, Call]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(b, c, generator=generator).requires_grad_()
    labels = torch.randint(0, c, (b,), generator=generator)

    def of(loss: Callable[[Tensor, Tensor], Tensor]) -> Call:
        def call() -> None:
            logits.grad = None
            loss(logits, labels).backward()

        return call

    return {name: of(loss) for name, loss in losses.items()}


def jax_calls(b: int, c: int) -> dict[str, Call]:
    import jax
    import jax.numpy as jnp

    logits = jax.random.normal(jax.random.key(0), (b, c))
    labels = jax.random.randint(jax.random.key(1), (b,), 0, c)
    objective = reweigh.RGD(tau=1.0)

    def cross_entropy(x):
        return jax.nn.logsumexp(x, axis=1) - jnp.take_along_axis(x, labels[:, None], axis=1)[:, 0]

    losses = {
        "plain": lambda x: cross_entropy(x).mean(),
        "rgd()": lambda x: reweigh.rgd(cross_entropy(x), tau=1.0),
        "RGD": lambda x: objective(cross_entropy(x)),
    }

    def of(loss) -> Call:
        step = jax.jit(jax.value_and_grad(loss))
        return lambda: jax.block_until_ready(step(logits))

    return {name: of(loss) for name, loss in losses.items()}


def bare_losses(quick: bool, seconds: float) -> Iterator[Result]:
    eager = torch_losses()
    compiled = {name: torch.compile(loss, fullgraph=True, dynamic=True) for name, loss in torch_losses().items()}
    kinds = {
        "torch": lambda b, c: torch_calls(eager, b, c),
        "torch compiled": lambda b, c: torch_calls(compiled, b, c),
        "jax": jax_calls,
    }
    sizes, classes = (SIZES[:3], CLASSES[:2]) if quick else (SIZES, CLASSES)
    for kind, calls in kinds.items():
        for c in classes:
            for b in sizes:
                if b * c * 4 * COPIES <= LARGEST_BYTES:
                    yield Result(f"{kind}, {b} x {c}", in_turns(calls(b, c), seconds))


# --- the criterion with all that it can be given ---


def criteria(seconds: float) -> Iterator[Result]:
    """`Reweighted(criterion)` against the criterion itself."""
    generator = torch.Generator().manual_seed(0)

    def of(setting: str, shape: tuple[int, ...], options: dict, **ours) -> Result:
        x = torch.randn(shape, generator=generator).requires_grad_()
        y = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)

        def call(loss: Callable[[Tensor, Tensor], Tensor]) -> Call:
            def run() -> None:
                x.grad = None
                loss(x, y).backward()

            return run

        plain, module = nn.CrossEntropyLoss(**options), Reweighted(nn.CrossEntropyLoss(**options), **ours)
        forms = {"plain": call(plain), "Reweighted": call(module)}
        return Result(f"{setting}, {' x '.join(map(str, shape))}", in_turns(forms, seconds))

    for shape in ((32, 10), (256, 1000), (4096, 1000)):
        weight = 0.5 + torch.rand(shape[1], generator=generator)
        yield of("cross entropy", shape, {})
        yield of("class weights", shape, {"weight": weight})
        yield of("class weights, smoothing", shape, {"weight": weight, "label_smoothing": 0.1})
    for level in ("sample", "token", "sequence"):
        yield of(f"pixels, level={level}", (8, 21, 64, 64), {}, level=level)


# --- whole steps: forward, backward and SGD of a model ---


def mlp() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, (torch.randn(160, 64), torch.randint(0, 10, (160,)))


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])
        plain = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if plain else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    blocks = [
        Block(16, 16, 1),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 32, 1),
        Block(32, 64, 2),
        Block(64, 64, 1),
    ]
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model, (torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))


class LanguageModel(nn.Module):
    """A causal transformer; the logits of all tokens, one a row."""

    def __init__(self, vocabulary: int = 2000, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens) + self.place, mask=self.mask, is_causal=True)).flatten(0, 1)


def transformer() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    tokens = torch.randint(0, 2000, (16, 65))
    return LanguageModel(), (tokens[:, :-1], tokens[:, 1:].flatten())


def whole_steps(seconds: float) -> Iterator[Result]:
    for build in (mlp, resnet, transformer):
        torch.manual_seed(0)
        model, (x, y) = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def of(loss: Callable[[Tensor, Tensor], Tensor], model=model, x=x, y=y, optimizer=optimizer) -> Call:
            def call() -> None:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()

            return call

        yield Result(f"step, {build.__name__}", in_turns({n: of(f) for n, f in torch_losses().items()}, 3 * seconds))


# --- the table ---


def row(result: Result) -> list[str]:
    columns = [result.setting, f"{result.microseconds['plain']:,.1f}"]
    for form in FORMS[1:]:
        known = form in result.microseconds
        columns.append(f"{result.ratio(form):.3f}  {result.extra(form):+9,.1f}" if known else "-")
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes, shorter turns")
    parser.add_argument("--only", choices=("criteria", "steps", "losses"), help="one of the three parts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "overhead.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds = 0.5 if options.quick else 2.0

    out = console()
    results: list[Result] = []
    with out.status("warming up") as status:
        sources = {
            "criteria": criteria(seconds),
            "steps": whole_steps(seconds),
            "losses": bare_losses(options.quick, seconds),
        }
        for name, source in sources.items():
            for result in source if options.only in (None, name) else ():
                results.append(result)
                status.update(f"{len(results)} settings timed, the last: {result.setting}")
    title = "Re-weighted against plain mean: ratio, and microseconds more"
    out.print(table(title, ("setting", "plain, µs", *FORMS[1:]), [row(result) for result in results]))

    content = {
        "threads": options.threads,
        "quick": options.quick,
        "results": [
            asdict(result) | {"ratio": {form: result.ratio(form) for form in result.microseconds}} for result in results
        ],
    }
    write(options.out, ["torch", "jax", "numpy"], content)
    out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
