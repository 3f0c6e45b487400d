"""The next word at each place, by an LSTM.

Theirs: 147, apple/pfl-research: benchmarks/lm/pytorch/train.py
Differs: theirs without model and data; a user can also run it as it is by one command.
"""

import numpy as np
from torch import nn

import onefold

sentence = "the cat saw the dog and the dog saw a bird but no bird saw the cat "
text = (sentence * 15).split()
words = sorted(set(text))
codes = np.array([words.index(word) for word in text])
windows = np.lib.stride_tricks.sliding_window_view(codes, 9)


class Net(nn.Module):
    def __init__(self, num_classes, size=32):
        super().__init__()
        self.words = nn.Embedding(num_classes, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.answer = nn.Linear(size, num_classes)

    def forward(self, tokens):
        return self.answer(self.lstm(self.words(tokens))[0])


result = onefold.run(
    data=(windows[:, :-1], windows[:, 1:]),
    model=Net,
    method="fedavg",
    partition="iid",
    num_clients=4,
    rounds=2,
    classifier={"epochs": 2, "optimizer": "adam", "lr": 0.01},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.6
