"""FedPer and FedRep, with and without dropping, against plain loops, FedAvg and training alone."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.events import ClientEnd, Event
from fl.exchange import load_prefixed, prefixed
from fl.federation import RunSpec
from fl.methods.personal import Dropping
from fl.methods.registry import get_method
from fl.models.layered import Layers
from fl.training.task import conflict
from tests.fl.methods.personal_runs import (
    CLIENTS,
    DATA,
    SPEC,
    averaged,
    close,
    curve,
    ledgers,
    memories,
    model_of,
    partition,
    plain,
    play,
    remembered,
    same,
    settings,
    sizes,
    start,
    store,
    train,
)
from tests.fl.test_accuracy import evaluate
from tests.fl.toy import shard, task_input

START = start(settings("fedper"))
LAYERS = Layers(START)
FRONT = LAYERS.state_names(1, 3)
FRONT_BYTES = 4 * sum(p.numel() for p in LAYERS.parameters(START, 1, 3))
DROPPED = ("F1", "F2", "F3")
ALL_AT_ONCE = Dropping(layers=DROPPED, rate=1)


def naive(local: Callable[[nn.Module, int, int], object]) -> tuple[dict[str, Tensor], list]:
    """Three rounds: the first layers averaged by samples, the others each client's own."""
    common = {n: START.state_dict()[n] for n in FRONT}
    own = [deepcopy(START) for _ in range(CLIENTS)]
    for number in (1, 2, 3):
        for k, model in enumerate(own):
            model.load_state_dict({**model.state_dict(), **common})
            local(model, k, number)
        common = averaged([{n: model.state_dict()[n] for n in FRONT} for model in own], sizes())
    return common, own


def head_first(model: nn.Module, k: int, number: int) -> None:
    """FedRep's clients: the head, then the shared layers, each on the frozen other."""
    train(model, k, number, only=LAYERS.parameters(model, 4, 6), epochs=1)
    front = LAYERS.parameters(model, 1, 3)
    train(model, k, number, only=front, epochs=1, purpose="local/order/shared")


@pytest.mark.parametrize(("name", "local"), [("fedper", train), ("fedrep", head_first)])
def test_three_rounds_are_those_of_a_plain_loop(
    name: str, local: Callable[[nn.Module, int, int], object]
) -> None:
    """Heads stay with the clients, each of which is scored by its own on the newest layers."""
    outcome, clients = play(name, settings(name))
    common, own = naive(local)
    assert close(common, model_of(outcome))
    assert remembered(clients, own)
    heads = LAYERS.state_names(4, 6)
    assert all(torch.equal(model_of(outcome)[n], START.state_dict()[n]) for n in heads)
    up, down = (dict.fromkeys(range(CLIENTS), n * FRONT_BYTES) for n in (3, 2))
    assert ledgers(clients) == (up, down)
    assert outcome.model is not None
    sent = prefixed("classifier", outcome.model)
    for k, memory in enumerate(memories(clients)):
        model, rows = deepcopy(START), partition().test[k]
        mixed = {**memory, **{f"classifier.{n}": sent[f"classifier.{n}"] for n in FRONT}}
        load_prefixed(model, mixed, "classifier", sender="test")
        images = torch.from_numpy(DATA.train.images[rows]).float() / 255
        labels = torch.from_numpy(DATA.train.labels[rows])
        assert evaluate(model, images, labels, 10).accuracy == curve(outcome)[-1][k]


def test_clients_that_dropped_different_numbers_of_layers_against_a_plain_loop() -> None:
    """Half take part in a round; a layer is averaged over those that still share it."""
    config = settings("fedper+", participation=0.5, dropping=ALL_AT_ONCE)
    heard: list[Event] = []
    outcome, clients = play("fedper+", config, 5, listener=heard.append)
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
        assert not times or close(plain(ours), theirs.state_dict())
    assert clients.bytes_up == dict(enumerate(up))


def test_the_sequence_of_kept_layers() -> None:
    """Eq. 6: a layer every Z0 participations, down to the last of the set."""
    kept = [Dropping(rate=3).depth(LAYERS, z) for z in range(1, 17)]
    assert kept == [6, 6, 6, 5, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2]
    assert Dropping(layers=("F2", "F3"), rate=1).depth(LAYERS, 100) == 4
    assert Dropping().depth(LAYERS, 0) == 6


def test_their_first_rounds_are_found_where_fedavg_left_its_own(tmp_path: Path) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "fedavg"))
    for name in ("fedper+", "fedrep+", "fedper", "pfedsd", "local"):
        heard: list[Event] = []
        play(name, settings(name), 1, store=store(tmp_path, name), listener=heard.append)
        assert [e.reused for e in heard if isinstance(e, ClientEnd)] == [True] * CLIENTS, name


def test_fedrep_plus_sends_what_fedper_plus_does_and_learns_something_else() -> None:
    one, two = (play(n, settings(n, dropping=ALL_AT_ONCE))[1] for n in ("fedper+", "fedrep+"))
    assert one.bytes_up == two.bytes_up
    assert not same(memories(one), memories(two))


def test_the_head_stays_in_the_second_stage_and_the_layers_in_the_first() -> None:
    config = settings("fedrep").classifier
    inputs = task_input(config, shard(5, 5, 5), run_spec=SPEC)
    state = START.state_dict()
    inputs = replace(inputs, broadcast={f"classifier.{n}": state[n] for n in FRONT})
    first = config.recipe(inputs)
    assert first.trained is not None
    head, front = LAYERS.parameters(first.model, 4, 6), LAYERS.parameters(first.model, 1, 3)
    assert {id(p) for p in first.trained} == {id(p) for p in head}
    first.freeze_others()
    assert [p.requires_grad for p in front] == [False] * 6
    assert first.then is not None
    first.then().freeze_others()
    assert [p.requires_grad for p in (*front, *head)] == [True] * 6 + [False] * 6
    assert conflict(config.recipe, inputs) is None


def test_a_head_that_takes_all_epochs_is_refused() -> None:
    with pytest.raises(UserError, match="head_epochs must be below epochs"):
        settings("fedrep", epochs=2, head_epochs=2)


def test_a_step_is_measured_whatever_the_heads_epochs() -> None:
    local = settings("fedrep", epochs=5, head_epochs=3).classifier
    training, samples = local.probe(2, 10)
    assert (training.stages, samples) == ((1, 1), 2 * local.batch_size)


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        ("fedper+", ("F2", "F2", "F3"), "names a layer twice: F2, F2, F3"),
        ("fedper+", ("F4",), "no layer 'F4'; valid: C1, C2, C3, F1, F2, F3"),
        ("fedrep+", ("F1", "F2"), "must be the last of .* the last 2 are F2, F3"),
        ("fedd2s", ("C1", "C2", "C3", "F1", "F2", "F3"), "but not all of them"),
    ],
)
def test_a_set_that_cannot_be_dropped_is_refused(
    name: str, layers: tuple[str, ...], message: str
) -> None:
    config = settings(name, dropping=Dropping(layers=layers))
    with pytest.raises(UserError, match=message):
        get_method(name).assign(config, CLIENTS, SPEC)


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_a_model_of_which_nothing_would_be_shared_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="mlp has none: set how many"):
        get_method(name).assign(settings(name, model="mlp"), CLIENTS, SPEC)
    get_method(name).assign(settings(name, model="mlp", shared_layers=1), CLIENTS, SPEC)


def test_a_model_without_layers_in_sequence_is_refused() -> None:
    spec = RunSpec.of_images((3, 32, 32), num_classes=10, seed=0)
    with pytest.raises(UserError, match=r"follow one another.* features and classifier"):
        get_method("fedper").assign(settings("fedper", model="resnet18", width=0.1), 2, spec)
