"""How a client condenses: what its record refuses, and what it says of memory and bytes."""

import json
from dataclasses import asdict, fields, replace

import pytest

from fl.condensation.task import CondensationConfig, LocalCondensation, condense
from fl.errors import UserError
from tests.fl.condensation.condensing import CONFIG, inputs
from tests.fl.toy import PROBLEM, shard


def test_impossible_condensation_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown augment 'blur'; valid: brightness"):
        CondensationConfig(augment=("blur",))
    with pytest.raises(UserError, match=r"images_per_class must be at least 1"):
        CondensationConfig(images_per_class=0)


def test_a_clients_record_has_all_that_is_shared_and_the_methods_own() -> None:
    shared = CondensationConfig(width=0.5, steps=7, augment=("flip", "cutout"), pixels="uint8")
    local = LocalCondensation.of(shared, rho=3.0, clip=None)
    assert all(getattr(local, f.name) == getattr(shared, f.name) for f in fields(shared))
    assert (local.rho, local.clip, local.gamma) == (3.0, None, 1.0)


def test_a_record_is_made_of_json_values() -> None:
    """The store makes its keys of them."""
    record = replace(CONFIG, augment=("flip",))
    values = json.loads(json.dumps(asdict(record)))
    assert LocalCondensation(**{**values, "augment": tuple(values["augment"])}) == record


def test_images_that_the_model_cannot_take_are_refused() -> None:
    CONFIG.check(PROBLEM)
    with pytest.raises(UserError, match="convnet does not take images"):
        CONFIG.check(replace(PROBLEM, image_shape=(1, 4, 4)))


def test_a_client_with_all_classes_sends_as_many_bytes_of_images_as_its_record_says() -> None:
    sent = condense(inputs(data=shard(2, 1, 4))).tensors["images"]
    assert CONFIG.upload_bytes(PROBLEM) == sent.nbytes


def test_a_probe_sees_all_classes_in_each_of_its_few_steps() -> None:
    probe, samples = CONFIG.probe(2, num_classes=3)
    assert probe == replace(CONFIG, steps=2)
    assert samples == 3 * CONFIG.batch_size
    assert CONFIG.work(samples) == CONFIG.steps * samples


def test_only_what_takes_time_or_memory_tells_speeds_apart() -> None:
    same = replace(CONFIG, lr=9.0, steps=99)
    assert same.speed_settings() == CONFIG.speed_settings()
    for other in (replace(CONFIG, width=0.5), replace(CONFIG, batch_size=9)):
        assert other.speed_settings() != CONFIG.speed_settings()
