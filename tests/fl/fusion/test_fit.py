"""The server's training loop against the textbook's, and states that it goes on from."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import Batch
from fl.fusion.fit import DecayedFitConfig, Fit, FitConfig, FitSpec
from fl.models.ensemble import Ensemble
from fl.seeding import torch_generator
from fl.server import Loss
from tests.fl.toy import same_bits

SIZE, CLASSES = 11, 3
CONFIG = FitConfig(epochs=3, lr=0.01, batch_size=4)
SGD = replace(CONFIG, optimizer="sgd", momentum=0.8)
AfterEpoch = Callable[[int, float], None]


def data() -> Batch:
    stream = torch.Generator().manual_seed(0)
    return {
        "images": torch.randn(SIZE, 5, generator=stream),
        "labels": torch.randint(CLASSES, (SIZE,), generator=stream),
        "index": torch.arange(SIZE),
    }


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, CLASSES)


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def spec(model: nn.Module, *, loss: Loss = cross_entropy, **how: Any) -> FitSpec:
    how = {"config": CONFIG, "streams": "fusion"} | how
    return FitSpec(model=model, columns={}, loss=loss, stage="fusion", **how)


def train(
    model: nn.Module,
    *,
    loss: Loss = cross_entropy,
    config: FitConfig = CONFIG,
    seed: int = 0,
    stage: str = "fusion",
    after_epoch: AfterEpoch = lambda epoch, loss: None,
) -> list[float]:
    losses: list[float] = []
    fit = Fit(spec(model, loss=loss, config=config, streams=stage), data(), seed=seed)
    for epoch, own in enumerate(fit.epochs(), start=1):
        losses += own.tolist()
        after_epoch(epoch, own.mean().item())
    return losses


def visits(**kwargs: Any) -> list[list[int]]:
    """Which samples each step saw."""
    seen: list[list[int]] = []

    def watching(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(batch["index"].tolist())
        return cross_entropy(model, batch)

    train(linear(), loss=watching, **kwargs)
    return seen


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("config", [CONFIG, SGD], ids=["adam", "sgd"])
def test_a_fit_is_the_textbooks_loop(config: FitConfig, decay: float) -> None:
    config = DecayedFitConfig(**vars(config), weight_decay=decay)
    naive, order, batches = linear(), torch_generator(5, "fusion/order"), data()
    parameters = list(naive.parameters())
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    expected = []
    for _ in range(config.epochs):
        shuffled = torch.randperm(SIZE, generator=order)
        for begin in range(0, SIZE, config.batch_size):
            chosen = shuffled[begin : begin + config.batch_size]
            loss = cross_entropy(naive, {name: t[chosen] for name, t in batches.items()})
            gradients = torch.autograd.grad(loss, parameters)
            expected.append(loss.item())
            step = len(expected)
            with torch.no_grad():
                for p, of_loss, (m, v) in zip(parameters, gradients, moments, strict=True):
                    g = of_loss + decay * p
                    if config.optimizer == "sgd":
                        p.sub_(config.lr * m.mul_(config.momentum).add_(g))
                    else:
                        m.mul_(0.9).add_(0.1 * g)
                        v.mul_(0.999).add_(0.001 * g**2)
                        scale = (v / (1 - 0.999**step)).sqrt() + 1e-8
                        p.sub_(config.lr * m / (1 - 0.9**step) / scale)
    model = linear()
    losses = train(model, config=config, seed=5)
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, naive.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_every_epoch_sees_every_sample_once_in_an_order_of_its_own() -> None:
    steps = visits()
    assert [len(step) for step in steps] == [4, 4, 3] * CONFIG.epochs
    epochs = [steps[e] + steps[e + 1] + steps[e + 2] for e in range(0, len(steps), 3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(SIZE))
        assert epoch != list(range(SIZE))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_order_follows_from_seed_and_stage() -> None:
    first = visits(seed=3, stage="fusion")
    torch.manual_seed(9)
    assert visits(seed=3, stage="fusion") == first
    assert visits(seed=4, stage="fusion") != first
    assert visits(seed=3, stage="distil-init") != first


def test_dropout_follows_from_seed_and_stage_and_from_nothing_else() -> None:
    def on_ones(model: nn.Module, batch: Batch) -> Tensor:
        """Tells fits apart by their dropout alone, not by their order."""
        return model(torch.ones(len(batch["index"]), 5)).square().mean()

    first = train(dropping(), loss=on_ones)
    model = dropping()
    torch.manual_seed(9)
    assert train(model, loss=on_ones) == first
    assert train(dropping(), loss=on_ones, seed=1) != pytest.approx(first, rel=1e-3)
    assert train(dropping(), loss=on_ones, stage="other") != pytest.approx(first, rel=1e-3)


def test_global_random_state_is_left_as_it_was() -> None:
    model = dropping()
    before = torch.random.get_rng_state()
    train(model)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("evaluates", [True, False])
def test_training_is_in_train_mode_and_leaves_eval_mode(evaluates: bool) -> None:
    def in_train_mode(model: nn.Module, batch: Batch) -> Tensor:
        assert all(module.training for module in model.modules())
        return cross_entropy(model, batch)

    def after_epoch(epoch: int, loss: float) -> None:
        model.train(not evaluates)

    model = dropping().eval()
    train(model, loss=in_train_mode, after_epoch=after_epoch)
    assert not any(module.training for module in model.modules())


def test_each_epoch_is_over_when_it_is_told() -> None:
    """What is evaluated after the last epoch is the model that the fit leaves."""
    model = linear()
    states: list[dict[str, Tensor]] = []

    def keep(epoch: int, loss: float) -> None:
        states.append({name: t.clone() for name, t in model.state_dict().items()})

    train(model, after_epoch=keep)
    assert same_bits(states[-1], model.state_dict())
    shorter = linear()
    train(shorter, config=replace(CONFIG, epochs=2))
    assert same_bits(states[1], shorter.state_dict())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be a positive number, got -1.0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
    ],
)
def test_a_setting_out_of_range_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=f"^{complaint}$"):
        FitConfig(**settings)


def test_a_cosine_schedule_falls_from_the_rate_to_zero_over_all_steps() -> None:
    """With plain SGD and a gradient of one, each step moves a weight by the rate."""
    model, seen = linear(), list[float]()
    config = replace(CONFIG, optimizer="sgd", momentum=0.0, schedule="cosine")

    def bias(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(model.bias[0].item())
        return model.bias[0] + 0 * model(batch["images"]).sum()

    train(model, loss=bias, config=config)
    moved = [a - b for a, b in pairwise([*seen, model.bias[0].item()])]
    expected = [0.01 * (1 + math.cos(math.pi * step / 9)) / 2 for step in range(9)]
    assert moved == pytest.approx(expected, abs=1e-6)


def test_a_schedule_goes_on_where_a_state_was_kept() -> None:
    config = replace(CONFIG, schedule="cosine")
    whole, halves = linear(), linear()
    train(whole, config=config)
    fit = Fit(spec(halves, config=config), data(), seed=0)
    next(fit.epochs())
    continued = linear()
    list(Fit(spec(continued, config=config, state=fit.state()), data(), seed=0).epochs())
    assert same_bits(continued.state_dict(), whole.state_dict())


@pytest.mark.parametrize("config", [CONFIG, SGD], ids=["adam", "sgd"])
def test_a_state_is_continued_under_other_settings(config: FitConfig) -> None:
    """As a plain loop is whose rates and batches change after its first epoch."""
    later = replace(config, lr=0.002, momentum=0.5, batch_size=5)
    plain, order = linear(), torch_generator(0, "fusion/order")
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(plain.parameters(), lr=config.lr)
    for now in (config, later, later):
        for group in optimizer.param_groups:
            group |= {"lr": now.lr, "momentum": now.momentum}
        for rows in torch.randperm(SIZE, generator=order).split(now.batch_size):
            optimizer.zero_grad()
            cross_entropy(plain, {name: t[rows] for name, t in data().items()}).backward()
            optimizer.step()
    first, continued = Fit(spec(linear(), config=config), data(), seed=0), linear()
    next(first.epochs())
    list(Fit(spec(continued, config=later, state=first.state()), data(), seed=0).epochs())
    for name, tensor in continued.state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_long_gradients_are_cut_to_the_clip_and_short_ones_are_left() -> None:
    def step(clip: float | None) -> Tensor:
        model = linear()
        before = [p.detach().clone() for p in model.parameters()]
        config = replace(SGD, epochs=1, batch_size=SIZE, momentum=0.0, lr=1.0, clip=clip)
        train(model, config=config)
        pairs = zip(model.parameters(), before, strict=True)
        return torch.cat([(p - b).flatten() for p, b in pairs]).detach()

    free = step(None)
    torch.testing.assert_close(step(10 * free.norm().item()), free)
    torch.testing.assert_close(step(0.1), free * (0.1 / free.norm()), rtol=1e-3, atol=1e-5)


def test_an_ensembles_members_train_as_if_each_were_alone() -> None:
    config = replace(SGD, clip=0.3)
    alone = [linear(), two_layers()]
    together = Ensemble([linear(), two_layers()])
    for model in alone:
        train(model, config=config)
    train(together, loss=sum_of_members, config=config)
    for model, member in zip(alone, together.members, strict=True):
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], tensor)


def two_layers() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def sum_of_members(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, Ensemble)
    return torch.stack([cross_entropy(member, batch) for member in model.members]).sum()
