"""States of unfinished fits on disk: what a killed run goes on from."""

import itertools
import pickle
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fl.events import Epoch, Event, Events
from fl.fusion import checkpoints as checkpoints_module
from fl.fusion.checkpoints import Checkpoints, load_tensors
from fl.fusion.fit import State, put_aside
from fl.fusion.rank import Report
from fl.fusion.server import SingleServer
from fl.models.common import digest_of
from tests.fl.fusion.serving import CE, CONFIG, TEST, data, model, server
from tests.fl.toy import CPU, PROBLEM, Told, named, same_bits


def fitted(checkpoints: Checkpoints | None, epochs: int = 3, lr: float = 5e-3):  # type: ignore[no-untyped-def]
    heard: list[Told] = []
    own, config = model(), replace(CONFIG, epochs=epochs, lr=lr)
    result = server(heard, checkpoints).fit(own, data(), loss=CE, config=config, stage="fusion")
    return own.state_dict(), result, [e["epoch"] for e in named(heard, "epoch")]


class Killed(Exception):
    pass


def kill_after(epoch: int, checkpoints: Checkpoints) -> None:
    """Begins the fit and is gone in the middle of it."""

    def listener(event: Event) -> None:
        if isinstance(event, Epoch) and event.epoch == epoch:
            raise Killed

    made = SingleServer(PROBLEM, TEST, Events(listener), CPU, checkpoints)
    with pytest.raises(Killed):
        made.fit(model(), data(), loss=CE, config=CONFIG, stage="fusion")


def test_a_fit_goes_on_from_its_last_state_to_the_same_bits(tmp_path: Path) -> None:
    expected, result, _ = fitted(None)
    checkpoints = Checkpoints(tmp_path, every=0)
    kill_after(2, checkpoints)
    state, resumed, epochs = fitted(checkpoints)
    assert epochs == [3]
    assert same_bits(state, expected)
    assert resumed == result


def test_states_are_kept_as_often_as_asked_and_with_the_last_epoch(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=60)
    kill_after(1, checkpoints)
    assert fitted(checkpoints)[2] == [1, 2, 3]  # killed before a state was kept
    assert fitted(checkpoints)[2] == []
    assert same_bits(fitted(checkpoints)[0], fitted(None)[0])


def test_a_state_of_another_fit_is_not_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=0)
    fitted(checkpoints)
    state, _, epochs = fitted(checkpoints, lr=1e-3)
    assert epochs == [1, 2, 3]
    assert same_bits(state, fitted(None, lr=1e-3)[0])


def test_a_damaged_state_is_named_and_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit is enough: torch would read it, and go on to another model."""
    checkpoints = Checkpoints(tmp_path, every=0)
    fitted(checkpoints)
    path = tmp_path / "fusion.state"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert fitted(checkpoints)[2] == [1, 2, 3]
    assert f"{path} is damaged" in caplog.text


def report(epoch: int, **changes: Any) -> Report:
    return Report(**{"epoch": epoch, "losses": [0.5], "hits": [1, 2], "state": None, **changes})


@pytest.mark.parametrize(("every", "due"), [(0, [1, 2, 3, 4, 5]), (3, [3, 4, 5]), (60, [5])])
def test_a_state_is_due_after_so_many_seconds_and_at_the_end(
    tmp_path: Path, every: float, due: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "monotonic", partial(next, itertools.count()))
    checkpoints = Checkpoints(tmp_path, every=every)
    config = replace(CONFIG, epochs=5)
    assert [n for n in range(1, 6) if checkpoints.is_due(report(n), config)] == due


def test_reports_are_read_back_as_they_were_and_under_their_own_key_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "not" / "there", every=0)
    assert checkpoints.load("fusion", "key") == []
    values, memory = {"epoch": 2, "model": {"a": torch.rand(2)}}, {"weights": torch.rand(3)}
    reports = [report(1, hits=None), report(2, state=State(values), memory=State(memory))]
    checkpoints.save("fusion", "key", reports)
    checkpoints.wait()
    first, second = checkpoints.load("fusion", "key")
    assert first == reports[0]
    bare = {"state": None, "memory": None}
    assert replace(second, **bare) == replace(reports[1], **bare)
    assert second.state is not None
    assert second.memory is not None
    assert second.state.values["epoch"] == 2
    assert same_bits(second.state.values["model"], values["model"])
    assert same_bits(second.memory.values, memory)
    assert checkpoints.load("fusion", "another key") == []
    assert checkpoints.load("distil-init", "key") == []


def test_a_digest_tells_values_shapes_types_and_names_apart() -> None:
    given = [
        ({"a": torch.zeros(2, 3)}, ""),
        ({"a": torch.zeros(3, 2)}, ""),
        ({"a": torch.ones(3, 2)}, ""),
        ({"a": torch.zeros(6, dtype=torch.int32)}, ""),
        ({"a": torch.zeros(6, dtype=torch.bfloat16)}, ""),
        ({"b": torch.zeros(2, 3)}, "a"),
        ({"ab": torch.zeros(2, 3)}, ""),
        ({"a": torch.zeros(())}, ""),
    ]
    assert len({digest_of(*one) for one in given}) == len(given)
    apart = torch.arange(6.0).view(2, 3).t()  # its values count, not how they lie in memory
    assert digest_of({"a": apart}, "") == digest_of({"a": apart.contiguous()}, "")


def test_a_state_of_another_stage_is_not_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=0)
    checkpoints.save("teacher", "key", [])
    checkpoints.wait()
    checkpoints.path("teacher").rename(checkpoints.path("student"))
    assert load_tensors(checkpoints.path("student"), "student") is None


def test_a_fit_goes_on_while_a_thread_writes_and_ends_when_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first state is written when the second epoch has begun, and what it holds is of the
    first: a fit that goes on from it comes to the same."""
    begun, written = threading.Event(), list[str]()
    real = checkpoints_module.save_tensors

    def slowly(path: Path, value: Any, about: str) -> None:
        assert begun.wait(60)
        real(path, value, about)
        written.append(threading.current_thread().name)
        (tmp_path / f"{len(written)}").write_bytes(path.read_bytes())

    monkeypatch.setattr(checkpoints_module, "save_tensors", slowly)
    told = Events(lambda event: begun.set() if isinstance(event, Epoch) else None)
    checkpoints = Checkpoints(tmp_path, every=0)
    own = model()
    made = SingleServer(PROBLEM, TEST, told, CPU, checkpoints)
    made.fit(own, data(), loss=CE, config=replace(CONFIG, epochs=3), stage="fusion")
    assert [name.startswith("states") for name in written] == [True] * 3
    (tmp_path / "1").rename(tmp_path / "fusion.state")
    monkeypatch.setattr(checkpoints_module, "save_tensors", real)
    state, _, epochs = fitted(checkpoints)
    assert epochs == [2, 3]
    assert same_bits(state, own.state_dict())


@pytest.mark.parametrize("fails", [1, 3])
def test_an_error_of_the_thread_ends_the_fit(
    fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(1)

    def full(path: Path, value: Any, about: str) -> None:
        if next(times) == fails:
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoints_module, "save_tensors", full)
    with pytest.raises(OSError, match=r"No space left on device: .*fusion\.state"):
        fitted(Checkpoints(tmp_path, every=0))


@pytest.mark.parametrize("first", [KeyboardInterrupt, Killed])
def test_a_full_disk_hides_no_other_error(
    first: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(path: Path, value: Any, about: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    def stop(event: Event) -> None:
        if isinstance(event, Epoch):
            raise first

    monkeypatch.setattr(checkpoints_module, "save_tensors", full)
    made = SingleServer(PROBLEM, TEST, Events(stop), CPU, Checkpoints(tmp_path, every=0))
    with pytest.raises(first) as caught:
        made.fit(model(), data(), loss=CE, config=CONFIG, stage="fusion")
    (note,) = caught.value.__notes__
    assert "No space left on device" in note
    assert caplog.messages == [note]


def test_a_state_stays_as_it_was_put_aside_and_crosses_processes() -> None:
    weights = torch.ones(2, requires_grad=True)
    state = put_aside({"epoch": 3, "model": {"a": weights}, "reduced": [weights]}, CPU)
    with torch.no_grad():
        weights.zero_()
    for own in (state, pickle.loads(pickle.dumps(state))):
        assert own.values["epoch"] == 3
        for kept in (own.values["model"]["a"], own.on(CPU)["reduced"][0]):
            assert kept.tolist() == [1, 1]
            assert not kept.requires_grad


class Raced(State):
    """Between any two looks at what it waits for, another thread has waited for it."""

    waited = 0

    @property
    def _arrived(self) -> Any:
        found, self._event = getattr(self, "_event", None), None
        return found

    @_arrived.setter
    def _arrived(self, event: Any) -> None:
        self._event = event

    def synchronize(self) -> None:
        self.waited += 1


def test_two_threads_may_wait_for_a_state() -> None:
    state = Raced({"epoch": 2})
    state._arrived = state
    assert state.values == {"epoch": 2}
    assert state.waited == 1
