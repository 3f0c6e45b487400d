"""One run from prepared federation to finished directory."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import save_file

from cluster.attendance import Attendance
from cluster.options import LaunchOptions
from cluster.prepare import Prepared
from cluster.progress import progress
from cluster.record import JsonLines, TensorBoard
from cluster.run_dir import versions, write_json
from cluster.store import Store
from cluster.world import posts, world_size
from fl.data.shard import Shard
from fl.events import Events, Listener
from fl.executor import InProcess
from fl.federation import Clients, Executor, Outcome, Problem
from fl.fusion.checkpoints import Checkpoints
from fl.report.gallery import gallery
from fl.report.page import write_report
from fl.server import RankedServer, SingleServer

CHECKPOINTS = "fusion"
"""Where an unfinished run keeps the states of its fits."""


def execute(
    launch: LaunchOptions[Any], prepared: Prepared, run_dir: Path, console: Console
) -> dict[str, Any]:
    """Runs the method and leaves everything a run leaves; returns what ``result.json`` holds."""
    write_json(run_dir / "partition.json", _partition(launch, prepared))
    with ExitStack() as stack:
        attendance = Attendance(prepared.members)
        listeners: list[Listener] = [
            attendance,
            stack.enter_context(closing(JsonLines(run_dir / "metrics.jsonl"))),
            stack.enter_context(closing(TensorBoard(run_dir / "tensorboard"))),
            stack.enter_context(progress(prepared.members, console)),
        ]
        events = Events(*listeners)
        events.emit("run_start", run=run_dir.name)
        clients, server = _federation(launch, prepared, run_dir, events, stack)
        outcome = prepared.method.run(clients, server, launch.run.options)
        result = _result(launch, prepared, outcome, clients, server)
        result["placements"] = attendance.placements
        if launch.runtime == "ray":
            result["makespan"] = attendance.makespan([prepared.inventory.room])
        _save(run_dir, prepared, outcome)
        events.emit("run_end", accuracy=result["accuracy"])
    write_json(run_dir / "result.json", result)
    shutil.rmtree(run_dir / CHECKPOINTS, ignore_errors=True)
    write_report(run_dir)
    return result


def _federation(
    launch: LaunchOptions[Any],
    prepared: Prepared,
    run_dir: Path,
    events: Events,
    stack: ExitStack,
) -> tuple[Clients, RankedServer]:
    dataset, problem = prepared.dataset, prepared.problem
    rooms = stack.enter_context(_rooms(launch, prepared))
    every_test = np.arange(len(dataset.test.labels))
    test = Shard.from_split(dataset.test, every_test, dataset.num_classes)
    checkpoints = Checkpoints(run_dir / CHECKPOINTS, every=launch.fusion_checkpoint)
    server = stack.enter_context(_server(launch, problem, test, events, rooms, checkpoints))
    clients = Clients(
        prepared.members,
        prepared.partition.train,
        problem,
        _executor(launch, prepared, rooms, server),
        Store(launch.output_dir / ".store", run_dir / "updates", dataset.train),
        events,
    )
    return clients, server


@contextmanager
def _rooms(launch: LaunchOptions[Any], prepared: Prepared) -> Iterator[Any]:
    """The rooms of a Ray cluster; None without Ray."""
    if launch.runtime == "inprocess":
        yield None
        return
    from cluster.private_ray import private_ray

    inventory = prepared.inventory
    with private_ray(cpus=inventory.cpus, gpus=len(inventory.gpus)):
        from cluster.rooms import open_rooms

        with open_rooms() as rooms:
            yield rooms


def _executor(
    launch: LaunchOptions[Any], prepared: Prepared, rooms: Any, server: RankedServer
) -> Executor:
    if rooms is None:
        return InProcess(prepared.dataset.train)
    from cluster.clients import RayExecutor

    train, most = prepared.dataset.train, launch.max_actors
    return RayExecutor(train, rooms, max_actors=most, before=server.release)


@contextmanager
def _server(
    launch: LaunchOptions[Any],
    problem: Problem,
    test: Shard,
    events: Events,
    rooms: Any,
    checkpoints: Checkpoints,
) -> Iterator[RankedServer]:
    gpus = sum(room.gpus for room in rooms.rooms) if rooms else 0
    ranks = world_size(launch.fusion_ranks, gpus)
    # One rank needs no process of its own, unless the only GPU is on another node.
    if ranks == 1 and (not gpus or torch.cuda.is_available()):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        yield SingleServer(problem, test, events, device, checkpoints)
        return
    from cluster.fusion import FusionServer

    where, timeout_s = posts(rooms.rooms, ranks), launch.fusion_timeout
    server = FusionServer(
        problem, test, events, rooms, where, timeout_s=timeout_s, checkpoints=checkpoints
    )
    with closing(server):
        yield server


def _result(
    launch: LaunchOptions[Any],
    prepared: Prepared,
    outcome: Outcome,
    clients: Clients,
    server: RankedServer,
) -> dict[str, Any]:
    run = launch.run
    last = outcome.epochs[-1]
    accuracies = [e.accuracy for e in outcome.epochs]
    best = max(accuracies)
    seconds = {name: round(s, 3) for name, s in server.events.phase_seconds.items()}
    return {
        "method": run.method,
        "protocol": "one-shot" if prepared.method.one_shot else "rounds",
        "dataset": run.dataset,
        "alpha": run.alpha,
        "clients": run.num_clients,
        "rounds": run.rounds,
        "seed": run.seed,
        "accuracy": last.accuracy,
        "per_class_accuracy": last.per_class,
        "start_accuracy": outcome.start.accuracy,
        "best_accuracy": best,
        "best_epoch": accuracies.index(best) + 1,
        "accuracy_curve": accuracies,
        "bytes_up": sum(clients.bytes_up.values()),
        "bytes_down": sum(clients.bytes_down.values()),
        "seconds": {**seconds, "total": round(server.events.elapsed, 3)},
        "partition": {"kind": run.partition.kind, "hash": prepared.partition.digest},
        **outcome.figures,
        "runtime": launch.runtime,
        "fusion": {"ranks": server.size, "restarts": server.restarts},
        "device": _device_name(server.device),
        "versions": versions(),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({len(os.sched_getaffinity(0))} cores)"


def _save(run_dir: Path, prepared: Prepared, outcome: Outcome) -> None:
    (run_dir / "model").mkdir(exist_ok=True)
    state = {n: t.cpu().contiguous() for n, t in outcome.model.state_dict().items()}
    save_file(state, run_dir / "model" / "global.safetensors")
    if outcome.synthetic:
        (run_dir / "synthetic").mkdir(exist_ok=True)
        pictures = gallery(prepared.dataset, outcome.synthetic)
        save_file(pictures, run_dir / "synthetic" / "samples.safetensors")


def _partition(launch: LaunchOptions[Any], prepared: Prepared) -> dict[str, Any]:
    run = launch.run
    return {
        "kind": run.partition.kind,
        "hash": prepared.partition.digest,
        "alpha": run.alpha,
        "counts": prepared.partition.counts.tolist(),
        "class_names": [str(c) for c in range(prepared.dataset.num_classes)],
        "roles": [c.role for c in prepared.members],
    }
