"""FedD2S against a plain loop, its bytes, and layers that it cannot drop."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.methods.fedd2s import LocalFedD2S
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
    model_of,
    play,
    remembered,
    samples,
    settings,
    sizes,
    start,
)

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


def apart(distance: str, wanted: Tensor, found: Tensor, head: nn.Module) -> Tensor:
    """Of two outputs of the distillation layer: by way of the head's soft labels, or by itself."""
    return F.mse_loss(found, wanted) if distance == "mse" else kl(wanted, head(found))


def naive_copy(
    model: nn.Module, first: Tensor, deep: Tensor, labels: Tensor, depth: int, distance: str
) -> nn.Module:
    copy = deepcopy(model)
    sgd = sgd_of(copy)
    for _ in range(2):
        for rows in torch.arange(len(labels)).split(BATCH):
            if depth > 1:
                head = part(copy, depth + 1, 6)
                wanted = deep[rows] if distance == "mse" else head(deep[rows]).detach()
                step(sgd, apart(distance, wanted, part(copy, 2, depth)(first[rows]), head))
            step(sgd, F.cross_entropy(part(copy, 2, 6)(first[rows]), labels[rows]))
    return copy


def naive(rounds: int, distance: str) -> tuple[dict[str, Tensor], list[nn.Module]]:
    """Algorithm 1, everybody in every round, a layer dropped in each."""
    model = start(settings("fedd2s"))
    own = [deepcopy(model) for _ in range(CLIENTS)]
    for number in range(1, rounds + 1):
        depth = max(1, 6 - (number - 1))
        told = []
        for k, client in enumerate(own):
            images, labels = samples(k)
            with torch.no_grad():
                told.append((part(client, 1, 1)(images), part(client, 1, depth)(images), labels))
        copies = [naive_copy(model, *own_sent, depth, distance) for own_sent in told]
        model.load_state_dict(averaged([copy.state_dict() for copy in copies], [1] * CLIENTS))
        for k, client in enumerate(own):
            images, labels = samples(k)
            with torch.no_grad():
                targets = part(model, 2, depth if distance == "mse" else 6)(told[k][0])
            head = deepcopy(part(model, depth + 1, 6)).requires_grad_(False)
            sgd, is_first = sgd_of(client), True
            for rows in batches(k, number):
                if depth > 1 or not is_first:
                    found = part(client, 1, depth)(images[rows])
                    step(sgd, apart(distance, targets[rows], found, head))
                is_first = False
                step(sgd, F.cross_entropy(client(images[rows]), labels[rows]))
    return model.state_dict(), own


@pytest.mark.parametrize(("distance", "rounds"), [("kl", 6), ("mse", 3)])
def test_rounds_through_the_layers_are_those_of_a_plain_loop(distance: str, rounds: int) -> None:
    """A step on the distance moves no later layer; for mse it is Table 3's ablation. In six rounds
    the first layer is reached, whose outputs nothing brings together."""
    outcome, clients = play("fedd2s", settings("fedd2s", dropping=FAST, distance=distance), rounds)
    model, own = naive(rounds, distance)
    assert close(model, model_of(outcome), atol=1e-3)
    assert remembered(clients, own, atol=1e-3)
    first = start(settings("fedd2s"))
    assert not close(model, first.state_dict(), atol=1e-2)
    frozen = Layers(first).state_names(1, 1)
    assert all(torch.equal(model_of(outcome)[n], first.state_dict()[n]) for n in frozen)


@pytest.mark.parametrize(("distance", "depth"), [("kl", 1), ("kl", 4), ("kl", 6), ("mse", 4)])
def test_bytes_are_the_closed_form(distance: str, depth: int) -> None:
    """Up n (4|H_1| + 4|H_l| [l > 1] + 8), down 4nC + 4 sum_(j > l) |theta_j|, in every round; or,
    by Table 3's ablation, down the layer's output, not the head."""
    config = settings("fedd2s", distance=distance, fixed_layer=depth)
    _, clients = play("fedd2s", config, 2)
    model, layers = start(config), Layers(start(config))
    outputs = [
        int(torch.Size(shape).numel()) for shape in output_shapes(model, layers, SPEC.inputs)
    ]
    head = sum(p.numel() for p in layers.parameters(model, depth + 1, 6))
    for k, n in enumerate(sizes()):
        deep = outputs[depth - 1] if depth > 1 else 0
        assert clients.bytes_up[k] == 2 * n * (4 * outputs[0] + 4 * deep + 8)
        down = 4 * n * outputs[depth - 1] if distance == "mse" else 4 * n * 10 + 4 * head
        assert clients.bytes_down[k] == 2 * down


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


@pytest.mark.parametrize(
    "local", [{"proximal": 0.1}, {"patience": 1}, {"micro_batch": 2}, {"precision": "bf16"}]
)
def test_what_its_steps_would_leave_out_is_refused(local: dict[str, object]) -> None:
    with pytest.raises(
        UserError, match=r"^fedd2s alternates between two losses: leave out proximal"
    ):
        LocalFedD2S(**local)  # type: ignore[arg-type]
