"""What of a classifier is sent, what a new one of the user's own needs first; kinds of layers."""

from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

from fl.errors import UserError
from fl.exchange import load_prefixed, pack, prefixed, unpack
from fl.models.common import AnyBatchNorm, AnyDropout, state_sent
from fl.models.registry import build_classifier, classifier_bytes, copied, register_model
from tests.registries import registries_restored

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with registries_restored():
        yield


class Net(nn.Module):
    """Two layers, of which a subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.b(F.relu(self.a(images.flatten(1))))))
        return logits


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight = self.a.weight


class Shared(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = self.a


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.requires_grad_(False)


class Masked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.register_buffer("order", torch.randperm(64))
        self.register_buffer("scale", torch.ones(3))


class Listed(Net):
    """A list of layers beside the registered ones, which a shallow copy would share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [self.a, self.b, self.head]

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return x


class OldNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        with pytest.warns(FutureWarning):
            self.a = nn.utils.weight_norm(self.a)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10))


class Extra(Net):
    def get_extra_state(self) -> dict[str, int]:
        return {"epochs": 3}


def built(make: Callable[..., nn.Module]) -> nn.Module:
    register_model("mine", make)
    return build_classifier("mine", SHAPE, 10)


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (Tied, {"b.weight"}),
        (Shared, {"b.weight", "b.bias"}),
        (Frozen, {"a.weight", "a.bias"}),
        (Masked, {"mask", "order"}),
        (lazy, {"1.num_batches_tracked"}),
    ],
)
def test_what_training_cannot_change_is_not_sent(
    make: Callable[..., nn.Module], missing: set[str]
) -> None:
    model = built(make)
    sent = state_sent(model)
    assert model.state_dict().keys() - sent.keys() == missing
    assert classifier_bytes("mine", SHAPE, 10) == sum(t.nbytes for t in sent.values())
    images = torch.rand(3, *SHAPE)
    other = built(make)
    other.load_state_dict({**model.state_dict(), **{n: t + 1 for n, t in sent.items()}})
    load_prefixed(model, unpack(pack(prefixed("c", other), {}))[0], "c", "client 0")
    assert torch.equal(model.eval()(images), other.eval()(images))


def test_statistics_that_depend_on_their_counter_are_sent_with_it() -> None:
    model = built(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), Net()))
    assert "1.num_batches_tracked" in state_sent(model)


@pytest.mark.parametrize("make", [Tied, Shared, Listed, OldNorm, lazy])
def test_a_copy_of_any_module_trains_apart(make: Callable[..., nn.Module]) -> None:
    model = built(make).train()
    images = torch.rand(3, *SHAPE)
    model(images).sum().backward()  # old weight_norm keeps a weight with a graph
    before = copied(model).eval()(images)
    twin = copied(model)
    assert len([*twin.parameters()]) == len([*model.parameters()])
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert torch.equal(copied(model).eval()(images), before)
    assert not torch.equal(twin.eval()(images), before)


def test_lazy_weights_are_drawn_with_the_others() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(built(lazy).state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class InAList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(10, 10)]

    def forward(self, images: Tensor) -> Tensor:
        return self.layers[0](super().forward(images))


class Hidden(Net):
    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.scale = {"factor": torch.ones(10, requires_grad=trained)}

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * self.scale["factor"]


class Detached(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


class Sparse(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 2, sparse=True)


def scripted() -> nn.Module:
    return nn.Sequential(Net(), torch.jit.trace(nn.Linear(10, 10), torch.zeros(1, 10)))


def test_what_is_not_trained_may_be_no_part_of_the_module() -> None:
    built(lambda: Hidden(trained=False))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (InAList, "torch does not know its layers as a part of it: a list of layers must be an"),
        (Hidden, "torch does not know its scale as a part of it"),
        (Detached, "its answer has no gradient"),
        (scripted, "its 1 is a ScriptModule of torch.jit: give the module itself"),
        (Extra, "Extra has get_extra_state, which is not sent: keep it in buffers"),
        (lambda: Net().requires_grad_(False), "it has no parameter that is trained"),
        (Sparse, "its table has sparse gradients: leave sparse=True out"),
    ],
)
def test_a_module_that_clients_cannot_train_is_refused(
    make: Callable[..., nn.Module], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        built(make)


class Versioned(nn.Linear):
    """A layer that looks at the version of what it loads, as torchvision's MNASNet does."""

    _version = 3

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        assert metadata["version"] == 3
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_a_layer_loads_what_was_sent_as_of_its_own_version() -> None:
    sender, receiver = Versioned(2, 2), Versioned(2, 2)
    load_prefixed(receiver, unpack(pack(prefixed("c", sender), {}))[0], "c", "one")
    assert torch.equal(receiver.weight, sender.weight)


@pytest.mark.parametrize(("kind", "base"), [(AnyDropout, _DropoutNd), (AnyBatchNorm, _BatchNorm)])
def test_no_public_class_is_missing(kind: UnionType, base: type) -> None:
    public = {c for c in vars(nn).values() if isinstance(c, type) and issubclass(c, base)}
    assert {c for c in public if not issubclass(c, LazyModuleMixin)} == set(get_args(kind))
