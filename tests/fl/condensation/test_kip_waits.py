"""On a GPU the host waits for no step of a distillation, and its result is the CPU's."""

from dataclasses import replace

import pytest
import torch

from fl.condensation.kip import TOGETHER, Distilling, KipTraining, distil
from fl.federation import TaskInput, TaskOutput
from tests.fl.condensation.waits import GPU, Waits
from tests.fl.devices import Where, assert_same, on_both
from tests.fl.toy import client, shard, task_input
from tests.pretended_gpu import pretended_gpus


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
