"""The server of a rehearsal takes one batch, and counts as many as the whole has."""

import numpy as np
import pytest
import torch

from cluster.rehearsal.costs import FUSION, TEST, Costs
from cluster.rehearsal.server import DRAWN, RehearsalServer
from fl.events import Events
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.models import build_classifier
from fl.training.generator import GeneratorConfig, starting_generator
from tests.cluster.rehearsal.small import small_cut


@pytest.fixture
def server() -> RehearsalServer:
    _, cut = small_cut("--method=fedmho")
    costs = Costs({})
    return RehearsalServer(cut, Events(costs), torch.device("cpu"), costs)


def test_it_draws_a_batch_of_all_that_is_asked_for(server: RehearsalServer) -> None:
    decoder = starting_generator(GeneratorConfig(width=0.1), server.run_spec).decoder
    drawn = server.sample({0: decoder, 1: decoder}, np.full((2, 10), 300), latent=20)
    assert DRAWN // 2 < len(drawn) <= DRAWN
    assert len(server.sample({0: decoder}, np.eye(10, dtype=int)[:1], latent=20)) == 1


def test_a_fit_takes_few_steps_and_counts_all(server: RehearsalServer) -> None:
    shape, classes = server.run_spec.image_shape, server.run_spec.num_classes
    model = build_classifier("cnn", shape, classes, width=0.05)
    data = {"images": torch.rand(70, *shape), "labels": torch.arange(70) % 10}
    loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)

    def counted(epochs: int) -> float:
        before = server._costs.whole(1)[FUSION].seconds
        config = FitConfig(epochs=epochs, batch_size=32)
        result = server.fit(model, data, loss=loss, config=config, stage="fusion")
        assert len(result.epochs) == 1
        return server._costs.whole(1)[FUSION].seconds - before

    assert counted(1_000_000) > 100 * counted(100)
    assert server._costs.whole(1)[TEST].seconds > 0
