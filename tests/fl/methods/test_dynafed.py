"""DynaFed: images that lead along the path, which are learned once, and their use."""

import pytest
import torch
from torch import nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.fit import FitConfig
from fl.methods import dynafed
from fl.methods.dynafed import DynaFedConfig, MatchingConfig, match_trajectory, soft_entropy
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.personal_runs import LOCAL, fedavg, model_of, play
from tests.fl.toy import same_bits

FEW = MatchingConfig(images_per_class=1, iterations=2, inner_steps=2)


def config(**changes: object) -> DynaFedConfig:
    local = ClassifierConfig(model="m1", width=1.0, momentum=0.9, **LOCAL)
    fit = FitConfig(epochs=2, lr=1e-3, batch_size=8)
    values = {"classifier": local, "trajectory": 3, "matching": FEW, "fit": fit, **changes}
    return DynaFedConfig(**values)  # type: ignore[arg-type]


def test_images_are_learned_once_and_trained_on_in_every_later_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned, used = [], []
    real, train = dynafed.learn_images, dynafed.train_on_images

    def learning(*args: object) -> object:
        learned.append(real(*args))  # type: ignore[arg-type]
        return learned[-1]

    def training(model: object, data: dict[str, torch.Tensor], *args: object) -> None:
        used.append(dict(data))
        train(model, data, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(dynafed, "learn_images", learning)
    monkeypatch.setattr(dynafed, "train_on_images", training)
    ours, clients = play("dynafed", config(), 5)
    (images,) = learned
    assert images["images"].shape == (10, 1, 28, 28)  # type: ignore[index]
    torch.testing.assert_close(images["labels"].sum(1), torch.ones(10))  # type: ignore[index]
    assert len(used) == 2
    assert all(same_bits(own, images) for own in used)  # type: ignore[arg-type]
    expected, theirs = fedavg(5, weighting="uniform")
    assert not same_bits(model_of(ours), model_of(expected))
    assert clients.bytes_up == theirs.bytes_up


def test_soft_labels_that_are_one_hot_give_cross_entropy() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    batch = {"images": logits, "labels": torch.nn.functional.one_hot(labels, 4).float()}
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(soft_entropy(torch.nn.Identity(), batch), expected)


def test_a_path_that_is_too_short_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="trajectory must be at least 3"):
        config(trajectory=2)


# The images.


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()


def path_of(model: nn.Module, length: int) -> list[dict[str, torch.Tensor]]:
    """A straight path."""
    torch.manual_seed(1)
    direction = {n: torch.randn_like(t) for n, t in model.state_dict().items()}
    return [
        {n: t + 0.05 * i * direction[n] for n, t in model.state_dict().items()}
        for i in range(length)
    ]


def test_the_gradient_through_the_inner_steps_is_that_of_finite_differences() -> None:
    model = tiny()
    start, target = path_of(model, 2)
    images = torch.randn(3, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    labels = torch.eye(3, dtype=torch.float64)
    rate = torch.tensor(0.3, dtype=torch.float64)

    def missed(own: torch.Tensor) -> torch.Tensor:
        end = dynafed._train(model, start, own, labels, rate, [lambda x: x] * 3)
        return dynafed._distance(model, start, end, target)

    assert torch.autograd.gradcheck(missed, images)


def test_the_inner_steps_are_plain_sgd() -> None:
    model = tiny()
    start, _ = path_of(model, 2)
    images, labels = torch.randn(5, 1, 2, 2).double(), torch.randn(5, 3).double().softmax(1)
    rate = torch.tensor(0.3, dtype=torch.float64)
    found = dynafed._train(model, start, images, labels, rate, [lambda x: x] * 4)
    model.load_state_dict(start)
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(4):
        sgd.zero_grad()
        (-(labels * model(images).log_softmax(1)).mean()).backward()
        sgd.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].detach(), parameter.detach())


def learned(seed: int = 0, iterations: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    model = tiny().float()
    path = [{n: t.float() for n, t in state.items()} for state in path_of(tiny(), 6)]
    config = MatchingConfig(images_per_class=2, iterations=iterations, inner_steps=5, augment=())
    run_spec = RunSpec.of_images((1, 2, 2), num_classes=3, seed=seed)
    return match_trajectory(model, path, config, run_spec)


def test_a_model_that_trains_on_the_images_comes_nearer_to_where_the_path_went() -> None:
    path = [{n: t.float() for n, t in state.items()} for state in path_of(tiny(), 6)]
    model, identity = tiny().float(), [lambda x: x] * 5
    missed = []
    for iterations in (1, 60):
        images, labels = learned(iterations=iterations)
        end = dynafed._train(model, path[1], images, labels, torch.tensor(0.04), identity)
        missed.append(float(dynafed._distance(model, path[1], end, path[3]).detach()))
    assert missed[1] < missed[0]


def test_the_same_seed_learns_the_same_images() -> None:
    (one, labels), (again, _), (other, _) = (learned(seed, 3) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    torch.testing.assert_close(labels.sum(1), torch.ones(6))
