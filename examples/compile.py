"""Re-weighting inside a compiled training step: one graph, no break.

    python examples/compile.py [--backend aot_eager]

`fullgraph=True` refuses to compile what it cannot put into a single graph. Prints how far the gradients are from
those without compilation. The default backend needs a C++ compiler.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from reweigh.torch import Reweighted


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    criterion = Reweighted(nn.CrossEntropyLoss(label_smoothing=0.1), tau=3.0)
    x, y = torch.randn(128, 16), torch.randint(4, (128,))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return criterion(model(x), y)

    def gradient(step) -> Tensor:
        model.zero_grad()
        step(x, y).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    compiled = torch.compile(loss_of, fullgraph=True, backend=options.backend)
    difference = float((gradient(compiled) - gradient(loss_of)).abs().max())
    print(f"torch.compile, {options.backend}, one graph: largest gradient difference to eager {difference:.1e}")


if __name__ == "__main__":
    main()
