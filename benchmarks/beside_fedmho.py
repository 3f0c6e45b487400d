"""FedMHO by its authors and by us, on the clients of beside_pfllib.py.

    python benchmarks/beside_fedmho.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/YXShi2000/FedMHO. Its master and workers run one after another in
this process, which carries their messages. The first half of the clients train its VGG-9, with
fewer channels, the rest its CVAE. Ours has the settings for what the code does otherwise than the
paper. Seconds are the clients' for average, else the server's. Each side draws its own numbers;
``--without-chance`` takes out all that is drawn, and tells how far the sides' weights are apart.
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import beside_pfllib
import numpy as np
import torch
import tyro
from beside_pfllib import BATCH, CLASSES, Clients, Run, accuracy
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.utils.data import TensorDataset

import onefold
from fl.events import Phase
from fl.models.registry import build_classifier, build_generator
from fl.seeding import seeded

UNUSED = ("cv2", "lmdb", "bit2byte", "skimage", "skimage.feature", "six", "six.moves")
DATA = {"mnist": "mnist", "fmnist": "fashionmnist"}
"""What their code calls a data set."""
SHAPE, LATENT, SERVER_EPOCHS, CVAE_RATE = (1, 28, 28), 20, 20, 5e-2
"""The last two stand in their code."""
CVAE = ("encoder.layers.0", "encoder.mu", "encoder.logvar", "decoder.layers.0", "decoder.layers.2")
"""Our layers in the order of theirs."""


@dataclass(frozen=True, kw_only=True)
class Options(beside_pfllib.Options):
    """Runs both sides on the same clients, and prints a table."""

    methods: tuple[str, ...] = ("average", "fedmho", "fedmho-md", "fedmho-sd")
    """Methods, by our names; average is that of the classifiers, where the others begin."""
    rounds: tyro.conf.Suppress[int] = 1
    """These methods have one."""
    epochs: int = 40
    """Local epochs, of both models."""
    lr: float = 1e-2
    """Rate of the classifiers' SGD, with momentum 0.9."""
    generator_lr: float = 2e-3
    """Rate of the CVAEs' Adam. Released: 5e-2."""
    server_lr: float = 1e-4
    """Rate of the server's Adam. Released: 1e-5 for MNIST, 5e-4 for Fashion-MNIST."""
    batch: int = BATCH
    """Samples of a client's step: a power of two, else their code rounds its rates."""
    width: float = 0.125
    """Factor on VGG-9's channels and units."""
    samples: int = 3000
    """Synthetic samples. Released: 6,000."""
    keep: float = 0.8
    """Share of them that the filter keeps."""
    share: bool = False
    """Their server gets what our clients uploaded."""
    without_chance: bool = False
    """No dropout, z = 0, and a single batch, at the server of 60 samples; at the clients of all
    that they have, unless their uploads are shared."""


Trained = tuple[dict[int, Tensor], float]
"""What the clients of a side uploaded, flat, by client from 1; and their seconds."""
OURS, THEIRS, FOUND = dict[int, Trained](), dict[int, Trained](), dict[tuple[str, int], Tensor]()
"""By seed; and by method and seed the weights of the side that ran first."""


def start(name: str, seed: int, options: Options) -> dict[str, Tensor]:
    """The weights from which both sides' clients begin: our names, in the order of theirs."""
    with seeded(seed, f"start/{name}"):
        if name == "vgg9":
            return build_classifier(name, SHAPE, CLASSES, width=options.width).state_dict()
        drawn = build_generator(name, SHAPE, CLASSES, latent=LATENT, width=1.0).state_dict()
    return {n: drawn[n] for layer in CVAE for n in (f"{layer}.weight", f"{layer}.bias")}


def scored(
    name: str, seed: int, weights: Tensor, seconds: float, clients: Clients, options: Options
) -> Run:
    """The run that ended with these weights; tells how far they are from the other side's."""
    model = build_classifier("vgg9", SHAPE, CLASSES, width=options.width)
    vector_to_parameters(weights, model.parameters())
    if options.without_chance and (name, seed) in FOUND:
        apart = (FOUND[name, seed] - weights).abs()
        print(f"{name} seed {seed}: weights {apart.mean():.1e} apart, at most {apart.max():.1e}")
    FOUND[name, seed] = weights
    return Run(accuracy(model, clients), seconds)


def averaged(trained: Trained, seed: int, clients: Clients, options: Options) -> Run:
    """The average of the classifiers, and the clients' seconds."""
    uploads = [trained[0][k + 1] for k in range(len(clients) // 2)]
    return scored("average", seed, torch.stack(uploads).mean(0), trained[1], clients, options)


# Ours.


def run(folder: str, name: str, clients: Clients, seed: int, options: Options, **more: Any) -> Any:
    """Our method's result, and when its phases began and ended."""
    times = dict[tuple[str, str], float]()

    def note(event: onefold.Event) -> None:
        if isinstance(event, Phase):
            times[event.phase, event.status] = time.process_time()

    local = {"epochs": options.epochs, "batch_size": options.batch}
    settings: dict[str, Any] = {
        **{"num_samples": options.samples, "keep": options.keep, "filter": "random"},
        **{"betas": "released", "overwrite": True, "progress": False, "runtime": "inprocess"},
        "classifier": {**local, "model": "vgg9", "width": options.width, "lr": options.lr},
        "generator": {**local, "lr": options.generator_lr, "latent": LATENT, "upload": "cvae"},
        "fusion": {
            **{"epochs": SERVER_EPOCHS, "test_every": SERVER_EPOCHS},
            **{"lr": options.server_lr, "batch_size": 64},
        },
        **more,
    }
    data = {str(k): client for k, client in enumerate(clients)}
    place: dict[str, Any] = {"output_dir": folder, "callbacks": [note]}
    return onefold.run(data=data, method=name, seed=seed, **place, **settings), times


def our_clients(folder: str, clients: Clients, seed: int, options: Options) -> Trained:
    """What ours upload, by a run with next to no server."""
    if seed not in OURS:
        short: dict[str, Any] = {"num_samples": 100, "fusion": {"epochs": 1}}
        found, times = run(folder, "fedmho", clients, seed, options, **short)
        names = [f"classifier.{name}" for name in start("vgg9", seed, options)]
        names += [f"cvae.{name}" for name in start("cvae-small", seed, options)]
        uploads = {}
        for k, file in enumerate(sorted((Path(found.path) / "updates").iterdir()), start=1):
            held = load_file(file)
            uploads[k] = torch.cat([held[name].flatten() for name in names if name in held])
        OURS[seed] = uploads, times["local", "end"] - times["local", "start"]
    return OURS[seed]


def ours(folder: str, name: str, clients: Clients, seed: int, options: Options) -> Run:
    """Our method, by the door that users have; clients train in a seed's first run alone."""
    trained = our_clients(folder, clients, seed, options)
    if name == "average":
        return averaged(trained, seed, clients, options)
    found, times = run(folder, name, clients, seed, options)
    seconds = times["fusion", "end"] - times["synthesis", "start"]
    weights = torch.cat([p.detach().flatten() for p in found.model.parameters()])
    return scored(name, seed, weights, seconds, clients, options)


# Theirs.


class World:
    """What MPI carries, all in this process: a worker runs when the master awaits its model."""

    def __init__(self, ready: dict[int, Tensor]) -> None:
        self.rank, self.mail, self.ready, self.seconds = 0, dict[int, Tensor](), ready, 0.0
        self.work: Callable[[], None] = lambda: None
        self.said = torch.empty(0)

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """What the master says to all."""
        if self.rank:
            tensor.copy_(self.said)
        else:
            self.said = tensor.clone()

    def send(self, tensor: Tensor, dst: int) -> None:
        """To one rank."""
        self.mail[dst] = tensor.clone()

    def recv(self, tensor: Tensor, src: int) -> None:
        """What was sent to this rank."""
        tensor.copy_(self.mail[self.rank])

    def irecv(self, tensor: Tensor, src: int) -> MagicMock:
        """What a worker sends, which then runs, unless its upload is there."""
        if src not in self.ready:
            begin, self.rank = time.process_time(), src
            with torch.random.fork_rng(devices=[]):
                self.work()
            self.ready[src], self.rank = self.mail[0], 0
            self.seconds += time.process_time() - begin
        tensor.copy_(self.ready[src])
        return MagicMock()


def theirs(folder: str, name: str, clients: Clients, seed: int, options: Options) -> Run:
    """Their master and a worker for each client; these train in a seed's first run alone."""
    if options.share:
        THEIRS[seed] = our_clients(folder, clients, seed, options)
    world, count = World(THEIRS[seed][0] if seed in THEIRS else {}), len(clients)
    given = {
        **{"arch": "vgg9", "data": DATA[options.dataset], "manual_seed": seed, "on_cuda": False},
        "complex_arch": f"master=vgg9,worker=vgg9:cvae,num_clients_per_model={count // 2}",
        "fl_aggregate": f"scheme=semi_supervised,clean_rate={options.keep}",
        **{"n_clients": count, "n_participated": count, "participation_ratio": 1},
        **{"local_n_epochs": options.epochs, "cvae_local_epoch": options.epochs},
        **{"batch_size": options.batch, "lr": options.lr, "weight_decay": 0, "n_comm_rounds": 1},
        **{"lr_warmup_epochs": 5, "num_workers": 0, "pin_memory": False, "job_id": "jobs"},
        **{"latent_size": LATENT, "num_synthesis_sample": options.samples},
        **{"is_md": name == "fedmho-md", "is_sd": name == "fedmho-sd"},
    }
    told = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    with their_code(world, name, clients, seed, options) as (main, seconds):

        def begin(process: str) -> Any:
            with patch.object(sys, "argv", ["", *told]):
                settings = main.get_args()
            settings.partitioned_by_user = False
            main.init_config(settings)
            return getattr(main, process)(settings)

        world.work = lambda: begin("Worker_LMF").run()
        master = begin("Master_LMF")
        with suppress(StopIteration):
            master.run()
    trained = THEIRS.setdefault(seed, (world.ready, world.seconds))
    if name == "average":
        return averaged(trained, seed, clients, options)
    weights = torch.cat([p.detach().flatten() for p in master.master_model.parameters()])
    return scored(name, seed, weights, seconds[0], clients, options)


@contextmanager
def their_code(
    world: World, name: str, clients: Clients, seed: int, options: Options
) -> Iterator[tuple[Any, list[float]]]:
    """Their main program, on a CPU, with these clients' samples, start and rates, and without its
    pictures; and the seconds of its server."""
    seconds, adam, part = list[float](), torch.optim.Adam, "pcode.{}".format
    with ExitStack() as stack, TemporaryDirectory() as place, open(os.devnull, "w") as quiet:
        put = stack.enter_context
        put(redirect_stdout(quiet))
        sys.modules |= {name: MagicMock() for name in UNUSED if name not in sys.modules}
        put(patch.object(sys, "path", [str(options.checkout.resolve()), *sys.path]))
        main = importlib.import_module("main")
        put(chdir(place))
        server, vgg = (sys.modules[part(n)] for n in ("aggregation.semi_supervised", "models.vgg"))
        models, data = (sys.modules[part(n)] for n in ("models", "create_dataset"))
        fit, cvae, pictures = server.aggregate, models.cvae, sys.modules[part("utils.data_clean")]

        def timed(*given: Any, **more: Any) -> Any:
            if name == "average":
                raise StopIteration
            begin = time.process_time()
            found = fit(*given, **more)
            seconds.append(time.process_time() - begin)
            return found

        def paced(weights: Any, lr: float) -> torch.optim.Adam:
            return adam(weights, options.generator_lr if lr == CVAE_RATE else options.server_lr)

        def size(units: int) -> int:
            return units if units in (1, CLASSES, 47) else int(units * options.width)

        def begun(kind: str, model: nn.Module) -> nn.Module:
            own = start(kind, seed, options).values()
            model.load_state_dict(dict(zip(model.state_dict(), own, strict=True)))
            return model

        narrow = {
            "Conv2d": lambda inside, outside, **how: nn.Conv2d(size(inside), size(outside), **how),
            "Linear": lambda inside, outside: nn.Linear(size(inside), size(outside)),
        }
        held = [np.unique(own["train"][1], return_counts=True) for own in clients]
        counts = [(k, [*zip(*own, strict=True)]) for k, own in enumerate(held)]
        tests = [np.concatenate([own["test"][k] for own in clients]) for k in (0, 1)]
        sets = {"train": None, "val": None, "test": tensors(*tests)}
        parts = SimpleNamespace(use=lambda k: tensors(*clients[k]["train"]))
        for where, attribute, what in (
            (vgg, "nn", SimpleNamespace(**{**vars(nn), **narrow})),
            (models, "vgg", lambda conf: begun("vgg9", vgg.VGG9(conf.data))),
            (models, "cvae", lambda conf, arch: begun("cvae-small", cvae(conf))),
            (data, "define_dataset", lambda *_, **__: sets),
            (data, "DataPartitioner", lambda *_, **__: parts),
            (server, "get_shared_targets_of_partitions", lambda: counts),
            (server, "aggregate", timed),
            (pictures, "plt", MagicMock()),
            (pictures, "visualize_and_save_images", MagicMock()),
            (torch.optim, "Adam", paced),
            (Tensor, "cuda", lambda tensor: tensor),
            (torch.distributed, "get_rank", lambda: world.rank),
            (torch.distributed, "barrier", MagicMock()),
            *((torch.distributed, n, getattr(world, n)) for n in vars(World) if n[0] != "_"),
        ):
            put(patch.object(where, attribute, what))
        yield main, seconds


def tensors(images: np.ndarray, labels: np.ndarray) -> TensorDataset:
    """Samples as their code gets them."""
    return TensorDataset(torch.from_numpy(images).float() / 255, torch.from_numpy(labels).long())


class Kept(nn.Dropout):
    """Dropout that drops nothing."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(0.0)


if __name__ == "__main__":
    with TemporaryDirectory() as folder, ExitStack() as stack:
        beside_pfllib.ours, beside_pfllib.theirs = partial(ours, folder), partial(theirs, folder)
        options = tyro.cli(Options)
        if options.without_chance:
            batch = options.batch if options.share else 2**20
            options = replace(options, batch=batch, samples=60, keep=1.0)
            stack.enter_context(patch.object(nn, "Dropout", Kept))
            stack.enter_context(patch.object(torch, "randn", lambda *n, **_: torch.zeros(*n)))
            stack.enter_context(patch.object(torch, "randn_like", torch.zeros_like))
        sys.exit(beside_pfllib.main(options))
