"""Who trains which classifier, what is averaged with what, and one-shot FedAvg."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.errors import ClientFailed, UserError
from fl.federation import RunSpec, Update
from fl.fusion.server import Server
from fl.methods import fedmho
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedmho import FedMHOConfig
from fl.methods.prototypes import PrototypesConfig, all_classifiers, assign, by_prototype
from fl.methods.registry import get_method
from fl.methods.uploads import load_classifier
from fl.models.ensemble import Ensemble
from fl.rounds import Rounds
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.tiny import tiny_federation

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
TINY_TWO = FedAvgConfig(classifier=ClassifierConfig(width=0.05, epochs=1), small_width=0.5)


def averages(updates: Sequence[Update], server: Server) -> Ensemble:
    """Each prototype's plain mean, weight by weight."""
    means = []
    for group in by_prototype(updates):
        models = [load_classifier(update, server) for update in group]
        mean = copy.deepcopy(models[0]).requires_grad_()
        with torch.no_grad():
            for name, parameter in mean.named_parameters():
                parameter.copy_(sum(m.get_parameter(name) for m in models) / len(models))
        means.append(mean)
    return Ensemble(means).eval()


def test_half_the_clients_are_large_as_in_table_1() -> None:
    parts = assign(PrototypesConfig(), 10, PROBLEM)
    assert [p.training.model for p in parts] == ["vgg9"] * 5 + ["cnn"] * 5
    assert {p.role for p in parts} == {"classifier"}


def test_one_model_for_all_has_one_width_unless_another_is_asked_for() -> None:
    one = PrototypesConfig(classifier=ClassifierConfig(model="cnn"))
    assert {p.training for p in assign(one, 10, PROBLEM)} == {one.classifier}
    for split in (replace(one, num_large=5), replace(one, small_width=0.5)):
        assert len({p.training for p in assign(split, 10, PROBLEM)}) == 2


def test_all_can_be_large_as_in_table_8() -> None:
    parts = assign(PrototypesConfig(num_large=10), 10, PROBLEM)
    assert {p.training.model for p in parts} == {"vgg9"}


def test_several_prototypes_are_dealt_in_turn_as_in_table_9() -> None:
    config = PrototypesConfig(num_large=8, prototypes=("vgg9", "cnn"), small_width=0.5)
    parts = assign(config, 10, PROBLEM)
    assert [p.training.model for p in parts[:8]] == ["vgg9", "cnn"] * 4
    assert {(p.training.model, p.training.width) for p in parts[8:]} == {("cnn", 0.5)}


def test_large_clients_train_exactly_as_fedmhos_classifier_clients() -> None:
    """So FedMHO and the baselines share those uploads too."""
    own = ClassifierConfig(epochs=3, lr=0.1)
    baseline = assign(PrototypesConfig(classifier=own), 10, PROBLEM)
    assert baseline[:5] == fedmho.assign(FedMHOConfig(classifier=own), 10, PROBLEM)[:5]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PrototypesConfig(num_large=0), "num_large must be in 1 to 4"),
        (PrototypesConfig(num_large=5), "num_large must be in 1 to 4"),
        (PrototypesConfig(prototypes=("cnn", "vgg9"), num_large=1), "as many large clients"),
    ],
)
def test_impossible_casts_are_refused(config: PrototypesConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        assign(config, 4, PROBLEM)


def test_models_of_one_architecture_but_another_width_are_not_averaged() -> None:
    config = replace(TINY_TWO, classifier=replace(TINY_TWO.classifier, model="cnn", width=0.2))
    clients, _ = tiny_federation(config, assign=assign, num_clients=4)
    assert [len(group) for group in by_prototype(clients.train())] == [2, 2]


def test_fedavg_is_the_vote_of_the_averages_and_trains_nothing() -> None:
    clients, server = tiny_federation(TINY_TWO, assign=assign, num_clients=4)
    outcome = get_method("fedavg").run(clients, server, TINY_TWO, rounds=Rounds(1))
    twin = averages(clients.train(), server)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(outcome.model.state_dict()[name], tensor)
    assert [e.accuracy for e in outcome.epochs] == [server.evaluate(twin).accuracy]
    assert server.fits == {}


def test_a_prototype_that_lost_all_its_clients_stops_the_run() -> None:
    clients, server = tiny_federation(TINY_TWO, assign=assign, num_clients=4)
    clients.dropped.update({2: "out of memory", 3: "out of power"})
    with pytest.raises(
        ClientFailed, match=r"client 3 \(cnn\).*out of power; no client with its mo"
    ):
        get_method("fedavg").run(clients, server, TINY_TWO, rounds=Rounds(1))
    del clients.dropped[2]
    get_method("fedavg").run(clients, server, TINY_TWO, rounds=Rounds(1))


def test_the_teacher_is_frozen_and_in_eval_mode() -> None:
    clients, server = tiny_federation(TINY_TWO, assign=assign, num_clients=4)
    teacher = all_classifiers(clients.train(), server)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not any(m.training for m in teacher.modules())
    assert len(teacher.members) == 4


class Constant(nn.Module):
    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor([logits])

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(len(images), -1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_ensemble_answers_in_its_members_numbers(dtype: torch.dtype) -> None:
    members = [nn.Linear(3, 2, dtype=dtype) for _ in range(2)]
    x = torch.rand(4, 3, dtype=dtype)
    found = Ensemble(members)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, (members[0](x) + members[1](x)) / 2)


def test_an_ensembles_weights_need_not_sum_to_one() -> None:
    ensemble = Ensemble([Constant([1.0, 0.0]), Constant([0.0, 4.0])])
    x = torch.zeros(3, 1)
    torch.testing.assert_close(ensemble(x), torch.tensor([[0.5, 2.0]]).expand(3, 2))
    ensemble.weights.copy_(torch.tensor([0.6, 0.2]))
    torch.testing.assert_close(ensemble(x), torch.tensor([[0.75, 1.0]]).expand(3, 2))


@pytest.mark.parametrize(
    ("config", "least", "most"),
    [
        (FedAvgConfig(aggregate="krum"), 5, 5),
        (FedAvgConfig(aggregate="median", num_large=2), 3, 2),
        (FedAvgConfig(aggregate="krum", num_large=10, participation=0.4), 5, 4),
        (FedAvgConfig(aggregate="median", participation=0.7), 3, 2),
    ],
)
def test_a_rule_needs_enough_clients_of_each_prototype_in_a_round(
    config: FedAvgConfig, least: int, most: int
) -> None:
    if most >= least:
        assert len(assign(config, 10, PROBLEM)) == 10
        return
    message = f"needs at least {least} clients of one architecture in a round, got {most}$"
    with pytest.raises(UserError, match=message):
        assign(config, 10, PROBLEM)


def test_weights_by_samples_need_a_rule_that_has_them() -> None:
    assert FedAvgConfig(weighting="samples", aggregate="norm-clip").by_samples(1)
    with pytest.raises(UserError, match="weighting must be uniform: aggregate median"):
        FedAvgConfig(weighting="samples", aggregate="median")
