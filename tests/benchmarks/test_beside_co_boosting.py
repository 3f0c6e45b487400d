"""Co-Boosting's authors beside Onefold: both servers begin alike. A stand-in has their names."""

import json
import sys
from pathlib import Path

import beside_co_boosting
import pytest
import torch
from beside_co_boosting import Options, ours, theirs, uploaded
from beside_pfllib import accuracy, federation, net_of

PROGRAM = """
import json, registry, torch
from pathlib import Path
from termcolor import colored


class WEnsemble:
    def __init__(self, models, weights):
        self.models, self.weights = models, weights


def dense_kd_train(synthesizer, pair, loss, optimizer, args):
    student, teacher = pair
    student.cuda()
    optimizer.step()
    random = torch.rand(4, 1, 28, 28).to("cuda").cuda().to(torch.float32)
    logits, features = student(random, return_features=True)
    assert logits.shape == features.shape == (4, 10)
    rates = [group["lr"] for group in optimizer.param_groups]
    row = args.current_epoch, teacher.weights.sum().item(), len(teacher.models), *rates
    with Path(__file__).with_name("seen").open("a") as file:
        print(json.dumps(row), file=file)
"""
SYNTHESIS = """
import torch


class DENSESynthesizer:
    def __init__(self, teacher, models, student, generator, *sizes, **settings):
        self.teacher = teacher
        assert sizes[:3] == (256, 10, (1, 28, 28)) and settings["lr_g"] == 1e-3

    def synthesize(self, cur_ep):
        loader = torch.utils.data.DataLoader([1], num_workers=4, pin_memory=True)
        assert loader.num_workers == 0 and not loader.pin_memory
"""


@pytest.fixture
def options(tmp_path: Path, elsewhere: None) -> Options:
    """A tiny problem, and a checkout that holds a server which makes and trains nothing."""
    files = {
        "datafree_kd.py": PROGRAM,
        "datafree/__init__.py": "from . import models, synthesis, utils, criterions",
        "datafree/synthesis.py": SYNTHESIS,
        "datafree/models/__init__.py": "from . import classifiers",
        "datafree/models/generator.py": "Generator = lambda *a, **k: None",
        "datafree/utils/__init__.py": "from . import inception\nNormalizer = lambda *a: None",
        "datafree/criterions.py": "KLDiv = lambda T: None",
    }
    for name, text in files.items():
        file = tmp_path / "theirs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sizes = {"images": 120, "clients": 2, "epochs": 1, "server_epochs": 2, "made": 2, "steps": 1}
    return Options(checkout=tmp_path / "theirs", dataset="digits", **sizes)  # type: ignore[arg-type]


def test_both_servers_begin_with_the_same_student_and_end_there_if_it_learns_nothing(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(beside_co_boosting.STUDENT, "lr", 1e-12)
    clients, folder = federation(options, 0), str(tmp_path / "runs")
    untrained = accuracy(net_of("fedavg", 0), clients)
    assert theirs(folder, "dense", clients, 0, options).accuracy == untrained
    assert ours(folder, "dense", clients, 0, options).accuracy == untrained


def test_their_loop_has_each_epoch_the_uploads_equal_weights_and_the_falling_rate(
    options: Options, tmp_path: Path
) -> None:
    theirs(str(tmp_path / "runs"), "dense", federation(options, 0), 0, options)
    seen = [json.loads(row) for row in (options.checkout / "seen").read_text().splitlines()]
    assert seen == [[0, 1.0, 2, 0.01], [1, 1.0, 2, 0.005]]
    assert "datafree" not in sys.modules
    assert "registry" not in sys.modules
    assert torch.zeros(1).to("cpu").device.type == "cpu"


def test_teachers_are_what_the_clients_uploaded(options: Options, tmp_path: Path) -> None:
    clients = federation(options, 0)
    one, two = uploaded(str(tmp_path), clients, 0, options)
    start = net_of("fedavg", 0).state_dict()
    weights = [model.model.state_dict() for model in (one, two)]
    assert all(not torch.equal(start[n], w[n]) for w in weights for n in start if "weight" in n)
    assert not any(torch.equal(weights[0][n], weights[1][n]) for n in start)
    images = torch.rand(3, 1, 28, 28)
    assert torch.equal(one(images), one.model(images))
