"""A fit by steps that are replayed has the bits of one whose steps are run."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.server import Loss
from tests.fl.fusion.networks import KNOWLEDGE, LOSS, convnet, data, mixed, vgg9
from tests.fl.graphs import pretended_graphs
from tests.fl.toy import same_bits

CONFIG = FitConfig(epochs=4, lr=0.01, batch_size=12)
SGD = replace(CONFIG, optimizer="sgd")
FITS: dict[str, tuple[Callable[[], nn.Module], Loss, FitConfig]] = {
    "adam": (vgg9, LOSS, CONFIG),
    "sgd": (vgg9, LOSS, SGD),
    "schedule": (vgg9, LOSS, replace(SGD, schedule="cosine")),
    "schedule, adam": (convnet, LOSS, replace(CONFIG, schedule="cosine")),
    "clip": (vgg9, LOSS, replace(SGD, clip=0.1)),
    "knowledge": (vgg9, KNOWLEDGE, CONFIG),
    "batch norm": (convnet, LOSS, SGD),
    "ensemble": (mixed, LOSS, replace(CONFIG, clip=1.0)),
}


def fitted(name: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The weights in the end, and each epoch's losses."""
    make, loss, config = FITS[name]
    torch.manual_seed(0)
    spec = FitSpec(model=make(), columns={}, loss=loss, config=config, stage="f", streams="f")
    losses = list(Fit(spec, data(torch.float32), seed=0).epochs())
    return dict(spec.model.state_dict()), losses


@pytest.mark.parametrize("name", FITS)
def test_a_replayed_fit_has_the_bits_of_one_that_is_run(name: str) -> None:
    with pretended_graphs(worth_it=10**6):  # where a rate that changes is a tensor too
        expected, losses = fitted(name)
    with pretended_graphs() as graphs:
        found, others = fitted(name)
    assert [graph.replays for graph in graphs] == [6]  # of 8 full batches
    assert same_bits(found, expected)
    for one, other in zip(others, losses, strict=True):
        assert torch.equal(one, other)
