"""One rank, two in real processes over gloo, three in threads: the same losses and model."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from threading import Lock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from fl.fusion.distillation import EachMember, LearnedFusionLoss, Weighing
from fl.fusion.fit import Fit, FitConfig, FitSpec, State
from fl.fusion.group import Group, PeerLostError, ProcessGroup, StrangerError, proof
from fl.server import Loss
from tests.fl.fusion.networks import (
    KNOWLEDGE,
    LOSS,
    convnet,
    cumulative,
    data,
    mixed,
    twins,
    two_passes,
    vgg9,
)
from tests.fl.fusion.threads import on_ranks
from tests.pretended_gpu import pretended_gpus

LONG_S = 500.0
"""No rank is silent for so long."""
SEEDED = Lock()
"""Ranks in threads share torch's global stream."""
CONFIG = FitConfig(epochs=2, lr=2e-3, batch_size=12)  # the last batch has 5 samples


@dataclass(frozen=True)
class Case:
    loss: Loss = LOSS
    config: FitConfig = CONFIG
    dtype: torch.dtype = torch.float64
    model: Callable[[], nn.Module] = vgg9

    def network(self) -> nn.Module:
        with SEEDED:
            torch.manual_seed(0)
            return self.model().to(self.dtype)


BF16 = replace(CONFIG, precision="bf16")
# Adam makes steps of the rounding that is all the gradient a bias before BatchNorm has.
SGD = replace(CONFIG, optimizer="sgd", lr=0.05)
CASES = {
    "adam": Case(),
    "sgd": Case(config=SGD),
    "clipped": Case(config=replace(SGD, clip=0.01)),
    "an ensemble, each clipped": Case(EachMember(LOSS), replace(SGD, clip=0.01), model=twins),
    "two passes": Case(loss=two_passes),
    "a last batch of one": Case(config=replace(CONFIG, batch_size=14)),
    "fewer samples than ranks": Case(config=replace(CONFIG, batch_size=2, epochs=1)),
    "bfloat16": Case(config=BF16, dtype=torch.float32),
    "float32": Case(dtype=torch.float32),
    "batch norm": Case(config=SGD, model=convnet),
    "batch norm, a last batch of one": Case(config=replace(SGD, batch_size=14), model=convnet),
    "batch norm, fewer samples than ranks": Case(
        config=replace(SGD, batch_size=2, epochs=1), model=convnet
    ),
    "batch norm of other kinds": Case(config=SGD, model=cumulative),
    "batch norm, bfloat16": Case(config=BF16, dtype=torch.float32, model=convnet),
    "batch norm, two passes": Case(two_passes, SGD, model=convnet),
    "batch norm in an ensemble": Case(EachMember(LOSS), SGD, model=mixed),
    "learned weights": Case(LearnedFusionLoss(), model=lambda: Weighing(vgg9())),
    "learned weights, batch norm": Case(
        LearnedFusionLoss(), SGD, model=lambda: Weighing(convnet())
    ),
    "class by class": Case(loss=KNOWLEDGE),
    "class by class, batch norm": Case(KNOWLEDGE, SGD, model=convnet),
}
OPTIMIZERS = ("adam", "sgd")
Results = dict[str, tuple[Tensor, dict[str, Tensor]]]


def train_in_a_process(rank: int, size: int, folder: str) -> None:
    """A rank's process."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store{size}", size)
    train_all(ProcessGroup(store, rank, size, torch.device("cpu"), b"", LONG_S), folder)
    dist.destroy_process_group()  # else gloo's threads may outlive the interpreter, and abort it


def train_all(group: Group, folder: str) -> None:
    """Every case, one after another."""
    rank, size = group.rank, group.size
    results: Results = {}
    models = {name: case.network() for name, case in CASES.items()}
    begun = {name: CASES[name].network() for name in OPTIMIZERS}
    group.sum(torch.zeros(1))  # a fit of a user's loss seeds the stream that other threads have too
    for name, model in models.items():
        fit = a_fit(CASES[name], model, group)
        results[name] = torch.cat(list(fit.epochs())), model.state_dict()
    torch.save(results, f"{folder}/{size}-{rank}.pt")
    for name, model in begun.items():
        fit = a_fit(CASES[name], model, group)
        next(fit.epochs())
        torch.save(fit.state().values, f"{folder}/{size}-{rank}-{name}")


def a_fit(case: Case, model: nn.Module, group: Group, state: State | None = None) -> Fit:
    how = {"loss": case.loss, "config": case.config, "stage": "f", "streams": "f"}
    spec = FitSpec(model=model, columns={}, state=state, **how)  # type: ignore[arg-type]
    return Fit(spec, data(case.dtype), seed=7, group=group)


def go_on(group: Group, folder: str) -> None:
    """Goes on from the states that one rank and three had."""
    rank, size = group.rank, group.size
    for name in OPTIMIZERS:
        for before in (1, 3):
            model = CASES[name].network()
            state = State(torch.load(f"{folder}/{before}-0-{name}"))
            fit = a_fit(CASES[name], model, group, state)
            assert fit.done == 1
            for _ in fit.epochs():
                pass
            torch.save(model.state_dict(), f"{folder}/on-{before}-{size}-{rank}-{name}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@cache
def trained(folder: Path, size: int) -> list[Results]:
    if size == 1:
        train_all(Group(), str(folder))
    elif size == 2:
        mp.spawn(train_in_a_process, args=(size, str(folder)), nprocs=size)
    else:
        on_ranks(size, lambda group: train_all(group, str(folder)))
    return [torch.load(folder / f"{size}-{rank}.pt") for rank in range(size)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_ranks_does_not_change_the_answer(case: str, size: int, folder: Path) -> None:
    losses, state = trained(folder, 1)[0][case]
    own_losses, own_state = trained(folder, size)[0][case]
    if CASES[case].dtype == torch.float64:  # where rounding cannot hide a mistake
        torch.testing.assert_close(own_losses, losses, rtol=1e-10, atol=1e-10)
        for name, tensor in own_state.items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-9, atol=1e-9)
    else:
        torch.testing.assert_close(own_losses, losses, rtol=2e-2, atol=1e-2)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_end_with_the_same_bits(size: int, folder: Path) -> None:
    first, *others = trained(folder, size)
    for case, (losses, state) in first.items():
        for other in others:
            assert torch.equal(losses, other[case][0])
            assert all(torch.equal(state[n], other[case][1][n]) for n in state)


@pytest.mark.process
@pytest.mark.slow
def test_a_state_goes_on_with_another_number_of_ranks(folder: Path) -> None:
    expected = trained(folder, 1)[0]
    trained(folder, 3)
    on_ranks(2, lambda group: go_on(group, str(folder)))
    for name in OPTIMIZERS:
        for before in (1, 3):
            for rank in (0, 1):
                state = torch.load(folder / f"on-{before}-2-{rank}-{name}")
                torch.testing.assert_close(state, expected[name][1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stranger", [b"another", None])
def test_nothing_is_summed_with_who_does_not_know_the_secret(
    stranger: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = proof(b"ours", 0, 2) if stranger is None else proof(stranger, 1, 2)  # None: an echo
    joined_by(sent, monkeypatch)
    with pytest.raises(StrangerError, match="rank 1 does not know the secret"):
        ProcessGroup(dist.HashStore(), 0, 2, torch.device("cpu"), b"ours", 1)


@dataclass
class Ended:
    """A collective that has ended well, has failed, or never ends."""

    done: bool = True
    error: str = ""

    def is_completed(self) -> bool:
        return self.done

    def wait(self) -> None:
        if self.error:
            raise RuntimeError(self.error)


def joined_by(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has rank 1 of two answer with those bytes; returns a list for the backends that are asked
    for."""
    backends: list[str] = []

    def gather(told: list[Tensor], own: Tensor, async_op: bool) -> Ended:
        told[0].copy_(own)
        told[1].copy_(torch.tensor([*sent], dtype=torch.uint8))
        return Ended()

    monkeypatch.setattr(dist, "init_process_group", lambda name, **_: backends.append(name))
    monkeypatch.setattr(dist, "all_gather", gather)
    return backends


def on_a_gpu(other: int, timeout_s: float = LONG_S) -> ProcessGroup:
    """Rank 0 of two, on pretended GPU 0; rank 1 is on the GPU of that number."""
    store = dist.HashStore()
    store.set("gpu/1", str(torch.cuda.get_device_properties(other).uuid))
    return ProcessGroup(store, 0, 2, torch.device("cuda:0"), b"ours", timeout_s)


def test_ranks_on_gpus_of_their_own_meet_by_nccl_and_on_one_by_gloo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pretended_gpus(2):
        backends = joined_by(proof(b"ours", 1, 2), monkeypatch)
        on_a_gpu(1)
        assert backends == ["nccl"]
        shared = on_a_gpu(0)
        assert backends == ["nccl", "gloo"]

        def twice(tensor: Tensor, async_op: bool) -> Ended:
            assert tensor.device.type == "cpu"  # as gloo asks for
            tensor.mul_(2)
            return Ended()

        monkeypatch.setattr(dist, "all_reduce", twice)
        here = torch.ones(3, device="cuda:0")
        shared.sum(here)
        assert here.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (Ended(done=False), "2.0 s for the others: a rank was silent"),
        (Ended(error="gone"), "0.5 s"),
    ],
)
def test_a_rank_that_waits_for_nccl_says_so_and_lives_on(
    work: Ended, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL by itself would end the process, and the rank that was lost could not be told."""
    monkeypatch.setattr(time, "monotonic", partial(next, count(step=0.5)))
    with pretended_gpus(2):
        joined_by(proof(b"ours", 1, 2), monkeypatch)
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, async_op: work)
        group = on_a_gpu(1, timeout_s=1)
        with pytest.raises(PeerLostError, match=f"rank 0 waited {said}"):
            group.sum(torch.ones(3, device="cuda:0"))
