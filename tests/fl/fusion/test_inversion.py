"""Images made from classifiers, and distillation on a pool of them."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fl.federation import RunSpec
from fl.fusion.fit import Fit, FitSpec
from fl.fusion.inversion import (
    BatchNormDistance,
    DistillationConfig,
    DistillationLoss,
    InversionConfig,
    Pool,
    boundary_support,
    crop_and_flip,
    invert,
)
from fl.server import Outcome
from fl.training.losses import divergences

PROBLEM = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)
SMALL = InversionConfig(batch_size=6, steps=5, width=0.05, latent=4)
CPU = torch.device("cpu")


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_distillation_loss_is_the_mean_divergence_at_its_temperature() -> None:
    student, teacher = torch.randn(2, 5, 4, generator=stream())
    batch = {"images": student, "teacher_logits": teacher}
    expected = divergences(teacher, student, 20.0).mean()
    torch.testing.assert_close(DistillationLoss(20.0)(nn.Identity(), batch), expected)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kl_is_the_sum_over_classes_of_each_sample(temperature: float) -> None:
    student, teacher = torch.randn(2, 5, 4, generator=stream())
    for row, s, t in zip(divergences(teacher, student, temperature), student, teacher, strict=True):
        p = [math.exp(v / temperature) for v in s]
        q = [math.exp(v / temperature) for v in t]
        p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
        kl = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
        assert row.item() == pytest.approx(temperature**2 * kl, rel=1e-4, abs=1e-6)


def test_only_samples_on_which_the_two_disagree_support_the_boundary() -> None:
    teacher = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    expected = -divergences(teacher[1:2], student[1:2]).item() / 3  # a mean over all samples
    assert boundary_support(student, teacher).item() == pytest.approx(expected)


def test_each_view_is_the_image_shifted_over_black_and_maybe_mirrored() -> None:
    images = torch.rand(40, 2, 6, 6, generator=stream()) + 0.1
    views = crop_and_flip(images, stream(1), padding=2)
    seen = set()
    for image, view in zip(images, views, strict=True):
        padded = torch.zeros(2, 10, 10)
        padded[:, 2:8, 2:8] = image
        cuts = {
            (top, left, mirrored): cut.flip(2) if mirrored else cut
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
            for cut in [padded[:, top : top + 6, left : left + 6]]
        }
        (found,) = [where for where, cut in cuts.items() if torch.equal(cut, view)]
        seen.add(found)
    assert len(seen) > 20
    assert {mirrored for *_, mirrored in seen} == {False, True}


def test_views_can_be_differentiated() -> None:
    images = torch.rand(2, 1, 6, 6, generator=stream(), requires_grad=True)
    crop_and_flip(images, stream(1), padding=0).sum().backward()
    torch.testing.assert_close(images.grad, torch.ones(2, 1, 6, 6))


class Normed(nn.Sequential):
    def __init__(self, seed: int) -> None:
        super().__init__(nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2))
        for layer in (self[0], self[2]):
            layer.running_mean = torch.rand(2, generator=stream(seed))
            layer.running_var = torch.rand(2, generator=stream(seed + 1)) + 0.5
        self.eval()


def test_batchnorm_distance_is_summed_over_layers_and_averaged_over_models() -> None:
    models = nn.ModuleList([Normed(0), Normed(5)])
    x = torch.randn(4, 2, 3, 3, generator=stream())
    expected = 0.0
    for model in models:
        inputs = (x, torch.relu(model[0](x).detach()))
        for layer, values in zip((model[0], model[2]), inputs, strict=True):
            for running, own in (
                (layer.running_mean, [values[:, c].mean() for c in range(2)]),
                (layer.running_var, [values[:, c].var(correction=0) for c in range(2)]),
            ):
                expected += math.sqrt(sum((a - b) ** 2 for a, b in zip(running, own, strict=True)))
    with BatchNormDistance(models).watching() as statistics:
        for model in models:
            model(torch.zeros_like(x))  # of several batches the last counts
            model(x)
        assert torch.as_tensor(statistics.value).item() == pytest.approx(expected / 2, rel=1e-5)
    models[0](x + 1)  # is measured no more
    assert torch.as_tensor(statistics.value).item() == pytest.approx(expected / 2, rel=1e-5)


def test_models_without_batchnorm_have_no_distance() -> None:
    with BatchNormDistance(nn.ModuleList([nn.Linear(2, 2)])).watching() as statistics:
        assert statistics.value == 0


def test_the_images_of_the_lowest_loss_are_kept() -> None:
    made: list[tuple[float, Tensor]] = []

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        # Falls in the second step and rises again, nearly whatever the images are.
        value = (3.0, 1.0, 2.0, 4.0, 5.0)[len(made)] + images.mean() / 1000
        made.append((value.item(), images.detach().clone()))
        return value

    images, labels = invert(loss, PROBLEM, SMALL, epoch=1, device=CPU)
    assert torch.equal(images, made[1][1])
    assert images.shape == (6, 1, 8, 8)
    assert labels.shape == (6,)


def test_the_first_images_are_kept_if_their_loss_is_nan() -> None:
    """No later loss is lower than that."""
    made: list[Tensor] = []

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        made.append(images.detach().clone())
        return images.mean() * (float("nan") if len(made) == 1 else 1.0)

    images, _ = invert(loss, PROBLEM, SMALL, epoch=1, device=CPU)
    assert torch.equal(images, made[0])


def test_inversion_brings_the_loss_down() -> None:
    values: list[float] = []

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        wanted = labels.float() / 3
        value = ((images.mean((1, 2, 3)) - wanted) ** 2).mean()
        values.append(value.item())
        return value

    config = InversionConfig(batch_size=12, steps=60, width=0.2, latent=8, lr=1e-2)
    invert(loss, PROBLEM, config, epoch=1, device=CPU)
    assert min(values) < values[0] / 3
    assert any(a != b for a, b in pairwise(values))


def test_every_epoch_has_a_generator_of_its_own_that_follows_from_the_seed() -> None:
    def images(epoch: int) -> Tensor:
        return invert(lambda x, y: x.mean(), PROBLEM, SMALL, epoch=epoch, device=CPU)[0]

    assert torch.equal(images(1), images(1))
    assert not torch.equal(images(1), images(2))


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
    told = pool(3, 4).described(ensemble_weights=[1.0])
    outcome = Outcome(model=nn.Identity(), start=None, epochs=[], **told)  # type: ignore[arg-type]
    assert outcome.synthetic["kept"].tolist() == list(range(7))
    assert outcome.synthetic["images"].flatten().tolist() == list(range(7))
    assert outcome.figures == {"synthetic": {"generated": 7, "kept": 7}, "ensemble_weights": [1.0]}


def moved(config: DistillationConfig) -> list[float]:
    """How far a weight of one went in each step, under a gradient of one."""
    model, seen = nn.Linear(1, 1), list[float]()
    nn.init.ones_(model.bias)

    def bias(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        seen.append(model.bias.item())
        return model.bias.sum() + 0 * model.weight.sum()

    names = {"stage": "fusion", "streams": "fusion"}
    spec = FitSpec(model=model, columns={}, loss=bias, config=config.fit_config(), **names)
    list(Fit(spec, {"index": torch.arange(8)}, seed=0).epochs())
    return [a - b for a, b in zip(seen, [*seen[1:], model.bias.item()], strict=True)]


def test_a_rate_stays_or_falls_and_is_the_same_for_all_steps_of_an_epoch() -> None:
    assert moved(CONFIG) == pytest.approx([0.1] * 6, rel=1e-4)
    rates = [0.1 * (1 + math.cos(math.pi * epoch / 3)) / 2 for epoch in range(3)]
    expected = [rate for rate in rates for _ in range(2)]
    assert moved(replace(CONFIG, schedule="cosine")) == pytest.approx(expected, rel=1e-4)


def test_a_gradient_is_cut_to_the_norm_that_is_asked_for() -> None:
    assert moved(replace(CONFIG, clip=0.25)) == pytest.approx([0.025] * 6, rel=1e-4)
    assert moved(replace(CONFIG, clip=10.0)) == pytest.approx([0.1] * 6, rel=1e-4)


def test_weights_decay_and_gather_momentum_as_the_settings_say() -> None:
    steps = moved(replace(CONFIG, epochs=1, momentum=0.5, weight_decay=0.2))
    first = 0.1 * (1 + 0.2 * 1.0)
    second = 0.1 * (1 + 0.2 * (1 - first) + 0.5 * (1 + 0.2 * 1.0))
    assert steps == pytest.approx([first, second], rel=1e-4)
