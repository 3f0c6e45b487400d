"""FedD2S against a plain loop, its invariants, its bytes, and what it does with bad uploads."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.methods.fedd2s import Knowledge, answered, train_distilled
from fl.methods.personal import Dropping, output_shapes
from fl.methods.registry import get_method
from fl.models.layered import Layers
from tests.fl.methods.personal_runs import (
    BATCH,
    CLIENTS,
    LOCAL,
    SPEC,
    averaged,
    batches,
    close,
    memories,
    model_of,
    plain,
    play,
    samples,
    settings,
    sizes,
    start,
)
from tests.fl.toy import same_bits

FAST = Dropping(layers=("C2", "C3", "F1", "F2", "F3"), rate=1)
"""Another distillation layer each round, down to the first."""
MODULES = [(0, 3), (3, 6), (6, 9), (9, 12), (12, 14), (14, 15)]
"""Where M1's layers are in the list of all its modules, with the flattening."""


def modules(model: nn.Module) -> list[nn.Module]:
    assert isinstance(model.features, nn.Sequential)
    assert isinstance(model.classifier, nn.Sequential)
    return [*model.features, nn.Flatten(), *model.classifier]


def part(model: nn.Module, first: int, last: int) -> nn.Sequential:
    """M1's layers from ``first`` to ``last``, counted from 1."""
    if first > last:
        return nn.Sequential()
    return nn.Sequential(*modules(model)[MODULES[first - 1][0] : MODULES[last - 1][1]])


def sgd_of(model: nn.Module) -> optim.SGD:
    return optim.SGD(model.parameters(), lr=LOCAL["lr"], momentum=0.9)


def step(optimizer: optim.SGD, loss: Tensor) -> None:
    """torch leaves alone what has no gradient, its momentum too."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    return F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")


def naive_copy(model: nn.Module, first: Tensor, deep: Tensor, labels: Tensor, l: int) -> nn.Module:  # noqa: E741
    copy = deepcopy(model)
    sgd = sgd_of(copy)
    for _ in range(2):
        for rows in torch.arange(len(labels)).split(BATCH):
            if l > 1:
                teacher = part(copy, l + 1, 6)(deep[rows]).detach()
                step(sgd, kl(teacher, part(copy, 2, 6)(first[rows])))
            step(sgd, F.cross_entropy(part(copy, 2, 6)(first[rows]), labels[rows]))
    return copy


def naive(rounds: int) -> tuple[dict[str, Tensor], list[nn.Module]]:
    """Algorithm 1, everybody in every round, a layer dropped in each."""
    model = start(settings("fedd2s"))
    own = [deepcopy(model) for _ in range(CLIENTS)]
    for number in range(1, rounds + 1):
        l = max(1, 6 - (number - 1))  # noqa: E741
        told = []
        for k, client in enumerate(own):
            images, labels = samples(k)
            with torch.no_grad():
                told.append((part(client, 1, 1)(images), part(client, 1, l)(images), labels))
        states = [naive_copy(model, *own_told, l).state_dict() for own_told in told]
        model.load_state_dict(averaged(states, [1] * CLIENTS))
        for k, client in enumerate(own):
            images, labels = samples(k)
            with torch.no_grad():
                targets = part(model, 2, 6)(told[k][0])
            head = deepcopy(part(model, l + 1, 6)).requires_grad_(False)
            sgd, is_first = sgd_of(client), True
            for rows in batches(k, number):
                if l > 1 or not is_first:
                    step(sgd, kl(targets[rows], head(part(client, 1, l)(images[rows]))))
                is_first = False
                step(sgd, F.cross_entropy(client(images[rows]), labels[rows]))
    return model.state_dict(), own


def test_six_rounds_through_all_layers_are_those_of_a_plain_loop() -> None:
    outcome, clients = play("fedd2s", settings("fedd2s", dropping=FAST), 6)
    model, own = naive(6)
    assert close(model, model_of(outcome), atol=1e-3)
    for ours, theirs in zip(memories(clients), own, strict=True):
        assert close(plain(ours), theirs.state_dict(), atol=1e-3)
    first = start(settings("fedd2s"))
    assert not close(model, first.state_dict(), atol=1e-2)
    frozen = Layers(first).state_names(1, 1)
    assert all(torch.equal(model_of(outcome)[n], first.state_dict()[n]) for n in frozen)


@pytest.mark.parametrize("depth", [1, 4])
def test_bytes_are_the_closed_form(depth: int) -> None:
    """Up n (4|H_1| + 4|H_l| [l > 1] + 8), down 4nC + 4 sum_(j > l) |theta_j|, in every round."""
    config = settings("fedd2s", fixed_layer=depth)
    _, clients = play("fedd2s", config, 2)
    model, layers = start(config), Layers(start(config))
    outputs = [
        int(torch.Size(shape).numel()) for shape in output_shapes(model, layers, SPEC.inputs)
    ]
    head = sum(p.numel() for p in layers.parameters(model, depth + 1, 6))
    for k, n in enumerate(sizes()):
        deep = outputs[depth - 1] if depth > 1 else 0
        assert clients.bytes_up[k] == 2 * n * (4 * outputs[0] + 4 * deep + 8)
        assert clients.bytes_down[k] == 2 * (4 * n * 10 + 4 * head)


def test_bytes_on_cifar10_are_the_papers() -> None:
    """6.29 MiB a client and round at l = 6, 9.38 at l = 2, 71 to 106 times FedAvg's."""
    from fl.federation import RunSpec
    from fl.training.classifier import starting_classifier

    spec = RunSpec.of_images((3, 32, 32), num_classes=10, seed=0)
    model = starting_classifier(get_method("fedd2s").config().classifier, spec)
    layers = Layers(model)
    outputs = [torch.Size(s).numel() for s in output_shapes(model, layers, spec.inputs)]
    assert outputs == [2048, 1024, 512, 32, 16, 10]
    up = [800 * (4 * outputs[0] + 4 * outputs[depth - 1] + 8) for depth in (6, 2)]
    assert [round(b / 2**20, 2) for b in up] == [6.29, 9.38]
    fedavg = 4 * sum(p.numel() for p in model.parameters())
    assert [round(b / fedavg) for b in up] == [71, 106]


def knowledge(model: nn.Module, depth: int, k: int = 0) -> Knowledge:
    images, labels = samples(k)
    layers = Layers(model)
    with torch.no_grad():
        first = layers.forward(model, images, 1, 1)
        return Knowledge(depth, first, layers.forward(model, first, 2, depth), labels)


def test_with_nothing_dropped_no_head_goes_down() -> None:
    config = settings("fedd2s")
    model = start(config)
    assert answered(model, Layers(model), knowledge(model, 6), config).keys() == {"targets"}
    shallow = answered(model, Layers(model), knowledge(model, 4), config)
    head = {"classifier.classifier.2", "classifier.classifier.4"}
    assert {n.rpartition(".")[0] for n in shallow.keys() - {"targets"}} == head


def only_distance(depth: int, **changes: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A client's weights before and after training on the distance alone."""
    config = settings("fedd2s", optimizer="adam", **changes)
    from dataclasses import replace

    from fl.data.shard import Shard
    from fl.methods import fedd2s
    from tests.fl.toy import task_input

    model = start(config)
    images, labels = samples(0)
    other = start(settings("fedd2s"))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.3)
    payload = answered(other, Layers(other), knowledge(model, depth), config)
    inputs = task_input(config.classifier, Shard(images, labels, 10), run_spec=SPEC)
    inputs = replace(inputs, payload=payload, broadcast={"depth": torch.tensor([depth])})
    with pytest.MonkeyPatch.context() as patch:
        nothing = torch.zeros((), requires_grad=True)
        patch.setattr(fedd2s.F, "cross_entropy", lambda *args: nothing * 1)
        patch.setattr(fedd2s, "Parts", OnlyFirst)
        after = train_distilled(inputs).tensors
    return model.state_dict(), {n.removeprefix("classifier."): t for n, t in after.items()}


class OnlyFirst:
    """Steps of one part alone are taken; those of all parts, which are cross-entropy's, are not."""

    def __init__(self, settings: Any, parts: Any) -> None:
        from fl.training.optimizers import Parts

        self._parts = Parts(settings, parts)

    def step(self, clients: Any) -> None:
        if tuple(clients) == (0,):
            self._parts.step(clients)


@pytest.mark.parametrize(("depth", "distance"), [(2, "kl"), (4, "mse")])
def test_the_step_on_the_distance_leaves_later_layers_to_the_bit(depth: int, distance: str) -> None:
    before, after = only_distance(depth, distance=distance)
    layers = Layers(start(settings("fedd2s")))
    assert all(torch.equal(before[n], after[n]) for n in layers.state_names(depth + 1, 6))
    moved = layers.state_names(1, depth)
    assert all(not torch.equal(before[n], after[n]) for n in moved if "weight" in n)


def test_features_brought_together_in_place_of_soft_labels() -> None:
    """Table 3's ablation: another result, and the output of the layer goes down, not the head."""
    config = settings("fedd2s", distance="mse", fixed_layer=4)
    other, clients = play("fedd2s", config, 2)
    ours, _ = play("fedd2s", settings("fedd2s", fixed_layer=4), 2)
    assert not same_bits(model_of(other), model_of(ours))
    units = output_shapes(start(config), Layers(start(config)), SPEC.inputs)[3][0]
    assert clients.bytes_down == {k: 2 * 4 * n * units for k, n in enumerate(sizes())}


@pytest.mark.parametrize("number", [0, 7])
def test_a_layer_that_the_model_has_not_is_refused_with_those_it_has(number: int) -> None:
    config = settings("fedd2s", fixed_layer=number)
    with pytest.raises(UserError, match=r"fixed_layer must be in 1 to 6 \(C1, C2, C3, F1, F2, F3"):
        get_method("fedd2s").assign(config, CLIENTS, SPEC)
