"""HFLDD's members on Ray: who dies is tried again to the same bits."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles
from fl.clients import Clients
from fl.condensation.kip import KipTraining, distil
from fl.events import AttemptFailed, ClientEnd, Event
from fl.federation import Task, TaskInput, TaskOutput
from fl.server import Outcome
from tests.fl.methods.personal_runs import (
    CLIENTS,
    DATA,
    SPEC,
    memories,
    model_of,
    play,
    same,
    settings,
)
from tests.fl.toy import same_bits

pytestmark = pytest.mark.slow

PUBLIC = torch.rand(30, *SPEC.image_shape, generator=torch.Generator().manual_seed(1))
QUICK: dict[str, Any] = {"images": 6, "steps": 3, "targets": 4, "stop": "never"}


@dataclass(frozen=True, kw_only=True)
class Fatal(KipTraining):
    """KIP by members that leave word in a folder; the first to begin dies."""

    folder: str

    @property
    def task(self) -> Task:
        return dies_at_first


def dies_at_first(inputs: TaskInput) -> TaskOutput:
    config = inputs.client.training
    assert isinstance(config, Fatal)
    folder = Path(config.folder)
    try:
        (folder / "died").open("x").write(f"{inputs.client.id} {os.getpid()}")
    except FileExistsError:
        (folder / f"{inputs.client.id}").write_text(f"{os.getpid()}")
        return distil(inputs)
    os._exit(1)


def ran(kip: KipTraining, groups: int, **options: Any) -> tuple[Outcome, Clients]:
    config = settings("hfldd", groups=groups, kip=kip)
    return play("hfldd", config, 2, inputs={"auxiliary": PUBLIC}, **options)


def on_ray(bundles: Bundles, kip: KipTraining, groups: int) -> tuple[Outcome, Clients, list[Event]]:
    heard: list[Event] = []
    with closing(RayExecutor(DATA.train, bundles, reuse_processes=True)) as executor:
        return *ran(kip, groups, executor=executor, listener=heard.append), heard


def told(outcome: Outcome) -> dict[str, Any]:
    """All figures but times."""
    rounds = [{k: v for k, v in r.items() if k != "seconds"} for r in outcome.figures["per_round"]]
    return {**outcome.figures, "per_round": rounds}


def test_a_member_that_dies_distils_in_another_process_and_the_run_is_the_same_to_the_bit(
    bundles: Bundles, tmp_path: Path
) -> None:
    expected, undisturbed = ran(KipTraining(**QUICK), CLIENTS - 1)
    found, clients, heard = on_ray(bundles, Fatal(**QUICK, folder=str(tmp_path)), CLIENTS - 1)
    died, first = (tmp_path / "died").read_text().split()
    (failed,) = [e for e in heard if isinstance(e, AttemptFailed)]
    assert failed.client == int(died)
    assert "process died" in failed.reason
    assert (tmp_path / died).read_text() != first
    members = {e.client for e in heard if isinstance(e, ClientEnd) and e.bytes_peer}
    assert len(members) == 2  # of two clusters, one of them a head alone
    assert same_bits(model_of(found), model_of(expected))
    assert same(memories(clients), memories(undisturbed))  # heads remember the distilled sets
    assert same_bits(found.sent, expected.sent)
    assert (found.start, found.epochs) == (expected.start, expected.epochs)
    assert told(found) == told(expected)
    assert clients.bytes_peer == undisturbed.bytes_peer
