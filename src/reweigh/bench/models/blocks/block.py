"""A layer of a transformer: attention, causal or not, and a perceptron, normalised before or after."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class TransformerBlock(nn.Module):
    """Tokens to tokens, `(batch, tokens, width)`.

    Parameters
    ----------
    width, heads
        Of the tokens, a multiple of the attention heads.
    causal
        Whether a position sees only itself and those before it.
    drop
        Applied to what each part adds, such as dropout; nothing is applied if not given.
    post_norm
        Whether the sum is normalised after each part, as in BERT, and not what a part sees.
    """

    def __init__(
        self, width: int, heads: int, *, causal: bool = False, drop: nn.Module | None = None, post_norm: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.post_norm = heads, causal, post_norm
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Identity() if drop is None else drop

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The tokens with what each part adds; `mask` marks the positions that are seen."""
        if self.post_norm:
            x = self.norm1(x + self.drop(self._attend(x, mask)))
            return self.norm2(x + self.drop(self._perceptron(x)))
        x = x + self.drop(self._attend(self.norm1(x), mask))
        return x + self.drop(self._perceptron(self.norm2(x)))

    def _perceptron(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
