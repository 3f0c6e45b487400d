"""The digests of a client's code: what an edit changes them, and what does not."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cluster.clients.store import Store
from fl.client_code import behaviour, client_code, shared_files
from fl.federation import Job
from fl.methods.registry import METHODS
from fl.models.registry import MODELS, register_model
from fl.training.classifier import ClassifierConfig
from fl.training.task import train_by_recipe
from tests.fl.toy import PROBLEM, client, split
from tests.registries import registries_restored

TRAINING = ClassifierConfig()
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a module from the test's own directory."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def imported(name: str) -> ModuleType:
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield imported
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_it_is_the_same_twice_and_for_all_records_of_a_kind() -> None:
    version = client_code(train_by_recipe, TRAINING)
    assert version == client_code(train_by_recipe, ClassifierConfig(model="cnn"))
    assert len(version) == 64


def test_every_file_of_ours_that_shapes_an_upload_counts() -> None:
    """Of packages within packages too: an architecture is one."""
    names = {path.name for path in shared_files()}
    assert {"plain.py", "cvaes.py", "classifier.py", "recipe.py", "shard.py"} <= names
    assert "torch_internals.py" in names
    assert {"dropout.py", "triton_cvae.py"} <= names  # of kernels/
    assert "__main__.py" not in names


@pytest.mark.parametrize("name", METHODS)
def test_recipes_call_no_function_of_a_method_whose_file_does_not_count(name: str) -> None:
    record = type(getattr(METHODS[name].config(), "classifier", TRAINING))
    recipes = [vars(own)["recipe"] for own in record.__mro__[:-1] if "recipe" in vars(own)]
    called = [r.__globals__.get(word) for r in recipes[:1] for word in r.__code__.co_names]
    homes = {f.__module__ for f in called if isinstance(f, FunctionType)}
    assert {home for home in homes if home.startswith("fl.methods.")} <= {record.__module__}


def test_modules_that_a_task_or_a_record_uses_count(tmp_path: Path, load: Load) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    write(
        tmp_path,
        mine__tasks="from . import help\nfrom mine.more import x\nimport beside\n"
        "def task(inputs):\n    return help.deep.f, x, beside.z\n",
        mine__help="import json\nfrom . import deep\n",
        mine__deep="def f():\n    return 1\n",
        mine__more="x = 1\n",
        beside="z = 1\nother = 1\n",
        my_record="from fl.training.classifier import ClassifierConfig\n"
        "class Mine(ClassifierConfig):\n    y = 1\n",
    )

    def version() -> str:
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("mine", "beside", "my_record"):
                del sys.modules[name]
        return client_code(load("mine.tasks").task, load("my_record").Mine())

    versions = [version()]
    assert version() == versions[0]
    for file in ("mine/deep", "mine/more", "beside", "my_record"):
        path = tmp_path / f"{file}.py"
        path.write_text(path.read_text().replace("1\n", "23\n", 1))
        versions.append(version())
    assert len({*versions}) == 5
    with (tmp_path / "beside.py").open("a") as stream:
        stream.write("# another line\nother = 2\n")
    assert version() == versions[-1]


def test_all_of_an_installed_package_counts(tmp_path: Path, load: Load) -> None:
    (tmp_path / "site-packages" / "lab").mkdir(parents=True)
    write(tmp_path / "site-packages" / "lab", __init__="", tasks="def task(inputs):\n    pass\n")
    helper = tmp_path / "site-packages" / "lab" / "helper.py"
    helper.write_text("x = 1\n")
    sys.path.insert(0, str(tmp_path / "site-packages"))
    task = load("lab.tasks").task
    before = client_code(task, TRAINING)
    helper.write_text("x = 2\n")
    assert client_code(task, TRAINING) != before


# A model of the user's own: what makes it another changes the store's key.

TRAIN = split(3, 3, 3)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with registries_restored():
        yield


def job_of(name: str) -> Job:
    """A client's job that trains the registered model of that name."""
    return Job(
        task=train_by_recipe,
        client=client(0, ClassifierConfig(model=name)),
        run_spec=PROBLEM,
        indices=np.arange(9),
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


def test_another_activation_is_another_model_and_the_same_one_the_same(tmp_path: Path) -> None:
    keys = [key(tmp_path, closure(a)) for a in (torch.tanh, F.relu, F.logsigmoid, torch.tanh)]
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
