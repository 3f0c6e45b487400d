"""The training loop against plain gradient descent."""

from collections.abc import Iterator

import torch

from fl.training.optimizers import SGD
from fl.training.recipe import Step, minimise


def test_each_loss_is_computed_with_the_weights_that_the_step_before_left() -> None:
    weight = torch.tensor([4.0], requires_grad=True)
    seen = []

    def steps() -> Iterator[Step]:
        for _ in range(3):
            seen.append(weight.item())
            yield Step(weight.square().sum())

    minimise(steps(), [[weight]], SGD(0.25).for_cohort([[weight]]))
    assert seen == [4.0, 2.0, 1.0]
    assert weight.item() == 0.5


def test_only_the_named_clients_move_and_no_gradient_is_left_from_the_step_before() -> None:
    weights = [torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)]
    parameters = [[weight] for weight in weights]
    steps = (Step((weights[k] * 1.0).sum(), [k]) for k in (0, 0, 1))
    minimise(steps, parameters, SGD(0.25).for_cohort(parameters))
    assert [weight.item() for weight in weights] == [0.5, 0.75]


def test_gradients_can_be_adjusted_before_the_step() -> None:
    weight = torch.zeros(1, requires_grad=True)

    def halve() -> None:
        assert weight.grad is not None
        weight.grad /= 2

    minimise([Step((3 * weight).sum())], [[weight]], SGD(1.0).for_cohort([[weight]]), halve)
    assert weight.item() == -1.5


def test_a_loss_of_no_parameter_leaves_gradients_to_the_adjustment() -> None:
    """A rank without a sample of its own still takes the step that all take."""
    weight = torch.zeros(1, requires_grad=True)

    def from_the_others() -> None:
        assert weight.grad is None
        weight.grad = torch.ones(1)

    steps = [Step(torch.zeros(()))]
    minimise(steps, [[weight]], SGD(0.5).for_cohort([[weight]]), from_the_others)
    assert weight.item() == -0.5
