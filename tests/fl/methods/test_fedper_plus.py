"""FedPer+: FedAvg while nothing is dropped, FedPer once all is, each client with its own depth."""

from pathlib import Path

import pytest

from fl.errors import UserError
from fl.events import ClientEnd, Event
from fl.methods.personal import Dropping
from fl.methods.registry import get_method
from fl.models.layered import Layers
from tests.fl.methods.personal_runs import (
    CLIENTS,
    SPEC,
    averaged,
    close,
    curve,
    memories,
    model_of,
    play,
    same,
    settings,
    sizes,
    start,
    store,
    train,
)
from tests.fl.toy import same_bits

LAYERS = Layers(start(settings("fedper+")))
DROPPED = ("F1", "F2", "F3")


def test_while_nothing_is_dropped_it_is_fedavg() -> None:
    fedavg, theirs = play("fedavg", settings("fedavg"))
    plus, ours = play("fedper+", settings("fedper+", dropping=Dropping(rate=3)))
    assert same_bits(model_of(plus), model_of(fedavg))
    assert curve(plus) == curve(fedavg)
    assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


def test_clients_that_dropped_different_numbers_of_layers_against_a_plain_loop(
    tmp_path: Path,
) -> None:
    """Three of five take part in a round; a layer is averaged over those that still share it."""
    config = settings("fedper+", participation=0.6, dropping=Dropping(layers=DROPPED, rate=1))
    heard: list[Event] = []
    outcome, clients = play("fedper+", config, 5, store=store(tmp_path), listener=heard.append)
    who = [(e.round, e.client) for e in heard if isinstance(e, ClientEnd)]
    common = start(config).state_dict()
    own = [start(config) for _ in range(CLIENTS)]
    taken, up = [0] * CLIENTS, [0] * CLIENTS
    for number in range(1, 6):
        chosen = sorted(k for n, k in who if n == number)
        depth = {}
        for k in chosen:
            taken[k] += 1
            depth[k] = max(3, 6 - (taken[k] - 1))
            shared = {n: common[n] for n in LAYERS.state_names(1, depth[k])}
            own[k].load_state_dict({**own[k].state_dict(), **shared})
            train(own[k], k, number)
            up[k] += sum(4 * t.numel() for t in shared.values())
        for layer in range(1, 7):
            sharing = [k for k in chosen if depth[k] >= layer]
            names = LAYERS.state_names(layer, layer)
            states = [{n: own[k].state_dict()[n] for n in names} for k in sharing]
            if sharing:
                common |= averaged(states, [sizes()[k] for k in sharing])
    assert len(set(taken)) > 1
    assert close(common, model_of(outcome))
    for ours, theirs, times in zip(memories(clients), own, taken, strict=True):
        if times:
            plain = {n.removeprefix("classifier."): t for n, t in ours.items()}
            assert close(plain, theirs.state_dict())
    assert clients.bytes_up == dict(enumerate(up))


def test_started_with_nothing_more_to_drop_it_is_fedper(tmp_path: Path) -> None:
    """Depth 3 from the second participation on: as FedPer from the same weights."""
    config = settings("fedper+", dropping=Dropping(layers=DROPPED, rate=1))
    assert [Dropping(layers=DROPPED, rate=1).depth(LAYERS, z) for z in (4, 5, 50)] == [3, 3, 3]
    outcome, _ = play("fedper+", config, 5, store=store(tmp_path))
    front = 4 * sum(p.numel() for p in LAYERS.parameters(start(config), 1, 3))
    assert outcome.figures["per_round"][-1]["bytes_up"] == CLIENTS * front


def test_its_first_round_is_found_where_fedavg_left_it(tmp_path: Path) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "fedavg"))
    for name in ("fedper+", "fedrep+", "fedper", "pfedsd", "local"):
        heard: list[Event] = []
        play(name, settings(name), 1, store=store(tmp_path, name), listener=heard.append)
        assert [e.reused for e in heard if isinstance(e, ClientEnd)] == [True] * CLIENTS, name


def test_the_head_is_empty_at_first_so_fedrep_plus_is_fedavg_then(tmp_path: Path) -> None:
    fedavg, _ = play("fedavg", settings("fedavg"))
    plus, _ = play("fedrep+", settings("fedrep+", dropping=Dropping(rate=3)))
    assert same_bits(model_of(plus), model_of(fedavg))
    dropping = Dropping(layers=DROPPED, rate=1)
    one = play("fedper+", settings("fedper+", dropping=dropping), store=store(tmp_path, "a"))[1]
    two = play("fedrep+", settings("fedrep+", dropping=dropping), store=store(tmp_path, "b"))[1]
    assert one.bytes_up == two.bytes_up
    assert not same(memories(one), memories(two))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("F2", "F2", "F3"), "names a layer twice: F2, F2, F3"),
        (("F4",), "no layer 'F4'; valid: C1, C2, C3, F1, F2, F3"),
        (("F1", "F2"), "must be the deepest .* allowed for so many: F2, F3"),
        (("C1", "C2", "C3", "F1", "F2", "F3"), "without the first"),
    ],
)
@pytest.mark.parametrize("name", ["fedper+", "fedrep+", "fedd2s"])
def test_a_set_that_cannot_be_dropped_is_refused(
    name: str, layers: tuple[str, ...], message: str
) -> None:
    config = settings(name, dropping=Dropping(layers=layers))
    with pytest.raises(UserError, match=message):
        get_method(name).assign(config, CLIENTS, SPEC)
