"""Every method's accuracy, round by round or epoch by epoch, against what it once was.

The runs are small, but learn. ``python -m tests.fl.methods.test_golden --write`` records their
curves anew in ``golden.json``, each from before the first round on, with a floor for its last
accuracy: the commit that needs it says why a method learns otherwise.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from fl.condensation.kip import KipTraining
from fl.methods.registry import METHODS
from tests.fl.methods.small import play, problem, small

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).with_name("golden.json")
TOLERANCE = 0.1
"""Of the mean over a curve, on 150 images or more: rounding, which differs from CPU to CPU, moves
some answers, and in a single round of FedDM 0.15."""
LEAST = 0.2
"""The lowest floor: twice what guessing gives."""

CNN = {"model": "cnn", "width": 0.3, "epochs": 8, "lr": 0.02, "momentum": 0.9}
AVERAGED = {"classifier": CNN, "num_large": 4}
OWN = {"classifier": {"model": "m1", "width": 1.0, "epochs": 10, "lr": 5e-3}}
DROPPED = {**OWN, "dropping": {"rate": 1}}
TAUGHT = {"classifier": {**OWN["classifier"], "epochs": 6}}
CVAE = {"width": 0.5, "latent": 8, "epochs": 40, "lr": 5e-3}
FIT = {"epochs": 10, "lr": 5e-3, "batch_size": 32}
CVAES = {
    "generator": CVAE,
    "num_large": 0,
    "large_model": "cvae-small",
    "large_width": 0.5,
    "num_samples": 300,
    "global_model": "cnn",
    "global_width": 0.3,
    "classify": FIT,
}
CONDENSED = {
    "condensation": {"width": 0.05, "images_per_class": 2, "steps": 2},
    "fusion": {"epochs": 10, "lr": 0.05, "optimizer": "sgd", "test_every": 20},
}
MHO = {
    "classifier": {**CNN, "epochs": 4},
    "generator": CVAE,
    "num_samples": 300,
    "fusion": {**FIT, "lr": 2e-3},
}
POOLED = {
    **AVERAGED,
    "inversion": {"batch_size": 64, "steps": 6, "width": 0.125, "lr": 5e-3},
    "kd": {"epochs": 8, "lr": 0.02, "batch_size": 16, "temperature": 4.0, "clip": 10.0},
}
LEARNING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("fedavg", "fedprox", "fednova", "moon", "fedlpa"), AVERAGED),
    **{name: {**AVERAGED, "server_lr": 0.02} for name in ("fedadagrad", "fedadam", "fedyogi")},
    "scaffold": {**AVERAGED, "classifier": {**CNN, "momentum": 0.0, "lr": 0.1}},
    "feddyn": {**AVERAGED, "classifier": {**CNN, "alpha": 0.1}},
    "fedgen": {**AVERAGED, "classifier": {**CNN, "recognition": 0.5, "imitation": 0.5}},
    "fedbn": {"classifier": {**CNN, "model": "convnet", "width": 0.1, "epochs": 6}, "num_large": 4},
    "feddf": {**AVERAGED, "distil": {"epochs": 5}},
    "fens": {
        **AVERAGED,
        "classifier": {**CNN, "validation": 0.2},
        "aggregator": {"server_lr": 0.03},
    },
    "fedov": {**AVERAGED, "classifier": {**CNN, "optimizer": "adam", "lr": 5e-3, "epochs": 12}},
    "dense": POOLED,
    "co-boosting": {**POOLED, "adv": 0.2},
    "dynafed": {
        "classifier": CNN,
        "trajectory": 3,
        "matching": {"iterations": 5, "inner_steps": 3},
    },
    "fedseq": {"classifier": CNN, "clusters": 2},
    "hfldd": {
        "classifier": CNN,
        "knowing": {"lr": 0.05},
        "groups": 2,
        "kip": KipTraining(images=20, steps=3, targets=8, stop="never"),
    },
    "centralised": {"classifier": CNN, "fit": {"epochs": 6, "lr": 0.05, "momentum": 0.9}},
    **dict.fromkeys(("local", "fedper", "fedrep", "pfedsd", "ditto", "fedproto"), OWN),
    **dict.fromkeys(("fedper+", "fedrep+"), DROPPED),
    "fedict": TAUGHT,
    "fedmd": {"classifier": {**TAUGHT["classifier"], "own_epochs": 12}},
    "fedd2s": {"classifier": {**OWN["classifier"], "epochs": 8}},
    "fedcvae-ens": CVAES,
    "fedcvae-kd": {**CVAES, "decoder": {"num_samples": 300, "epochs": 10, "lr": 5e-3}},
    **dict.fromkeys(("fedmho", "fedmho-md", "fedmho-sd"), MHO),
    "fedmho-open": {**MHO, "open_samples": 200},
    **dict.fromkeys(("fedaf", "feddm"), CONDENSED),
}
"""What a method needs to learn something in a second, beside what makes it small."""


def changed(config: Any, changes: dict[str, Any]) -> Any:
    """The settings with some changed, in the records within them too."""
    nested = {
        name: changed(getattr(config, name), value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return replace(config, **nested)


def curve(name: str, folder: Path) -> list[float]:
    """Accuracy before the first round and after each, or each epoch. Methods share a folder, and
    with it the uploads of clients that train alike."""
    config = changed(small(METHODS[name].config()), LEARNING[name])
    outcome = play(name, config, problem(400, 150, 0.4), folder, about=name).outcome
    return [round(e.accuracy, 4) for e in (outcome.start, *outcome.epochs)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_as_it_did(name: str, folder: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    found = curve(name, folder)
    assert np.abs(np.subtract(found, golden["curve"])).mean() <= TOLERANCE
    assert found[-1] >= golden["floor"] >= LEAST


def write() -> None:
    """Records all curves; a method that does not learn is named, and nothing is written."""
    torch.set_num_threads(1)
    golden: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory() as folder:
        for name in METHODS:
            found = curve(name, Path(folder))
            golden[name] = {"curve": found, "floor": round(found[-1] - TOLERANCE, 4)}
            if golden[name]["floor"] < max(LEAST, found[0] + TOLERANCE):
                raise SystemExit(f"{name} does not learn: {found}")
    lines = (f'  "{name}": {json.dumps(of)}' for name, of in golden.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    write()
