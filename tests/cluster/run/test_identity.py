"""A run is the same as an earlier one only if the user's code and data are, which it names."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.run_dir import claim, differences, identity_of
from fl.clients import Clients
from fl.data.catalogue import register_dataset
from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.server import Server
from fl.methods.method import Assignment, Method
from fl.methods.prototypes import assign_all
from fl.methods.registry import register as register_method
from fl.models.registry import register_model
from fl.server import Outcome
from onefold.methods import OneClassifier
from tests.registries import registries_restored

NET = "from torch import nn\nimport onefold\nimport beside\n\n\ndef net(num_classes):\n"
NET += "    return nn.Sequential(nn.Flatten(), nn.Linear(beside.IN, num_classes))\n\n\n"
NET += "onefold.register_model('net', net)\n"
IMAGES = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers and imports, as its plugin."""
    before = {*sys.modules}
    monkeypatch.setattr(sys, "path", [*sys.path])
    with registries_restored():
        yield
    for name in {*sys.modules} - before:
        if name in ("beside", "onefold_plugin_net"):
            del sys.modules[name]


def write(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "beside.py").write_text("IN = 64\n")
    np.savez(folder / "my.npz", images=IMAGES, labels=np.arange(40) % 4)
    np.savez(folder / "part.npz", client_0=np.arange(16), client_1=np.arange(16, 32))


def launch(**further: object) -> Launch:
    given = {"plugin": "net.py", "dataset": "my.npz", "classifier.model": "net", **further}
    given |= {"partition.kind": "file", "partition.file": "part.npz", "num-clients": 2}
    return parse(["--method=fedavg", *(f"--{name}={value}" for name, value in given.items())])


def add_line(file: str) -> None:
    with Path(file).open("a") as stream:
        stream.write("OTHER = 1\n")


def swap() -> None:
    np.savez("part.npz", client_0=np.arange(16, 32), client_1=np.arange(16))


def darken() -> None:
    np.savez("my.npz", images=IMAGES // 2, labels=np.arange(40) % 4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: None, set()),
        (lambda: add_line("net.py"), {"plugin"}),
        (lambda: add_line("beside.py"), {"plugin"}),
        (darken, {"dataset"}),
        (swap, {"partition.file"}),
    ],
)
def test_changed_files_make_another_run_of_the_same_settings(
    change: Callable[[], None], named: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    run_dir = claim(launch(name="mine"))
    assert differences(run_dir / "config.yaml", launch().run) == {}  # its paths are relative
    change()
    assert differences(run_dir / "config.yaml", launch().run).keys() == named
    if named:
        with pytest.raises(UserError, match=f"cannot resume .*{named.pop()}: what it names has"):
            claim(replace(launch(name="mine"), resume=True))


def plain(num_classes: int, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes, bias=bias))


def closed(bias: bool) -> Callable[[int], nn.Module]:
    return lambda num_classes: plain(num_classes, bias)


def found(make: Callable[..., nn.Module], images: np.ndarray = IMAGES) -> dict[str, str]:
    register_model("net", make)
    register_dataset("mine", (images, np.arange(40) % 4))
    return identity_of(parse(["--method=fedavg", "--dataset=mine", "--classifier.model=net"]).run)


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (plain, lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))),
        (closed(True), closed(False)),
        (partial(plain, bias=True), partial(plain, bias=False)),
    ],
)
def test_models_are_known_by_their_source_and_the_values_in_it(
    make: Callable[..., nn.Module], other: Callable[..., nn.Module]
) -> None:
    first = found(make)
    assert first.keys() == {"dataset", "classifier.model"}
    assert found(make, IMAGES.copy()) == first
    assert found(other)["classifier.model"] != first["classifier.model"]


def test_data_is_known_by_its_content() -> None:
    assert found(plain, IMAGES // 2)["dataset"] != found(plain)["dataset"]
    assert identity_of(parse([]).run) == {}


HELD = {"rate": 0.1}


def with_closure(rate: float) -> Callable[..., Outcome]:
    def run(clients: Clients, server: Server, config: OneClassifier) -> Outcome:
        raise ValueError(rate, HELD["rate"], clients, server, config)

    return run


def of_method(rate: float, shift: int) -> str:
    """The digest of a method whose functions close over these."""

    def assign(config: Any, clients: int, spec: RunSpec) -> list[Assignment]:
        return assign_all(config, clients + shift, spec)

    run = with_closure(rate)
    register_method(Method(name="mine", config=OneClassifier, assign=assign, run=run))
    return identity_of(parse(["--method=mine"]).run)["method"]


def test_methods_are_known_by_all_their_functions_and_what_these_refer_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = of_method(0.1, 0)
    assert of_method(0.1, 0) == first
    others = {of_method(0.2, 0), of_method(0.1, 1)}
    monkeypatch.setitem(HELD, "rate", 0.2)
    assert len({first, *others, of_method(0.1, 0)}) == 4


def test_a_changed_file_in_a_folder_of_images_makes_another_run(tmp_path: Path) -> None:
    run = parse(["--dataset=folder", "--method=fedavg", f"--data.folder={tmp_path}"]).run
    (tmp_path / "a.png").write_bytes(b"one")
    first = identity_of(run)["data.folder"]
    assert identity_of(run)["data.folder"] == first
    (tmp_path / "a.png").write_bytes(b"three")
    assert identity_of(run)["data.folder"] != first
