"""Samples of several inputs of different types: what a model gets is what was given, exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onefold
from fl.data.own import as_dataset
from fl.inputs import as_inputs
from onefold.result import export_model

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 90)
IMAGES = RNG.integers(0, 256, (90, 1, 5, 4), dtype=np.uint8)
TABLE = RNG.normal(size=(90, 3)).astype(np.float32) + LABELS[:, None]
TOKENS = RNG.integers(0, 7, (90, 2))
INPUTS = (IMAGES, TABLE, TOKENS)


class Net(nn.Module):
    def __init__(self, num_classes: int, shape: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        assert shape == ((1, 5, 4), (3,), (2,))
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(20 + 3 + 8, num_classes)

    def forward(self, images: Tensor, table: Tensor, tokens: Tensor) -> Tensor:
        words = self.embedding(tokens).flatten(1)
        return self.head(torch.cat([images.flatten(1), table, words], 1))


class Stepping(Net):
    def training_loss(self, samples: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        return F.cross_entropy(self(*samples), labels)


Stepping.__name__ = "Net"


class Items:
    def __len__(self) -> int:
        return 90

    def __getitem__(self, row: int) -> tuple[tuple[np.ndarray, ...], int]:
        return tuple(column[row] for column in INPUTS), int(LABELS[row])


pytestmark = pytest.mark.usefixtures("elsewhere", "undrawn")


def run(data: object = (INPUTS, LABELS), model: object = Net, **options: object) -> onefold.Result:
    base: dict[str, object] = {"num_clients": 3, "classifier": {"epochs": 5, "lr": 0.05}}
    more = {"runtime": "inprocess", "progress": False, "method": "fedavg", "partition": "iid"}
    return onefold.run(data, model, **{**base, **more, **options})  # type: ignore[arg-type]


def test_each_part_comes_out_as_it_went_in() -> None:
    dataset = as_dataset("d", (INPUTS, LABELS))
    rows = as_inputs(np.asarray(dataset.train.images))
    images, table, tokens = dataset.inputs.one_by_one(rows)
    alone = dataset.inputs.one_by_one(rows[1:2])  # whose parts begin anywhere
    assert all(map(torch.equal, alone, (images[1:2], table[1:2], tokens[1:2])))
    assert [p.dtype for p in (images, table, tokens)] == [torch.float32, torch.float32, torch.int64]
    whole = as_dataset("d", (TABLE, LABELS))  # held out alike
    assert torch.equal(table, torch.from_numpy(np.asarray(whole.train.images)))
    alone = as_dataset("d", (IMAGES, LABELS))
    assert torch.equal(images, as_inputs(np.asarray(alone.train.images)))
    assert set(tokens.unique().tolist()) == set(range(7))


def test_a_model_of_several_inputs_learns_and_can_be_asked() -> None:
    result = run(rounds=2)
    assert result.accuracy > 0.6
    answers = result.model(*(as_inputs(column) for column in INPUTS))
    assert answers.shape == (90, 3)
    model = onefold.load_model(result.path, model=Net)
    assert torch.equal(model(*(as_inputs(column) for column in INPUTS)), answers)
    items = run(Items(), rounds=2, output_dir="b")
    assert items.figures["accuracy_curve"] == result.figures["accuracy_curve"]


def test_an_exported_model_takes_the_parts() -> None:
    result, parts = run(), [as_inputs(column) for column in INPUTS]
    export_model(result.path, Path("net.pt2"), onnx=False)
    program = torch.export.load("net.pt2").module()
    torch.testing.assert_close(program(*parts), result.model(*parts))


def test_a_training_loss_gets_the_parts() -> None:
    curves = [
        run(model=m, output_dir=m.__qualname__).figures["accuracy_curve"] for m in (Net, Stepping)
    ]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("method", ["centralised", "local", "scaffold", "moon"])
def test_methods_that_train_classifiers_take_them(method: str) -> None:
    assert run(method=method, **{"classifier.momentum": 0.0}).accuracy >= 0


def test_their_uploads_are_taken_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        run(output_dir="a", loss=nn.CrossEntropyLoss(), **{"classifier.micro_batch": 8})
    assert "not reused" not in caplog.text


def test_methods_and_models_of_images_refuse_them() -> None:
    with pytest.raises(onefold.UserError, match="fedmho needs images"):
        run(method="fedmho")
    line = r"mlp does not take images of shape .* and floats of shape"
    with pytest.raises(onefold.UserError, match=line):
        run(model="mlp")


def test_what_cannot_be_read_so_is_refused() -> None:
    with pytest.raises(onefold.UserError, match=r"one length, got \[80, 90\]"):
        run(((IMAGES, TABLE[:80]), LABELS))
    with pytest.raises(onefold.UserError, match="one input"):
        run(augment=lambda sample: sample)

    class Random(Items):
        def __getitem__(self, row: int) -> tuple[tuple[np.ndarray, ...], int]:
            (image, table, tokens), label = super().__getitem__(row)
            return (image, table + np.random.rand(), tokens), label

    with pytest.raises(onefold.UserError, match="must not draw"):
        run(Random())


def test_clients_with_samples_of_several_inputs_are_one_data_set() -> None:
    parts = {name: (tuple(c[k::3] for c in INPUTS), LABELS[k::3]) for k, name in enumerate("abc")}
    assert run(parts, partition="natural").accuracy >= 0
