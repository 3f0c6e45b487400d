"""Targets that are no classes: what data has them, their loss, and their score."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch.nn import functional as F

from fl.data.own import as_dataset
from fl.data.shard import Shard, shard_digest
from fl.errors import UserError
from fl.targets import Targets

X = np.random.default_rng(0).normal(size=(40, 3))
STREAM = np.random.default_rng(1)
KINDS: dict[str, tuple[np.ndarray, Targets]] = {
    "one value": (STREAM.normal(size=40), Targets("values", 1, (1,))),
    "values": (STREAM.normal(size=(40, 2)), Targets("values", 2, (2,))),
    "labels": (STREAM.integers(0, 2, (40, 4)), Targets("labels", 4, (4,))),
    "tokens": (np.tile(np.arange(8), (40, 1)), Targets("tokens", 8, (8,))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_says_by_its_targets_what_they_are_and_keeps_them(kind: str) -> None:
    given, expected = KINDS[kind]
    data = as_dataset("own", ((X, given), (X[:9], given[:9])))
    assert data.targets is not None
    found = data.targets
    assert (found.kind, found.outputs, found.shape) == (
        expected.kind,
        expected.outputs,
        expected.shape,
    )
    assert data.num_classes == 1
    shard = Shard.from_split(data.train, np.arange(5, 9), 1)
    assert np.allclose(shard.wanted.numpy(), given[5:9].reshape(4, -1))
    assert shard.wanted.dtype == (torch.int64 if kind == "tokens" else torch.float32)


@pytest.mark.parametrize("labels", [np.arange(40), np.arange(40)[:, None], np.arange(40) > 20])
def test_integers_one_for_each_sample_are_classes(labels: np.ndarray) -> None:
    data = as_dataset("own", (X, labels))
    assert data.targets is None
    assert data.num_classes == 1 + int(labels.max())


def test_an_upload_is_known_by_its_targets_too() -> None:
    one, other = (as_dataset("own", (X, X[:, 0] * k)).train for k in (1, 2))
    everything = np.arange(len(one.labels))
    assert shard_digest(one, everything) != shard_digest(other, everything)


def test_values_have_squared_errors_and_r2() -> None:
    given, _ = KINDS["values"]
    targets = Targets.found(given.astype(np.float32))
    wanted, answers = torch.tensor(given).float(), torch.tensor(given).float() * 0.9 + 0.1
    assert torch.allclose(targets.losses(answers, wanted).mean(), F.mse_loss(answers, wanted))
    expected = r2_score(given, answers.numpy())  # of the same samples as the variance
    assert float(targets.scores(answers, wanted).mean()) == pytest.approx(expected, abs=1e-5)
    assert targets.metric == "R2"


def test_labels_and_tokens_count_what_is_right() -> None:
    labels = Targets("labels", 2, (2,))
    answers = torch.tensor([[3.0, -1.0], [0.5, 0.5]])
    wanted = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert labels.scores(answers, wanted).tolist() == [1.0, 0.5]
    expected = F.binary_cross_entropy_with_logits(answers, wanted)
    assert torch.allclose(labels.losses(answers, wanted).mean(), expected)
    tokens = Targets("tokens", 3, (2,))
    logits = torch.eye(3)[None, [0, 2]] * 9
    assert tokens.scores(logits, torch.tensor([[0, 1]])).tolist() == [0.5]
    flat = F.cross_entropy(logits[0], torch.tensor([0, 1]))
    assert torch.allclose(tokens.losses(logits, torch.tensor([[0, 1]])).mean(), flat)
    assert {labels.metric, tokens.metric} == {"accuracy"}


def test_a_place_of_minus_100_counts_neither_in_losses_nor_in_scores() -> None:
    padded = np.array([[2, 0, -100], [1, -100, -100]])
    split = as_dataset("x", ((X[:2], padded), (X[:2], padded))).train
    tokens, wanted = Targets.found(split.targets), torch.tensor(split.targets)  # type: ignore[arg-type]
    assert (tokens.kind, tokens.outputs) == ("tokens", 3)
    answers = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    answers[0, 0, 2] = 9
    pairs = [(a[w >= 0], w[w >= 0]) for a, w in zip(answers, wanted, strict=True)]
    expected = torch.stack([F.cross_entropy(*pair) for pair in pairs])
    torch.testing.assert_close(tokens.losses(answers, wanted), expected)
    right = torch.stack([(a.argmax(1) == w).float().mean() for a, w in pairs])
    assert torch.equal(tokens.scores(answers, wanted), right)
    padded[1] = -100
    with pytest.raises(UserError, match="only tokens of -100"):
        Targets.found(padded)


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_is_a_target_that_a_loss_takes(kind: str) -> None:
    targets = Targets.found(as_dataset("own", (X, KINDS[kind][0])).train.targets)  # type: ignore[arg-type]
    wanted = targets.example(6)
    assert wanted.shape == (6, *targets.shape)
    last = (targets.outputs,) if targets.kind == "tokens" else ()
    answers = torch.zeros(6, *targets.shape, *last)
    assert targets.losses(answers, wanted).shape == (6,)
    assert (targets.scores(answers, wanted) <= 1).all()


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (np.full(40, np.nan), "expected integers .* or targets: finite floats"),
        (np.eye(4, dtype=int)[np.arange(40) % 4], r"look like one-hot classes: .*argmax"),
        (np.eye(4)[np.arange(40) % 4], "floats 0 or 1: give integers"),
        ((np.arange(40) % 2).astype(float), "floats 0 or 1: give integers"),
        (X[:, 0] * 1e6, "targets must be at most 10000, got .*: standardise them"),
        (-np.ones((40, 2), np.int64), "of 0 and more"),
        (np.zeros((40, 0), int), "expected integers"),
        (np.zeros((40, 2, 2)), "expected integers"),
        (np.array(["a"] * 40), "labels of type <U1"),
    ],
)
def test_what_is_no_target_is_one_line(labels: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        as_dataset("x", (X, labels))
    assert "\n" not in str(caught.value)


def test_floats_that_may_be_meant_as_classes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    as_dataset("own", (X, X[:, 0]))
    assert not caplog.messages
    for targets in (np.sign(X[:, 0]), np.stack([X[:, 0], X[:, 1] > 0], 1)):
        as_dataset("own", (X, targets))
        assert "2 whole numbers as floats are learned as values; integers" in caplog.messages.pop()
    as_dataset("own", (X, np.random.default_rng(0).dirichlet([1, 1, 1], len(X))))
    assert "probabilities are learned by squared error" in caplog.messages.pop()


def test_a_class_that_may_stand_for_none_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Maps of images mark what has no class by 255."""
    classes = np.arange(240).reshape(40, 6)
    as_dataset("own", (X, classes))
    as_dataset("own", (X, (classes % 3).astype(np.uint8)))
    assert not caplog.messages
    for labels in (classes % 3, classes[:, 0] // 6 % 3):
        labels[0] = 255
        as_dataset("own", (X, labels.astype(np.uint8)))
        assert "255 is taken for a class, though no label lies between" in caplog.messages.pop()


def test_what_targets_are_is_told_by_all_clients_together() -> None:
    """A client's own looked otherwise, and its data was refused."""
    values, labels = X[:, 0].copy(), (X > 0).astype(int)
    values[30:36], values[36:], labels[30:] = 2.5, np.arange(4) % 2, np.eye(3, dtype=int)[0]
    tokens = np.arange(80).reshape(40, 2)
    tokens[30:] %= 2
    kinds = {"values": (values, 1), "labels": (labels, 3), "tokens": (tokens, 60)}
    parts = (slice(30), slice(30, 36), slice(36, 38), slice(38, 40))
    for kind, (given, outputs) in kinds.items():
        found = as_dataset("own", {k: (X[own], given[own]) for k, own in enumerate(parts)}).targets
        assert found is not None
        assert (found.kind, found.outputs) == (kind, outputs)
    for row in range(40):  # also where the rarest token falls into the test split
        rare = np.ones((40, 2), int)
        rare[row] = 9
        found = as_dataset("own", (X, rare)).targets
        assert found is not None
        assert found.outputs == 10


def test_training_and_test_samples_must_have_targets_of_a_kind() -> None:
    values, tokens = KINDS["values"][0], KINDS["tokens"][0]
    with pytest.raises(UserError, match="targets of different kinds"):
        as_dataset("x", ((X, values), (X, tokens)))
    with pytest.raises(UserError, match="targets of different kinds"):
        as_dataset("x", {"a": (X, values), "b": (X, tokens)})
