"""A layer's factors against plain loops over samples and places, and what a client may send."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.exchange import prefixed
from fl.federation import RunSpec, TaskInput, Update
from fl.models import build_classifier
from fl.training.classifier import ClassifierConfig
from fl.training.posterior import (
    check_factors,
    factor_names,
    factored,
    factors,
    places,
    send_factors,
    upper,
    whole,
)
from tests.fl.toy import client, task_input

SPEC = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)
LOCAL = ClassifierConfig(model="convnet", width=0.03, batch_size=4)


def given() -> tuple[nn.Module, TaskInput]:
    torch.manual_seed(0)
    model = build_classifier("convnet", (1, 8, 8), 3, width=LOCAL.width).eval()
    shard = Shard(torch.rand(7, 1, 8, 8), torch.arange(7) % 3, 3)
    own = task_input(LOCAL, shard, id=2, run_spec=SPEC)
    return model, replace(own, remembered=prefixed("classifier", model))


def naive(model: nn.Module, x: Tensor, labels: Tensor, path: str) -> tuple[Tensor, Tensor]:
    """A and B of a layer: sample by sample, place by place."""
    layer, kept = model.get_submodule(path), []
    layer.register_forward_hook(lambda _, i, o: kept.append((i[0], o.retain_grad() or o)))
    a_sum, b_sum = 0.0, 0.0
    for image, label in zip(x, labels, strict=True):
        kept.clear()
        F.cross_entropy(model(image[None]), label[None]).backward()
        ((entered, left),) = kept
        if isinstance(layer, nn.Linear):
            a_places, g_places = [entered[0]], [left.grad[0]]
        else:
            wide = F.pad(entered[0], (1, 1, 1, 1))
            spots = [(i, j) for i in range(left.shape[2]) for j in range(left.shape[3])]
            a_places = [wide[:, i : i + 3, j : j + 3].flatten() for i, j in spots]
            g_places = [left.grad[0, :, i, j] for i, j in spots]
        a_places = [torch.cat([a, torch.ones(1)]) for a in a_places]
        a_sum = a_sum + sum(torch.outer(a, a) for a in a_places) / len(a_places)
        b_sum = b_sum + sum(torch.outer(g, g) for g in g_places)
    return a_sum / len(x), b_sum / len(x)


def test_factors_are_those_of_plain_loops() -> None:
    model, inputs = given()
    found, sizes = send_factors(inputs).tensors, factor_names(model)
    assert len(sizes) == 2 * len(factored(model)) > 4
    assert found.keys() == sizes.keys()
    for path in factored(model):
        twins = naive(given()[0], inputs.shard.images, inputs.shard.labels, path)
        for side, twin in zip("AB", twins, strict=True):
            own = whole(found[f"{side}.{path}"], sizes[f"{side}.{path}"])
            torch.testing.assert_close(own, twin.detach(), rtol=1e-4, atol=1e-6)


def test_the_factors_of_one_sample_make_its_gradient() -> None:
    model, inputs = given()
    inputs = replace(inputs, shard=inputs.shard.take(torch.tensor([3])))
    found = factors(model, inputs, 1)
    F.cross_entropy(model(inputs.shard.images), inputs.shard.labels).backward()
    layer = model.get_submodule(list(factored(model))[-1])
    gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1).flatten()  # type: ignore[union-attr]
    a, b = list(found.values())[-2:]
    torch.testing.assert_close(torch.kron(b, a), torch.outer(gradient, gradient))


def test_other_layers_have_no_factors_and_places_are_a_convolutions_pixels() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Conv2d(1, 2, 3, padding="same")
            self.grouped = nn.Conv2d(2, 2, 3, groups=2)
            self.frozen = nn.Conv2d(2, 2, 1).requires_grad_(False)
            self.plain = nn.Conv2d(2, 2, 3, stride=2)
            self.head = nn.Linear(8, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.plain(self.frozen(self.grouped(self.same(x)))).flatten(1))

    model = Odd()
    model.stays = frozenset({"frozen.weight", "frozen.bias"})  # type: ignore[assignment]
    assert places(model, SPEC) == {"plain": 4, "head": 1}
    assert factor_names(model) == {"A.plain": 19, "B.plain": 2, "A.head": 8, "B.head": 3}
    matrix = torch.arange(9.0).view(3, 3)
    assert torch.equal(whole(upper(matrix + matrix.T), 3), matrix + matrix.T)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("A.classifier"), "client 2 sent other factors than its model has"),
        (lambda t: t.update({"A.x": torch.zeros(1)}), "other factors"),
        (lambda t: t.update({"B.classifier": torch.zeros(5)}), r"sent B.classifier as .* \(5,\)"),
        (lambda t: t["B.classifier"].mul_(-10), "factors of classifier with negative eigenvalues"),
    ],
)
def test_what_no_classifier_has_is_refused(change, message: str) -> None:
    tensors = send_factors(given()[1]).tensors
    update = Update(client=client(2, LOCAL), tensors=tensors, stats={}, seconds=0.0, reused=False)
    check_factors(1e-3, update, SPEC)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        check_factors(1e-3, update, SPEC)
