"""Averages of uploads, and rules that bear liars: what each computes and refuses."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.exchange import Tensors
from fl.fusion.aggregation import (
    AggregationConfig,
    aggregate_states,
    average_into,
    average_states,
    krum,
    norm_clipped_mean,
    squared_distances,
    trimmed_mean,
)

ROBUST = ("median", "trimmed-mean", "krum", "norm-clip")


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for _ in range(seed + 1):
        model(torch.randn(8, 3))
    return model


START = net(100).state_dict()


def states(count: int, spread: float = 0.1) -> list[Tensors]:
    """The start with a little of each client's own; the counters are 1, 2, ..."""
    return [near(START, net(seed).state_dict(), spread) for seed in range(count)]


def near(start: Tensors, other: Tensors, spread: float) -> Tensors:
    return {
        n: (1 - spread) * t + spread * other[n] if t.is_floating_point() else other[n]
        for n, t in start.items()
    }


def flipped(state: Tensors) -> Tensors:
    return {n: -t if "weight" in n or "bias" in n else t for n, t in state.items()}


def rule(name: str, **changes: Any) -> AggregationConfig:
    return replace(AggregationConfig(), aggregate=name, **changes)


def distance(one: Tensors, other: Tensors) -> float:
    return sum(
        float((t.double() - other[n].double()).square().sum())
        for n, t in one.items()
        if t.is_floating_point()
    )


@pytest.mark.parametrize("count", [1, 4, 5])
def test_a_median_is_each_weight_s_own(count: int) -> None:
    values = torch.randn(count, 3, 2)
    found = trimmed_mean(values, (count - 1) // 2)
    for i in range(3):
        for j in range(2):
            assert float(found[i, j]) == pytest.approx(median(values[:, i, j].tolist()), rel=1e-6)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_trimmed_mean_leaves_out_as_many_at_both_ends(cut: int) -> None:
    values = torch.randn(6, 4)
    for i, column in enumerate(values.T.tolist()):
        kept = sorted(column)[cut : 6 - cut]
        assert float(trimmed_mean(values, cut)[i]) == pytest.approx(sum(kept) / len(kept), rel=1e-5)


def test_distances_are_over_all_floats() -> None:
    clients = states(4)
    found = squared_distances(clients, START)
    for i in range(4):
        for j in range(4):
            assert float(found[i, j]) == pytest.approx(distance(clients[i], clients[j]), rel=1e-9)


@pytest.mark.parametrize("liars", [0, 1, 2])
def test_krum_takes_who_is_nearest_to_its_nearest(liars: int) -> None:
    clients = states(7)
    scores = []
    for i in range(7):
        others = sorted(distance(clients[i], clients[j]) for j in range(7) if j != i)
        scores.append(sum(others[: 7 - liars - 2]))
    assert krum(squared_distances(clients, START), liars) == scores.index(min(scores))


def test_updates_are_cut_to_the_median_of_their_norms_and_weighted() -> None:
    clients, sizes = [*states(4), flipped(states(1)[0])], [10, 20, 30, 40, 50]
    norms = [distance(state, START) ** 0.5 for state in clients]
    limit = median(norms)
    found = norm_clipped_mean(clients, START, None, sizes)
    for name, origin in START.items():
        if origin.is_floating_point():
            expected = origin.double()
            for state, norm, size in zip(clients, norms, sizes, strict=True):
                drift = state[name].double() - origin.double()
                expected = expected + size / sum(sizes) * min(1, limit / norm) * drift
            torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("limit", [0.25, 1e9])
def test_a_norm_of_one_s_own_bounds_the_update_or_leaves_the_mean(limit: float) -> None:
    clients, sizes = states(5), [1, 2, 3, 4, 5]
    found = aggregate_states(clients, START, rule("norm-clip", aggregate_norm=limit), sizes)
    if limit == 0.25:
        assert distance(found, START) ** 0.5 <= 0.25 * (1 + 1e-6)
        return
    for name, tensor in average_states(clients, sizes).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_clients_that_did_not_move_are_no_division_by_zero() -> None:
    found = aggregate_states([START] * 3, START, rule("norm-clip"))
    assert all(torch.equal(found[name], tensor) for name, tensor in START.items())


@pytest.mark.parametrize("name", ROBUST)
def test_shapes_types_and_counters_stay(name: str) -> None:
    found = aggregate_states(states(5), START, rule(name))
    assert found.keys() == START.keys()
    for key, tensor in START.items():
        assert (found[key].shape, found[key].dtype) == (tensor.shape, tensor.dtype)
    assert 1 <= int(found["1.num_batches_tracked"]) <= 5
    assert float(found["1.running_var"].min()) >= 0


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("attack", ["flip", "scale"])
def test_one_liar_of_seven_moves_every_rule_less_than_the_mean(name: str, attack: str) -> None:
    honest = states(7)
    lie = flipped(honest[0]) if attack == "flip" else {n: 10 * t for n, t in honest[0].items()}
    told = [lie, *honest[1:]]
    without = average_states(honest[1:])
    moved = distance(average_states(told), without)
    assert distance(aggregate_states(told, START, rule(name)), without) < moved / 2


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum"])
def test_liars_below_the_share_cannot_leave_the_honest_range(name: str) -> None:
    honest = states(7)
    wild = [{n: 1000 * t + 5000 for n, t in honest[k].items()} for k in range(2)]
    found = aggregate_states([*wild, *honest[2:]], START, rule(name, aggregate_liars=0.28))
    for key, tensor in found.items():
        own = torch.stack([state[key] for state in honest[2:]])
        assert (tensor >= own.amin(0)).all()
        assert (tensor <= own.amax(0)).all()


class Watched(Mapping[str, Tensor]):
    """Tensors that are read when asked for, and who holds how many names at a time."""

    def __init__(self, state: Tensors, log: list[str]) -> None:
        self._state, self._log = state, log

    def __getitem__(self, name: str) -> Tensor:
        self._log.append(name)
        return self._state[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
def test_one_tensor_of_all_clients_is_read_before_the_next(name: str) -> None:
    log: list[str] = []
    aggregate_states([Watched(s, log) for s in states(5)], START, rule(name))
    assert log == [key for key in START for _ in range(5)]


@pytest.mark.parametrize(
    ("name", "share", "least"),
    [("median", 0.2, 3), ("trimmed-mean", 0.4, 5), ("krum", 0.2, 5), ("krum", 0.0, 3)],
)
def test_too_few_clients_are_refused(name: str, share: float, least: int) -> None:
    chosen = rule(name, aggregate_liars=share)
    chosen.check_clients(least)
    with pytest.raises(UserError, match=f"aggregate {name} .*, got {least - 1}$"):
        chosen.check_clients(least - 1)
    with pytest.raises(UserError, match="in a round, got"):
        aggregate_states(states(least - 1), START, chosen)


@pytest.mark.parametrize("name", ["mean", "norm-clip"])
def test_a_mean_needs_no_majority(name: str) -> None:
    rule(name).check_clients(1)


@pytest.mark.parametrize(("share", "clients", "liars"), [(0.3, 10, 3), (0.1, 3, 1), (0.0, 9, 0)])
def test_liars_are_a_share_rounded_up(share: float, clients: int, liars: int) -> None:
    assert rule("krum", aggregate_liars=share).liars(clients) == liars


@pytest.mark.parametrize(
    "wrong",
    [
        {"aggregate": "mode"},
        {"aggregate_liars": 0.5},
        {"aggregate_liars": -0.1},
        {"aggregate": "norm-clip", "aggregate_norm": 0.0},
        {"aggregate_norm": 1.0},
        {"aggregate_liars": 0.3},
        {"aggregate": "norm-clip", "aggregate_liars": 0.3},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="aggregat"):
        AggregationConfig(**wrong)


def plain_states(count: int) -> list[Tensors]:
    return [net(seed).state_dict() for seed in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_average_is_the_plain_mean_of_every_weight(count: int) -> None:
    clients = plain_states(count)
    mean = average_states(clients)
    assert mean.keys() == clients[0].keys()
    for name, tensor in mean.items():
        assert tensor.dtype == clients[0][name].dtype
        assert tensor.shape == clients[0][name].shape
        flat = [state[name].flatten().tolist() for state in clients]
        for i, value in enumerate(tensor.flatten().tolist()):
            expected = sum(weights[i] for weights in flat) / count
            if not tensor.is_floating_point():
                expected = int(expected)
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_an_integer_buffer_stays_one_and_is_rounded_down() -> None:
    counters = [{"batches": torch.tensor(n)} for n in (1, 2, 5, 7)]
    mean = average_states(counters)["batches"]
    assert mean.dtype == torch.int64
    assert mean.item() == 15 // 4


def test_small_weights_survive_between_large_ones() -> None:
    def of(value: float) -> dict[str, Tensor]:
        return {"w": torch.tensor(value)}

    mean = average_states([of(1e8), of(3.0), of(-1e8)])["w"]
    assert mean.item() == 1


def test_the_model_holds_the_average_afterwards() -> None:
    clients = plain_states(3)
    model = net(7)
    assert average_into(model, clients) is model
    for name, tensor in average_states(clients).items():
        assert torch.equal(model.state_dict()[name], tensor)


@pytest.mark.parametrize("name", ["mean", *ROBUST])
def test_another_architecture_is_refused_and_what_is_given_is_left_alone(name: str) -> None:
    clients = states(5)
    copies = [{n: t.clone() for n, t in state.items()} for state in [START, *clients]]
    aggregate_states(clients, START, rule(name))
    for state, copy in zip([START, *clients], copies, strict=True):
        assert all(torch.equal(state[n], copy[n]) for n in copy)
    with pytest.raises(KeyError):
        aggregate_states([*states(7), nn.Linear(3, 4).state_dict()], START, rule(name))
