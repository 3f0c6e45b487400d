"""Runs that were given objects from Python: loaded, exported, attacked and repeated elsewhere."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import onefold
from cluster import launch
from fl.command import run_command
from fl.data.catalogue import REGISTERED
from fl.data.own import as_dataset
from fl.models.registry import MODELS
from fl.plugins import PREFIX
from onefold import privacy, runs
from onefold.running import call_of, code_of
from tests.cluster.commands import here

SCRIPT = """
import numpy as np
from torch import nn

import onefold


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))

    def forward(self, images):
        return self.layers(images)


def data():
    labels = np.arange(240) % 3
    return np.random.default_rng(0).integers(0, 256, (240, 8, 8, 3), dtype=np.uint8), labels
"""


def forget() -> None:
    """Forgets what the tests' files have brought into this process, as another one never had it."""
    for name in ("script", f"{PREFIX}again", f"{PREFIX}own_model"):
        sys.modules.pop(name, None)
    MODELS.pop("Net", None)
    REGISTERED.pop("own", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the script is, and its run."""
    made = tmp_path_factory.mktemp("work")
    (made / "script.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.syspath_prepend(made)
        script = importlib.import_module("script")
        how = {"runtime": "inprocess", "progress": False, "name": "mine"}
        size = {"num_clients": 3, "classifier": {"epochs": 1}}
        onefold.run(script.data(), script.Net, "fedavg", "iid", **how, **size)
        yield made
    forget()


@pytest.fixture(autouse=True)
def _as_in_another_process(folder: Path) -> None:
    forget()


def command(word: str, *words: str) -> tuple[int, str]:
    """Exit status and all that it says."""
    told = {
        "run": launch.main,
        "export": lambda given: runs.main(["export", *given]),
        "privacy": lambda given: run_command(privacy.command, "onefold privacy", given),
    }
    done = here(told[word], words)
    return done.returncode, done.stdout + done.stderr


def test_the_model_is_loaded_by_its_class(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(onefold.UserError) as refused:
        onefold.load_model("runs/mine")
    said = str(refused.value)
    assert "is your own Net, which is not registered here" in said
    assert "load_model('runs/mine', model=Net)" in said
    assert said.endswith("runs/mine/own_model.py")
    model = onefold.load_model("runs/mine", importlib.import_module("script").Net)
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
    assert not caplog.text
    with pytest.raises(onefold.UserError, match="holds no model: no such file"):
        onefold.load_model("runs/mine/model/best.safetensors")


def test_a_class_that_fits_but_is_another_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Net(importlib.import_module("script").Net):  # type: ignore[misc]
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return -super().forward(images)

    assert onefold.load_model("runs/mine", Net)(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
    assert "was built by another Net than the one that is given" in caplog.text


def test_the_model_is_exported_by_the_code_that_is_kept_once_it_is_asked_for(folder: Path) -> None:
    export = ["export", "--torch-export", "m.pt2", "mine"]
    status, said = command(*export)
    assert status == 2
    assert said.count("\n") == 1
    assert "to be read before it is trusted: runs/mine/own_model.py" in said
    assert not (folder / "m.pt2").exists()
    assert command(*export, "--plugin", "runs/mine/own_model.py")[0] == 0
    assert (folder / "m.pt2").exists()


def test_the_report_says_the_call_and_no_command_that_would_fail(folder: Path) -> None:
    call = yaml.safe_load((folder / "runs/mine/config.yaml").read_text())["call"]
    assert call.startswith("onefold.run(data=data, model=Net, method='fedavg', partition='iid', ")
    assert call.endswith(
        "# data, which is not kept: 192 training and 48 test samples, images of shape (3, 8, 8)"
    )
    page = (folder / "runs/mine/report.html").read_text()
    assert "onefold.run(data=data, model=Net" in page
    assert "cluster.launch --config" not in page
    script = importlib.import_module("script")
    names = {"onefold": onefold, "data": script.data(), "Net": script.Net}
    assert "runs/fedavg-own" in str(eval(call.partition("  #")[0], names).path)


def test_by_command_it_is_said_what_to_register_and_then_it_works(folder: Path) -> None:
    (folder / "again.py").write_text(
        "import onefold\nfrom script import Net, data\n"
        "onefold.register_model('Net', Net)\nonefold.register_dataset('own', data())\n"
    )
    again = ["run", "--config", "runs/mine/config.yaml", "--runtime", "inprocess"]
    for words in (again, ["privacy", "runs/mine"]):
        forget()
        status, said = command(*words)
        assert status == 2
        assert "used objects from Python: register these by --plugin FILE, or call onefold" in said
        status, said = command(*words, "--plugin", "again.py")
        assert status == 0, said
    assert (folder / "runs/mine/privacy.json").is_file()


def test_what_a_command_can_say_has_no_call() -> None:
    data = as_dataset("x", (np.zeros((9, 8, 8), np.uint8), np.arange(9) % 3))
    given = {"data": "digits", "model": None, "method": "fedavg", "partition": [[0], [1]]}
    assert call_of(given, data) is None
    given |= {"model": onefold.Split, "partition.min_samples": 1, "output_dir": "x"}
    assert call_of(given, data) == (
        "onefold.run(data='digits', model=Split, method='fedavg', partition=partition, "
        "**{'partition.min_samples': 1})"
    )


def test_code_is_kept_with_its_imports_where_it_has_a_name() -> None:
    kept = code_of("Split", onefold.Split)
    assert kept is not None
    compile(kept, "kept", "exec")
    assert "import numpy as np\n" in kept
    assert kept.endswith("onefold.register_model('Split', Split)\n")
    assert code_of("lambda", lambda: None) is None
    assert code_of("len", len) is None
