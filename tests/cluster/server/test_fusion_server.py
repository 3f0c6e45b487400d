"""The server over ranks in real processes, on a cluster of two nodes: equal answers, and faults."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ray.cluster_utils import Cluster
from torch import Tensor, nn

from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles, gpu_names, open_bundles
from cluster.hardware.ray_internals import forked_workers
from cluster.scheduling.capacity import place_ranks
from cluster.server import rank_group
from cluster.server.fusion_server import FusionServer
from fl.errors import ServerFailed, UserError
from fl.events import Events
from fl.federation import Batch, Job, Request
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server, SingleServer
from fl.models.registry import register_model
from fl.server import Samples
from fl.training.classifier import starting_classifier
from fl.training.generator import starting_generator
from fl.training.task import train_by_recipe
from tests.cluster.outcomes import uploads
from tests.fl.toy import (
    CPU,
    GENERATOR,
    PROBLEM,
    VGG,
    Told,
    client,
    into,
    named,
    same_bits,
    shard,
    split,
)
from tests.registries import registries_restored
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TEST = shard(5, 6, 7, seed=1)
CONFIG = FitConfig(epochs=4, lr=5e-3, batch_size=8)
LOSS = FusionLoss(ce_weight=0.5, kd_weight=0.5)
FOLDER = "ONEFOLD_TEST_FOLDER"
LONG_S, SILENT_S = 600.0, 20.0
"""Seconds that a rank may be silent: as in runs, and where one is."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Bundles]:
    """Two nodes of two cores, with one logical GPU and with two."""
    os.environ[FOLDER] = str(tmp_path_factory.mktemp("markers"))
    with forked_workers(template):
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
        nodes.add_node(num_cpus=2, num_gpus=2)
    ray.init(address=nodes.address, log_to_driver=False)
    with open_bundles() as opened:
        yield opened
    ray.shutdown()
    nodes.shutdown()


HEARD: list[Told] = []


@pytest.fixture
def heard() -> list[Told]:
    """What is heard from now on."""
    HEARD.clear()
    return HEARD


@pytest.fixture(scope="module")
def serving(bundles: Bundles) -> Callable[[float], FusionServer]:
    """Makes servers of two ranks, one on each node, each on a logical GPU, that may be silent for
    so many seconds."""
    names = gpu_names(bundles)
    assert sorted(names.values()) == [["0"], ["0", "1"]]
    where = place_ranks(bundles.all, 3, names)
    given = PROBLEM, TEST, Events(into(HEARD)), bundles, [where[0], where[2]]
    return lambda seconds: FusionServer(*given, timeout_s=seconds)


@pytest.fixture(scope="module")
def server(serving: Callable[[float], FusionServer]) -> Iterator[FusionServer]:
    with closing(serving(LONG_S)) as made:
        yield made


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

    whole_batch = False

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


def whole_stage(server: Server) -> tuple[Samples, Tensor, dict[str, Tensor]]:
    """Samples, filters, and asks two teachers."""
    decoders = {k: starting_generator(GENERATOR, PROBLEM).decoder for k in (3, 5)}
    allocation = torch.tensor([[300, 0, 50], [100, 260, 20]]).numpy()
    made = server.sample(decoders, allocation, latent=GENERATOR.latent)
    kept = server.nearest(made, 0.7)
    taught = server.teach(server.take(made, kept), (model() for _ in range(2)))
    return taught, kept, {name: server.fetch(taught, name) for name in taught.columns}


def test_the_whole_stage_is_that_of_one_rank(server: FusionServer, heard: list[Told]) -> None:
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
    assert torch.equal(there.confusion(reference), here.confusion(reference))
    assert result.epochs[-1] == there.evaluate(fitted) == here.evaluate(fitted)
    assert [e["epoch"] for e in named(heard, "epoch")] == [1, 2, 3, 4]


class Growing:
    """Lessons: one image more in each epoch, brighter the larger the model's first bias."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.memory = model, {"images": data()["images"][:8]}

    def digest(self) -> str:
        return "growing"

    def epoch(self, number: int) -> Batch:
        brightness = next(self.model.parameters()).detach().sum().sigmoid()
        images = self.memory["images"]
        self.memory = {"images": torch.cat([images, data()["images"][-number:][:1] * brightness])}
        labels = torch.arange(len(images) + 1) % 3
        logits = F.one_hot(labels, 3).float()
        return {"images": self.memory["images"], "labels": labels, "teacher_logits": logits}


def test_lessons_made_between_epochs_are_fitted_as_by_one_rank(server: FusionServer) -> None:
    """What DENSE and Co-Boosting do; the second fit's rank dies on the way."""
    results, models = [], []
    losses = LOSS, LOSS, Faulty("growing", "dies", 6)
    for one, loss in zip((alone(), server, server), losses, strict=True):
        models.append(model())
        lessons = Growing(models[-1])
        results.append(one.fit(models[-1], lessons, loss=loss, config=CONFIG, stage="fusion"))
        assert len(lessons.memory["images"]) == 8 + CONFIG.epochs
    assert results[1].step_losses == pytest.approx(results[0].step_losses, rel=1e-4)
    assert results[1] == results[2]
    states = [fitted.state_dict() for fitted in models]
    torch.testing.assert_close(states[0], states[1], rtol=1e-3, atol=1e-4)
    assert same_bits(states[1], states[2])


def test_ranks_sit_on_both_nodes_and_are_reused(server: FusionServer) -> None:
    first = server.fit(model(), data(), loss=LOSS, config=CONFIG, stage="fusion")
    group = server.group
    again = server.fit(model(), data(), loss=LOSS, config=CONFIG, stage="fusion")
    assert server.group is group
    assert again == first
    assert {placement.bundle for placement in server.placements} == {"0", "1"}
    assert group is not None
    seen = ray.get([actor.__ray_call__.remote(_visible_gpus) for actor in group.actors])
    assert seen == [placement.gpu for placement in server.placements]


def _visible_gpus(_: Any) -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_ranks_and_clients_stay_on_the_same_gpus_round_after_round(
    server: FusionServer, bundles: Bundles
) -> None:
    placed = server.place(data())
    train = split(8, 8, 8)
    executor = RayExecutor(train, bundles, before=server.release, reuse_processes=True)
    job = Job(
        task=train_by_recipe,
        client=replace(client(0), request=Request(cpus=1, gpus=1.0)),
        run_spec=PROBLEM,
        indices=np.arange(24),
        broadcast=None,
        payload=None,
    )
    there = []
    for _ in range(3):
        assert len(uploads(executor, [job])) == 1
        server.evaluate(model())
        there.append((server.group, *(process.actor for process in executor.actors.processes)))
    executor.close()
    assert len(there[0]) == 2  # the ranks, and a client that holds a whole GPU
    assert there[1:] == there[:1] * 2
    # What they were given before is still there.
    assert torch.equal(
        server.fetch(server.apply(placed, "labels", torch.neg), "labels"), -data()["labels"]
    )


def test_a_killed_rank_is_replaced_and_the_fit_goes_on_to_the_same_bits(
    server: FusionServer, heard: list[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "WITNESS_S", LONG_S)  # Ray may take long to report it
    fitted, undisturbed = model(), model()
    loss = Faulty("killed", "dies")
    result = server.fit(fitted, data(), loss=loss, config=CONFIG, stage="fusion")
    expected = server.fit(undisturbed, data(), loss=LOSS, config=CONFIG, stage="fusion")
    assert same_bits(fitted.state_dict(), undisturbed.state_dict())
    assert result == expected
    (failed,) = named(heard, "rank_failed")
    assert failed["rank"] == 1
    assert "died" in failed["reason"]
    assert [e["epoch"] for e in named(heard, "epoch")] == [1, 2, 3, 4] * 2


def test_a_silent_rank_is_named(
    serving: Callable[[float], FusionServer], heard: list[Told]
) -> None:
    loss = Faulty("silent", "sleeps")
    with closing(serving(SILENT_S)) as impatient:
        impatient.fit(model(), data(), loss=loss, config=CONFIG, stage="fusion")
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


def of_two_each(model: nn.Module, batch: Batch) -> Tensor:
    twice = torch.cat([batch["images"]] * 2)
    return F.cross_entropy(model(twice), torch.cat([batch["labels"]] * 2))


of_two_each.whole_batch = False  # type: ignore[attr-defined]


def test_a_loss_of_other_rows_is_refused_where_batches_must_be_whole(server: FusionServer) -> None:
    normalising = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 3))
    with pytest.raises(UserError, match="use one rank for this model"):
        server.fit(normalising, data(), loss=of_two_each, config=CONFIG, stage="fusion")


def test_ranks_know_the_models_of_users(server: FusionServer) -> None:
    class Own(nn.Sequential):
        def __init__(self, num_classes: int) -> None:
            super().__init__(nn.Flatten(), nn.Linear(784, num_classes))

    server.close()  # the next call's ranks are given what is registered then
    with registries_restored():
        register_model("own-at-ranks", Own)
        own = starting_classifier(replace(VGG, model="own-at-ranks"), PROBLEM)
        assert len(server.fit(own, data(), loss=LOSS, config=CONFIG, stage="fusion").epochs) == 4


def test_closing_ends_every_process(server: FusionServer) -> None:
    server.evaluate(model())
    assert server.group is not None
    actors = server.group.actors
    server.close()
    for actor in actors:  # Ray ends them when it gets to it
        wait_until(lambda a=actor: is_gone(a))


def is_gone(actor: Any) -> bool:
    try:
        ray.get(actor.identity.remote(), timeout=5)
    except ray.exceptions.RayActorError:
        return True
    except ray.exceptions.GetTimeoutError:
        pass
    return False
