"""FedDyn's authors' code and ours on the clients of beside_pfllib.py, with the same options.

    python benchmarks/beside_feddyn.py --checkout DIR --data-root DIR --methods feddyn fedavg

DIR holds a checkout of github.com/alpemreacar/FedDyn.
"""

import importlib
import io
import sys
import time
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import beside_pfllib
import numpy as np
import torch
import tyro
from beside_pfllib import BATCH, PAIRS, Clients, Options, Run, accuracy, net_of
from torch import nn

OURS: dict[str, Any] = {"fedavg": {}, "fedprox": {}, "feddyn": {"adapted": True}}
"""Beside the settings of PFLlib's pair: the authors cut gradients, and scale alpha by samples."""


def theirs(name: str, clients: Clients, seed: int, options: Options) -> Run:
    """The authors' method; of the four tests that each of its rounds makes one is left, ours."""
    data: dict[str, Any] = {"name": "beside", "dataset": "mnist", "n_client": len(clients)}
    data |= {"clnt_x": [own["train"][0].astype(np.float32) / 255 for own in clients]}
    data |= {"clnt_y": [own["train"][1][:, None] for own in clients], "tst_x": None, "tst_y": None}
    calls, pair = count(), PAIRS[name]

    def tested(x: None, y: None, model: nn.Module, *_: object) -> tuple[float, float]:
        return 0.0, 0.0 if next(calls) % 4 else accuracy(model, clients)

    settings = {{"alpha": "alpha_coef"}.get(n, n): v for n, v in pair.their_settings.items()}
    settings |= {"learning_rate": options.lr, "batch_size": BATCH, "epoch": options.epochs}
    settings |= {"com_amount": options.rounds, "save_period": options.rounds, "rand_seed": seed}
    settings |= {"act_prob": 1, "lr_decay_per_round": 1.0, "weight_decay": 0.0, "print_per": 10**9}
    sys.path.insert(0, str(options.checkout.resolve()))
    with TemporaryDirectory() as place, chdir(place), redirect_stdout(io.StringIO()):
        code = importlib.import_module("utils_methods")
        code.get_acc_loss = tested  # type: ignore[attr-defined]
        train, start = getattr(code, f"train_{pair.theirs}"), net_of(name, seed)
        settings |= {"model_func": lambda: net_of(name, seed), "init_model": start}
        Path("Output/beside").mkdir(parents=True)
        torch.manual_seed(seed)
        begin = time.process_time()
        found = train(SimpleNamespace(**data), **settings)
        seconds = time.process_time() - begin
    return Run(accuracy(found[3][-1], clients), seconds)


if __name__ == "__main__":
    for name, more in OURS.items():
        how = {**PAIRS[name].our_training, "max_norm": 10.0, **more}
        PAIRS[name] = replace(PAIRS[name], our_training=how)
    beside_pfllib.theirs = theirs
    sys.exit(beside_pfllib.main(tyro.cli(Options)))
