"""Text: next characters by a small transformer; then LoRA on it, which alone is trained and sent.

python examples/text.py
"""

from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import onefold

PLACES = 24
text = "".join(p.read_text() for p in sorted(Path(onefold.__file__).parent.glob("*.py")))[:12000]
letters = sorted(set(text))
codes = np.array([letters.index(c) for c in text])
windows = np.lib.stride_tricks.sliding_window_view(codes, PLACES + 1)[::8]
data = (windows[:, :-1], windows[:, 1:])  # the targets: the next character at each place


class Transformer(nn.Module):
    def __init__(self, num_classes, size=64):
        super().__init__()
        self.letters, self.places = nn.Embedding(num_classes, size), nn.Embedding(PLACES, size)
        self.attend, self.answer = nn.Linear(size, 3 * size), nn.Linear(size, num_classes)

    def forward(self, tokens):
        x = self.letters(tokens) + self.places.weight
        q, k, v = self.attend(x).chunk(3, dim=-1)
        return self.answer(x + F.scaled_dot_product_attention(q, k, v, is_causal=True))


class LoRA(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + F.linear(F.linear(x, self.a), self.b)


def lora():
    net = deepcopy(first.model).requires_grad_(False)
    net.attend, net.answer = LoRA(net.attend), LoRA(net.answer)
    return net


common = {"partition": "iid", "num_clients": 3, "runtime": "inprocess"}
common["classifier"] = {"epochs": 4, "optimizer": "adam", "lr": 0.005}
first = onefold.run(data, Transformer, "fedavg", name="all", **common)
second = onefold.run(data, lora, "fedavg", name="lora", **common)
print(first, second, sep="\n\n")
