"""What holds for every method of the frame: a killed run, a client's memory, a shared first round.

pFedSD, whose settings are of another kind, is tested in its own file.
"""

from pathlib import Path
from typing import Any

import pytest

from fl.events import Event
from fl.fusion.feature_generation import GeneratorFitConfig
from tests.fl.methods.averaged import (
    CLIENTS,
    SMALL,
    check_that_a_killed_run_goes_on_to_the_same_bits,
    check_that_a_memory_of_another_model_is_refused,
    play,
    reused,
    settings,
    store,
)

SHORT = GeneratorFitConfig(steps=4, batch_size=8)
FRAME: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"proximal": 0.3},
    "fedbn": {},
    "moon": {"mu": 5.0},
    "feddyn": {},
    "fedgen": {"generator": SHORT},
}
ONLY_FEDAVGS = [name for name in FRAME if name not in ("fedprox", "feddyn")]


@pytest.mark.parametrize("name", FRAME)
def test_a_killed_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    half = settings(name, participation=0.5, **FRAME[name])
    check_that_a_killed_run_goes_on_to_the_same_bits(name, half, tmp_path)


@pytest.mark.parametrize("name", ["fedbn", "moon", "feddyn"])
def test_a_memory_of_another_model_is_refused_by_name(name: str) -> None:
    local = settings(name, {**SMALL, "width": 0.05}).classifier
    check_that_a_memory_of_another_model_is_refused(local)


@pytest.mark.parametrize("name", ONLY_FEDAVGS)
def test_the_first_round_is_found_where_fedavg_left_it_and_sends_nothing(
    name: str, tmp_path: Path
) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "first"))
    heard: list[Event] = []
    where = {"store": store(tmp_path, "second"), "listener": heard.append}
    _, clients = play(name, settings(name, **FRAME[name]), 1, **where)
    assert reused(heard)[-CLIENTS:] == [True] * CLIENTS
    assert not any(clients.bytes_down.values())
