"""DENSE and Co-Boosting by Co-Boosting's authors and by us, from the same clients' classifiers.

    python benchmarks/beside_co_boosting.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/rong-dai/Co-Boosting, which has a DENSE too. The clients are
those of beside_pfllib.py; ours train them, and both servers get what they uploaded. Both begin with
the same untrained student and have the authors' rates, weights and temperature; sizes are smaller,
and images are not normalised. Seconds are the server's.
"""

import importlib
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from beside_pfllib import BATCH, CLASSES, Clients, Run, accuracy, net_of
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.transforms import ToTensor

import onefold
from fl.events import Phase

METHODS = {"dense": "DENSESynthesizer", "co-boosting": "COBOOSTSynthesizer"}
UNUSED = (
    *("registry", "termcolor", "datafree.models.deeplab", "datafree.models.classifiers"),
    *("datafree.rep_transfer", "datafree.utils.inception", "datafree.utils.sync_transforms"),
)
"""What their code imports and is not used here: other networks and data sets, a log's colours."""
LATENT, TEMPERATURE, CLIP = 256, 4.0, 10.0
STUDENT: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Options(beside_pfllib.Options):
    """Runs both servers on the same uploads, and prints a table."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods, by our names."""
    rounds: tyro.conf.Suppress[int] = 1
    """These methods have one."""
    epochs: int = 10
    """Local epochs."""
    server_epochs: int = 30
    """The server's: in each the pool of images grows, and the student learns all of it once."""
    made: int = 64
    """Images that an epoch makes."""
    steps: int = 20
    """The generator's in an epoch."""


def run(method: str, clients: Clients, seed: int, options: Options, **more: Any) -> onefold.Result:
    """A run of ours; clients train in the first of an output directory alone."""
    return onefold.run(
        data={str(k): client for k, client in enumerate(clients)},
        model=lambda: net_of("fedavg", seed),
        method=method,
        seed=seed,
        runtime="inprocess",
        overwrite=True,
        progress=False,
        classifier={
            **{"optimizer": "sgd", "lr": options.lr, "momentum": 0.0},
            **{"batch_size": BATCH, "epochs": options.epochs},
        },
        **more,
    )


def ours(folder: str, name: str, clients: Clients, seed: int, options: Options) -> Run:
    """Our method, by the door that users have."""
    times = {}

    def note(event: onefold.Event) -> None:
        if isinstance(event, Phase) and event.phase == "fusion":
            times[event.status] = time.process_time()

    settings = {
        "inversion": {"batch_size": options.made, "steps": options.steps, "width": 1.0},
        "kd": {
            **STUDENT,
            **{"epochs": options.server_epochs, "batch_size": BATCH, "clip": CLIP},
            **{"temperature": TEMPERATURE, "schedule": "cosine"},
        },
    }
    more: dict[str, Any] = {"output_dir": folder, "callbacks": [note], **settings}
    found = run(name, clients, seed, options, **more)
    return Run(accuracy(found.model, clients), times["end"] - times["start"])


class Answering(nn.Module):
    """A model as their code calls it: it asks for features, which it does not use."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, return_features: bool = False) -> Any:
        """Logits, as features too where they are asked for."""
        logits = self.model(images)
        return (logits, logits) if return_features else logits


def uploaded(folder: str, clients: Clients, seed: int, options: Options) -> list[Answering]:
    """What the clients upload to ours, as models."""
    found = []
    updates = Path(run("fedavg", clients, seed, options, output_dir=folder).path) / "updates"
    for file in sorted(updates.iterdir()):
        model = net_of("fedavg", seed)
        model.load_state_dict(
            {name.removeprefix("classifier."): t for name, t in load_file(file).items()}
        )
        found.append(Answering(model.eval()))
    return found


def theirs(folder: str, name: str, clients: Clients, seed: int, options: Options) -> Run:
    """The authors' synthesizer and their student's training, in the order of their main loop."""
    teachers, student = uploaded(folder, clients, seed, options), Answering(net_of("fedavg", seed))
    weights = torch.full((len(teachers), 1), 1 / len(teachers))
    settings = SimpleNamespace(
        **{"print_freq": sys.maxsize, "logger": MagicMock(), "his": True, "hs": 1.0},
        **{"weighted": True, "mu": 0.01, "wdc": 0.99, "wa_steps": 1, "odseta": 8 / 255},
        kd_T=TEMPERATURE,
    )
    with their_code(options.checkout) as (main, data_free), TemporaryDirectory() as images:
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(seed)
        begin = time.process_time()
        generator = data_free.models.generator.Generator(LATENT, ngf=64, img_size=28, nc=1)
        synthesizer = getattr(data_free.synthesis, METHODS[name])(
            *(main.WEnsemble(teachers, weights), teachers, student, generator),
            *(LATENT, CLASSES, (1, 28, 28), images),
            **{"iterations": options.steps, "synthesis_batch_size": options.made},
            **{"lr_g": 1e-3, "sample_batch_size": BATCH, "adv": 1.0, "bn": 0.0, "oh": 1.0},
            transform=ToTensor(),
            normalizer=data_free.utils.Normalizer((0.0,), (1.0,)),
            args=settings,
        )
        optimizer = torch.optim.SGD(student.parameters(), **STUDENT)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.server_epochs)
        train = main.cb_kd_train if name == "co-boosting" else main.dense_kd_train
        loss = data_free.criterions.KLDiv(T=TEMPERATURE)
        for epoch in range(options.server_epochs):
            settings.current_epoch = epoch
            synthesizer.synthesize(cur_ep=epoch)
            train(synthesizer, [student, synthesizer.teacher], loss, optimizer, settings)
            rates.step()
            accuracy(student, clients)  # both sides test each epoch's model
        seconds = time.process_time() - begin
    return Run(accuracy(student, clients), seconds)


@contextmanager
def their_code(checkout: Path) -> Iterator[tuple[Any, Any]]:
    """Their main program and their package, on a CPU, and all in this process, whose time counts:
    what they send to a GPU stays, and no other process reads the images."""
    to = Tensor.to

    def stays(thing: Any, *where: Any, **how: Any) -> Any:
        return to(thing, *where, **how) if where and where != ("cuda",) else thing

    def loads(images: Any, **how: Any) -> DataLoader[Any]:
        return DataLoader(images, **{**how, "num_workers": 0, "pin_memory": False})

    with (
        patch.dict(sys.modules, {name: MagicMock() for name in UNUSED}),
        patch.object(sys, "path", [str(checkout.resolve()), *sys.path]),
        patch.object(Tensor, "cuda", stays),
        patch.object(Tensor, "to", stays),
        patch.object(nn.Module, "cuda", stays),
        patch.object(torch.utils.data, "DataLoader", loads),
    ):
        importlib.import_module("datafree.models.generator")
        yield importlib.import_module("datafree_kd"), importlib.import_module("datafree")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        beside_pfllib.ours, beside_pfllib.theirs = partial(ours, folder), partial(theirs, folder)
        sys.exit(beside_pfllib.main(tyro.cli(Options)))
