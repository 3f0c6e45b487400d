"""States of unfinished fits on disk: what a killed run goes on from."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fl.events import Epoch, Event, Events
from fl.fusion import checkpoints as checkpoints_module
from fl.fusion.checkpoints import Checkpoints, digest_of, load_tensors
from fl.fusion.rank import Report
from fl.fusion.server import SingleServer
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
    memory = {"weights": torch.rand(3)}
    reports = [report(1, hits=None), report(2, state=b"bytes", memory=memory)]
    checkpoints.save("fusion", "key", reports)
    first, second = checkpoints.load("fusion", "key")
    assert first == reports[0]
    assert replace(second, memory=None) == replace(reports[1], memory=None)
    assert second.memory is not None
    assert same_bits(second.memory, memory)
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
    checkpoints.path("teacher").rename(checkpoints.path("student"))
    assert load_tensors(checkpoints.path("student"), "student") is None
