"""What personalised methods share: uploads that are checked, participation, shared layers."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fl.federation import Update
from fl.methods.personal import (
    Dropping,
    Participations,
    average_layers,
    checked_floats,
    checked_labels,
    first_layers_each,
    output_shapes,
)
from fl.models.layered import Layers
from tests.fl.methods.personal_runs import CLIENTS, SPEC, federation, play, settings, sizes, start
from tests.fl.toy import same_bits


def update(**tensors: Tensor) -> Update:
    client = federation("local", settings("local"))[0].members[1]
    return Update(client=client, tensors=tensors, stats={}, seconds=0, reused=False)


def test_participations_are_counted_in_the_memory_that_a_run_saves() -> None:
    taken = Participations(federation("local", settings("local"))[0])
    taken.count([1, 3])
    taken.count([3])
    assert [taken[k] for k in range(CLIENTS)] == [0, 1, 0, 2, 0]
    assert taken.memory["participations"].tolist() == [0, 1, 0, 2, 0]
    model = start(settings("local"))
    each = 4 * sum(p.numel() for p in model.parameters())
    assert taken.fedavg_bytes() == {"fedavg_bytes_up": 3 * each}


def test_what_fedavg_would_have_sent_is_what_it_sends() -> None:
    _, fedavg = play("fedavg", settings("fedavg", participation=0.4), 2)
    alone, _ = play("local", settings("local", participation=0.4), 2)
    assert alone.figures["fedavg_bytes_up"] == sum(fedavg.bytes_up.values())


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


MODEL = start(settings("fedper+"))
LAYERS = Layers(MODEL)


def test_the_sequence_of_kept_layers() -> None:
    """Eq. 6: a layer every Z0 participations, down to the last of the set."""
    kept = [Dropping(rate=3).depth(LAYERS, z) for z in range(1, 17)]
    assert kept == [6, 6, 6, 5, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2]
    assert Dropping(layers=("F2", "F3"), rate=1).depth(LAYERS, 100) == 4
    assert Dropping().depth(LAYERS, 0) == 6


def updates(values: Sequence[float], depths: Sequence[int]) -> list[Update]:
    """Client k's layers, as many as it shares, all of one value."""
    members = federation("fedper", settings("fedper"))[0].members
    state = MODEL.state_dict()
    return [
        Update(
            client=members[k],
            tensors={
                f"classifier.{n}": torch.full_like(state[n], value)
                for n in LAYERS.state_names(1, depth)
            },
            stats={},
            seconds=0,
            reused=False,
        )
        for k, (value, depth) in enumerate(zip(values, depths, strict=True))
    ]


def test_a_layer_is_averaged_over_those_that_share_it_by_their_samples() -> None:
    model = start(settings("fedper+"))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    average_layers(model, LAYERS, updates([1.0, 4.0], [5, 2]), {0: 5, 1: 2})
    state, n = model.state_dict(), sizes()
    mean = (n[0] * 1.0 + n[1] * 4.0) / (n[0] + n[1])
    for name in LAYERS.state_names(1, 2):
        torch.testing.assert_close(state[name], torch.full_like(state[name], mean))
    assert all(bool((state[name] == 1).all()) for name in LAYERS.state_names(3, 5))
    assert all(torch.equal(state[name], before[name]) for name in LAYERS.state_names(6, 6))
    average_layers(model, LAYERS, updates([9.0], [0]), {0: 0})
    assert same_bits(model.state_dict(), state)


@pytest.mark.parametrize("depth", [1, 3])
def test_more_or_fewer_layers_than_a_client_shares_are_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="client 0 sent other tensors"):
        average_layers(start(settings("fedper")), LAYERS, updates([1.0], [depth]), {0: 2})


def test_each_client_is_sent_as_much_as_it_shares() -> None:
    sent = first_layers_each(MODEL, LAYERS, {0: 6, 1: 2, 2: 0}, [0, 2])
    assert sent.keys() == {0, 2}
    assert sent[0].keys() == {f"classifier.{n}" for n in MODEL.state_dict()}
    assert sent[2] == {}


def test_the_shapes_after_each_layer() -> None:
    assert output_shapes(MODEL, LAYERS, SPEC.inputs)[-1] == (10,)
    assert len(output_shapes(MODEL, LAYERS, SPEC.inputs)) == len(LAYERS)
