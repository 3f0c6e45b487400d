"""What holds of every training that goes over a client's samples in epochs."""

import json
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest
import torch

from fl.condensation.kip import KipTraining
from fl.condensation.task import LocalCondensation
from fl.errors import UserError
from fl.federation import Training
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.fl.toy import CLASSIFIER, GENERATOR, VGG, same_bits, shard
from tests.fl.training.local import DATA, STILL, close, start_of, train, weights

KINDS = pytest.mark.parametrize(
    "training", [CLASSIFIER, VGG, GENERATOR], ids=lambda training: training.model
)


@KINDS
def test_an_upload_follows_from_the_seed_whatever_ran_before(training: Training) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = train(training)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    train(CLASSIFIER, shard(2, 2, 2), id=1)
    second = train(training)
    assert same_bits(first.tensors, second.tensors)
    assert first.stats == second.stats
    assert not close(weights(first), weights(train(training, seed=1)))


@KINDS
def test_all_clients_of_an_architecture_start_from_the_same_weights(training: Training) -> None:
    still = replace(training, epochs=1, lr=STILL)
    start = start_of(training)
    for id, data in ((0, DATA), (5, shard(0, 3, 1))):
        assert close(weights(train(still, data, id=id)), start)
    assert not close(weights(train(training)), start)
    assert not close(start_of(training, seed=1), start)


@KINDS
def test_the_start_does_not_depend_on_how_a_client_trains(training: Training) -> None:
    other = replace(training, epochs=9, lr=0.3, batch_size=3)
    assert same_bits(start_of(training), start_of(other))


@KINDS
def test_clients_go_through_their_samples_in_an_order_of_their_own(training: Training) -> None:
    """With the same samples they end elsewhere."""
    assert not close(weights(train(training, id=0)), weights(train(training, id=1)))


@pytest.mark.parametrize("training", [replace(VGG, width=0.05), GENERATOR], ids=lambda t: t.model)
def test_dropout_and_latent_noise_are_a_clients_own(training: Training) -> None:
    """One sample leaves no order in which clients could differ."""
    data = shard(0, 1, 0)
    assert not close(weights(train(training, data, id=0)), weights(train(training, data, id=1)))


@KINDS
def test_one_sample_is_enough(training: Training) -> None:
    output = train(training, shard(0, 1, 0))
    assert all(torch.isfinite(t).all() for t in output.tensors.values())
    assert output.stats["train_loss"] > 0
    assert not close(weights(output), start_of(training))


@pytest.mark.parametrize("record", [ClassifierConfig, GeneratorConfig])
@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("width", 0.0, "must be a positive number"),
        ("lr", 0.0, "must be a positive number"),
        ("lr", float("nan"), "must be a positive number"),
        ("epochs", 0, "must be at least 1"),
        ("batch_size", 0, "must be at least 1"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(
    record: type[Training], setting: str, value: Any, complaint: str
) -> None:
    with pytest.raises(UserError, match=rf"^{setting} {complaint}, got {value}$"):
        record(**{setting: value})


RECORDS = [ClassifierConfig(), GeneratorConfig(), LocalCondensation(), KipTraining()]


@pytest.mark.parametrize("made", RECORDS, ids=lambda made: type(made).__name__)
def test_a_record_is_frozen_and_made_of_json_values(made: Training) -> None:
    """The store makes its keys of them."""
    values = json.loads(json.dumps(asdict(made)))
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    assert type(made)(**{**values, **lists}) == made
    with pytest.raises(FrozenInstanceError):
        made.lr = 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", RECORDS, ids=lambda made: type(made).__name__)
def test_only_what_takes_time_or_memory_tells_speeds_apart(made: Training) -> None:
    length = "epochs" if hasattr(made, "epochs") else "steps"
    assert replace(made, lr=0.9, **{length: 99}).speed_settings() == made.speed_settings()
    size = "targets" if isinstance(made, KipTraining) else "batch_size"
    assert replace(made, **{size: 9}).speed_settings() != made.speed_settings()
