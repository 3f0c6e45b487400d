"""Ranks that get their decoders in portions draw what they would draw of all at once."""

import numpy as np
import pytest
import torch

from fl.events import Events
from fl.fusion.single_server import SingleServer
from fl.training.generator import starting_generator
from tests.fl.fusion.threads import ThreadServer
from tests.fl.toy import CPU, GENERATOR, PROBLEM, shard

ALLOCATION = np.array([[300, 0, 50], [1, 0, 2], [0, 3, 0], [2, 2, 2], [0, 0, 0]])
TEST = shard(2, 2, 2)


@pytest.mark.parametrize(("ranks", "at_once"), [(2, 1), (2, 2), (3, 64), (3, 1)])
def test_portions_change_nothing(ranks: int, at_once: int) -> None:
    decoders = {k: starting_generator(GENERATOR, PROBLEM).decoder for k in (3, 5, 8, 9, 10)}
    one = SingleServer(PROBLEM, TEST, Events(), CPU)
    several = ThreadServer(PROBLEM, TEST, Events(), ranks)
    several.decoders_at_once = at_once
    ours, theirs = (
        server.sample(decoders, ALLOCATION, latent=GENERATOR.latent, with_z=True)
        for server in (several, one)
    )
    assert sum(ours.counts) == len(theirs) == ALLOCATION.sum()
    for name in ("images", "labels", "z"):
        assert torch.equal(several.fetch(ours, name), one.fetch(theirs, name))
