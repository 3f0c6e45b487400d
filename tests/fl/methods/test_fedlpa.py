"""FedLPA's factors against plain loops, and its fusion against one dense linear system for each
layer; and where it is an average."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cluster.clients.store import Store
from fl.data.shard import Shard
from fl.events import ClientEnd, Event
from fl.exchange import prefixed
from fl.federation import RunSpec, TaskInput, Update
from fl.methods import fedlpa
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedlpa import (
    FedLPAConfig,
    check_factors,
    factor_names,
    factored,
    factors,
    places,
    send_factors,
    solve,
    upper,
    whole,
)
from fl.methods.registry import get_method
from fl.models.registry import build_classifier
from fl.rounds import Rounds
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.tiny import tiny_data, tiny_federation
from tests.fl.toy import client, task_input

SPEC = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)
SMALL = ClassifierConfig(model="convnet", width=0.03, batch_size=4)


def given() -> tuple[nn.Module, TaskInput]:
    torch.manual_seed(0)
    model = build_classifier("convnet", (1, 8, 8), 3, width=SMALL.width).eval()
    shard = Shard(torch.rand(7, 1, 8, 8), torch.arange(7) % 3, 3)
    own = task_input(SMALL, shard, id=2, run_spec=SPEC)
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
    update = Update(client=client(2, SMALL), tensors=tensors, stats={}, seconds=0.0, reused=False)
    check_factors(1e-3, update, SPEC)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        check_factors(1e-3, update, SPEC)


CLIENTS, DATA = 4, tiny_data(train=120, test=40)
LOCAL = ClassifierConfig(model="convnet", width=0.03, epochs=3, lr=0.05)
CONFIG = FedLPAConfig(classifier=LOCAL, num_large=2, small_width=0.1)


def run(**options: Any) -> Any:
    given = tiny_federation(CONFIG, assign=fedlpa.assign, num_clients=CLIENTS, data=DATA, **options)
    return fedlpa.run(*given, CONFIG), *given


def test_each_layer_solves_the_dense_system_and_the_rest_is_averaged() -> None:
    outcome, clients, server = run()
    updates = clients.train(remember=True)
    told = clients.map(send_factors)
    for member, group in zip(outcome.model.members, ((0, 1), (2, 3)), strict=True):
        state, sizes, factored = member.state_dict(), factor_names(member), set()
        p = torch.tensor([updates[k].client.num_samples for k in group], dtype=torch.float64)
        p /= p.sum()
        for path, count in places(member, server.run_spec).items():
            left, right = 0.0, 0.0
            for share, k in zip(p, group, strict=True):
                w = updates[k].tensors
                weight, bias = (w[f"classifier.{path}.{n}"].double() for n in ("weight", "bias"))
                m = torch.cat([weight.flatten(1), bias[:, None]], 1)
                sides = [f"{side}.{path}" for side in "AB"]
                a, b = (whole(told[k].tensors[n], sizes[n]).double() for n in sides)
                a, b = a / count + 0.001**0.5 * torch.eye(len(a)), b * count
                precision = torch.kron(b + 0.001**0.5 * torch.eye(len(b)), a)
                left, right = left + share * precision, right + share * precision @ m.flatten()
            mode = torch.linalg.solve(left, right).view_as(m).float()
            found = torch.cat(
                [state[f"{path}.weight"].flatten(1), state[f"{path}.bias"][:, None]], 1
            )
            torch.testing.assert_close(found, mode, rtol=1e-4, atol=1e-5)
            factored |= {f"{path}.weight", f"{path}.bias"}
        for name in state.keys() - factored:
            if state[name].is_floating_point():
                each = [updates[k].tensors[f"classifier.{name}"].double() for k in group]
                mean = sum(share * own for share, own in zip(p, each, strict=True))
                torch.testing.assert_close(state[name], mean.float())
    assert outcome.epochs == [server.evaluate(outcome.model)]


def some(count: int) -> tuple[list[float], list[Tensor], list[tuple[Tensor, Tensor]]]:
    stream = torch.Generator().manual_seed(0)
    means = [torch.randn(3, 5, generator=stream).double() for _ in range(count)]
    roots = [[torch.randn(n, 9, generator=stream).double() for n in (5, 3)] for _ in range(count)]
    return [0.5, 0.3, 0.2][:count], means, [(a @ a.T, b @ b.T) for a, b in roots]


def test_equal_posteriors_are_averaged_and_one_alone_is_kept() -> None:
    shares, means, precisions = some(3)
    average = sum(p * m for p, m in zip(shares, means, strict=True))
    isotropic = [(torch.eye(5).double(), torch.eye(3).double())] * 3
    for equal in (isotropic, precisions[:1] * 3):
        torch.testing.assert_close(solve(shares, means, equal, 0), average)
    torch.testing.assert_close(solve([1.0], means[:1], precisions[:1], 0), means[0])
    sure = [(1e6 * a, b) for a, b in precisions[:1]] + precisions[1:]
    torch.testing.assert_close(solve(shares, means, sure, 100), means[0], rtol=1e-3, atol=1e-3)


def test_steps_lead_from_the_mean_factors_to_the_solution() -> None:
    given = some(3)

    def surprise(iterations: int) -> float:
        """sum_k p_k of the distance from M_k, in the posterior's own measure."""
        m, each = solve(*given, iterations), zip(*given, strict=True)
        return float(sum(p * ((m - own) * (b @ (m - own) @ a)).sum() for p, own, (a, b) in each))

    found = [surprise(iterations) for iterations in (0, 1, 2, 4, 50)]
    assert found == sorted(found, reverse=True)


def test_the_classifiers_are_fedavgs_and_the_factors_are_counted(tmp_path: Path) -> None:
    heard: list[Event] = []
    store = Store(tmp_path / "pool", tmp_path / "run", DATA.train)
    shared = {"num_clients": CLIENTS, "data": DATA, "store": store}
    config = FedAvgConfig(classifier=LOCAL, num_large=2, small_width=0.1)
    clients, server = tiny_federation(config, assign=fedlpa.assign, **shared)
    get_method("fedavg").run(clients, server, config, rounds=Rounds(1))
    outcome, clients, _ = run(store=store, listener=heard.append)
    assert [e.reused for e in heard if isinstance(e, ClientEnd)] == [True] * 4 + [False] * 4
    for k, member in zip((0, 2), outcome.model.members, strict=True):
        factors = sum(n * (n + 1) // 2 for n in factor_names(member).values())
        model = clients.members[k].training.upload_bytes(clients.run_spec)
        assert clients.bytes_up[k] == model + 4 * factors
        assert clients.bytes_down[k] == 0


def test_who_sends_no_factors_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(damping: float, update: Update, run_spec: RunSpec) -> None:
        if update.client.id == 3:
            raise ValueError("sent nonsense")

    monkeypatch.setattr(fedlpa, "check_factors", check)
    outcome, clients, _ = run(on_failure="drop")
    assert clients.dropped == {3: "sent nonsense"}
    (sent,) = clients.train(only=[2])
    for name, tensor in outcome.model.members[1].state_dict().items():
        if tensor.is_floating_point():
            own = sent.tensors[f"classifier.{name}"]
            torch.testing.assert_close(tensor, own, rtol=1e-4, atol=1e-5)
