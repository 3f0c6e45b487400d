"""FedRep against a plain loop: head first, then the shared layers, each on the frozen other."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fl.errors import UserError
from fl.models.layered import Layers
from fl.training.task import conflict, recipe_of
from tests.fl.methods.personal_runs import (
    CLIENTS,
    averaged,
    close,
    curve,
    memories,
    model_of,
    play,
    settings,
    sizes,
    start,
    store,
    train,
)
from tests.fl.toy import PROBLEM, same_bits, shard, task_input


def naive(rounds: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    first = start(settings("fedrep"))
    layers = Layers(first)
    names = layers.state_names(1, 3)
    common = {n: first.state_dict()[n] for n in names}
    own = [deepcopy(first) for _ in range(CLIENTS)]
    for number in range(1, rounds + 1):
        for k, model in enumerate(own):
            model.load_state_dict({**model.state_dict(), **common})
            head, shared = layers.parameters(model, 4, 6), layers.parameters(model, 1, 3)
            train(model, k, number, only=head, epochs=1)
            train(model, k, number, only=shared, epochs=1, purpose="local/order/shared")
        states = [{n: model.state_dict()[n] for n in names} for model in own]
        common = averaged(states, sizes())
    return common, [model.state_dict() for model in own]


def test_three_rounds_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    outcome, clients = play("fedrep", settings("fedrep"), store=store(tmp_path))
    common, own = naive(3)
    assert close(common, model_of(outcome))
    for ours, theirs in zip(memories(clients), own, strict=True):
        assert close({n.removeprefix("classifier."): t for n, t in ours.items()}, theirs)


def test_with_an_empty_head_all_epochs_train_the_layers_and_it_is_fedavg() -> None:
    fedavg, _ = play("fedavg", settings("fedavg"))
    fedrep, _ = play("fedrep", settings("fedrep", shared_layers=6))
    assert same_bits(model_of(fedrep), model_of(fedavg))
    assert curve(fedrep) == curve(fedavg)


def test_the_head_stays_in_the_second_stage_and_the_layers_in_the_first() -> None:
    config = settings("fedrep").classifier
    recipe = recipe_of(config.task)
    assert recipe is not None
    inputs = task_input(config, shard(5, 5, 5))
    layers = Layers(start_of(config))
    front = layers.state_names(1, 3)
    state = start_of(config).state_dict()
    from dataclasses import replace

    inputs = replace(inputs, broadcast={f"classifier.{n}": state[n] for n in front})
    first = recipe(inputs)
    assert first.trained is not None
    assert {id(p) for p in first.trained} == {id(p) for p in layers.parameters(first.model, 4, 6)}
    first.freeze_others()
    assert [p.requires_grad for p in layers.parameters(first.model, 1, 3)] == [False] * 6
    assert first.then is not None
    second = first.then()
    second.freeze_others()
    assert [p.requires_grad for p in layers.parameters(first.model, 1, 3)] == [True] * 6
    assert [p.requires_grad for p in layers.parameters(first.model, 4, 6)] == [False] * 6
    assert conflict(recipe, inputs) is None


def start_of(config: object) -> torch.nn.Module:
    from fl.training.classifier import starting_classifier

    return starting_classifier(config, PROBLEM)  # type: ignore[arg-type]


def test_a_head_that_takes_all_epochs_is_refused() -> None:
    with pytest.raises(UserError, match="head_epochs must be below epochs"):
        settings("fedrep", epochs=2, head_epochs=2)


def test_a_step_is_measured_whatever_the_heads_epochs() -> None:
    local = settings("fedrep", epochs=5, head_epochs=3).classifier
    training, samples = local.probe(2, 10)
    assert (training.stages, samples) == ((1, 1), 2 * local.batch_size)
