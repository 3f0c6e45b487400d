"""onefold.grid: every combination from Python, objects among the values, as one table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import onefold

LABELS = np.arange(120) % 3
DATA = np.random.default_rng(0).normal(size=(120, 5)) * 0.3 + LABELS[:, None] - 1


class Wide(nn.Module):
    def __init__(self, shape: tuple[int], num_classes: int, hidden: int = 16) -> None:
        super().__init__()
        layers = [nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, num_classes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, samples: Tensor) -> Tensor:
        return self.layers(samples)


class Narrow(Wide):
    def __init__(self, shape: tuple[int], num_classes: int) -> None:
        super().__init__(shape, num_classes, hidden=2)


pytestmark = pytest.mark.usefixtures("elsewhere", "undrawn")


def made(axes: dict[str, Any], **settings: Any) -> Any:
    common: dict[str, Any] = {"num_clients": 3, "runtime": "inprocess", "progress": False}
    common |= {"classifier": {"epochs": 2}, "name": "mine", "data": (DATA, LABELS)}
    return onefold.grid(axes, **{**common, **settings})


def test_every_combination_is_a_run_of_its_own_and_finished_ones_are_not_repeated() -> None:
    axes = {"method": ["fedavg"], "alpha": [1.0, 9.0], "seed": [0, 1]}
    table = made(axes, model=Wide)
    assert table.results.keys() == {("alpha1.0", "fedavg"), ("alpha9.0", "fedavg")}
    for results in table.results.values():
        assert [result.figures["seed"] for result in results] == [0, 1]
    cells = json.loads(Path("runs/mine.json").read_text())["cells"]
    for cell, results in zip(cells, table.results.values(), strict=True):
        assert cell["mean"] == pytest.approx(100 * np.mean([r.accuracy for r in results]))
    assert table.text == Path("runs/mine.md").read_text()
    assert table.picture.read_bytes().startswith(b"\x89PNG")
    before = {f: f.stat().st_mtime_ns for f in result_files(table)}
    more = made({"method": ["fedavg", "fedprox"], "alpha": [9.0], "seed": [0, 1]}, model=Wide)
    assert len(result_files(more)) == 4
    assert {f: f.stat().st_mtime_ns for f in before} == before


def begun_from_a_file(num_classes: int) -> nn.Module:
    model = nn.Linear(5, num_classes)
    model.load_state_dict(torch.load("begin.pt"))
    return model


def test_a_run_of_other_weights_in_a_models_file_is_not_taken_for_finished() -> None:
    given: dict[str, Any] = {"model": begun_from_a_file, "classifier": {"epochs": 1, "lr": 1e-6}}
    for label in (0, 1):
        weights = {"weight": torch.zeros(3, 5), "bias": 9.0 * torch.eye(3)[label]}
        torch.save(weights, "begin.pt")
        if label:
            with pytest.raises(onefold.UserError, match="model: what it names has changed"):
                made({"method": ["fedavg"]}, **given)
        table = made({"method": ["fedavg"]}, **given, overwrite=bool(label))
        again = table if label else made({"method": ["fedavg"]}, **given)
        for found in (table, again):
            ((result,),) = found.results.values()
            assert result.model.bias.argmax() == label


def result_files(table: Any) -> list[Path]:
    return [r.path / "result.json" for results in table.results.values() for r in results]


class Counted:
    """A data set object that counts how often its last sample is read."""

    name = "counted"

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.reads += index == len(LABELS) - 1
        return DATA[index], int(LABELS[index])


def test_data_is_read_once_for_all_runs() -> None:
    data, other = Counted(), Counted()
    made({"seed": [0, 1]}, data=data, model=Narrow, method="fedavg")
    assert data.reads == 1
    table = made({"data": [other]}, data=None, name="others", model=Narrow, method="fedavg")
    assert other.reads == 1
    assert len(table.results) == 1


def test_models_may_be_among_the_values_and_no_run_of_other_settings_is_taken() -> None:
    table = made({"model": [Wide, Narrow]}, method="fedavg")
    assert [row for row, _ in table.results] == ["modelWide", "modelNarrow"]
    other = {"method": "fedavg", "classifier": {"epochs": 5}}
    with pytest.raises(onefold.UserError, match=r"another run \(classifier.epochs: 2 -> 5"):
        made({"model": [Wide, Narrow]}, **other)
    assert all(r.path.is_dir() for results in table.results.values() for r in results)
    again = made({"model": [Wide, Narrow]}, overwrite=True, **other)
    for (result,) in again.results.values():
        assert result.figures["placements"][0]["reused"] is False


class Frail(Wide):
    def forward(self, samples: Tensor) -> Tensor:
        if self.training and Path("weather").exists():
            raise RuntimeError("CUDA error: something broke")
        return super().forward(samples)


def test_a_client_that_fails_ends_its_run_and_not_the_table() -> None:
    def spoil(event: onefold.Event) -> None:
        if isinstance(event, onefold.RoundEnd):
            Path("weather").touch()

    axes, more = {"model": [Wide, Frail]}, {"method": "fedavg", "rounds": 2}
    table = made(axes, callbacks=[spoil], **more)
    assert {row: len(results) for (row, _), results in table.results.items()} == {
        "modelWide": 1,
        "modelFrail": 0,
    }
    assert "Failed: modelFrail-fedavg, seed 0: client 0 (Frail) failed: " in table.text


def alike(name: str) -> Any:
    """A loss of that name."""

    def loss(answers: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(answers, labels)

    loss.__name__ = name
    return loss


ALIKE = [alike("a:b"), alike("a_b")]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"name": "mnist/alpha"}, "name must be a folder name"),
        ({"dry_run": True}, "dry_run needs the command line"),
        ({"slurm": {"partition": "gpu"}}, "slurm needs the command line"),
        ({"axes": {"alpha": [0.5, 0.0]}}, "alpha"),
        ({"axes": {"data": [(DATA, LABELS)], "method": ["fedavg"]}}, "data has values without na"),
        ({"axes": {"partition": [[LABELS]]}}, "partition has values without names"),
        ({"axes": {"loss": ALIKE, "method": ["fedavg"]}}, "two runs would have the name mine-"),
        ({"axes": {"model": [Wide, nn.Flatten], "method": ["fedavg"]}}, "modelFlatten-fedavg: "),
    ],
)
def test_what_is_wrong_with_a_later_cell_is_said_before_anything_runs(
    given: dict[str, Any], line: str
) -> None:
    with pytest.raises(onefold.UserError, match=line):
        made(**{"axes": {"method": ["fedavg"]}, "model": Wide, **given})
    assert not list(Path().glob("runs/*"))


def test_a_files_method_and_seed_and_the_rest_of_a_group_are_kept() -> None:
    Path("mine.yaml").write_text("method: fedavg\nseed: 7\n")
    table = made({"classifier": [{"lr": 0.1}, {"lr": 0.01}]}, model=Wide, config="mine.yaml")
    for (row, method), (result,) in table.results.items():
        assert (method, result.figures["seed"]) == ("fedavg", 7)
        settings = yaml.safe_load((result.path / "config.yaml").read_text())["classifier"]
        assert settings["epochs"] == 2
        assert str(settings["lr"]) in row


def test_no_values_are_one_line() -> None:
    with pytest.raises(onefold.UserError, match="grid: alpha has no values"):
        made({"alpha": []})


@pytest.mark.parametrize(
    ("axis", "values", "named"),
    [
        (
            "model",
            [lambda shape, num_classes, h=h: Wide(shape, num_classes, h) for h in (4, 8)],
            "<la",
        ),
        ("seed", [0, 0], "0"),
        ("alpha", [0.5, "0.5"], "0.5"),
    ],
)
def test_values_of_one_name_are_refused_not_averaged_as_seeds(
    axis: str, values: list[Any], named: str
) -> None:
    with pytest.raises(onefold.UserError, match=f"{axis} has several values named '{named}"):
        made({"model": [Wide], "method": ["fedavg"], axis: values})
    assert not Path("runs").exists()
