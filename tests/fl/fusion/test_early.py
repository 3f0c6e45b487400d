"""What was drawn early is given once, and only for what is asked for in the end."""

import numpy as np
import torch

from fl.fusion.ranked_server import EarlyDraws
from fl.fusion.synthesis import Drawn

ROWS = np.array([[1, 0], [2, 3], [0, 4]])


def drawn(client: int) -> Drawn:
    return Drawn(ROWS[client], torch.full((1,), float(client)), torch.empty(0))


def test_only_what_is_the_same_is_given_and_only_once() -> None:
    early = EarlyDraws()
    held = {client: drawn(client) for client in (2, 1, 0)}
    for client, one in held.items():
        early.add("a", client, one)
    early.add("b", 1, drawn(1))
    changed = np.array([[1, 0], [2, 4]])
    assert early.take([0, 1], changed, "a") == {0: held[0]}
    assert early.take([0, 1, 2], ROWS, "a") == {}
