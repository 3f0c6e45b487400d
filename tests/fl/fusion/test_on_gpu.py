"""The server's verbs on GPUs, to the same as on the CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fl.events import Epoch, Event, Events, Listener
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.distillation import EachMember, LearnedFusionLoss, Weighing
from fl.fusion.fit import FitConfig
from fl.fusion.group import PeerLostError, ProcessGroup
from fl.fusion.server import Server, SingleServer
from fl.server import FitResult, Loss
from tests.fl.devices import DEVICE, TOLERANCE, Where, assert_same, on_both
from tests.fl.fusion.networks import (
    CLASSES,
    KNOWLEDGE,
    LOSS,
    convnet,
    cumulative,
    data,
    twins,
    vgg9,
)
from tests.fl.fusion.threads import ThreadServer
from tests.fl.methods.tiny import tiny_data, whole
from tests.fl.toy import PROBLEM
from tests.pretended_gpu import pretended_gpus

pytestmark = pytest.mark.gpu

RUN = replace(PROBLEM, num_classes=CLASSES)
TEST = whole(tiny_data(train=10, test=20).test)
CONFIG = FitConfig(epochs=2, lr=2e-3, batch_size=12)  # the last batch has 5 samples
SGD = replace(CONFIG, optimizer="sgd", lr=0.05)


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    loss: Loss
    config: FitConfig
    tolerance: float = TOLERANCE


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))


FITS = {
    "dropout": Case(vgg9, LOSS, CONFIG),
    "batch norm": Case(convnet, KNOWLEDGE, SGD),
    "batch norm of other kinds": Case(cumulative, LOSS, SGD),
    "ensemble, clipped": Case(twins, EachMember(LOSS), replace(SGD, clip=0.01)),
    "learned weights": Case(lambda: Weighing(vgg9()), LearnedFusionLoss(), CONFIG),
    "fewer samples than ranks": Case(linear, LOSS, replace(SGD, batch_size=1, epochs=1), 1e-3),
    "bfloat16": Case(vgg9, LOSS, replace(CONFIG, precision="bf16"), 2e-2),
}
BY_RANKS = ("batch norm", "batch norm of other kinds", "fewer samples than ranks")
IN_ONE = [name for name in FITS if name not in BY_RANKS]


def fitted(server: Server, case: Case) -> tuple[nn.Module, FitResult]:
    torch.manual_seed(0)
    model = case.model()
    how = {"loss": case.loss, "config": case.config, "stage": "fusion"}
    result = server.fit(model, data(torch.float32), **how)  # type: ignore[arg-type]
    return model, result


def single(
    where: Where, listener: Listener = lambda event: None, folder: Path | None = None
) -> SingleServer:
    checkpoints = Checkpoints(folder, every=0) if folder else None
    return SingleServer(RUN, TEST, Events(listener), where.device, checkpoints)


@pytest.mark.parametrize("name", IN_ONE)
def test_a_killed_fit_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    case = FITS[name]

    def killed(event: Event) -> None:
        if isinstance(event, Epoch):
            raise KeyboardInterrupt

    def work(where: Where) -> tuple[nn.Module, FitResult]:
        if where.device.type == "cpu":
            return fitted(single(where), case)
        with pytest.raises(KeyboardInterrupt):
            fitted(single(where, killed, tmp_path), case)
        return fitted(single(where, folder=tmp_path), case)

    assert_same(*on_both(work), case.tolerance)


@pytest.mark.parametrize("name", [*BY_RANKS, "dropout", "ensemble, clipped"])
def test_two_ranks_fit_to_the_same_bits(name: str) -> None:
    case = FITS[name]

    def work(where: Where) -> tuple[nn.Module, FitResult]:
        return fitted(ThreadServer(RUN, TEST, Events(), 2, where), case)

    assert_same(*on_both(work, count=2), case.tolerance)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_filter_keeps_the_same_samples(ranks: int, on_gpu: bool) -> None:
    """Columns too large for a GPU are on the host, and its rows are visited."""

    def work(where: Where) -> tuple[Tensor, Tensor]:
        several = ThreadServer(RUN, TEST, Events(), ranks, where)
        server = several if ranks > 1 else single(where)
        columns = {name: data(torch.float32)[name] for name in ("images", "labels")}
        if on_gpu:
            columns = {name: column.to(where.device) for name, column in columns.items()}
        samples = server.place(columns)
        kept = server.nearest(samples, 0.6)
        return kept, server.fetch(server.take(samples, kept), "images")

    assert_same(*on_both(work, count=ranks))


@contextmanager
def joined(device: torch.device) -> Iterator[ProcessGroup]:
    """A group of one rank, by torch.distributed."""
    group = ProcessGroup(dist.HashStore(), 0, 1, device, b"", 60)
    try:
        yield group
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_rank_joins_with_its_gpu_and_sums_what_is_there(name: str) -> None:
    """A rank in a process of its own sees one GPU, and names it without a number."""
    if DEVICE == "cuda" and name == "cuda:1" and torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    gpus = nullcontext() if DEVICE == "cuda" else pretended_gpus(2)
    with gpus, joined(torch.device(name)) as group:
        assert torch.cuda.current_device() == int(name == "cuda:1")
        here = torch.ones(3, device="cuda")
        group.sum(here)
        assert here.tolist() == [1, 1, 1]
        with pytest.raises(PeerLostError, match="device type cpu"):
            group.sum(torch.ones(3))
