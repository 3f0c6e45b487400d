"""What was drawn early is given only for what is asked for in the end."""

import numpy as np
import torch

from fl.fusion.synthesis import Drawn, still_asked

ROWS = np.array([[1, 0], [2, 3], [0, 4]])


def drawn(client: int) -> Drawn:
    return Drawn(ROWS[client], torch.full((1,), float(client)), torch.empty(0))


def test_only_what_is_the_same_is_given() -> None:
    early = {("a", client): drawn(client) for client in (2, 1, 0)} | {("b", 1): drawn(1)}
    changed = np.array([[1, 0], [2, 4]])
    assert still_asked(early, [0, 1], changed, "a") == {0: early["a", 0]}
    assert still_asked(early, [0, 1], ROWS[:2], "b") == {1: early["b", 1]}
