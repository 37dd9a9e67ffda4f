"""What the language models share: embeddings of tokens and positions, and layers over them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.models.blocks.block import TransformerBlock


class Transformer(nn.Module):
    """Tokens in, hidden states out: learnt positions, `depth` layers, and a last normalisation or a first.

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
        Number of kinds of segments; 0 for none.
    post_norm
        Whether layers are normalised after each part, as in BERT. The embeddings are then normalised too, and dropped
        out, and there is no last normalisation.
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
        post_norm: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("depth", depth), ("width", width), ("heads", heads)):
            validate.whole(name, value, 1)
        if width % heads:
            raise ValueError(f"`width` must be a multiple of `heads`, got {width} with {heads} heads.")
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.segments = nn.Embedding(segments, width) if segments else None
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, causal=causal, drop=nn.Dropout(dropout), post_norm=post_norm)
            for _ in range(depth)
        )
        self.norm, self.drop, self.post_norm = nn.LayerNorm(width), nn.Dropout(dropout), post_norm
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Hidden states, (B, T, width); `mask` marks the tokens that are not padding."""
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        if self.segments is not None and segments is not None:
            x = x + self.segments(segments)
        if self.post_norm:
            x = self.drop(self.norm(x))
        seen = None if mask is None else mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, seen)
        return x if self.post_norm else self.norm(x)
