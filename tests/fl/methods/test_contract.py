"""What holds for every method of the registry, at toy size.

A method's own file has its naive twin, its equations and its paper's byte counts; nothing of what
is tested here is tested there again. That it learns is in test_golden.py.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from fl import executor
from fl.bounds import Settings, bounds_in
from fl.clients import Clients
from fl.condensation.kip import KipTraining
from fl.data.datasets import Split
from fl.errors import ClientFailed
from fl.events import ClientEnd, Epoch, Event, RoundEnd, RoundsResumed
from fl.exchange import ClientNote, Upload, unpack
from fl.federation import Job, Memory
from fl.methods.dynafed import MatchingConfig
from fl.methods.personal import Dropping
from fl.methods.prototypes import ParticipationConfig, participants
from fl.methods.registry import METHODS
from tests.fl.methods.small import CLIENTS, Run, light, problem, rounds_of, small
from tests.fl.methods.small import play as play_small
from tests.fl.toy import same_bits

SHARE = 0.75
DROPPING = {"dropping": Dropping(rate=1)}
CHANGES: dict[str, dict[str, Any]] = {
    "fedbn": {"tested": "personal"},
    "dynafed": {"trajectory": 3, "matching": MatchingConfig(iterations=2, inner_steps=2)},
    "fedseq": {"clusters": 2},
    "hfldd": {"groups": 2, "kip": KipTraining(images=6, steps=3, targets=4, stop="never")},
    "fedper+": DROPPING,
    "fedrep+": DROPPING,
    "fedd2s": DROPPING,
}
"""Settings of methods for which smallness alone is not enough."""
OWN_MODELS = (
    *("fedbn", "moon", "feddyn", "pfedsd", "local", "fedper", "fedper+", "fedrep", "fedrep+"),
    *("fedd2s", "fedict", "fedmd", "ditto", "fedproto"),
)
"""Methods whose clients go on from what they remember of a model."""
WHOLE_MODELS = (
    *("fedavg", "fedprox", "moon", "feddyn", "pfedsd", "dynafed", "feddf", "dense", "co-boosting"),
    *("fednova", "fedadagrad", "fedadam", "fedyogi", "ditto"),
    *("fedcvae-ens", "fedcvae-kd", "fedmho", "fedmho-md", "fedmho-sd", "fedmho-open", "fedov"),
)
"""Methods whose clients upload what their training records say, in each round, and are sent as much
from the second round on. The others' bytes are counted in their own files."""
WITHOUT_FIT = ("fedov", "fedlpa")
"""Methods of one round whose server trains nothing."""
COUNTS = 8 * 10
"""Bytes of a client's label counts."""


def toy(name: str) -> Any:
    """The method's settings; of the clients not all take part, where it lets some be absent."""
    settings = light(name, small(METHODS[name].config(), batch_size=8))
    config = replace(settings, **CHANGES.get(name, {}))
    return replace(config, participation=SHARE) if hasattr(config, "participation") else config


def play(name: str, folder: Path, **options: Any) -> Run:
    return play_small(name, toy(name), problem(64, 20, 0.25), folder, **options)


def result(run: Run) -> dict[str, Tensor]:
    """The global model, the synthetic images, and what the clients remember."""
    outcome = run.outcome
    found = {**outcome.synthetic, **outcome.sent}
    found |= outcome.model.state_dict() if outcome.model else {}
    for k, memory in run.clients._memories.items():
        found |= {f"{k}.{n}": t for n, t in unpack(bytes(memory.read()))[0].items()}
    return found


def figures(run: Run) -> list[Any]:
    """All that is told of a run, but its times."""
    outcome, clients = run.outcome, run.clients
    rounds = [{**r, "seconds": 0} for r in outcome.figures.get("per_round", [])]
    told = {**outcome.figures, "per_round": rounds}
    ledgers = [clients.bytes_up, clients.bytes_down, clients.bytes_peer, clients.bytes_for_test]
    return [outcome.start, outcome.epochs, told, *ledgers]


def ends(run: Run) -> list[ClientEnd]:
    return [event for event in run.heard if isinstance(event, ClientEnd)]


def fits(run: Run) -> list[tuple[str, int, int]]:
    """The epochs that the server trained."""
    return [(e.stage, e.round, e.epoch) for e in run.heard if isinstance(e, Epoch)]


UNBOUNDED = {"layers", "betas"}
"""Settings that a record checks itself."""


def unbounded(settings: Settings) -> set[str]:
    """Names of settings, in the records within too, that may be anything of their type."""
    kinds, found = get_type_hints(type(settings), include_extras=True), set()
    for own in fields(settings):
        value = getattr(settings, own.name)
        if isinstance(value, Settings):
            found |= unbounded(value)
        elif kinds[own.name] is not bool and not bounds_in(kinds[own.name]):
            found.add(own.name)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_has_bounds(method: str) -> None:
    assert unbounded(METHODS[method].config()) <= UNBOUNDED


@pytest.fixture(scope="module", params=METHODS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the undisturbed run of the method saves its states."""
    return tmp_path_factory.mktemp(name)


@pytest.fixture(scope="module")
def undisturbed(name: str, folder: Path) -> Run:
    return play(name, folder)


class Killed(BaseException):
    pass


def kill(name: str, clients: Clients, event: Event) -> None:
    """In the third round; or, where there is one round, after the server's first epoch or, where it
    trains nothing, its first client."""
    ended = isinstance(event, ClientEnd) and event.round == (1 if name in WITHOUT_FIT else 3)
    if isinstance(event, Epoch) if METHODS[name].one_shot and name not in WITHOUT_FIT else ended:
        raise Killed


def test_a_killed_run_goes_on_to_the_same_bits(name: str, undisturbed: Run, tmp_path: Path) -> None:
    torch.rand(3)  # the global stream decides nothing
    with pytest.raises(Killed):
        play(name, tmp_path, listener=partial(kill, name))
    if name in OWN_MODELS:
        check_that_memories_of_another_model_are_refused(name, tmp_path)
    resumed = play(name, tmp_path)
    assert same_bits(result(resumed), result(undisturbed))
    assert figures(resumed) == figures(undisturbed)
    if METHODS[name].one_shot:
        assert fits(resumed) == fits(undisturbed)[1:]
    else:
        assert {end.round for end in ends(resumed)} == set(range(3, rounds_of(name) + 1))


def check_that_memories_of_another_model_are_refused(name: str, folder: Path) -> None:
    """Their files may be whole, and yet be of a wider model."""

    def widen(clients: Clients, event: Event) -> None:
        if isinstance(event, RoundsResumed):
            clients._memories = {k: wider(memory) for k, memory in clients._memories.items()}

    with pytest.raises(ClientFailed, match=r"the client's memory,? sent"):
        play(name, folder, listener=widen)


def wider(memory: Memory) -> Memory:
    tensors = unpack(bytes(memory.read()))[0]
    packed = ClientNote(seconds=0.0).pack({n: torch.stack([t, t]) for n, t in tensors.items()})
    return replace(memory, read=lambda: Upload(packed))


def test_who_is_absent_neither_uploads_nor_is_counted(
    name: str, undisturbed: Run, tmp_path: Path
) -> None:
    if not hasattr(toy(name), "participation"):
        run = play(name, tmp_path, dropped={3: "gone"})
        assert {end.client for end in ends(run)} == {0, 1, 2}
        ledgers = (run.clients.bytes_up, run.clients.bytes_down, run.clients.bytes_peer)
        assert not any(ledger[3] for ledger in ledgers)
        assert len(run.outcome.epochs) == len(undisturbed.outcome.epochs)
        return
    for number in range(1, rounds_of(name) + 1):
        chosen = participants(undisturbed.clients, ParticipationConfig(participation=SHARE), number)
        assert len(chosen) < CLIENTS
        tells = range(CLIENTS) if name == "fedgen" and number == 1 else chosen  # label counts, once
        assert {end.client for end in ends(undisturbed) if end.round == number} == set(tells)
    assert len(undisturbed.outcome.epochs) == rounds_of(name)


REFUSE_DROPS = ("scaffold", "feddyn")
"""Methods whose server's sum has a part of each client."""
PARTIAL = [
    name
    for name, method in METHODS.items()
    if hasattr(method.config(), "participation") and name not in REFUSE_DROPS
]


@pytest.mark.parametrize("name", PARTIAL)
def test_where_all_who_take_part_in_a_round_are_dropped_the_others_go_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_jobs, config = executor.run_jobs, replace(toy(name), participation=1 / CLIENTS)

    def failing(jobs: Sequence[Job], train: Split) -> list[bytes]:
        if jobs[0].round == 2 and jobs[0].test is None:
            raise ZeroDivisionError("no power")
        return run_jobs(jobs, train)

    monkeypatch.setattr(executor, "run_jobs", failing)
    run = play_small(name, config, problem(64, 20, 0.25), tmp_path, dropped={3: "gone"})
    assert sorted(run.clients.dropped.values()) == ["ZeroDivisionError: no power", "gone"]
    assert {end.round for end in ends(run)} == {*range(1, rounds_of(name) + 1)} - {2}
    assert len(run.outcome.epochs) == rounds_of(name)


def test_the_ledger_is_what_was_sent(name: str, undisturbed: Run) -> None:
    clients, heard = undisturbed.clients, ends(undisturbed)
    for member in clients.members:
        own = [end for end in heard if end.client == member.id]
        assert clients.bytes_up[member.id] == sum(end.bytes_up for end in own)
        assert clients.bytes_peer[member.id] == sum(end.bytes_peer for end in own)
        if name in WHOLE_MODELS:
            rounds = {end.round for end in own}
            model = member.training.upload_bytes(clients.run_spec)
            counts = COUNTS if member.role == "generator" or name == "fedmho-open" else 0
            assert clients.bytes_up[member.id] == len(rounds) * (model + counts)
            assert clients.bytes_down[member.id] == len(rounds - {1}) * model
    played = [event for event in undisturbed.heard if isinstance(event, RoundEnd)]
    for event in played:
        own = [end for end in heard if end.round == event.round]
        assert event.bytes_up == sum(end.bytes_up for end in own)
        assert event.bytes_peer == sum(end.bytes_peer for end in own)
    if played:
        assert sum(event.bytes_down for event in played) == sum(clients.bytes_down.values())


def test_another_seed_goes_on_from_nothing_of_this_run_and_gives_another_model(
    name: str, undisturbed: Run, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of many rounds the first is enough, where by their losses clients came to other models."""

    def stop(clients: Clients, event: Event) -> None:
        heard.append(event)
        if isinstance(event, RoundEnd):
            raise Killed

    heard: list[Event] = []
    if METHODS[name].one_shot or name == "fedd2s":  # whose clients tell no losses
        other = play(name, folder, about="other", seed=1)
        assert fits(other) == fits(undisturbed)
        assert not same_bits(result(other), result(undisturbed))
        return
    with pytest.raises(Killed):
        play(name, folder, about="other", seed=1, listener=stop)
    assert "round.state is damaged or foreign: it is ignored" in caplog.text
    own, others = (
        [e.losses for e in events if isinstance(e, ClientEnd) and e.round == 1 and e.losses]
        for events in (undisturbed.heard, heard)
    )
    assert others
    assert own != others
