"""Tables, sequences, tokens and images of any kind: what is stored is exact, and models get it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onefold
from fl.data.datasets import Split
from fl.data.own import as_dataset
from fl.data.shard import Shard
from fl.inputs import Inputs
from fl.methods.registry import METHODS

LABELS = np.arange(240) % 3
STREAM = np.random.default_rng(0)


def near_its_class(*shape: int) -> np.ndarray:
    """Floats of which each sample's mean tells the class; none of them is one of 256 levels."""
    own = LABELS.reshape(-1, *[1] * len(shape))
    return STREAM.normal(size=(len(LABELS), *shape)) * 0.3 + own - 1


TOKENS = STREAM.integers(0, 5, (240, 8)) + 5 * LABELS[:, None]
KINDS = {
    "table": near_its_class(6),
    "sequence": near_its_class(7, 4),
    "normalised images": near_its_class(3, 8, 8),
    "four channels": STREAM.integers(0, 80, (240, 4, 8, 8)).astype(np.uint8)
    + (80 * LABELS).astype(np.uint8)[:, None, None, None],
    "volumes": near_its_class(1, 4, 4, 4),
    "tokens": TOKENS,
}


class Dense(nn.Module):
    """Two linear layers on floats of any shape."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(int(torch.Size(shape).numel()), 16), nn.ReLU())
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, samples: Tensor) -> Tensor:
        assert samples.dtype == torch.float32
        return self.classifier(self.features(samples.flatten(1)))


class Recurrent(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(15, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(tokens))[0][:, -1])


pytestmark = pytest.mark.usefixtures("elsewhere", "undrawn")


def run(kind: str, **settings: Any) -> onefold.Result:
    model = Recurrent if kind == "tokens" else Dense
    common: dict[str, Any] = {"runtime": "inprocess", "progress": False, "alpha": 5.0}
    common |= {"num_clients": 3, "classifier": {"epochs": 5, "lr": 0.05}, "name": "run"}
    return onefold.run((KINDS[kind], LABELS), **{"model": model, **common, **settings})


@pytest.mark.parametrize("kind", ["table", "normalised images", "four channels", "tokens"])
def test_clients_learn_from_it_and_the_model_comes_back(kind: str) -> None:
    result = run(
        kind, method="fedavg", rounds=3, classifier={"epochs": 20, "optimizer": "adam", "lr": 0.01}
    )
    assert result.accuracy > 0.8
    shape = KINDS[kind].shape[1:]
    samples = Inputs(shape, "integers" if kind == "tokens" else "floats").example(2)
    assert result.model(samples).shape == (2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_client_trains_on_is_what_was_given(kind: str) -> None:
    given = KINDS[kind]
    data = as_dataset("own", ((given, LABELS), (given[:9], LABELS[:9])))
    found = Shard.from_split(data.train, np.arange(240), 3).images.numpy()
    if given.dtype == np.uint8:
        assert np.array_equal(found, given / np.float32(255))
    else:
        assert np.array_equal(found, given.astype(found.dtype))
    assert found.dtype == (np.int64 if kind == "tokens" else np.float32)


def test_floats_that_are_no_256_levels_stay_images_and_are_not_rounded() -> None:
    pixels = np.random.default_rng(1).random((20, 3, 8, 8))
    data = as_dataset("own", (pixels, LABELS[:20]))
    assert data.inputs == Inputs((3, 8, 8), "pixels")
    assert np.isin(data.train.images, pixels.astype(np.float32)).all()


def test_floats_that_are_no_pixels_keep_their_axes() -> None:
    given = near_its_class(8, 8, 3)
    assert as_dataset("own", (given, LABELS)).inputs.shape == (8, 8, 3)
    assert as_dataset("own", (np.clip(given, 0, 1), LABELS)).inputs.shape == (3, 8, 8)


def test_truth_values_are_zero_and_one() -> None:
    data = as_dataset("own", (KINDS["volumes"] > 0, LABELS))
    assert data.inputs == Inputs((1, 4, 4, 4), "floats")
    assert set(data.train.images.ravel()) == {0.0, 1.0}
    assert as_dataset("own", (KINDS["sequence"] > 0, LABELS)).inputs.shape == (7, 4)


class Standardising(Dense):
    """BatchNorm takes the place of a table's preparation."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.features.insert(0, nn.BatchNorm1d(shape[0]))


@pytest.mark.parametrize(("model", "largest"), [("mlp", 5000.0), (Standardising, 1e5)])
def test_a_table_that_is_not_standardised_is_no_clients_lie(model: Any, largest: float) -> None:
    """Columns of thousands beside columns of ones, as scikit-learn's breast cancer has them; a
    variance of 1e9 is that of incomes."""
    table = KINDS["table"] * np.array([1.0, 1.0, 1.0, 1000.0, largest, 1.0])
    training = {"epochs": 5, "optimizer": "adam", "lr": 0.01}
    result = onefold.run(
        (table, LABELS),
        model,
        "fedavg",
        num_clients=3,
        classifier=training,
        alpha=5.0,
        runtime="inprocess",
        progress=False,
        rounds=2,
    )
    assert result.accuracy > 0.5


def test_random_samples_are_of_the_kind_and_range_of_the_data() -> None:
    for kind, given in KINDS.items():
        inputs = as_dataset("own", (given, LABELS)).inputs
        drawn = inputs.draw(50, torch.Generator().manual_seed(0))
        made = Split(inputs.stored(50, np.random.default_rng(0)), np.zeros(50, np.int64))
        for samples in (drawn, Shard.from_split(made, np.arange(50), 3).images):
            assert samples.shape == (50, *given.shape[1:]), kind
            assert inputs.low - 1e-6 <= float(samples.min()), kind
            assert float(samples.max()) <= inputs.high + 1e-6, kind
        assert inputs.example(2).dtype == drawn.dtype


class MeanOfWords(nn.Module):
    """Divides by the number of tokens that are no padding, 0."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(15, 8), nn.Linear(8, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        held = (tokens > 0).unsqueeze(-1)
        return self.head((self.embedding(tokens) * held).sum(1) / held.sum(1))


class Packed(Recurrent):
    """Fails where a sample is all padding."""

    def forward(self, tokens: Tensor) -> Tensor:
        words, lengths = self.embedding(tokens), (tokens > 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(words, lengths, True, enforce_sorted=False)
        return self.classifier(self.lstm(packed)[1][0][-1])


@pytest.mark.parametrize(
    ("model", "method"),
    [(MeanOfWords, "fedavg"), (Packed, "scaffold"), (MeanOfWords, "fens"), (Packed, "local")],
)
def test_a_model_that_leaves_padding_out_is_asked_nothing_empty(model: Any, method: str) -> None:
    rounds = {} if method == "fens" else {"rounds": 2}
    assert run("tokens", model=model, method=method, **rounds).accuracy >= 0


@pytest.mark.parametrize("method", [m for m in METHODS if not METHODS[m].any_targets])
def test_a_method_trains_on_a_table_or_refuses_it_before_it_begins(method: str) -> None:
    """The others train on one in test_other_targets.py."""
    further: dict[str, Any] = {} if METHODS[method].one_shot else {"rounds": 2}
    further |= {"generator.steps": 2} if method == "fedgen" else {}
    further["classifier.epochs"] = 1
    with suppress(onefold.UserError):
        assert 0 <= run("table", method=method, **further).accuracy <= 1
    begun = Path("runs/run").exists()
    assert begun == Path("runs/run/result.json").exists()


@pytest.mark.parametrize("method", ["fedmho-open", "hfldd"])
def test_a_method_that_needs_images_says_so_by_name(method: str) -> None:
    line = (
        rf"^{method} needs images of 1 or 3 channels; the samples are floats of shape \(6,\) from"
    )
    with pytest.raises(onefold.UserError, match=line):
        run("table", method=method)


def test_our_own_models_of_images_name_one_that_takes_tables() -> None:
    line = r"vgg9 does not take floats of shape \(6,\).*mlp takes any numbers"
    with pytest.raises(onefold.UserError, match=line):
        run("table", method="fedavg", model="vgg9")
    assert run("table", method="fedavg", model="mlp").accuracy > 0.5


def test_clients_with_data_of_their_own_train_on_it_and_are_tested_on_it() -> None:
    data = {f"site {k}": (KINDS["table"][k::4], LABELS[k::4]) for k in range(4)}
    common: dict[str, Any] = {"runtime": "inprocess", "progress": False, "rounds": 2}
    common["classifier"] = {"epochs": 2}
    together = onefold.run(data, "mlp", "fedavg", name="all", **common)
    assert len(together.clients) == 4
    assert np.asarray(np.load("runs/all/partition.npz")["train_counts"]).tolist() == [48] * 4
    alone = onefold.run(data, "mlp", "fedper", name="own", shared_layers=1, **common)
    assert alone.figures["scored_on"] == "clients"
    assert len(alone.figures["client_accuracy"]) == 4
    fewer = onefold.run(data, "mlp", "fedavg", name="two", num_clients=2, **common)
    assert len(fewer.clients) == 2
