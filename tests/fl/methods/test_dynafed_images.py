"""Images learned from a path: the gradient is the true one, and they lead along the path."""

import torch
from torch import nn

from fl.federation import RunSpec
from fl.methods import dynafed
from fl.methods.dynafed import MatchingConfig, match_trajectory


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
