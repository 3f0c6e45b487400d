"""FedSeq against a plain loop, its bytes by Eq. 19, and what a lost client costs."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import pytest

from fl import executor
from fl.data.datasets import Split
from fl.errors import ClientFailed, UserError
from fl.events import ClientEnd, Event
from fl.federation import Job
from fl.methods import fedseq
from fl.methods.hfldd import random_clusters
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import numpy_generator
from tests.fl.methods.personal_runs import (
    CLIENTS,
    SPEC,
    averaged,
    close,
    federation,
    losing,
    model_of,
    play,
    settings,
    sizes,
    start,
    store,
    train,
)


def orders(count: int, number: int) -> list[list[int]]:
    """Each cluster's clients as they train in a round."""
    purpose = "sequence" if number == 1 else f"sequence/round {number}"
    return [
        numpy_generator(0, purpose, cluster[0]).permutation(cluster).tolist()
        for cluster in random_clusters(range(CLIENTS), count, 0)
    ]


def test_three_rounds_are_those_of_a_plain_loop() -> None:
    outcome, _ = play("fedseq", settings("fedseq", clusters=2))
    model = start(settings("fedseq"))
    for number in (1, 2, 3):
        ends = []
        for order in orders(2, number):
            carried = deepcopy(model)
            for k in order:
                train(carried, k, number)
            ends.append((carried.state_dict(), sum(sizes()[k] for k in order)))
        model.load_state_dict(averaged([s for s, _ in ends], [n for _, n in ends]))
    assert close(model.state_dict(), model_of(outcome), atol=1e-4)


def test_only_what_fedavg_could_use_lies_in_the_pool_of_all_runs(tmp_path: Path) -> None:
    kept = store(tmp_path)
    play("fedseq", settings("fedseq", clusters=2), 2, store=kept)
    assert len(list((tmp_path / ".store").glob("*.safetensors"))) == 2  # the first in each chain
    heard: list[Event] = []
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "b"), listener=heard.append)
    assert sum(e.reused for e in heard if isinstance(e, ClientEnd)) == 2


def test_a_lost_head_stops_the_run_with_its_name_also_where_failures_are_dropped() -> None:
    clients, server = federation("fedseq", settings("fedseq", clusters=2))
    head = orders(2, 1)[0][0]
    losing(clients, fedseq.hand_up, head)
    with pytest.raises(ClientFailed, match=f"client {head} .*its node is gone; it is its cluster"):
        fedseq.run(clients, server, settings("fedseq", clusters=2), rounds=Rounds(1))


@pytest.mark.parametrize("before", [True, False])
def test_a_dropped_client_leaves_the_model_as_it_is(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("fedseq", clusters=1)
    clients, server = federation("fedseq", config, on_failure="drop")
    (order,) = orders(1, 1)
    lost, run_jobs = order[2], executor.run_jobs
    able = [k for k in order if k != lost]
    if before:
        clients.dropped[lost] = "broken"
        able = numpy_generator(0, "sequence", 0).permutation(sorted(able)).tolist()

    def failing(jobs: Sequence[Job], train: Split) -> list[bytes]:
        if jobs[0].client.id == lost:
            raise ZeroDivisionError("broken")
        return run_jobs(jobs, train)

    monkeypatch.setattr(executor, "run_jobs", failing)
    outcome = fedseq.run(clients, server, config, rounds=Rounds(1))
    carried = start(config)
    for k in able:
        train(carried, k, 1)
    assert close(carried.state_dict(), model_of(outcome), atol=1e-4)


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="clusters must be in 1 to 4"):
        get_method("fedseq").assign(settings("fedseq", clusters=5), CLIENTS, SPEC)


def test_too_few_clusters_for_a_rule_are_refused() -> None:
    with pytest.raises(UserError, match=r"aggregate median .* got 1"):
        fedseq.assign(settings("fedseq", aggregate="median", clusters=1), CLIENTS, SPEC)
