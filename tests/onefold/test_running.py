"""onefold.run: a user's own data, model, method, partition and metrics, in a folder elsewhere."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onefold
from fl.data.catalogue import REGISTERED
from fl.events import Event, RoundEnd
from fl.methods.registry import METHODS
from fl.models.registry import MODELS
from tests.tutorials import blocks, type_commands, write_files


def blobs(count: int = 120, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 8, 8, 3) in [0, 1] whose brightness tells the class, and labels (N,)."""
    labels = np.random.default_rng(0).integers(0, classes, count)
    noise = np.random.default_rng(1).random((count, 8, 8, 3)) * 0.2
    return noise + labels[:, None, None, None] * 0.25, labels


class Tiny(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.chdir(tmp_path)
    before = dict(MODELS), dict(METHODS), dict(REGISTERED)
    yield
    for registry, was in zip((MODELS, METHODS, REGISTERED), before, strict=True):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(was)  # type: ignore[attr-defined]


PAGE = "tutorial-own-method.md"
TWO = {"num_clients": 2, "num_large": 2}


def run(**options: object) -> onefold.Result:
    base: dict[str, object] = {
        **{"data": blobs(), "model": Tiny, "method": "fedavg", "runtime": "inprocess"},
        **{"num_clients": 4, "num_large": 4, "partition": "iid", "progress": False},
        "classifier": {"epochs": 2, "batch_size": 8},
    }
    return onefold.run(**{**base, **options})


def test_own_data_and_model_with_a_method_of_onefolds() -> None:
    result = run(rounds=5, classifier={"epochs": 5, "lr": 0.1})
    assert result.accuracy > 0.6  # brightness alone tells the class
    assert len(result.clients) == 4
    assert result.report.is_file()
    assert {"accuracy", "partition"} <= result.pictures.keys()
    images = torch.full((5, 3, 8, 8), 0.6)
    assert result.model(images).shape == (5, 3)
    assert "fedavg on own" in result._repr_html_()
    again = onefold.load_model(result.path)
    assert torch.equal(again(images), result.model(images))


def test_the_same_indices_by_hand_or_from_a_runs_file_give_the_same_model() -> None:
    lists = np.array_split(np.arange(96), 4)
    by_hand, again = run(partition=lists), run(partition=lists)
    weights = list(by_hand.model.parameters())
    assert all(map(torch.equal, weights, again.model.parameters()))
    kept = by_hand.path / "partition.npz"
    from_file = run(partition="file", **{"partition.file": str(kept), "num_clients": 4})
    assert all(map(torch.equal, weights, from_file.model.parameters()))


def test_a_partitioner_is_asked_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for flwr-datasets' partitioners and for Hugging Face's data sets."""

    class Halves:
        num_partitions = 2
        dataset: dict[str, object]

        def load_partition(self, k: int) -> dict[str, object]:
            return {"index": list(self.dataset["index"])[k::2]}  # type: ignore[call-overload]

    fake = SimpleNamespace(Dataset=SimpleNamespace(from_dict=lambda columns: columns))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    result = run(partition=Halves(), num_clients=2, num_large=2)
    kept = np.load(result.path / "partition.npz")
    assert kept["train"][kept["train_counts"][0] :].tolist() == list(range(1, 96, 2))


def test_metrics_and_callbacks_get_the_model_and_the_events() -> None:
    heard: list[Event] = []

    def hits(model: nn.Module, images: Tensor, labels: Tensor) -> float:
        assert images.shape == (24, 3, 8, 8)
        return float((model(images).argmax(1) == labels).float().mean())

    result = run(metrics={"hits": hits}, callbacks=[heard.append], rounds=2)
    assert result.figures["metrics"]["hits"] == pytest.approx(result.accuracy)
    assert sum(isinstance(event, RoundEnd) for event in heard) == 2


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"model": Tiny(3)},
            "expected the class or a function, got a Tiny that is made",
        ),
        ({"model": 3}, "expected a torch.nn.Module class or a function"),
        ({"model": lambda: 3}, "expected a torch.nn.Module of"),
        ({"model": lambda: nn.Flatten()}, r"gives \(2, 192\).* expected \(2, 3\): a logit"),
        ({"model": lambda: nn.Linear(5, 3)}, "fails on images of shape"),
        ({"model": lambda depth: nn.Flatten()}, "needs depth; it can be given image_shape, num_c"),
        ({"method": print}, "expected a name or a Method, got builtin_function_or_method"),
        ({"method": "fedagv"}, "unknown method 'fedagv'"),
        ({"data": 3}, "data own: expected .* got int"),
        ({"data": (blobs()[0] * 300, blobs()[1])}, "pixels from .* allowed: 0 to 1, or uint8"),
        (
            {"partition": [[0, 1], [1, 2]], **TWO},
            "gives sample 1 to client 0 and to client 1",
        ),
        ({"partition": [[0, 1], [2, 99999]], **TWO}, "gives client 1 sample 99999"),
        ({"partition": 4}, "expected a kind, a list of index arrays or"),
        ({"epochs": 3}, "unknown option '--epochs'"),
    ],
)
def test_a_wrong_object_is_one_line_that_says_what_was_expected(
    options: dict[str, object], line: str
) -> None:
    with pytest.raises(onefold.UserError, match=line) as caught:
        run(**options)
    assert "\n" not in str(caught.value)


def test_the_page_about_a_method_is_25_lines() -> None:
    (script,) = (b.text for b in blocks(PAGE) if b.title == "my.py")
    assert sum(bool(line.strip()) for line in script.splitlines()) <= 25


@pytest.mark.slow
def test_a_script_elsewhere_runs_its_own_method_on_ray_to_the_bits_of_one_process(
    tmp_path: Path,
) -> None:
    """Beside a cluster.py, which in one process does no harm, and on Ray is refused by name."""
    folders = ray, here = tmp_path / "ray", tmp_path / "here"
    for folder in folders:
        folder.mkdir()
        write_files(PAGE, folder)
    type_commands(PAGE, ray)
    text = (here / "my.py").read_text()
    (here / "one.py").write_text(text.replace("max_actors=2", 'runtime="inprocess"'))
    (here / "cluster.py").write_text("raise RuntimeError('not ours')")
    assert script(here, "one.py").returncode == 0
    models, runs = zip(*(only_run(folder) for folder in folders), strict=True)
    assert models[0] == models[1]
    assert runs == ("ray", "inprocess")
    (here / "two.py").write_text(text.replace("rounds=2", "rounds=3"))
    beside = script(here, "two.py")  # on Ray, whose workers do not take the user's file for ours
    assert beside.returncode == 0
    assert "not ours" not in beside.stderr


def only_run(folder: Path) -> tuple[bytes, str]:
    """The model of the folder's one run, and how it ran."""
    (path,) = (file.parent for file in folder.glob("runs/*/result.json"))
    runtime = onefold.load_result(path).figures["runtime"]
    return (path / "model" / "global.safetensors").read_bytes(), runtime


def script(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
