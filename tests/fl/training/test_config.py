import json
from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest

from fl.errors import UserError
from fl.federation import Training
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig

RECORDS: list[type[Training]] = [ClassifierConfig, GeneratorConfig]


@pytest.mark.parametrize("record", RECORDS)
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


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_momentum_is_below_one(momentum: float) -> None:
    with pytest.raises(UserError, match=r"^momentum must be in \[0, 1\), got"):
        ClassifierConfig(momentum=momentum)
    assert ClassifierConfig(momentum=0).momentum == 0


def test_a_word_that_is_none_of_the_types_is_refused() -> None:
    with pytest.raises(UserError, match=r"^unknown optimizer 'lion'; valid: adam, sgd$"):
        ClassifierConfig(optimizer="lion")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^unknown upload 'all'; valid: cvae, decoder$"):
        GeneratorConfig(upload="all")  # type: ignore[arg-type]


def test_a_generator_needs_a_latent_dimension() -> None:
    with pytest.raises(UserError, match=r"^latent must be at least 1, got 0$"):
        GeneratorConfig(latent=0)


def test_each_role_trains_its_own_kind_of_model() -> None:
    with pytest.raises(UserError, match=r"^unknown model 'cvae-small'; valid: cnn, "):
        ClassifierConfig(model="cvae-small")
    with pytest.raises(UserError, match=r"^unknown model 'vgg9'; valid: cvae-"):
        GeneratorConfig(model="vgg9")


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_frozen_and_made_of_json_values(record: type[Training]) -> None:
    """The store makes its keys of them."""
    made = record()
    assert record(**json.loads(json.dumps(asdict(made)))) == made
    with pytest.raises(FrozenInstanceError):
        made.epochs = 2  # type: ignore[misc]
