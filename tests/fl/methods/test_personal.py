"""Who took part how often, and uploads that are believed only after a check."""

import pytest
import torch
from torch import Tensor

from fl.federation import Update
from fl.methods.personal import Participations, checked_floats, checked_labels
from fl.methods.prototypes import assign_all
from tests.fl.methods.personal_runs import CLIENTS, SPEC, federation, play, settings, sizes, start


def update(**tensors: Tensor) -> Update:
    client = federation("local", settings("local"))[0].members[1]
    return Update(client=client, tensors=tensors, stats={}, seconds=0, reused=False)


def test_participations_are_counted_in_the_memory_that_a_run_saves() -> None:
    taken = Participations(federation("local", settings("local"))[0])
    taken.count([1, 3])
    taken.count([3])
    assert [taken[k] for k in range(CLIENTS)] == [0, 1, 0, 2, 0]
    assert taken.memory["participations"].tolist() == [0, 1, 0, 2, 0]
    config, (_, server) = settings("local"), federation("local", settings("local"))
    model = start(config)
    each = 4 * sum(p.numel() for p in model.parameters())
    assert taken.fedavg_bytes(config.classifier, server) == {"fedavg_bytes_up": 3 * each}


def test_what_fedavg_would_have_sent_is_what_it_sends() -> None:
    _, fedavg = play("fedavg", settings("fedavg", participation=0.4), 2)
    alone, _ = play("local", settings("local", participation=0.4), 2)
    assert alone.figures["fedavg_bytes_up"] == sum(fedavg.bytes_up.values())


def test_every_client_trains_the_same() -> None:
    assert len(set(assign_all(settings("local"), CLIENTS, SPEC))) == 1


@pytest.mark.parametrize("bad", [None, torch.zeros(3, 2), torch.zeros(2, 3).double()])
def test_floats_of_another_shape_or_type_are_refused(bad: Tensor | None) -> None:
    good = torch.ones(2, 3)
    assert checked_floats(update(x=good), "x", (2, 3)) is good
    with pytest.raises(ValueError, match="client 1 sent x"):
        checked_floats(update() if bad is None else update(x=bad), "x", (2, 3))


def test_labels_are_one_for_each_sample_and_name_a_class() -> None:
    good = torch.zeros(sizes()[1], dtype=torch.int64)
    assert checked_labels(update(labels=good), 10) is good
    for bad in (good[1:], good.float(), good + 10, good - 1):
        with pytest.raises(ValueError, match="client 1"):
            checked_labels(update(labels=bad), 10)
