"""Training alone: nothing is exchanged, and each client goes on from its own model."""

from pathlib import Path

from fl.events import ClientEnd, Event
from tests.fl.methods.personal_runs import (
    CLIENTS,
    check_that_a_killed_run_goes_on_to_the_same_bits,
    close,
    curve,
    memories,
    partition,
    play,
    same,
    settings,
    start,
    store,
    train,
)


def test_three_rounds_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    config = settings("local")
    outcome, clients = play("local", config, store=store(tmp_path))
    for k, own in enumerate(memories(clients)):
        model = start(config)
        for number in (1, 2, 3):
            train(model, k, number)
        assert close({n.removeprefix("classifier."): t for n, t in own.items()}, model.state_dict())
    assert outcome.model is None
    assert not any((*clients.bytes_up.values(), *clients.bytes_down.values()))


def test_its_first_round_is_found_where_fedavg_left_it(tmp_path: Path) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "fedavg"))
    heard: list[Event] = []
    play("local", settings("local"), 2, store=store(tmp_path, "local"), listener=heard.append)
    reused = [event.reused for event in heard if isinstance(event, ClientEnd)]
    assert reused == [True] * CLIENTS + [False] * CLIENTS


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    config = settings("local", participation=0.4)
    check_that_a_killed_run_goes_on_to_the_same_bits("local", config, tmp_path)


def test_who_was_absent_goes_on_with_its_own_model(tmp_path: Path) -> None:
    """Whatever the others did meanwhile: its accuracy stays what it was."""
    heard: list[Event] = []
    outcome, clients = play(
        "local",
        settings("local", participation=0.2),
        6,
        store=store(tmp_path),
        listener=heard.append,
    )
    took_part = [(e.round, e.client) for e in heard if isinstance(e, ClientEnd)]
    rounds = [outcome.start.per_client, *curve(outcome)]
    for number in range(1, 7):
        (own,) = [k for n, k in took_part if n == number]
        for k in range(CLIENTS):
            assert k == own or rounds[number][k] == rounds[number - 1][k]
    assert len({k for _, k in took_part}) > 1
    assert len(clients.remembered) == len({k for _, k in took_part})


def test_a_client_without_test_samples_is_left_out_by_name() -> None:
    cut = partition()
    without = [own[:0] if k == 3 else own for k, own in enumerate(cut.test)]
    from dataclasses import replace

    outcome, _ = play("local", settings("local"), 1, cut=replace(cut, test=tuple(without)))
    assert outcome.figures["untested"] == [3]
    assert outcome.figures["client_accuracy"][3] is None
    others = [a for a in outcome.figures["client_accuracy"] if a is not None]
    assert outcome.epochs[-1].accuracy == sum(others) / 4


def test_the_same_clients_in_one_cohort_or_alone(tmp_path: Path) -> None:
    """Cohorts of several take the same weights to the last bit as one client after another."""
    one = play("local", settings("local"), 2, store=store(tmp_path, "one"))[1]
    few = play("local", settings("local", participation=0.4), 1, store=store(tmp_path / "other"))[1]
    assert set(few.remembered) < set(one.remembered)
    again = play("local", settings("local"), 2, store=store(tmp_path / "other", "again"))[1]
    assert same(memories(again), memories(one))
