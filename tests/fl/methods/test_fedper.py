"""FedPer against a plain loop, and where it is FedAvg or training alone to the last bit."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fl.errors import UserError
from fl.exchange import load_prefixed, prefixed
from fl.federation import RunSpec
from fl.methods.registry import get_method
from fl.models.layered import Layers
from tests.fl.methods.personal_runs import (
    CLIENTS,
    SPEC,
    averaged,
    close,
    curve,
    memories,
    model_of,
    play,
    same,
    settings,
    sizes,
    start,
    store,
    train,
)
from tests.fl.toy import same_bits


def naive(rounds: int, shared: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The first layers averaged by samples, the others each client's own."""
    first = start(settings("fedper"))
    names = Layers(first).state_names(1, shared)
    common = {n: first.state_dict()[n] for n in names}
    own = [deepcopy(first) for _ in range(CLIENTS)]
    for number in range(1, rounds + 1):
        for k, model in enumerate(own):
            model.load_state_dict({**model.state_dict(), **common})
            train(model, k, number)
        states = [{n: model.state_dict()[n] for n in names} for model in own]
        common = averaged(states, sizes())
    return common, [model.state_dict() for model in own]


def test_three_rounds_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    outcome, clients = play("fedper", settings("fedper"), store=store(tmp_path))
    common, own = naive(3, shared=3)
    assert close(common, model_of(outcome))
    for ours, theirs in zip(memories(clients), own, strict=True):
        assert close({n.removeprefix("classifier."): t for n, t in ours.items()}, theirs)
    untouched = start(settings("fedper")).state_dict()
    heads = Layers(start(settings("fedper"))).state_names(4, 6)
    assert all(torch.equal(model_of(outcome)[n], untouched[n]) for n in heads)


def test_bytes_are_those_of_the_shared_layers() -> None:
    _, clients = play("fedper", settings("fedper"), 3)
    model = start(settings("fedper"))
    front = 4 * sum(p.numel() for p in Layers(model).parameters(model, 1, 3))
    assert clients.bytes_up == dict.fromkeys(range(CLIENTS), 3 * front)
    assert clients.bytes_down == dict.fromkeys(range(CLIENTS), 2 * front)


def test_without_a_private_layer_it_is_fedavg() -> None:
    fedavg, theirs = play("fedavg", settings("fedavg"))
    fedper, ours = play("fedper", settings("fedper", shared_layers=6))
    assert same_bits(model_of(fedper), model_of(fedavg))
    assert curve(fedper) == curve(fedavg)
    assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


def test_with_all_layers_private_it_is_training_alone(tmp_path: Path) -> None:
    alone, theirs = play("local", settings("local"), store=store(tmp_path / "alone"))
    fedper, ours = play("fedper", settings("fedper", shared_layers=0), store=store(tmp_path))
    assert same(memories(ours), memories(theirs))
    assert curve(fedper) == curve(alone)
    assert not any((*ours.bytes_up.values(), *ours.bytes_down.values()))


def test_private_tensors_are_in_no_update(tmp_path: Path) -> None:
    from fl.methods import fedper

    seen: list[set[str]] = []
    real = fedper.average_layers

    def watching(*args: object, **named: object) -> None:
        seen.extend({*update.tensors} for update in args[2])  # type: ignore[attr-defined]
        real(*args, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedper, "average_layers", watching)
        play("fedper", settings("fedper"), 2, store=store(tmp_path))
    names = {f"classifier.{n}" for n in Layers(start(settings("fedper"))).state_names(1, 3)}
    assert seen == [names] * 2 * CLIENTS


def test_a_client_is_scored_by_its_own_head_on_the_newest_layers(tmp_path: Path) -> None:
    outcome, clients = play("fedper", settings("fedper"), store=store(tmp_path))
    assert outcome.model is not None
    common = prefixed("classifier", outcome.model)
    shared = {f"classifier.{n}" for n in Layers(start(settings("fedper"))).state_names(1, 3)}
    from fl.metrics.accuracy import evaluate
    from tests.fl.methods.personal_runs import DATA, partition

    for k, own in enumerate(memories(clients)):
        model = start(settings("fedper"))
        mixed = {**own, **{n: common[n] for n in shared}}
        load_prefixed(model, mixed, "classifier", sender="test")
        rows = partition().test[k]
        images = torch.from_numpy(DATA.train.images[rows]).float() / 255
        labels = torch.from_numpy(DATA.train.labels[rows])
        assert evaluate(model, images, labels, 10).accuracy == curve(outcome)[-1][k]


@pytest.mark.parametrize("number", [-1, 7])
def test_a_layer_that_the_model_has_not_is_refused_with_those_it_has(number: int) -> None:
    with pytest.raises(
        UserError, match=r"shared_layers must be in 0 to 6 \(C1, C2, C3, F1, F2, F3"
    ):
        get_method("fedper").assign(settings("fedper", shared_layers=number), CLIENTS, SPEC)


def test_a_model_without_layers_in_sequence_is_refused() -> None:
    spec = RunSpec(image_shape=(3, 32, 32), num_classes=10, seed=0)
    with pytest.raises(UserError, match="layers follow one another"):
        get_method("fedper").assign(settings("fedper", model="resnet18", width=0.1), 2, spec)
