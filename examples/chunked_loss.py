"""A language model whose logits are never all there: linear layer, cross entropy and RGD in one call.

python examples/chunked_loss.py
"""

# %% a model that ends in hidden states: its last layer is part of the loss
import torch
import torch.nn.functional as F
from torch import nn

import reweigh
from reweigh.torch import chunked_cross_entropy

torch.manual_seed(0)
vocabulary, width = 5000, 32
embedding, body = nn.Embedding(vocabulary, width), nn.GRU(width, width, batch_first=True)
head = nn.Linear(width, vocabulary)

# %% tokens, and pads that do not count
tokens = torch.randint(1, vocabulary, (8, 33))
inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
targets[0, 20:] = -100
hidden, _ = body(embedding(inputs))

# %% one call in the place of three; the plain losses come along, since the loss itself is a surrogate
loss, losses = chunked_cross_entropy(
    hidden, head.weight, targets, reweigh.RGD(tau=9.0), bias=head.bias, return_losses=True
)
loss.backward()
real = targets != -100
print(
    f"loss {loss.item():.4f}, plain mean {losses[real].mean().item():.4f}, ln V {torch.tensor(5000.0).log().item():.4f}"
)

# %% the same number the long way, with a logit for every token and word
logits = F.linear(hidden, head.weight, head.bias)
long_way = reweigh.rgd(F.cross_entropy(logits.transpose(1, 2), targets, reduction="none"), tau=9.0, mask=real)
print(f"the long way {long_way.item():.4f}, holding {logits.numel():,} logits")
