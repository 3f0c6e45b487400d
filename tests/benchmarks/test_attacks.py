"""Clients that lie: who is changed, and how."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attacks import ATTACKS, FAR_BACK, ON_DATA, ON_WEIGHTS, Liars, Trained

from fl.events import Events
from fl.exchange import Tensors, Upload, prefixed, unpack
from fl.executor import InProcess
from fl.federation import Job
from fl.receiving import LEAST_APART
from fl.training.classifier import starting_classifier
from fl.training.task import train_by_recipe
from tests.fl.toy import CLASSIFIER, PROBLEM, client, same_bits, split

DATA = split(8, 8, 8)


def job(id: int) -> Job:
    indices = np.arange(id, 24, 3)
    own = replace(client(id), num_samples=len(indices))
    return Job(
        task=train_by_recipe,
        client=own,
        run_spec=PROBLEM,
        indices=indices,
        broadcast=None,
        payload=None,
    )


def uploads(executor: Liars | InProcess, ids: tuple[int, ...] = (0, 1, 2)) -> dict[int, Tensors]:
    found = {}
    for own, packed in executor.run([job(k) for k in ids], Events()):
        assert isinstance(packed, Upload)
        found[own.client.id] = unpack(bytes(packed))[0]
    return found


@pytest.mark.parametrize("attack", ATTACKS)
def test_liars_alone_upload_something_else(attack: str) -> None:
    plain = uploads(InProcess(DATA))
    told = uploads(Liars(DATA, attack, {1}, {}, {}))
    assert told.keys() == plain.keys()
    assert same_bits(told[0], plain[0])
    assert same_bits(told[2], plain[2])
    assert not same_bits(told[1], plain[1])


def test_weights_are_turned_or_scaled() -> None:
    plain = uploads(InProcess(DATA))[1]
    for attack, factor in (("sign flip", -1), ("scaling", 10)):
        told = uploads(Liars(DATA, attack, {1}, {}, {}))[1]
        assert all(torch.equal(told[name], factor * tensor) for name, tensor in plain.items())


def test_the_start_is_sent_back_or_left_the_other_way_as_far_as_passes() -> None:
    start = prefixed("classifier", starting_classifier(CLASSIFIER, PROBLEM))
    plain = uploads(InProcess(DATA))[1]
    assert same_bits(uploads(Liars(DATA, "start sent back", {1}, {}, {}))[1], start)
    back = uploads(Liars(DATA, FAR_BACK, {1}, {}, {}))[1]
    factors = {
        float(((start[n] - t) / (plain[n] - start[n])).nanmedian().round()) for n, t in back.items()
    }
    (factor,) = factors
    assert factor >= 4
    assert float(max(t.abs().max() for t in back.values())) < LEAST_APART


def test_data_are_changed_within_their_range() -> None:
    assert {*ON_WEIGHTS, FAR_BACK, *ON_DATA} == set(ATTACKS)
    assert ON_DATA["label flip"](DATA).labels.tolist() == (2 - DATA.labels).tolist()
    assert (ON_DATA["reversed images"](DATA).images == 255 - DATA.images).all()


def test_what_was_trained_is_used_again() -> None:
    honest: Trained = {}
    first = uploads(Liars(DATA, "label flip", {1}, honest, {}))
    kept = dict(honest)
    again = uploads(Liars(DATA, "sign flip", {0}, honest, {}))
    assert all(honest[key] is packed for key, packed in kept.items())
    assert same_bits(first[2], again[2])
