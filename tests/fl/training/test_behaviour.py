"""Uploads are reused for the same model alone: what makes it another changes the store's key."""

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cluster.clients.store import Store
from fl.federation import Job
from fl.models.registry import MODELS, register_model
from fl.training.behaviour import behaviour
from fl.training.classifier import ClassifierConfig, train_classifier
from tests.fl.toy import PROBLEM, client, split

TRAIN = split(3, 3, 3)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = dict(MODELS)
    yield
    MODELS.clear()
    MODELS.update(before)


def job_of(name: str) -> Job:
    """A client's job that trains the registered model of that name."""
    return Job(
        task=train_classifier,
        client=client(0, ClassifierConfig(model=name)),
        run_spec=PROBLEM,
        indices=np.arange(9),
        broadcast=None,
        payload=None,
    )


def key(folder: Path, make: Callable[..., nn.Module], name: str = "net") -> str:
    """The store's key of a client that trains this model, as a run has it that begins now."""
    register_model(name, make)
    return Store(folder / "pool", folder / "updates", TRAIN).key(job_of(name))


class Net(nn.Module):
    """Reads an activation from wherever it is given."""

    shared: Callable[[Tensor], Tensor] = torch.tanh

    def __init__(self, activation: Callable[[Tensor], Tensor] | None = None, scale: float = 1.0):
        super().__init__()
        self.first, self.last = nn.Linear(784, 5), nn.Linear(5, 3)
        self._activation, self._scale = activation, scale

    def forward(self, images: Tensor) -> Tensor:
        activation = self._activation or type(self).shared
        return self._scale * self.last(activation(self.first(images.flatten(1))))


def closure(activation: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Net(activation)


class Makes:
    """A callable object."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        self.activation = activation

    def __call__(self) -> nn.Module:
        return Net(self.activation)


FORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[..., nn.Module]]] = {
    "closure": closure,
    "partial": lambda activation: functools.partial(Net, activation=activation),
    "object": Makes,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_another_activation_is_another_model_and_the_same_one_the_same(
    form: Callable[..., Callable[..., nn.Module]], tmp_path: Path
) -> None:
    keys = [key(tmp_path, form(a)) for a in (torch.tanh, F.relu, F.logsigmoid, torch.tanh)]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


def test_what_the_class_reads_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(tmp_path, Net)
    monkeypatch.setattr(Net, "shared", F.relu)
    changed = key(tmp_path, Net)
    assert changed != before
    monkeypatch.undo()
    assert key(tmp_path, Net) == before


def test_what_a_loss_reads_counts_for_every_class(tmp_path: Path) -> None:
    """Also for the rarest: the code that reads it does not say what."""
    weights = torch.ones(40)

    class Many(nn.Sequential):
        def __init__(self, num_classes: int) -> None:
            super().__init__(nn.Flatten(), nn.Linear(784, num_classes))

    def loss(answers: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(answers, targets, vars(sys.modules[__name__])["WEIGHTS"])

    def digest() -> str:
        globals()["WEIGHTS"] = weights
        return behaviour(MODELS["many"], 1.0, replace(PROBLEM, num_classes=40))

    register_model("many", Many, loss)
    before = digest()
    assert digest() == before
    weights[39] = 5.0
    assert digest() != before


CELL = """
class Helper(nn.Module):
    def forward(self, x):
        return F.{name}(x)

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper, self.layer = Helper(), nn.Linear(784, 3)
    def forward(self, images):
        return self.helper(self.layer(images.flatten(1)))
"""


def test_a_helper_of_another_cell_counts(tmp_path: Path) -> None:
    keys = []
    for name in ("relu", "logsigmoid", "relu"):
        cells: dict[str, type[nn.Module]] = {"nn": nn, "F": F}  # type: ignore[dict-item]
        exec(CELL.format(name=name), cells)
        keys.append(key(tmp_path, cells["Cell"]))
    assert keys[0] == keys[2] != keys[1]


def test_weights_that_a_file_brings_count(tmp_path: Path) -> None:
    def pretrained() -> nn.Module:
        model = Net(torch.tanh)
        model.load_state_dict(torch.load(tmp_path / "weights.pt"))
        return model

    keys = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        torch.save(Net(torch.tanh).state_dict(), tmp_path / "weights.pt")
        keys.append(key(tmp_path, pretrained))
    assert keys[0] == keys[2] != keys[1]


BESIDE = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import own_net
from tests.fl.training.test_behaviour import key
print(key(Path({folder!r}), own_net.Net))
"""
OWN_NET = """
from torch import nn
import own_parts
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 3)
    def forward(self, images):
        return own_parts.squash(self.layer(images.flatten(1)))
"""


@pytest.mark.slow
def test_a_module_beside_the_models_file_counts_in_a_new_process(tmp_path: Path) -> None:
    (tmp_path / "own_net.py").write_text(OWN_NET)
    keys = []
    for squash in ("tanh", "sigmoid", "tanh"):
        (tmp_path / "own_parts.py").write_text(f"import torch\nsquash = torch.{squash}\n")
        script = BESIDE.format(folder=str(tmp_path))
        root = Path(__file__).parents[3]
        command = [sys.executable, "-B", "-c", script]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        keys.append(done.stdout)
    assert keys[0] == keys[2] != keys[1]


def test_what_cannot_be_told_is_not_reused_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoGradient(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).detach()

    first = key(tmp_path, NoGradient)
    assert "uploads of net are not reused by later runs" in caplog.text
    assert key(tmp_path, NoGradient) != first


def test_a_second_model_of_a_run_counts_by_its_own_code(tmp_path: Path) -> None:
    """Two roles may have one kind of record."""
    store = Store(tmp_path / "pool", tmp_path / "updates", TRAIN)
    register_model("one", lambda: Net(torch.tanh))
    register_model("two", lambda: Net(torch.tanh))
    store.key(job_of("one"))
    MODELS["two"] = replace(MODELS["two"], source="edited")
    edited = store.key(job_of("two"))
    fresh = Store(tmp_path / "pool2", tmp_path / "updates2", TRAIN)
    assert fresh.key(job_of("two")) == edited
