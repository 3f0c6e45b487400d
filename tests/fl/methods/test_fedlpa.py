"""FedLPA's fusion against one dense linear system for each layer, and where it is an average."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cluster.clients.store import Store
from fl.events import ClientEnd, Event
from fl.federation import RunSpec, Update
from fl.methods import fedlpa
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedlpa import FedLPAConfig, solve
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.training.classifier import ClassifierConfig
from fl.training.posterior import factor_names, places, send_factors, whole
from tests.fl.methods.tiny import tiny_data, tiny_federation

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
