"""Which layers are shared, what is sent of them, and their average."""

from collections.abc import Sequence

import pytest
import torch

from fl.federation import Update
from fl.methods.personal import Dropping, average_layers, first_layers_each, output_shapes
from fl.models.layered import Layers
from tests.fl.methods.personal_runs import SPEC, federation, settings, sizes, start
from tests.fl.toy import same_bits

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
    assert output_shapes(MODEL, LAYERS, SPEC.image_shape)[-1] == (10,)
    assert len(output_shapes(MODEL, LAYERS, SPEC.image_shape)) == len(LAYERS)
