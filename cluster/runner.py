"""One run from prepared federation to finished directory."""

import os
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
from fl.data.shard import Shard
from fl.events import Events, Listener
from fl.executor import InProcess
from fl.federation import Clients, Executor, Outcome
from fl.report.gallery import gallery
from fl.report.page import write_report
from fl.server import SingleServer
from fl.training.sizes import CohortSizes


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
    write_report(run_dir)
    return result


def _federation(
    launch: LaunchOptions[Any],
    prepared: Prepared,
    run_dir: Path,
    events: Events,
    stack: ExitStack,
) -> tuple[Clients, SingleServer]:
    dataset, problem = prepared.dataset, prepared.problem
    clients = Clients(
        prepared.members,
        prepared.partition.train,
        problem,
        stack.enter_context(_executor(launch, prepared)),
        Store(launch.output_dir / ".store", run_dir / "updates", dataset.train),
        events,
    )
    every_test = np.arange(len(dataset.test.labels))
    test = Shard.from_split(dataset.test, every_test, dataset.num_classes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return clients, SingleServer(problem, test, events, device)


@contextmanager
def _executor(launch: LaunchOptions[Any], prepared: Prepared) -> Iterator[Executor]:
    sizes = CohortSizes(launch.output_dir / ".store" / "cohorts.json")
    if launch.runtime == "inprocess":
        yield InProcess(prepared.dataset.train, sizes)
        return
    from cluster.private_ray import private_ray

    inventory = prepared.inventory
    with private_ray(cpus=inventory.cpus, gpus=len(inventory.gpus)):
        from cluster.clients import RayExecutor
        from cluster.rooms import open_rooms

        with open_rooms() as rooms:
            yield RayExecutor(
                prepared.dataset.train, rooms, max_actors=launch.max_actors, sizes=sizes
            )


def _result(
    launch: LaunchOptions[Any],
    prepared: Prepared,
    outcome: Outcome,
    clients: Clients,
    server: SingleServer,
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
