"""HFLDD's members on Ray: they distil at once, and who dies is tried again to the same bits."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles, open_bundles
from cluster.hardware.private_ray import private_ray
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
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PUBLIC = torch.rand(30, *SPEC.image_shape, generator=torch.Generator().manual_seed(1))
QUICK: dict[str, Any] = {"images": 6, "steps": 3, "targets": 4, "stop": "never"}


@dataclass(frozen=True, kw_only=True)
class Watched(KipTraining):
    """KIP by members that leave word in a folder."""

    folder: str

    def word(self, name: str) -> Path:
        """The file by which they leave it."""
        return Path(self.folder) / name


class Fatal(Watched):
    """The first member to begin dies."""

    @property
    def task(self) -> Task:
        return dies_at_first


class Meeting(Watched):
    """A member begins once a second one is there."""

    @property
    def task(self) -> Task:
        return meets_another


def dies_at_first(inputs: TaskInput) -> TaskOutput:
    config = inputs.client.training
    assert isinstance(config, Fatal)
    try:
        config.word("died").open("x").write(f"{inputs.client.id} {os.getpid()}")
    except FileExistsError:
        config.word(f"{inputs.client.id}").write_text(f"{os.getpid()}")
        return distil(inputs)
    os._exit(1)


def meets_another(inputs: TaskInput) -> TaskOutput:
    config = inputs.client.training
    assert isinstance(config, Meeting)
    config.word(f"{inputs.client.id}").write_text(f"{os.getpid()}")
    wait_until(lambda: len(list(Path(config.folder).iterdir())) > 1, seconds=60)
    return distil(inputs)


@pytest.fixture(scope="module")
def bundles(template: Path) -> Iterator[Bundles]:
    own = private_ray(cpus=2, gpus=0, memory_bytes=2**32, template=template)
    with own, open_bundles() as bundles:
        yield bundles


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
    assert len(members) == 3  # of two clusters
    assert same_bits(model_of(found), model_of(expected))
    assert same(memories(clients), memories(undisturbed))  # heads remember the distilled sets
    assert same_bits(found.sent, expected.sent)
    assert (found.start, found.epochs) == (expected.start, expected.epochs)
    assert told(found) == told(expected)
    assert clients.bytes_peer == undisturbed.bytes_peer


def test_two_members_distil_at_the_same_time_in_two_processes(
    bundles: Bundles, tmp_path: Path
) -> None:
    """Each waits for another one to begin: one after another, they would wait in vain."""
    _, _, heard = on_ray(bundles, Meeting(**QUICK, folder=str(tmp_path)), CLIENTS)
    members = {e.client for e in heard if isinstance(e, ClientEnd) and e.bytes_peer}
    assert {int(word.name) for word in tmp_path.iterdir()} == members
    assert len(members) == CLIENTS - 1
    assert len({word.read_text() for word in tmp_path.iterdir()}) == 2
    assert not any(isinstance(e, AttemptFailed) for e in heard)
