"""DynaFed's authors' code and ours on the clients of beside_pfllib.py: before its images and after.

    python benchmarks/beside_dynafed.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/pipilurj/DynaFed. ``fedavg`` is the same rounds without images:
with one round more than the path has, the model before the server trains on them. Both sides learn
images from the path of their own model, have the released rates, and weigh clients alike.
"""

import importlib
import io
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import beside_pfllib
import numpy as np
import torch
import tyro
from beside_pfllib import BATCH, CLASSES, PAIRS, Clients, Pair, Run, accuracy, net_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

RELEASED = {
    **{"lr_teacher": 0.04, "img_optim": "adam", "lr_optim": "adam", "lr_img": 0.05},
    **{"lr_label": 0.01, "lr_lr": 1e-5, "label_init": 0.0, "dsa": True, "weight_averaging": True},
    **{"least_ave_num": 2, "max_ave_num": 10, "random_weights": False, "expert_epochs": 3},
    **{"min_start_epoch": 0, "max_start_epoch": 50, "dataset": "mnist", "RESULTS_PATH": ""},
    **{"num_classes": CLASSES, "channel": 1, "imsize": (28, 28)},
    # The kinds that are our default, where crop is called shift; theirs has color and flip too.
    "dsa_strategy": "crop_scale_rotate_cutout",
}
"""Their settings, but sizes."""


@dataclass(frozen=True, kw_only=True)
class Options(beside_pfllib.Options):
    """Runs FedAvg and DynaFed on both sides, and prints a table."""

    methods: tuple[str, ...] = ("fedavg", "dynafed")
    """Methods, by our names."""
    alpha: float = 0.1
    """Of the Dirichlet partition."""
    trajectory: int = 9
    """Rounds of FedAvg before the images."""
    made: int = 5
    """Images of each class."""
    iterations: int = 200
    """Parts of the path that are matched."""
    steps: int = 10
    """Steps on the images in each."""
    server_augments: bool = True
    """Whether their server trains on augmented images, as released; ours does not."""


def pairs(options: Options) -> dict[str, Pair]:
    """What ours is told beside the frame's settings: defaults are the released code's."""
    matching = {"images_per_class": options.made, "iterations": options.iterations}
    matching |= {"inner_steps": options.steps}
    told = {"trajectory": options.trajectory, "matching": matching}
    return {
        "fedavg": Pair("FedAvg", our_settings={"weighting": "uniform"}),
        "dynafed": Pair("DynaFed", our_settings=told),
    }


def theirs(name: str, clients: Clients, seed: int, options: beside_pfllib.Options) -> Run:
    """The authors' clients, server and synthesizer, in the order of their main loop."""
    assert isinstance(options, Options)
    with their_code(options, name, seed) as (client, server, synthesis, args):
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(seed)
        begin = time.process_time()
        center = server.Server(["net"], None, None, CLASSES)
        members = [client.Client("net", sgd(options.lr), loader(own)) for own in clients]
        (model,) = center.models
        synthesizer = synthesis.Synthesizer(deepcopy(model), None, args)
        synthesizer.evaluate = lambda *_, **__: None  # trains three models anew
        path = [copied(model)]
        for number in range(1, options.rounds + 1):
            if name == "dynafed" and number == options.trajectory + 1:
                synthesizer.synthesize([path], args)
                center.images_train = synthesizer.image_syn.detach()
                center.labels_train = synthesizer.label_syn.detach()
            for member in members:
                member.synchronize_with_server(center)
                member.compute_weight_update(options.epochs)
            center.datadistill(members, 20, 1e-4, dsa=options.server_augments, args=args)
            path.append(copied(model))
            found = accuracy(model, clients)
        return Run(found, time.process_time() - begin)


def sgd(lr: float) -> Any:
    """What makes a client's optimiser."""
    return lambda parameters: torch.optim.SGD(parameters, lr)


def loader(client: beside_pfllib.Client) -> DataLoader[Any]:
    """A client's batches."""
    images, labels = map(torch.from_numpy, client["train"])
    return DataLoader(TensorDataset(images.float() / 255, labels), BATCH, shuffle=True)


def copied(model: nn.Module) -> list[Tensor]:
    """A point of the path: theirs copies it from the GPU."""
    return [p.detach().clone() for p in model.parameters()]


@contextmanager
def their_code(options: Options, name: str, seed: int) -> Iterator[tuple[Any, ...]]:
    """Their modules, whose network is ours, and settings; what they send to a GPU stays here."""
    full, stays = torch.full, lambda thing: thing
    sys.modules.setdefault("wandb", MagicMock())  # a log
    with (
        patch.object(sys, "path", [str(options.checkout.resolve()), *sys.path]),
        patch.object(Tensor, "cuda", stays),
        patch.object(nn.Module, "cuda", stays),
        patch.object(torch, "full", lambda *a, device, **how: full(*a, **how)),
        redirect_stdout(io.StringIO()),
    ):
        names = ("client", "server", "image_synthesizer", "models", "utils")
        client, server, synthesis, models, utils = map(importlib.import_module, names)
        models.get_model = lambda _: (lambda **how: net_of(name, seed),)
        args = SimpleNamespace(
            **{**RELEASED, "syn_steps": options.steps, "Iteration": options.iterations},
            **{"ipc": options.made, "batch_syn": CLASSES * options.made},
            dsa_param=utils.ParamDiffAug(),
        )
        yield client, server, synthesis, args


if __name__ == "__main__":
    told = tyro.cli(Options)
    PAIRS.update(pairs(told))
    beside_pfllib.theirs = theirs
    sys.exit(beside_pfllib.main(told))
