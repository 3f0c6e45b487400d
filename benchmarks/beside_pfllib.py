"""PFLlib's methods and ours on the same clients: accuracy and seconds side by side.

    python benchmarks/beside_pfllib.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/TsingZ0/PFLlib, whose code is read and run where it lies. Both
sides get the same samples, start weights, rounds, epochs, batches and rate. PFLlib leaves out a
last batch that is not full; so each client holds whole batches. Both train in this process on one
core; seconds are its processor time in the rounds, with a test in each, of the same models on the
same samples. PFLlib's own test does more, so it is replaced by ours.
"""

import importlib
import os
import random
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import tyro
from machine import Rows
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import onefold
from fl.data.datasets import load
from fl.data.partition import PartitionConfig, make_partition

BATCH, CLASSES = 16, 10
Client = dict[str, tuple[np.ndarray, np.ndarray]]
"""A client's ``train`` and ``test``: images, uint8 (N, 1, 28, 28), and labels (N,)."""
Clients = list[Client]


@dataclass(frozen=True)
class Pair:
    """A method of theirs, the settings of both sides, and which model is tested."""

    theirs: str
    their_settings: dict[str, Any] = field(default_factory=dict)
    our_training: dict[str, Any] = field(default_factory=dict)
    our_settings: dict[str, Any] = field(default_factory=dict)
    tested: Literal["global", "sent", "own", "norm"] = "global"
    """global: one model, on the tests of all clients. sent: each client's with what the server has
    sent it last, own: as the client has trained it, both on the client's own test. norm: each
    client's BatchNorm in the global model, on the tests of all clients."""
    model: str = "model"
    """The attribute of a client of theirs that is its model."""


PAIRS = {
    "fedavg": Pair("FedAvg"),
    "fedprox": Pair("FedProx", {"mu": 0.1}, {"proximal": 0.1}),
    "moon": Pair("MOON", {"mu": 1.0, "tau": 0.5}, {"mu": 1.0, "temperature": 0.5}),
    "feddyn": Pair("FedDyn", {"alpha": 0.1}, {"alpha": 0.1}),
    "scaffold": Pair("SCAFFOLD", {"server_learning_rate": 1.0}),
    "fedper": Pair("FedPer", {}, {}, {"shared_layers": 3}, "sent"),
    "fedrep": Pair("FedRep", {}, {}, {"shared_layers": 3}, "sent"),
    "fedbn": Pair("FedBN", {}, {}, {"tested": "personal"}, "norm"),
    "ditto": Pair("Ditto", {"mu": 1.0}, {"attachment": 1.0}, {}, "own", "model_per"),
    "fedproto": Pair("FedProto", {"lamda": 1.0}, {"attraction": 1.0}, {}, "own"),
    "fedgen": Pair(
        "FedGen",
        {"noise_dim": 32, "hidden_dim": 256, "generator_learning_rate": 3e-4, "server_epochs": 200},
        {"recognition": 1.0, "imitation": 0.0, "decay": 1.0},
        {
            "generator": {"steps": 200, "lr": 3e-4, "decay": 1.0, "batch_size": BATCH},
            "generator.weight_decay": 0.0,
        },
    ),
    "local": Pair("Local", {}, {}, {}, "own"),
}
ADAM = ("fedper", "fedrep", "ditto", "fedproto", "local")
"""Ours whose optimiser is Adam unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Runs PFLlib's methods and ours on the same clients, and prints a table."""

    checkout: Path
    """A checkout of the public code."""
    commit: str | None = None
    """Its commit. Default: asked of git."""
    data_root: Path = Path("data")
    """Where the data set lies."""
    dataset: str = "mnist"
    """MNIST, or another of gray images of its size."""
    methods: tuple[str, ...] = tuple(PAIRS)
    """Methods, by our names."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the partition, the start weights and the batches."""
    rounds: int = 10
    """Rounds, at least 2."""
    clients: int = 10
    """Clients."""
    images: int = 4000
    """Images of all clients; two fifths of each client's are its test."""
    alpha: float = 0.5
    """Of the Dirichlet partition."""
    epochs: int = 2
    """Local epochs."""
    lr: float = 0.1
    """Rate of plain SGD."""
    json: Path | None = None
    """File that gets a line of JSON for each run."""


@dataclass(frozen=True)
class Run:
    """What one side came to."""

    accuracy: float
    seconds: float


def main(options: Options) -> int:
    """Runs both sides of each method for each seed and prints the table; returns the status."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # else our server takes all cores
    rows = Rows("beside_pfllib", options.json)
    found: dict[str, list[tuple[Run, Run]]] = {}
    federations = {seed: federation(options, seed) for seed in options.seeds}
    for name in options.methods:
        found[name] = []
        for seed, clients in federations.items():
            pair = (theirs(name, clients, seed, options), ours(name, clients, seed, options))
            found[name].append(pair)
            for side, run in zip(("theirs", "ours"), pair, strict=True):
                rows.add(kind="run", method=name, seed=seed, side=side, **vars(run))
                told = f"{100 * run.accuracy:.2f} %, {run.seconds:.1f} s"
                print(f"{name} seed {seed}, {side}: {told}", file=sys.stderr, flush=True)
    asked = ["git", "-C", str(options.checkout), "rev-parse", "HEAD"]
    commit = options.commit or subprocess.check_output(asked, text=True).strip()
    print(f"Commit {commit}\n\n{table(found)}")
    return 0


def table(found: dict[str, list[tuple[Run, Run]]]) -> str:
    """The runs of each method, theirs and ours, as a table in Markdown."""
    lines = [
        "| Method | Theirs, % | Ours, % | Ours - theirs | Theirs, s | Ours, s |",
        "|---|---|---|---|---|---|",
    ]
    for name, pairs in found.items():
        accuracies = [[run.accuracy for run in side] for side in zip(*pairs, strict=True)]
        apart = [own - other for other, own in zip(*accuracies, strict=True)]
        seconds = [f"{mean(run.seconds for run in side):.1f}" for side in zip(*pairs, strict=True)]
        cells = [f"`{name}`", *map(spread, [*accuracies, apart]), *seconds]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent."""
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{100 * mean(values):.2f} ± {100 * deviation:.2f}"


def federation(options: Options, seed: int) -> Clients:
    """The images, divided among the clients; each trains on whole batches."""
    split = load(options.dataset, options.data_root, max_train=options.images).train
    config = PartitionConfig(min_samples=2 * BATCH, test_fraction=0.4)
    parts = make_partition(
        split.labels, options.clients, CLASSES, config, alpha=options.alpha, seed=seed
    )
    rng = np.random.default_rng(seed)
    trains = [rng.permutation(own)[: len(own) // BATCH * BATCH] for own in parts.train]
    images, labels = np.asarray(split.images), split.labels
    return [
        {"train": (images[a], labels[a]), "test": (images[b], labels[b])}
        for a, b in zip(trains, parts.test, strict=True)
    ]


class Net(nn.Module):
    """A small CNN of four layers, the last of which is the head."""

    def __init__(self, num_classes: int = CLASSES, norm: bool = False) -> None:
        super().__init__()
        layers: list[tuple[str, nn.Module]] = []
        for number, (inside, outside) in enumerate(((1, 8), (8, 16))):
            layers += [(f"conv{number}", nn.Conv2d(inside, outside, 5))]
            layers += [(f"bn{number}", nn.BatchNorm2d(outside))] if norm else []
            layers += [(f"relu{number}", nn.ReLU()), (f"pool{number}", nn.MaxPool2d(2))]
        self.features = nn.Sequential(OrderedDict(layers))
        self.classifier = nn.Sequential(
            nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


class Divided(nn.Module):
    """The same network as PFLlib wants it: a base and a head."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        hidden, relu, head = net.classifier
        self.base = nn.Sequential(net.features, nn.Flatten(), hidden, relu)
        self.head = head  # after the base: PFLlib goes by the parameters' order

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.base(images))
        return logits


def net_of(name: str, seed: int) -> Net:
    """The untrained network of a method, the same for both sides."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Net(norm=PAIRS[name].tested == "norm")


def ours(name: str, clients: Clients, seed: int, options: Options) -> Run:
    """Our method, by the door that users have."""
    pair, times, own = PAIRS[name], list[float](), list[float]()

    def note(event: onefold.Event) -> None:
        """Keeps when the first client begins and each round ends, and each client's accuracy."""
        if isinstance(event, onefold.RoundEnd) or (event.name == "phase" and not times):
            times.append(time.process_time())
            own[:] = getattr(event, "client_accuracy", [])

    def start() -> nn.Module:
        return net_of(name, seed)

    epochs = {"epochs": options.epochs}
    if name == "fedrep":  # theirs counts those of the head apart
        epochs = {"epochs": 2 * options.epochs, "head_epochs": options.epochs}
    plain: dict[str, Any] = {"lr": options.lr, "batch_size": BATCH, "momentum": 0.0, **epochs}
    plain |= {"optimizer": "sgd"} if name in ADAM else {}
    with TemporaryDirectory() as folder:
        result = onefold.run(
            data={str(k): client for k, client in enumerate(clients)},
            model=start,
            method=name,
            rounds=options.rounds,
            seed=seed,
            runtime="inprocess",
            output_dir=folder,
            progress=False,
            callbacks=[note],
            classifier={**plain, **pair.our_training},
            **pair.our_settings,
        )
        found = result.accuracy if pair.tested == "norm" else mean(own or [0.0])
        found = accuracy(result.model, clients) if pair.tested == "global" else found
    return Run(found, times[-1] - times[0])


def accuracy(model: nn.Module, clients: Clients) -> float:
    """The share of these clients' test samples that a model gets right."""
    images, labels = (np.concatenate([c["test"][k] for c in clients]) for k in (0, 1))
    with torch.no_grad():
        answers = model.eval()(torch.from_numpy(images).float() / 255).argmax(1).numpy()
    return float((answers == labels).mean())


class Theirs(SimpleNamespace):
    """PFLlib's settings: what is not named is off."""

    def __getattr__(self, name: str) -> int:
        return 0


def theirs(name: str, clients: Clients, seed: int, options: Options) -> Run:
    """PFLlib's method, by its server's class and its files of samples."""
    pair = PAIRS[name]
    settings = Theirs(
        model=Divided(net_of(name, seed)),
        algorithm=pair.theirs,
        device="cpu",
        dataset="beside",
        num_classes=CLASSES,
        global_rounds=options.rounds - 1,  # it plays one more
        local_epochs=options.epochs,
        plocal_epochs=options.epochs,
        batch_size=BATCH,
        local_learning_rate=options.lr,
        learning_rate_decay_gamma=1.0,
        num_clients=len(clients),
        join_ratio=1.0,
        time_threthold=float("inf"),
        eval_gap=1,
        **pair.their_settings,
    )
    with their_folder(options.checkout, clients), open(os.devnull, "w") as quiet:
        file = pair.theirs.lower().removeprefix("fed")
        module = importlib.import_module(f"flcore.servers.server{file}")
        with redirect_stdout(quiet):
            server = getattr(module, pair.theirs)(settings, 0)
            server.evaluate = lambda: server.rs_test_acc.append(tested(pair, server, clients))
            server.evaluate_personalized = lambda: None
            server.save_results = server.save_global_model = lambda: None
            for seeded in (torch.manual_seed, np.random.seed, random.seed):
                seeded(seed)
            begin = time.process_time()
            server.train()
            seconds = time.process_time() - begin
        if name == "feddyn":  # ours tests the mean of the clients' weights, without the mean drift
            last = [parameters_to_vector(client.model.parameters()) for client in server.clients]
            vector_to_parameters(torch.stack(last).mean(0), server.global_model.parameters())
        if pair.tested in ("sent", "norm"):
            server.send_models()
        return Run(tested(pair, server, clients), seconds)


def tested(pair: Pair, server: Any, clients: Clients) -> float:
    """The accuracy of their model, or the mean of their clients' models'."""
    if pair.tested == "global":
        return accuracy(server.global_model, clients)
    models = [getattr(client, pair.model) for client in server.clients]
    tests = [clients] * len(clients) if pair.tested == "norm" else [[c] for c in clients]
    return mean(map(accuracy, models, tests))


@contextmanager
def their_folder(checkout: Path, clients: Clients) -> Iterator[None]:
    """Goes to a folder that holds the clients' samples as PFLlib reads them; its code is found."""
    before = [*sys.path]
    sys.path.insert(0, str((checkout / "system").resolve()))
    unused = {name: ModuleType(name) for name in ("h5py", "utils.dlg")}  # figures, and an attack
    vars(unused["utils.dlg"])["DLG"] = None
    sys.modules |= unused
    with TemporaryDirectory() as folder:
        for part in ("train", "test"):
            place = Path(folder) / "dataset" / "beside" / part
            place.mkdir(parents=True)
            for k, client in enumerate(clients):
                x, y = client[part]
                held: Any = {"x": x.astype(np.float32) / 255, "y": y}
                np.savez(place / f"{k}.npz", data=held)
        (Path(folder) / "system").mkdir()
        try:
            with chdir(Path(folder) / "system"):
                yield
        finally:
            sys.path[:] = before
            for name in unused:
                del sys.modules[name]


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
