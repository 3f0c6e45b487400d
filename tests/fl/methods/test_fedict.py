"""FedICT against a plain loop over clients and the server's head, and what it sends."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.methods.registry import get_method
from tests.fl.methods.personal_runs import (
    BATCH,
    CLIENTS,
    LOCAL,
    SPEC,
    alone,
    close,
    curve,
    memories,
    model_of,
    play,
    remembered,
    same,
    samples,
    settings,
    sizes,
    start,
    train,
)

TAU, T, U = 3.0, 3.0, 7.0


def weighted_kl(teacher: Tensor, student: Tensor, weights: Tensor) -> Tensor:
    """tau^2 times the mean over samples of sum_c w_c t_c log(t_c / s_c)."""
    t, s = (teacher / TAU).softmax(1), (student / TAU).softmax(1)
    return TAU**2 * (weights * t * (t / s).log()).sum(1).mean()


@pytest.mark.parametrize("alignment", ["similarity", "balance"])
def test_three_rounds_are_those_of_a_plain_loop(alignment: str) -> None:
    """Up n (4d + 4C + 8) bytes a round, 8C once; down 4nC from the second participation on."""
    config = settings("fedict", alignment=alignment)
    outcome, clients = play("fedict", config)
    own = [start(config) for _ in range(CLIENTS)]
    shared = start(config)
    answers: dict[int, Tensor] = {}
    counts = torch.stack([torch.bincount(samples(k)[1], minlength=10) for k in range(CLIENTS)])
    local, overall = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    for number in (1, 2, 3):
        for k, model in enumerate(own):
            told, shares = answers.get(k), 1 + local[k] / T

            def further(_: nn.Module, logits: Tensor, rows: Tensor) -> Tensor:
                if told is None:  # noqa: B023
                    return torch.zeros(())
                return 1.5 * weighted_kl(told[rows], logits, shares)  # noqa: B023

            train(model, k, number, further=further)
        sgd = optim.SGD(shared.classifier.parameters(), lr=LOCAL["lr"], momentum=0.9)
        for _ in range(2):
            for k, model in enumerate(own):
                images, labels = samples(k)
                with torch.no_grad():
                    features, teacher = model.features(images).flatten(1), model(images)
                if alignment == "similarity":
                    weights = 1 + F.cosine_similarity(overall, local[k], dim=0).expand(10)
                else:
                    weights = 1 + (overall - local[k]) / U
                for rows in torch.arange(len(labels)).split(BATCH):
                    logits = shared.classifier(features[rows])
                    loss = weighted_kl(teacher[rows], logits, weights)
                    loss = loss + 1.5 * F.cross_entropy(logits, labels[rows])
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
        with torch.no_grad():
            for k, model in enumerate(own):
                answers[k] = shared.classifier(model.features(samples(k)[0]).flatten(1))
    assert close(shared.state_dict(), model_of(outcome), atol=2e-4)
    assert remembered(clients, own, atol=2e-4)
    features = shared.classifier[0].in_features
    for k, n in enumerate(sizes()):
        assert clients.bytes_up[k] == 3 * n * (4 * features + 4 * 10 + 8) + 8 * 10
        assert clients.bytes_down[k] == 2 * 4 * n * 10


def test_with_both_weights_zero_it_is_training_alone() -> None:
    outcome, ours = play("fedict", settings("fedict", weight=0.0, server_weight=0.0))
    expected, theirs = alone()
    assert same(memories(ours), memories(theirs))
    assert curve(outcome) == curve(expected)


@pytest.mark.parametrize("number", [0, 6, 7])
def test_features_need_a_layer_before_and_one_after(number: int) -> None:
    with pytest.raises(UserError, match=r"shared_layers must be in .*C1, C2, C3, F1, F2, F3"):
        get_method("fedict").assign(settings("fedict", shared_layers=number), CLIENTS, SPEC)
