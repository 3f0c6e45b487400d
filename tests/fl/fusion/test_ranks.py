"""One to four ranks in real processes, over gloo: the same losses and the same model."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from fl.federation import Batch
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import Fit, FitConfig
from fl.fusion.gradients import _wide_layers
from fl.fusion.group import Group, ProcessGroup
from fl.models import build_classifier

SIZE, CLASSES = 53, 10
CONFIG = FitConfig(epochs=3, lr=2e-3, batch_size=12)  # the last batch has 5 samples
LOSS = FusionLoss(ce_weight=0.5, kd_weight=0.5)


def two_passes(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that calls the model twice: what it needs of dropout and of gradients is more."""
    first, second = model(batch["images"]), model(batch["images"].flip(3))
    return F.cross_entropy(first, batch["labels"]) + (first - second).square().mean()


CASES = {
    "adam": (LOSS, CONFIG, torch.float64),
    "sgd": (LOSS, replace(CONFIG, optimizer="sgd", lr=0.05), torch.float64),
    "two passes": (two_passes, CONFIG, torch.float64),
    "a last batch of one": (LOSS, replace(CONFIG, batch_size=13), torch.float64),
    "fewer samples than ranks": (LOSS, replace(CONFIG, batch_size=2, epochs=1), torch.float64),
    "bfloat16": (LOSS, replace(CONFIG, precision="bf16"), torch.float32),
    "float32": (LOSS, CONFIG, torch.float32),
}
Results = dict[str, tuple[Tensor, dict[str, Tensor]]]


def data(dtype: torch.dtype) -> Batch:
    stream = torch.Generator().manual_seed(1)
    return {
        "images": torch.rand(SIZE, 1, 28, 28, generator=stream).to(dtype),
        "labels": torch.randint(CLASSES, (SIZE,), generator=stream),
        "teacher_logits": torch.randn(SIZE, CLASSES, generator=stream).to(dtype),
    }


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return build_classifier("vgg9", (1, 28, 28), CLASSES, width=0.05).to(dtype)


def train_all(rank: int, size: int, folder: str) -> None:
    """A rank's process: every case, one after another."""
    torch.set_num_threads(1)
    group = Group()
    if size > 1:
        store = dist.FileStore(f"{folder}/store{size}", size)
        group = ProcessGroup(store, rank, size, torch.device("cpu"), 60)
    results: Results = {}
    for name, (loss, config, dtype) in CASES.items():
        model = network(dtype)
        fit = Fit(model, data(dtype), loss=loss, config=config, seed=7, stage="f", group=group)
        results[name] = torch.cat(list(fit.epochs())), model.state_dict()
    torch.save(results, f"{folder}/{size}-{rank}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@cache
def trained(folder: Path, size: int) -> list[Results]:
    if size == 1:
        train_all(0, 1, str(folder))
    else:
        mp.spawn(train_all, args=(size, str(folder)), nprocs=size)
    return [torch.load(folder / f"{size}-{rank}.pt") for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_ranks_does_not_change_the_answer(case: str, size: int, folder: Path) -> None:
    losses, state = trained(folder, 1)[0][case]
    own_losses, own_state = trained(folder, size)[0][case]
    if CASES[case][2] == torch.float64:  # where rounding cannot hide a mistake
        torch.testing.assert_close(own_losses, losses, rtol=1e-10, atol=1e-10)
        for name, tensor in own_state.items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-9, atol=1e-9)
    else:
        torch.testing.assert_close(own_losses, losses, rtol=2e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_end_with_the_same_bits(size: int, folder: Path) -> None:
    first, *others = trained(folder, size)
    for case, (losses, state) in first.items():
        for other in others:
            assert torch.equal(losses, other[case][0])
            assert all(torch.equal(state[n], other[case][1][n]) for n in state)


def test_the_cases_exchange_factors_where_that_is_less() -> None:
    """Else what is tested above would not be what it is meant to be."""
    assert LOSS.one_pass
    assert not hasattr(two_passes, "one_pass")
    assert _wide_layers(network(torch.float32), CONFIG.batch_size)
    assert not _wide_layers(network(torch.float32), 10_000)
