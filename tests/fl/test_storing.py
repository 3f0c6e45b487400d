"""Uploads stored beside the checks of those behind them: in turn, few, each before it counts."""

import errno
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.clients.store import Store
from fl.client_map import MOST_THREADS, Ended, store_each
from fl.clients import Clients
from fl.errors import ClientFailed
from fl.events import ClientEnd, Event, Events
from fl.exchange import Upload, of_cohort, pack
from fl.federation import Job, TaskInput, TaskOutput
from fl.process import threads
from tests.fl.toy import PROBLEM, client, split

TRAIN = split(4, 4, 4, 4, 4, 4)
IDS = range(6)
CORES = 4
LONG_S = 200.0
"""For what comes at once, unless it never does."""


def nothing(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={})


def job(k: int) -> Job:
    return Job(
        task=nothing, client=client(k), run_spec=PROBLEM, indices=np.arange(4 * k, 4 * k + 4)
    )


def cohort(*ids: int) -> Iterator[Ended]:
    """These clients' uploads, which came together."""
    uploads = of_cohort(pack({"w": torch.full((2,), float(k))}, {"seconds": 1.0}) for k in ids)
    for k, upload in zip(ids, uploads, strict=True):
        yield job(k), upload


def slowly(stored: list[int]) -> Callable[[Job, Upload], None]:
    """Takes longest for the first clients."""

    def put(done: Job, upload: Upload) -> None:
        time.sleep(0.02 * (3 - done.client.id % 3))
        stored.append(done.client.id)

    return put


@pytest.mark.parametrize("cores", [1, CORES])
def test_each_is_given_in_turn_once_it_is_stored(cores: int) -> None:
    stored, given, second = list[int](), list[int](), threading.Event()

    def put(done: Job, upload: Upload) -> None:
        if cores > 1 and done.client.id == 0:
            second.wait(LONG_S)
        stored.append(done.client.id)
        if done.client.id == 1:
            second.set()

    with threads(cores):
        for done, _ in store_each(cohort(*IDS), put):
            given.append(done.client.id)
            assert done.client.id in stored
    assert given == sorted(stored) == list(IDS)
    assert (stored == given) == (cores == 1)  # else one waited for the other


def test_few_are_held_at_once_and_with_one_core_no_thread_stores() -> None:
    held, most, stored_by = set[int](), list[int](), set[threading.Thread]()

    def arriving() -> Iterator[Ended]:
        for done, upload in cohort(*range(20)):
            held.add(done.client.id)
            most.append(len(held))
            yield done, upload

    def put(done: Job, upload: Upload) -> None:
        stored_by.add(threading.current_thread())
        time.sleep(0.001)

    for cores, bound in ((1, 1), (CORES, MOST_THREADS + 1), (64, MOST_THREADS + 1)):
        most.clear()
        stored_by.clear()
        with threads(cores):
            for done, _ in store_each(arriving(), put):
                held.remove(done.client.id)
        assert max(most) == bound
        assert (threading.main_thread() in stored_by) == (cores == 1)
        assert len(stored_by) <= MOST_THREADS


def test_what_nothing_follows_is_stored_and_given_before_the_next_is_awaited() -> None:
    """The next one may train for hours."""
    given = list[int]()

    def arriving() -> Iterator[Ended]:
        for ids in ((0, 1, 2), (3,), (4, 5)):
            assert given == list(range(ids[0]))
            yield from cohort(*ids)

    with threads(CORES):
        for done, _ in store_each(arriving(), slowly([])):
            given.append(done.client.id)
    assert given == list(IDS)


def test_a_failed_client_is_told_in_its_turn() -> None:
    refused = ClientFailed(2, "cnn", "sent NaN")
    ended = [(j, refused if j.client.id == 2 else upload) for j, upload in cohort(*IDS)]
    stored = list[int]()
    with threads(CORES):
        given = list(store_each(ended, slowly(stored)))
    assert [done.client.id for done, _ in given] == list(IDS)
    assert given[2][1] is refused
    assert sorted(stored) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("cores", [1, CORES])
def test_a_write_that_fails_is_raised_in_its_turn_and_nothing_is_left_at_work(cores: int) -> None:
    begun, over, given = list[int](), list[int](), list[int]()

    def put(done: Job, upload: Upload) -> None:
        begun.append(done.client.id)
        if done.client.id == 2:
            raise OSError(errno.ENOSPC, "No space left on device", "there")
        time.sleep(0.03)
        over.append(done.client.id)

    with threads(cores), pytest.raises(OSError, match="No space left on device: 'there'"):
        given.extend(done.client.id for done, _ in store_each(cohort(*IDS), put))
    assert given == [0, 1]
    assert sorted([*over, 2]) == sorted(begun)


def test_who_stops_waits_for_what_is_being_written_and_no_longer() -> None:
    begun, over = list[int](), list[int]()

    def put(done: Job, upload: Upload) -> None:
        begun.append(done.client.id)
        time.sleep(0.03)
        over.append(done.client.id)

    def interrupted() -> Iterator[Ended]:
        for done, upload in cohort(*range(20)):
            if done.client.id == 5:
                raise KeyboardInterrupt
            yield done, upload

    with threads(CORES), pytest.raises(KeyboardInterrupt):
        list(store_each(interrupted(), put))
    assert sorted(over) == sorted(begun) == list(range(5))


class Ready:
    """All clients' uploads come together."""

    def run(self, jobs: Sequence[Job], events: Events) -> Generator[Ended, None, None]:
        yield from cohort(*(done.client.id for done in jobs))


def federation(folder: Path, listener: Callable[[Event], None]) -> Clients:
    store = Store(folder / ".store", folder / "run" / "updates", TRAIN)
    indices = [job(k).indices for k in IDS]
    members = [client(k) for k in IDS]
    return Clients(members, indices, PROBLEM, Ready(), store, Events(listener))


@pytest.mark.parametrize("cores", [1, CORES])
def test_an_end_is_told_once_file_checksum_and_link_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    put, ends = Store.put, list[int]()

    def delayed(self: Store, key: str, k: int, upload: Upload) -> None:
        time.sleep(0.02 * (3 - k % 3))
        put(self, key, k, upload)

    def look(event: Event) -> None:
        if isinstance(event, ClientEnd):
            ends.append(event.client)
            link = tmp_path / "run" / "updates" / f"client-{event.client:05d}.safetensors"
            (file,) = (p for p in (tmp_path / ".store").glob("*.safetensors") if p.samefile(link))
            assert file.with_suffix(".sha256").exists()

    monkeypatch.setattr(Store, "put", delayed)
    with threads(cores):
        updates = federation(tmp_path, look).map(nothing)
        again = federation(tmp_path, look).map(nothing)
    assert ends == [*IDS, *IDS]
    assert [update.reused for update in updates + again] == [False] * 6 + [True] * 6
    for update in updates + again:
        assert torch.equal(update.tensors["w"], torch.full((2,), float(update.client.id)))


@pytest.mark.parametrize("cores", [1, CORES])
def test_a_full_disk_names_the_file_and_leaves_whole_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    replace, ends = os.replace, list[Event]()

    def full(source: str | Path, target: str | Path) -> None:
        if Path(target).suffix == ".safetensors" and len(
            list(Path(target).parent.glob("*.sha256"))
        ):
            raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    clients = federation(tmp_path, lambda e: ends.append(e) if isinstance(e, ClientEnd) else None)
    with threads(cores), pytest.raises(OSError, match="No space left on device") as raised:
        clients.map(nothing)
    assert str(raised.value.filename).endswith(".safetensors")
    assert not [path for path in tmp_path.rglob(".*.*") if path.is_file()]
    monkeypatch.setattr(os, "replace", replace)
    with threads(cores):
        found = federation(tmp_path, lambda event: None).map(nothing)
    assert [u.client.id for u in found] == list(IDS)
    assert sum(u.reused for u in found) >= len(ends)
