"""The client's own model: what was sent, else what it remembers, else its start."""

from dataclasses import replace

import pytest
import torch

from fl.exchange import prefixed
from fl.training.classifier import starting_classifier
from fl.training.personal import PersonalTraining, own_model
from tests.fl.toy import PROBLEM, same_bits, shard, task_input

CONFIG = PersonalTraining(epochs=1)
INPUTS = task_input(CONFIG, shard(5, 5, 5))
START = starting_classifier(CONFIG, PROBLEM).state_dict()


def test_it_is_the_start_then_what_is_remembered_then_what_is_sent() -> None:
    assert same_bits(own_model(INPUTS).state_dict(), START)
    remembered = {f"classifier.{n}": torch.full_like(t, 2.0) for n, t in START.items()}
    sent = {"classifier.features.0.bias": torch.full((8,), 3.0)}
    inputs = replace(INPUTS, remembered=remembered)
    assert all(bool((t == 2).all()) for t in own_model(inputs).state_dict().values())
    state = own_model(replace(inputs, payload=sent)).state_dict()
    assert {n for n, t in state.items() if bool((t == 3).all())} == {"features.0.bias"}
    assert same_bits(own_model(replace(inputs, broadcast=sent)).state_dict(), state)


def test_what_is_of_another_model_is_refused() -> None:
    wider = starting_classifier(PersonalTraining(width=2.0), PROBLEM)
    for inputs in (
        replace(INPUTS, remembered=prefixed("classifier", wider)),
        replace(INPUTS, payload={"classifier.nothing": torch.zeros(1)}),
    ):
        with pytest.raises(ValueError, match="the client's memory"):
            own_model(inputs)
