"""On a GPU the host waits for no step of condensing, and what it draws arrives in few copies."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.condensation.task import AHEAD, Condensing, learn
from fl.exchange import prefixed
from fl.training.sending import ALIGNED_BYTES, on_device
from tests.fl.condensation.condensing import CONFIG, global_model, inputs
from tests.fl.condensation.waits import GPU, Waits
from tests.fl.devices import Where, assert_same, on_both
from tests.fl.toy import shard
from tests.pretended_gpu import pretended_gpus

STEPS = AHEAD + 2


@pytest.mark.parametrize(
    ("changes", "networks"),
    [
        ({"projections": 4}, 1),
        ({"gamma": 1.0, "rho": 1.0}, 1),
        ({"gamma": 1.0, "augment": ("rotate", "shift", "cutout", "flip")}, 0),
        ({"model": "vgg9"}, 1),
    ],
    ids=["fedaf", "feddm", "augment", "vgg9"],
)
def test_no_step_of_condensing_waits_and_a_network_is_one_copy(
    changes: Mapping[str, object], networks: int
) -> None:
    config = replace(CONFIG, collaboration=0.5, steps=STEPS, **changes)  # type: ignore[arg-type]
    sent = {**prefixed("classifier", global_model(config)), "mean_logits": torch.eye(3)}
    with pretended_gpus():
        cohort = [
            Condensing(replace(inputs(config, data), broadcast=sent, device=GPU), config)
            for data in (shard(6, 0, 3), shard(4, 2, 7))
        ]
        with Waits() as seen:
            learn(cohort, config)
    assert not seen.waits
    # Beside the networks, the draws of AHEAD steps at once.
    assert seen.sent == len(cohort) * (networks * STEPS + 2)


def test_tensors_of_any_type_arrive_as_they_are_each_at_an_aligned_place() -> None:
    drawn = [
        torch.arange(7),
        torch.rand(3, 5, 2).permute(2, 0, 1),
        torch.rand(0, 4),
        torch.tensor(True),
        torch.rand(3, dtype=torch.float64),
    ]

    def work(where: Where) -> list[Tensor]:
        found = on_device(drawn, where.device)
        assert all(t.device.type == where.device.type for t in found)
        if where.device.type == "cuda":
            places = [t.data_ptr() - found[0].data_ptr() for t in found if t.numel()]
            assert not any(place % ALIGNED_BYTES for place in places)
        return found

    assert_same(*on_both(work))
