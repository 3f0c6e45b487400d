"""A user's models and code in a process that has never heard of them."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import onefold
from cluster.clients import extensions
from cluster.clients.extensions import (
    add_models,
    by_value,
    modules_of,
    packed_models,
    send_methods_by_value,
)
from fl.methods.registry import METHODS
from fl.models.registry import MODELS, OURS
from fl.plugins import load_plugin
from tests.fl.toy import client, job_of

PLUGIN = """
from torch import nn
from fl.models.registry import register_model

HIDDEN = 5

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        hidden = nn.Linear(4, HIDDEN)
        self.layers = nn.Sequential(nn.Flatten(), hidden, nn.Linear(HIDDEN, num_classes))
    def forward(self, images):
        return self.layers(images)

def task(inputs):
    return HIDDEN

register_model("mine", Net)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    """The name under which a plugin is loaded, whose file is gone."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    name = load_plugin(str(tmp_path / "mine.py")).__name__
    (tmp_path / "mine.py").rename(tmp_path / "gone")
    yield name
    MODELS.pop("mine", None)
    if name in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(sys.modules[name])
    del sys.modules[name]


@pytest.mark.process
def test_another_process_builds_the_users_model_without_its_files(tmp_path: Path) -> None:
    """Files beside the plugin go too: their names, modules, and what they import in turn."""
    files = {
        "beside_sizes.py": "HIDDEN = 5",
        "beside_layers.py": "import beside_sizes\ndef hidden(): return beside_sizes.HIDDEN",
        "beside_mine.py": PLUGIN.replace("HIDDEN = 5", "import beside_layers").replace(
            "HIDDEN", "beside_layers.hidden()"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    load_plugin(str(tmp_path / "beside_mine.py"))
    for name in files:
        (tmp_path / name).unlink()
    try:
        assert built_elsewhere(packed_models()) == b"5"
    finally:
        MODELS.pop("mine", None)


def built_elsewhere(packed: bytes | None) -> bytes:
    """The width of the user's model, as another process builds it."""
    assert packed is not None
    code = (
        "import pickle, sys; from cluster.clients.extensions import add_models; "
        "from fl.models.registry import build_classifier; add_models(sys.stdin.buffer.read()); "
        "print(build_classifier('mine', (1, 2, 2), 3).layers[1].out_features)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.strip()


def test_without_models_of_the_user_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "MODELS", {name: MODELS[name] for name in OURS})
    assert packed_models() is None
    add_models(None)


def test_a_task_of_the_users_goes_by_value_and_onefolds_by_name(plugin: str) -> None:
    task = sys.modules[plugin].task
    job = job_of(task, client(0), range(1))
    names = modules_of(job)
    assert {plugin, "fl.training.classifier"} <= set(names)
    by_value(names)
    by_its_value = cloudpickle.list_registry_pickle_by_value()
    assert plugin in by_its_value
    assert "fl.training.classifier" not in by_its_value
    assert b"HIDDEN" in cloudpickle.dumps(task)
    assert len(pickle.dumps(job.client.training.task)) < 100


def test_any_function_beside_a_method_of_the_users_travels_by_value(
    plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[plugin]
    monkeypatch.delitem(METHODS, "mine", raising=False)
    onefold.method("mine")(module.task)
    try:
        send_methods_by_value()
    finally:
        del METHODS["mine"]
    assert plugin in cloudpickle.list_registry_pickle_by_value()
    assert b"hidden" in cloudpickle.dumps(module.Net)  # the class's code, not its name alone
