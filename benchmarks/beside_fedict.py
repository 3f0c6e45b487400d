"""FedICT's authors' code and ours on the clients of beside_pfllib.py, with the same options.

    python benchmarks/beside_fedict.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/wuzhiyuan2000/FedICT. Its clients' network and its server's are
those of beside_pfllib.py: the server's is what follows the convolutions. Its main program runs with
the authors' temperature and weights, and plain SGD in place of Nesterov's: as released, and changed
to what ours does.
"""

import builtins
import importlib
import io
import logging
import runpy
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import beside_pfllib
import numpy as np
import torch
import tyro
from beside_pfllib import BATCH, CLASSES, PAIRS, Clients, Net, Pair, Run, accuracy, net_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

UNUSED = ("setproctitle", "wandb")
SERVER_EPOCHS = 2
ours_of = beside_pfllib.ours
done: dict[tuple[object, ...], Run] = {}
"""Runs by what they depend on: rows may differ on one side alone."""


class Sides(NamedTuple):
    """How the sides of a row differ from theirs as released, and from ours with their weight."""

    in_order: bool = False
    """Theirs: samples are not shuffled, so that the server's answers are for them."""
    one_softmax: bool = False
    """Theirs: probabilities are not taken for logits, and softened once more."""
    after: bool = False
    """Theirs: the server answers once it has learned from all clients, not while it learns, and the
    order of the samples changes before each upload."""
    weight: float = 1.5
    """Ours: that of the distillation at the client."""
    alignment: str = "similarity"
    """Of both."""


ROWS = {
    "released": Sides(),
    "released-0.15": Sides(weight=0.15),
    "logits": Sides(in_order=True, one_softmax=True),
    "logits-after": Sides(in_order=True, one_softmax=True, after=True),
    "logits-after-balance": Sides(True, True, True, alignment="balance"),
}


@dataclass(frozen=True, kw_only=True)
class Options(beside_pfllib.Options):
    """Runs both sides on the same clients, and prints a table."""

    methods: tuple[str, ...] = tuple(ROWS)
    """Rows of the table."""


def ours(name: str, clients: Clients, seed: int, options: Options) -> Run:
    """Our method, with the row's weight."""
    row = ROWS[name]
    training = {"optimizer": "sgd", "weight": row.weight}
    settings = {"shared_layers": 2, "server_epochs": SERVER_EPOCHS, "alignment": row.alignment}
    asked = "ours", row.weight, row.alignment, seed
    with patch.dict(PAIRS, {"fedict": Pair("FedICT", {}, training, settings, "own")}):
        done[asked] = done.get(asked) or ours_of("fedict", clients, seed, options)
    return done[asked]


class Split(nn.Module):
    """The network as their client calls it: for logits and features."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and what the convolutions give."""
        features = self.net.features(images)
        return self.net.classifier(features.flatten(1)), features


class Reordered:
    """Batches of samples whose order changes before each upload: the last of a round's passes. The
    main program's count of the labels is the first pass."""

    def __init__(self, dataset: TensorDataset, every: int, seed: int) -> None:
        self.dataset, self.every, self.passes = dataset, every, 0
        self.order = torch.arange(len(dataset))
        self.stream = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.dataset) // BATCH

    def __iter__(self) -> Iterator[list[Tensor]]:
        if self.passes and self.passes % self.every == 0:
            self.order = torch.randperm(len(self.dataset), generator=self.stream)
        self.passes += 1
        for rows in self.order.split(BATCH):
            yield [column[rows] for column in self.dataset.tensors]


def theirs(name: str, clients: Clients, seed: int, options: Options) -> Run:
    """The authors' main program, as the row has it."""
    row = ROWS[name]._replace(weight=0.0)
    done[row, seed] = done.get((row, seed)) or their_run(row, clients, seed, options)
    return done[row, seed]


def their_run(row: Sides, clients: Clients, seed: int, options: Options) -> Run:
    """A run; each round's test is ours, and nobody uploads test features."""
    begin, found = list[float](), dict[int, float]()
    method = {"similarity": "fedict_sim", "balance": "fedict_balance"}[row.alignment]
    line = {"client_number": len(clients), "batch_size": BATCH, "lr": options.lr, "wd": 0.0}
    line |= {"epochs_client": options.epochs, "epochs_server": SERVER_EPOCHS, "method": method}
    argv = ["main_fedict.py", *(part for n, v in line.items() for part in (f"--{n}", str(v)))]

    def loaded(*_: object) -> tuple[Any, ...]:
        sets = [
            TensorDataset(torch.from_numpy(x.astype(np.float32) / 255), torch.from_numpy(y))
            for x, y in (client["train"] for client in clients)
        ]
        torch.manual_seed(seed)  # theirs is always the same
        loaders: list[Any] = [DataLoader(own, BATCH, shuffle=not row.in_order) for own in sets]
        if row.after:
            loaders = [Reordered(own, 1 + options.epochs, seed) for own in sets]
        none: dict[int, list[Any]] = {k: [] for k in range(len(clients))}
        return 0, 0, None, None, none, none, dict(enumerate(loaders)), none, CLASSES, CLASSES

    def head(classes: int) -> nn.Module:
        begin.append(time.process_time())
        return nn.Sequential(nn.Flatten(), net_of("fedavg", seed).classifier)

    def tested(trainer: Any) -> dict[str, float]:
        k = trainer.client_index
        found[k] = accuracy(trainer.client_model.net, [clients[k]])
        return {f"{k} test_{figure}": 0.0 for figure in ("loss", "accTop1", "accTop5")}

    loader = SimpleNamespace(load_partition_data_cifar10=loaded)
    with their_code(options.checkout, loader) as code, patch.object(sys, "argv", argv):
        code("resnet_client").resnet8_56 = lambda classes: Split(net_of("fedavg", seed))
        code("resnet_server").resnet56_server = head
        code("FedGKTAPI").range = lambda n: builtins.range(options.rounds if n == 10**6 else n)
        code("GKTClientTrainer").GKTClientTrainer.eval_on_the_client = tested
        loss, server = code("utils").KL_Loss, code("GKTServerTrainer").GKTServerTrainer
        trains = server.train_and_eval

        def trains_first(trainer: Any, *how: int) -> None:
            trains(trainer, *how)
            answer(trainer)

        with (
            patch.object(loss, "forward", once_softened if row.one_softmax else loss.forward),
            patch.object(server, "train_and_eval", trains_first if row.after else trains),
        ):
            runpy.run_path(str(options.checkout / "main_fedict.py"), run_name="__main__")
        return Run(mean(found.values()), time.process_time() - begin[0])


@torch.no_grad()
def answer(trainer: Any) -> None:
    """The server's logits of all features that it has, anew."""
    for k, features in trainer.client_extracted_feauture_dict.items():
        answers = {i: trainer.model_global(torch.from_numpy(f)) for i, f in features.items()}
        trainer.server_logits_dict[k] = {i: logits.numpy() for i, logits in answers.items()}


def once_softened(loss: Any, student: Tensor, teacher: Tensor) -> Tensor:
    """T^2 KL(teacher || student) of log-probabilities and probabilities, which theirs calls with
    what are such already."""
    divergence: Tensor = nn.functional.kl_div(student, teacher, reduction="batchmean")
    return loss.T**2 * divergence


@contextmanager
def their_code(checkout: Path, loader: SimpleNamespace) -> Iterator[Any]:
    """Their modules by name, on a CPU, quiet, with our samples and plain SGD."""
    plain = torch.optim.SGD
    known: dict[str, Any] = {**{name: MagicMock() for name in UNUSED}, "data_loader": loader}
    sys.modules |= known  # for good: not every module of torch can be loaded twice
    with (
        patch.object(sys, "path", [str(checkout.resolve()), *sys.path]),
        patch.object(Tensor, "cuda", lambda tensor: tensor),
        patch.object(torch.optim, "SGD", lambda params, lr, **_: plain(params, lr=lr)),
        redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.INFO)
        yield importlib.import_module
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    beside_pfllib.ours, beside_pfllib.theirs = ours, theirs
    sys.exit(beside_pfllib.main(tyro.cli(Options)))
