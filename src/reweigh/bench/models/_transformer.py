"""The layers that the language models share: attention, causal or not, and a perceptron, normalised beforehand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh import _validate as validate


class Transformer(nn.Module):
    """Tokens in, hidden states out: learnt positions, `depth` layers, a last normalisation.

    Parameters
    ----------
    vocabulary, length
        Number of tokens, and the longest sequence.
    depth, width, heads
        Number of layers, their width (a multiple of `heads`), attention heads.
    causal
        Whether a position sees only itself and those before it.
    dropout
        Share of what each part of a layer adds that is dropped in training.
    segments
        Kinds of segments that are told apart; 0 for none.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        *,
        depth: int,
        width: int,
        heads: int,
        causal: bool,
        dropout: float = 0.0,
        segments: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("depth", depth), ("width", width), ("heads", heads)):
            validate.whole(name, value, 1)
        if width % heads:
            raise ValueError(f"`width` must be a multiple of `heads`, got {width} with {heads} heads.")
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.segments = nn.Embedding(segments, width) if segments else None
        self.blocks = nn.ModuleList(_Block(width, heads, causal, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Hidden states, (B, T, width); `mask` tells real tokens from pads."""
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        if self.segments is not None and segments is not None:
            x = x + self.segments(segments)
        seen = None if mask is None else mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, seen)
        return self.norm(x)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.dropout(self._attend(self.norm1(x), mask))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
