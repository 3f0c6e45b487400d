"""FedBN against a plain loop, what travels and what only the test needs, and whose BatchNorm."""

from functools import cache
from pathlib import Path
from statistics import mean

import pytest
from torch import Tensor, nn

from fl.errors import UserError
from fl.events import Event
from fl.federation import RunSpec
from fl.methods.registry import get_method
from fl.models.common import norm_names, state_sent
from fl.models.registry import build_classifier
from fl.scoring import mean_of, own_evaluation
from fl.server import Evaluation
from tests.fl.methods.averaged import (
    CLIENTS,
    SMALL,
    averaged,
    close,
    federation,
    play,
    reused,
    same_model,
    settings,
    start,
    store,
    train,
    weights,
)
from tests.fl.toy import PROBLEM


def is_norm(name: str) -> bool:
    """ConvNet's BatchNorm layers."""
    return name.split(".")[1] in ("1", "5", "9") and name.startswith("features")


@cache
def naive(rounds: int) -> tuple[dict[str, Tensor], list[nn.Module]]:
    """The average after some rounds, and each client's model before the next one."""
    own = [start(SMALL) for _ in range(CLIENTS)]
    mean_state: dict[str, Tensor] = {}
    for number in range(1, rounds + 1):
        states = [train(own[k], k, number).state_dict() for k in range(CLIENTS)]
        mean_state = averaged(states, weights())
        for model in own:
            state = model.state_dict()
            model.load_state_dict(
                {n: state[n] if is_norm(n) else mean_state[n].float() for n in state}
            )
    return mean_state, own


def test_two_rounds_are_those_of_the_plain_loop() -> None:
    outcome, _ = play("fedbn", settings("fedbn", SMALL))
    expected, _ = naive(2)
    # Rounding grows quickly through BatchNorm; FedAvg is much farther off.
    assert close(outcome, expected, atol=3e-3)
    assert not close(play("fedavg", settings("fedavg", SMALL))[0], expected, atol=1e-2)


def test_a_model_without_batchnorm_is_refused() -> None:
    with pytest.raises(UserError, match=r"but cnn has none: use a model .* or fedavg"):
        get_method("fedbn").assign(settings("fedbn"), CLIENTS, PROBLEM)


def test_batchnorm_does_not_travel_but_for_the_test(tmp_path: Path) -> None:
    play("fedavg", settings("fedavg", SMALL), 1, store=store(tmp_path, "fedavg"))
    heard: list[Event] = []
    where = {"store": store(tmp_path, "fedbn"), "listener": heard.append}
    outcome, clients = play("fedbn", settings("fedbn", SMALL), 3, **where)
    assert reused(heard)[:CLIENTS] == [True] * CLIENTS  # FedAvg's first round
    sizes = {n: t.numel() * t.element_size() for n, t in state_sent(start(SMALL)).items()}
    norms = sum(size for name, size in sizes.items() if is_norm(name))
    rest = sum(sizes.values()) - norms
    assert clients.bytes_up == dict.fromkeys(range(CLIENTS), 3 * rest)
    assert clients.bytes_down == dict.fromkeys(range(CLIENTS), 2 * rest)
    assert outcome.figures["bytes_for_test"] == CLIENTS * 3 * norms


def test_batchnorm_is_found_by_its_type() -> None:
    for model in ("convnet", "resnet18"):
        net = build_classifier(model, (1, 28, 28), 10, width=0.05)
        found = norm_names(net)
        without = {n for n in state_sent(net) if n not in found}
        assert found
        assert not any("running" in name or "tracked" in name for name in without)
        dimensions = {net.state_dict()[n].dim() for n in found}
        assert dimensions <= {0, 1}


def test_each_clients_own_batchnorm_can_be_tested() -> None:
    config = settings("fedbn", SMALL, tested="personal")
    outcome, _ = play("fedbn", config)
    _, own = naive(2)
    _, server = federation("fedbn", config)
    expected = mean_of([server.evaluate(model.eval()) for model in own])
    assert outcome.epochs[-1].accuracy == pytest.approx(expected.accuracy, abs=0.03)
    accuracies = outcome.figures["client_accuracy"]
    assert accuracies == pytest.approx([server.evaluate(m).accuracy for m in own], abs=0.05)
    assert mean(accuracies) == pytest.approx(outcome.epochs[-1].accuracy)
    average, _ = play("fedbn", settings("fedbn", SMALL))
    assert same_model(outcome, average)  # only the test differs
    assert outcome.epochs != average.epochs


def test_the_mean_is_over_those_that_have_the_figure() -> None:
    one = Evaluation(accuracy=0.5, per_class=(0.5, None, None), per_domain=())
    two = Evaluation(accuracy=0.7, per_class=(0.7, 0.2, None), per_domain=())
    expected = Evaluation(accuracy=mean((0.5, 0.7)), per_class=(mean((0.5, 0.7)), 0.2, None))
    assert mean_of([one, two]) == expected


def test_each_domain_is_tested_by_its_own_client_and_a_dropped_one_is_left_out() -> None:
    found = {
        k: Evaluation(
            accuracy=0.9,
            per_class=(0.5,) * 10,
            per_domain=tuple(0.1 * k + 0.01 * d for d in range(CLIENTS)),
        )
        for k in range(CLIENTS)
    }
    everyone = own_evaluation(found, CLIENTS, "domain")
    assert everyone.per_domain == pytest.approx((0, 0.11, 0.22, 0.33))
    assert everyone.accuracy == pytest.approx(0.165)
    del found[1]
    left = own_evaluation(found, CLIENTS, "domain")
    assert left.per_domain[1] is None
    assert left.accuracy == pytest.approx((0 + 0.22 + 0.33) / 3)
    assert own_evaluation(found, CLIENTS, "personal").per_client == (0.9, None, 0.9, 0.9)


def test_a_domain_needs_a_client_of_its_own() -> None:
    config = settings("fedbn", SMALL, tested="domain")
    run_spec = RunSpec.of_images((1, 8, 8), num_classes=10, seed=0, domains=("a", "b"))
    with pytest.raises(UserError, match=r"tested=domain needs a client for each domain, got 4 cli"):
        get_method("fedbn").assign(config, CLIENTS, run_spec)
