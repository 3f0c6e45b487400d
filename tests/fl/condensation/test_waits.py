"""On a GPU the host waits for no step of condensing or distilling, and sends it few copies."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.condensation import task
from fl.condensation.kip import TOGETHER, Distilling, KipTraining, distil
from fl.condensation.task import Condensing, learn
from fl.exchange import prefixed
from fl.federation import TaskInput, TaskOutput
from fl.training.steps import ALIGNED_BYTES, on_device
from tests.fl.condensation.condensing import CONFIG, global_model, inputs
from tests.fl.condensation.waits import GPU, Waits
from tests.fl.devices import Where, assert_same, on_both
from tests.fl.toy import client, shard, task_input
from tests.pretended_gpu import pretended_gpus

AHEAD, STEPS = 2, 3
"""Steps that are drawn at once here, and those of a run: the last one's draws are sent alone."""


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
    changes: Mapping[str, object], networks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "AHEAD", AHEAD)
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


def kip(seed: int, **changes: object) -> TaskInput:
    """A client with noise, of which a few steps' targets are predicted by chance."""
    config = replace(KipTraining(images=6, targets=5, lr=0.01), **changes)  # type: ignore[arg-type]
    noise = torch.rand(24, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    data = replace(shard(8, 8, 8), samples=noise)
    found = task_input(config, data, id=seed)
    return replace(found, client=replace(client(seed), training=config))


def test_no_step_of_distilling_waits_and_many_are_drawn_at_once() -> None:
    given = kip(0)
    assert isinstance(given.client.training, KipTraining)
    with pretended_gpus():
        distilling = Distilling(replace(given, device=GPU), given.client.training)
        with Waits() as seen:
            distilling.take(TOGETHER)
    assert not seen.waits
    assert seen.sent == 1


def test_a_gpu_that_is_asked_later_tells_the_same_steps() -> None:
    """Of clients that are done within the steps taken together, at the last of them and after."""

    def work(where: Where) -> list[TaskOutput]:
        return [distil(replace(kip(seed), device=where.device)) for seed in (1, 3, 5)]

    one, other = on_both(work)
    assert_same(one, other)
    first, _, last = (found.stats["steps"] for found in one)
    assert first < TOGETHER < last


@pytest.mark.parametrize(
    ("pixel", "message"), [(0.0, "the ridge is too small"), (float("nan"), "hold NaN")]
)
def test_a_step_without_a_prediction_is_told_of_on_a_gpu_too(pixel: float, message: str) -> None:
    given = kip(0, ridge=1e-300, steps=4)
    flawed = replace(given, shard=replace(given.shard, samples=torch.full((24, 1, 28, 28), pixel)))

    def work(where: Where) -> None:
        with pytest.raises(ValueError, match=message):
            distil(replace(flawed, device=where.device))

    on_both(work)
