"""The server over ranks in real processes, on a cluster of two nodes: equal answers, and faults."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch
import torch.distributed as dist
from ray.cluster_utils import Cluster
from torch import Tensor, nn

from cluster.fusion import FusionServer
from cluster.rooms import Rooms, open_rooms
from cluster.world import posts
from fl.errors import UserError
from fl.events import Event, Events
from fl.federation import Batch, Samples
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.distillation import EachMember, FusionLoss
from fl.fusion.fit import FitConfig
from fl.models.ensemble import Ensemble
from fl.server import RankedServer, ServerFailed, SingleServer
from fl.training.local import starting_classifier, starting_generator
from tests.fl.toy import CLASSIFIER, CPU, GENERATOR, PROBLEM, VGG, named, same_bits, shard

TEST = shard(5, 6, 7, seed=1)
CONFIG = FitConfig(epochs=4, lr=5e-3, batch_size=8)
LOSS = FusionLoss(ce_weight=0.5, kd_weight=0.5)
FOLDER = "ONEFOLD_TEST_FOLDER"
SILENT_S = 3.0


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    """Two nodes of two cores."""
    os.environ[FOLDER] = str(tmp_path_factory.mktemp("markers"))
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes.add_node(num_cpus=2)
    ray.init(address=nodes.address, log_to_driver=False)
    with open_rooms() as opened:
        yield opened
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def server(rooms: Rooms, heard: list[Event]) -> Iterator[FusionServer]:
    """Two ranks, one on each node."""
    made = on(rooms, 2, heard)
    yield made
    made.close()


def on(rooms: Rooms, ranks: int, heard: list[Event], checkpoints: Checkpoints | None = None):  # type: ignore[no-untyped-def]
    return FusionServer(
        PROBLEM,
        TEST,
        Events(heard.append),
        rooms,
        posts(rooms.rooms, ranks),
        timeout_s=SILENT_S,
        checkpoints=checkpoints,
    )


def alone() -> SingleServer:
    return SingleServer(PROBLEM, TEST, Events(), CPU)


def data() -> Batch:
    train = shard(9, 10, 11)
    stream = torch.Generator().manual_seed(2)
    logits = torch.randn(30, 3, generator=stream)
    return {"images": train.images, "labels": train.labels, "teacher_logits": logits}


def model() -> nn.Module:
    return starting_classifier(VGG, PROBLEM)


class Faulty:
    """The loss; but on rank 1, after some steps, a fault happens once for each name."""

    def __init__(self, name: str, fault: str, steps: int = 9) -> None:
        self.name, self.fault, self.steps = name, fault, steps

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.steps -= 1
        marker = Path(os.environ[FOLDER]) / self.name
        if self.steps < 0 and dist.get_rank() == 1 and not marker.exists():
            if self.fault != "raises":
                marker.touch()
            match self.fault:
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "sleeps":
                    time.sleep(600)
                case "raises":
                    raise ZeroDivisionError("on purpose")
        return LOSS(model, batch)


def whole_stage(server: RankedServer) -> tuple[Samples, Tensor, dict[str, Tensor]]:
    """Samples, filters, and asks two teachers."""
    decoders = {k: starting_generator(GENERATOR, PROBLEM).decoder for k in (3, 5)}
    allocation = torch.tensor([[300, 0, 50], [100, 260, 20]]).numpy()
    made = server.sample(decoders, allocation, latent=GENERATOR.latent)
    kept = server.nearest(made, 0.7)
    taught = server.teach(server.take(made, kept), (model() for _ in range(2)))
    return taught, kept, {name: server.fetch(taught, name) for name in taught.columns}


def test_the_whole_stage_is_that_of_one_rank(server: FusionServer, heard: list[Event]) -> None:
    here, there = alone(), server
    ours, kept, columns = whole_stage(there)
    theirs, kept_alone, columns_alone = whole_stage(here)
    assert torch.equal(kept, kept_alone)
    assert min(ours.counts) > 0
    assert sum(ours.counts) == len(theirs)
    for name in ("images", "labels"):
        assert torch.equal(columns[name], columns_alone[name])
    torch.testing.assert_close(columns["teacher_logits"], columns_alone["teacher_logits"])

    fitted, reference = model(), model()
    result = there.fit(fitted, ours, loss=LOSS, config=CONFIG, stage="fusion")
    expected = here.fit(reference, theirs, loss=LOSS, config=CONFIG, stage="fusion")
    assert result.step_losses == pytest.approx(expected.step_losses, rel=1e-4)
    assert there.evaluate(reference) == here.evaluate(reference)
    assert result.epochs[-1] == there.evaluate(fitted) == here.evaluate(fitted)
    assert [e["epoch"] for e in named(heard, "epoch")] == [1, 2, 3, 4]
    assert there.restarts == 0


def test_ranks_sit_on_both_nodes_and_are_reused(server: FusionServer) -> None:
    first = server.fit(model(), data(), loss=LOSS, config=CONFIG, stage="fusion")
    crew = server._crew
    again = server.fit(model(), data(), loss=LOSS, config=CONFIG, stage="fusion")
    assert server._crew is crew
    assert again == first
    assert {post.room for post in server._posts} == {"0", "1"}


def test_a_killed_rank_is_replaced_and_the_fit_goes_on_to_the_same_bits(
    server: FusionServer, heard: list[Event]
) -> None:
    began = time.monotonic()
    fitted, undisturbed = model(), model()
    loss = Faulty("killed", "dies")
    result = server.fit(fitted, data(), loss=loss, config=CONFIG, stage="fusion")
    expected = server.fit(undisturbed, data(), loss=LOSS, config=CONFIG, stage="fusion")
    assert time.monotonic() - began < 60
    assert same_bits(fitted.state_dict(), undisturbed.state_dict())
    assert result == expected
    (failed,) = named(heard, "rank_failed")
    assert failed["rank"] == 1
    assert "died" in failed["reason"]
    assert server.restarts == 1
    assert [e["epoch"] for e in named(heard, "epoch")] == [1, 2, 3, 4] * 2


def test_a_silent_rank_is_named(server: FusionServer, heard: list[Event]) -> None:
    loss = Faulty("silent", "sleeps")
    server.fit(model(), data(), loss=loss, config=CONFIG, stage="fusion")
    (failed,) = named(heard, "rank_failed")
    assert failed["rank"] == 1
    assert "silent" in failed["reason"]


def test_what_a_rank_raises_ends_the_fit_with_its_traceback(server: FusionServer) -> None:
    loss = Faulty("raised", "raises")
    with pytest.raises(ServerFailed, match=r"rank 1 .* raised ZeroDivisionError") as caught:
        server.fit(model(), data(), loss=loss, config=CONFIG, stage="fusion")
    assert "on purpose" in str(caught.value.__cause__)
    assert "__call__" in str(caught.value.__cause__)
    # And the server is still of use.
    assert server.fit(model(), data(), loss=LOSS, config=CONFIG, stage="fusion").epochs


def test_batch_statistics_are_refused_in_one_line(server: FusionServer) -> None:
    normalising = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 3))
    with pytest.raises(UserError, match="BatchNorm1d"):
        server.fit(normalising, data(), loss=LOSS, config=CONFIG, stage="fusion")


def test_nothing_is_left_running(rooms: Rooms) -> None:
    one = on(rooms, 1, [])
    one.evaluate(model())
    actors = list(one._crew.actors)
    one.close()
    for actor in actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.identity.remote(), timeout=20)


def test_an_ensembles_members_learn_over_ranks_as_on_one(server: FusionServer) -> None:
    """FedDF's fit: several students, a falling rate, each student's gradient cut by itself."""
    config = replace(CONFIG, schedule="cosine", clip=0.01)
    distil = EachMember(FusionLoss(ce_weight=0.0, kd_weight=1.0))
    images = {"images": shard(9, 10, 12).images}
    teacher = model()  # not what the students start from
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(2)
    states = []
    for one in (alone(), server):
        taught = one.teach(images, [teacher])
        students = Ensemble([model(), starting_classifier(CLASSIFIER, PROBLEM)])
        one.fit(students, taught, loss=distil, config=config, stage="fusion")
        states.append(students.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name].cpu(), tensor, rtol=1e-3, atol=1e-5)
