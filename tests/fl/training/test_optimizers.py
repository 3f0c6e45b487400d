"""SGD, Adam and FedProx's pull for a cohort, against torch.optim for each client alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from fl.training.optimizers import SGD, Adam, Corrected, Paced, Proximal

Parameters = list[nn.Parameter]
STEPS = (5, 2, 5, 3)
"""Of each client: who has taken all of them is not named again."""
KINDS = pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1), lambda p: optim.SGD(p, lr=0.1)),
        (SGD(0.1, momentum=0.9), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)),
        (
            SGD(0.1, momentum=0.5, weight_decay=0.2),
            lambda p: optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.2),
        ),
        (Adam(0.01), lambda p: optim.Adam(p, lr=0.01)),
        (Adam(0.01, betas=(0.5, 0.9)), lambda p: optim.Adam(p, lr=0.01, betas=(0.5, 0.9))),
        (
            Adam(0.01, weight_decay=0.2, decoupled=True),
            lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.2),
        ),
    ],
    ids=["sgd", "momentum", "decay", "adam", "betas", "adamw"],
)


def client(k: int) -> Parameters:
    stream = torch.Generator().manual_seed(k)
    return [nn.Parameter(torch.randn(shape, generator=stream)) for shape in ((3, 2), (4,))]


def give_gradients(parameters: Parameters, step: int) -> None:
    """Gradients that depend on the weights, so that an error grows."""
    for p in parameters:
        p.grad = p.detach().square() - step / 3


def flat(parameters: Parameters) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def step_all(optimizer: Any, cohort: list[Parameters], first: int = 0, last: int = 5) -> None:
    for step in range(first, last):
        still = [k for k, steps in enumerate(STEPS) if step < steps]
        for k in still:
            give_gradients(cohort[k], step)
        optimizer.step(still)


@KINDS
def test_each_client_of_a_cohort_steps_as_torch_lets_it_step_alone(
    ours: SGD | Adam, theirs: Callable[[Parameters], optim.Optimizer]
) -> None:
    cohort = [client(k) for k in range(len(STEPS))]
    step_all(ours.for_cohort(cohort), cohort)
    for k, steps in enumerate(STEPS):
        alone = client(k)
        optimizer = theirs(alone)
        for step in range(steps):
            give_gradients(alone, step)
            optimizer.step()
        torch.testing.assert_close(flat(cohort[k]), flat(alone), rtol=1e-5, atol=1e-6)


@KINDS
def test_a_rate_that_is_changed_counts_from_the_next_step_on(
    ours: SGD | Adam, theirs: Callable[[Parameters], optim.Optimizer]
) -> None:
    own, alone = client(0), client(0)
    optimizer, expected = ours.for_cohort([own]), theirs(alone)
    for step, rate in enumerate((0.1, 0.02, 0.3)):
        optimizer.lr = expected.param_groups[0]["lr"] = rate
        for parameters in (own, alone):
            give_gradients(parameters, step)
        optimizer.step([0])
        expected.step()
    torch.testing.assert_close(flat(own), flat(alone), rtol=1e-5, atol=1e-6)


@KINDS
def test_a_state_goes_on_where_it_was_taken(
    ours: SGD | Adam, theirs: Callable[[Parameters], optim.Optimizer]
) -> None:
    whole, parts = ([client(k) for k in range(len(STEPS))] for _ in range(2))
    step_all(ours.for_cohort(whole), whole)
    first, second = (ours.for_cohort(parts) for _ in range(2))
    step_all(first, parts, last=3)
    second.load_state({name: [t.clone() for t in own] for name, own in first.state().items()})
    step_all(second, parts, first=3)
    for own, other in zip(whole, parts, strict=True):
        assert torch.equal(flat(own), flat(other))


def test_a_state_of_other_shapes_is_refused() -> None:
    one, other = Adam(0.1).for_cohort([client(0)]), Adam(0.1).for_cohort([client(0), client(1)])
    with pytest.raises(ValueError, match="zip"):
        one.load_state(other.state())


@pytest.mark.parametrize("inner", [SGD(0.1, momentum=0.5), Adam(0.01)], ids=["sgd", "adam"])
def test_the_proximal_term_pulls_each_client_back_to_where_it_started(inner: SGD | Adam) -> None:
    """As torch does with mu/2 |w - w_0|^2 in the loss."""
    cohort, mu = [client(k) for k in range(len(STEPS))], 0.7
    step_all(Proximal(inner, mu).for_cohort(cohort), cohort)
    for k, steps in enumerate(STEPS):
        alone, starts = client(k), [p.detach().clone() for p in client(k)]
        if isinstance(inner, SGD):
            optimizer: optim.Optimizer = optim.SGD(alone, lr=0.1, momentum=0.5)
        else:
            optimizer = optim.Adam(alone, lr=0.01)
        for step in range(steps):
            give_gradients(alone, step)
            pull = sum((p - w).square().sum() for p, w in zip(alone, starts, strict=True))
            (mu / 2 * pull).backward()  # adds to the gradients
            optimizer.step()
        torch.testing.assert_close(flat(cohort[k]), flat(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [SGD(0.1), SGD(0.1, momentum=0.9), Adam(0.01), Proximal(SGD(0.1), mu=0.5)],
    ids=["sgd", "momentum", "adam", "proximal"],
)
def test_a_parameter_that_no_loss_reaches_stays_where_it_is(
    settings: SGD | Adam | Proximal,
) -> None:
    """A frozen layer's, or that of a head that is not used; the others step as ever."""
    cohort, twins = [client(0), client(1)], [client(0), client(1)]
    whole, part = settings.for_cohort(twins), settings.for_cohort(cohort)
    for step in range(3):
        for own, twin in zip(cohort, twins, strict=True):
            give_gradients(own, step)
            give_gradients(twin, step)
            own[0].grad = None
        whole.step([0, 1])
        part.step([0, 1])
    for k, (own, twin) in enumerate(zip(cohort, twins, strict=True)):
        assert torch.equal(own[0], client(k)[0])
        assert torch.equal(own[1], twin[1])


def test_a_layer_that_a_step_leaves_out_is_pulled_and_corrected_in_it_too() -> None:
    """As in stochastic depth: then the loss has no gradient for it, but FedProx's term has."""
    pulled, corrected, w = client(0), client(0), client(0)[0]
    pull = Proximal(SGD(0.1), mu=0.5).for_cohort([pulled])
    correct = Corrected(SGD(0.1)).for_cohort([corrected], [[torch.ones(3, 2), torch.ones(4)]])
    for step, left_out in enumerate((False, True, True)):
        for own in (pulled, corrected):
            give_gradients(own, step)
            if left_out:
                own[0].grad = None
        pull.step([0])
        correct.step([0])
    start, first = w.detach(), 0.1 * w.detach().square()
    torch.testing.assert_close(pulled[0].detach(), start - 0.95**2 * first)
    torch.testing.assert_close(corrected[0].detach(), start - first - 0.3)


T = 12
SCHEDULES = {
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, T),
    "step": lambda o: optim.lr_scheduler.MultiStepLR(o, [T // 2, 3 * T // 4]),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_schedule_and_a_largest_norm_are_torchs(schedule: Any, max_norm: float | None) -> None:
    ours, theirs = client(0), client(0)
    own = Paced(SGD(0.1, momentum=0.9), T, schedule, max_norm=max_norm).for_cohort([ours])
    other = optim.SGD(theirs, lr=0.1, momentum=0.9)
    paces = SCHEDULES[schedule](other)
    for step in range(T):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        if max_norm:
            nn.utils.clip_grad_norm_(theirs, max_norm)
        own.step((0,))
        other.step()
        paces.step()
        torch.testing.assert_close(flat(ours), flat(theirs))


def test_a_warm_up_rises_to_the_rate_and_the_schedule_is_over_the_rest() -> None:
    pace = Paced(SGD(0.1), 20, "cosine", warmup=0.2)
    assert [pace.factor(t) for t in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert pace.factor(4) == 1.0
    assert pace.factor(12) == pytest.approx(0.5)
    assert pace.factor(20) == 0.0
