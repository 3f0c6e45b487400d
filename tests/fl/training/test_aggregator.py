"""What a client tells of an aggregator is checked, and what it is scored on it did not train on."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.data.shard import Shard
from fl.exchange import prefixed
from fl.federation import RunSpec, TaskInput, Update
from fl.models import build_classifier
from fl.training.aggregator import (
    AggregatorConfig,
    LocalFENS,
    ask_members,
    check_aggregator,
    train_aggregator,
)
from fl.training.classifier import held_out_rows
from tests.fl.toy import client, task_input

SPEC = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)
LOCAL = LocalFENS(
    model="mlp",
    width=0.1,
    validation=0.3,
    peers=(("mlp", 0.1), ("cnn", 0.2), ("mlp", 0.1)),
    aggregator=AggregatorConfig(),
)


def given(round: int, **messages: dict[str, Tensor]) -> TaskInput:
    stream = torch.Generator().manual_seed(0)
    images = torch.rand(10, 1, 8, 8, generator=stream)
    own = task_input(LOCAL, Shard(images, torch.arange(10) % 3, 3), id=1, run_spec=SPEC)
    return replace(own, round=round, **messages)


def test_members_are_asked_about_the_samples_that_the_first_round_held_out() -> None:
    small, large = (
        build_classifier("cnn", (1, 8, 8), 3, width=0.2),
        build_classifier("mlp", (1, 8, 8), 3, width=0.1),
    )
    sent = {**prefixed("member.1", small), **prefixed("member.2", large)}
    found = ask_members(given(2, broadcast=sent)).tensors
    rows, left = held_out_rows(given(1), LOCAL)
    assert len(rows) == 3
    assert sorted([*rows.tolist(), *left.tolist()]) == list(range(10))
    assert torch.equal(found["labels"], given(1).shard.labels[rows])
    images = given(1).shard.images[rows]
    expected = [torch.zeros(3, 3), small.eval()(images), large.eval()(images)]
    torch.testing.assert_close(found["logits"], torch.stack(expected, 1))


def test_an_aggregator_that_none_was_made_of_is_refused() -> None:
    sent = prefixed("aggregator", LOCAL.new_aggregator(SPEC))
    memory = {"logits": torch.ones(4, 3, 3), "labels": torch.tensor([0, 0, 1, 2])}
    told = train_aggregator(given(3, broadcast=sent, remembered=memory)).tensors
    expected = LOCAL.new_aggregator(SPEC).state_dict()

    def check(tensors: dict[str, Tensor]) -> None:
        largest = {n: float(t.abs().max()) for n, t in tensors.items()}
        update = Update(
            client=client(1, LOCAL),
            tensors=tensors,
            stats={},
            seconds=0.0,
            reused=False,
            largest=largest,
        )
        check_aggregator(expected, update, SPEC)

    check(told)
    assert any(not torch.equal(t, sent[n]) for n, t in told.items())
    with pytest.raises(ValueError, match="client 1 sent other tensors than aggregator has"):
        check({n: t for n, t in told.items() if "outer" in n})
    with pytest.raises(
        ValueError, match=r"aggregator.outer.bias as torch.float32 \(4,\), expected"
    ):
        check({**told, "aggregator.outer.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"sent aggregator.outer.bias with values up to .*it lies"):
        check({**told, "aggregator.outer.bias": torch.full((3,), 1e4)})
