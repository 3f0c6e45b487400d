"""The version of a client's code: what an edit changes it, and what does not."""

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from fl.client_code import client_code, shared_files
from fl.training.classifier import ClassifierConfig, train_classifier

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
    version = client_code(train_classifier, TRAINING)
    assert version == client_code(train_classifier, ClassifierConfig(model="cnn"))
    assert len(version) == 64


def test_every_file_of_ours_that_shapes_an_upload_counts() -> None:
    """Of packages within packages too: an architecture is one."""
    names = {path.name for path in shared_files()}
    assert {"vgg.py", "cvaes.py", "classifier.py", "recipe.py", "shard.py"} <= names
    assert {"dropout.py", "triton_cvae.py"} <= names  # of kernels/
    assert "__main__.py" not in names


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


def test_the_values_that_a_task_refers_to_count(tmp_path: Path, load: Load) -> None:
    """As a script's command line sets them; those of a partial and a closure too."""
    write(
        tmp_path,
        my_values="RATE = 1\ndef task(inputs):\n    return RATE\n"
        "def made(rate):\n    return lambda inputs: rate\n",
    )
    module = load("my_values")
    tasks = [module.task, module.made(1), module.made(2), partial(module.task, n=1)]
    versions = [client_code(task, TRAINING) for task in [*tasks, partial(module.task, n=2)]]
    module.RATE = 2
    versions.append(client_code(module.task, TRAINING))
    assert len(set(versions)) == 6
    assert client_code(module.made(2), TRAINING) == versions[2]
