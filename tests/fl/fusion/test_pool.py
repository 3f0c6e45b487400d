"""Distillation on a pool that grows: its settings, its loss and its rows."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.fusion.fit import Fit, FitSpec
from fl.fusion.inversion import DistillationConfig, DistillationLoss, Pool
from fl.server import Outcome

CONFIG = DistillationConfig(epochs=3, lr=0.1, momentum=0.0, batch_size=4)


def rows(first: int, count: int) -> dict[str, Tensor]:
    """Images that are their own number."""
    numbers = torch.arange(first, first + count)
    return {"images": numbers.float().view(-1, 1, 1, 1), "labels": numbers % 3}


def pool(*counts: int, seed: int = 0) -> Pool:
    made = Pool(seed)
    for count in counts:
        made.add(**rows(sum(map(len, made.columns.values())) // 2, count))
    return made


def order(of: Pool, purpose: str = "weights", epoch: int = 1, size: int = 4) -> list[int]:
    batches = of.batches(purpose, epoch, size)
    return [int(n) for batch in batches for n in batch["images"].flatten()]


def test_what_is_added_comes_behind_what_there_was_in_every_column() -> None:
    made = pool(3, 5, 2)
    assert made.columns["images"].flatten().tolist() == list(range(10))
    assert made.columns["labels"].tolist() == [n % 3 for n in range(10)]


@pytest.mark.parametrize("size", [1, 4, 10, 99])
def test_batches_hold_every_row_once_with_its_columns_together(size: int) -> None:
    made = pool(10)
    batches = list(made.batches("weights", 1, size))
    assert [len(batch["labels"]) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    for batch in batches:
        assert torch.equal(batch["images"].flatten().long() % 3, batch["labels"])
    assert sorted(order(made, size=size)) == list(range(10))


def test_the_order_follows_from_seed_purpose_and_epoch() -> None:
    first = order(pool(10))
    torch.rand(3)  # the global stream decides nothing
    assert order(pool(10)) == first
    others = [order(pool(10, seed=1)), order(pool(10), "other"), order(pool(10), epoch=2)]
    assert len({tuple(found) for found in (first, *others, list(range(10)))}) == 5


def test_the_result_has_all_images_of_which_none_is_filtered_out() -> None:
    told = pool(3, 4).told(ensemble_weights=[1.0])
    outcome = Outcome(model=nn.Identity(), start=None, epochs=[], **told)  # type: ignore[arg-type]
    assert outcome.synthetic["kept"].tolist() == list(range(7))
    assert outcome.synthetic["images"].flatten().tolist() == list(range(7))
    assert outcome.figures == {
        "synthetic": {"generated": 7, "kept": 7},
        "ensemble_weights": [1.0],
    }


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
def test_the_loss_is_the_divergence_at_the_temperature_times_its_square(
    temperature: float,
) -> None:
    stream = torch.Generator().manual_seed(0)
    student, teacher = 3 * torch.randn(2, 5, 4, generator=stream)
    expected = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        p = [math.exp(v / temperature) for v in s]
        q = [math.exp(v / temperature) for v in t]
        for own, wanted in zip(p, q, strict=True):
            share, goal = own / sum(p), wanted / sum(q)
            expected += temperature**2 * goal * math.log(goal / share) / 5
    batch = {"images": student, "teacher_logits": teacher}
    loss = DistillationLoss(temperature)(nn.Identity(), batch)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def moved(config: DistillationConfig, **how: Any) -> list[float]:
    """How far a weight of one went in each step, under a gradient of one."""
    model, seen = nn.Linear(1, 1), list[float]()
    nn.init.ones_(model.bias)

    def bias(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        seen.append(model.bias.item())
        return model.bias.sum() + 0 * model.weight.sum()

    names = {"stage": "fusion", "streams": "fusion"}
    spec = FitSpec(model=model, columns={}, loss=bias, config=config.fit_config(**how), **names)
    list(Fit(spec, {"index": torch.arange(8)}, seed=0).epochs())
    return [a - b for a, b in zip(seen, [*seen[1:], model.bias.item()], strict=True)]


def test_the_rate_is_the_settings_in_every_step() -> None:
    assert moved(CONFIG) == pytest.approx([0.1] * 6, rel=1e-4)


def test_a_falling_rate_is_the_same_for_all_steps_of_an_epoch() -> None:
    rates = [0.1 * (1 + math.cos(math.pi * epoch / 3)) / 2 for epoch in range(3)]
    expected = [rate for rate in rates for _ in range(2)]
    assert moved(CONFIG, cosine=True) == pytest.approx(expected, rel=1e-4)


def test_a_gradient_is_cut_to_the_norm_that_is_asked_for() -> None:
    assert moved(CONFIG, clip=0.25) == pytest.approx([0.025] * 6, rel=1e-4)
    assert moved(CONFIG, clip=10.0) == pytest.approx([0.1] * 6, rel=1e-4)


def test_weights_decay_and_gather_momentum_as_the_settings_say() -> None:
    steps = moved(replace(CONFIG, epochs=1, momentum=0.5, weight_decay=0.2))
    first = 0.1 * (1 + 0.2 * 1.0)
    second = 0.1 * (1 + 0.2 * (1 - first) + 0.5 * (1 + 0.2 * 1.0))
    assert steps == pytest.approx([first, second], rel=1e-4)
