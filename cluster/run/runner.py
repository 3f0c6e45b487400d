"""Executes one prepared run: trains, fuses, and writes results and report to the run directory."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from torch import nn

from cluster.clients.store import Store
from cluster.hardware.inventory import usable_cores
from cluster.run.curves import TensorBoard, Tracking
from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.progress import progress
from cluster.run.run_dir import can_go_on, nested, versions
from cluster.run.runtime import EarlyRay, open_cluster, open_executor, open_server
from cluster.scheduling.capacity import Bundle, lower_bound
from fl.clients import Clients
from fl.config import RunConfig
from fl.data.datasets import NAMES, Dataset
from fl.data.partition_file import save_lists
from fl.data.shard import Shard
from fl.errors import UserError
from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    ClientProgress,
    ClientStart,
    Event,
    Events,
    Listener,
    Preparing,
    RoundEnd,
    RunEnd,
    RunStart,
    as_line,
)
from fl.exchange import Tensors
from fl.federation import Client, Request
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.server import Server
from fl.json_files import JsonObject, flatten, write_json
from fl.methods.registry import OURS, check_outcome
from fl.models.saved import describe, save_model, save_tensors
from fl.report.gallery import gallery
from fl.rounds import STATE, Metric, Rounds
from fl.sample_quality import ask_oracle, measure
from fl.scoring import OwnTests
from fl.seeding import seeded
from fl.server import Outcome, with_figures
from fl.training.private import ACCOUNTANT
from fl.whole_files import named_errors, no_pipe

if TYPE_CHECKING:
    from cluster.hardware.bundles import Bundles

log = logging.getLogger(__name__)


@contextmanager
def interrupt_first() -> Iterator[None]:
    """Raises the interrupt in whose course another error came, and not that error.

    Torch, interrupted while it writes a file, ends the file and complains about its length.
    """
    try:
        yield
    except Exception as error:
        hidden: BaseException | None = error
        while hidden is not None and not isinstance(hidden, KeyboardInterrupt):
            hidden = hidden.__context__
        if hidden is None:
            raise
        raise hidden from None


class Placements:
    """Which client ran where and when, for result and report: an entry for each, made from a run's
    events, of the last round that it took part in."""

    def __init__(self, members: tuple[Client, ...]) -> None:
        self._entries: dict[int, JsonObject] = {
            c.id: {
                "client": c.id,
                "role": c.role,
                "model": c.model,
                "requested": asdict(c.request),
                "assigned": None,
                "node": None,
                "device_uuid": None,
                "peak_bytes": None,
                "seconds": 0.0,
                "start": None,
                "end": None,
                "attempts": 0,
                "reused": False,
                "failures": [],
                "dropped": False,
            }
            for c in members
        }
        self._last_round = self._next_round = 0.0

    def __call__(self, event: Event) -> None:
        """Records starts, failures, ends, and which clients were dropped."""
        match event:
            case ClientStart():
                entry = self._entries[event.client]
                if entry["end"] is not None:  # the entry is of an earlier round
                    entry |= {"end": None, "attempts": 0, "failures": []}
                entry["attempts"] += 1
                entry |= {"start": event.seconds, "requested": event.requested}
            case AttemptFailed():
                entry = self._entries[event.client]
                failure = {"reason": event.reason, "start": entry["start"]}
                entry["failures"].append({**failure, "end": event.seconds})
            case ClientDropped():
                self._entries[event.client]["dropped"] = True
            case ClientEnd():
                entry = self._entries[event.client]
                entry |= {"seconds": event.seconds_training, "reused": event.reused}
                entry["peak_bytes"] = event.peak_bytes
                if not event.reused:
                    entry |= {"end": event.seconds, "assigned": event.assigned}
                    entry |= {"node": event.node, "device_uuid": event.device_uuid}
            case RoundEnd():
                self._last_round, self._next_round = self._next_round, event.seconds

    def makespan(self, bundles: Sequence[Bundle]) -> dict[str, float] | None:
        """Seconds from the first start to the last end, and the least that any placement needs.

        Of the last round, where there were many. None where every update came from the store. A
        client counts from its start to its end, its process's start included; one that shares a
        process by its share of the time in which its cohort was at work.
        """
        ended = (e for e in self._entries.values() if e["end"] is not None)
        trained = [e for e in ended if e["start"] >= self._last_round]
        if not trained:
            return None
        jobs = [(Request(**e["requested"]), _occupied(e)) for e in trained]
        starts = [e["start"] for e in trained]
        starts += [failure["start"] for e in trained for failure in e["failures"]]
        seconds = max(e["end"] for e in trained) - min(starts)
        bound = lower_bound(bundles, jobs)
        return {"seconds": round(seconds, 3), "lower_bound": round(bound, 3)}

    @property
    def entries(self) -> list[JsonObject]:
        """One entry per client, by client id."""
        return [self._entries[k] for k in sorted(self._entries)]


def _occupied(entry: JsonObject) -> float:
    """Seconds for which the client alone had what it asked for."""
    if entry["requested"]["shared"]:
        return float(entry["seconds"])
    return float(entry["end"] - entry["start"])


class JsonLines:
    """Appends each event to ``metrics.jsonl`` as it happens, but for clients' progress, of which
    there is too much, and which depends on the clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A start that was killed, or had a full disk, may have left half a line.
        with named_errors(path), no_pipe(path).open("a+b") as there:
            if there.tell() and there.seek(-1, os.SEEK_END) and there.read() != b"\n":
                there.write(b"\n")
        self._file = path.open("a", buffering=1)

    def __call__(self, event: Event) -> None:
        """Writes one line."""
        if isinstance(event, ClientProgress):
            return
        with named_errors(self._path):
            self._file.write(as_line(event))

    def close(self) -> None:
        """Closes the file."""
        with named_errors(self._path):
            self._file.close()


def saving_models(folder: Path, *, best: bool, every: int | None) -> Listener:
    """Saves the global model after every so many rounds, and after the most accurate one so far;
    raises `UserError` if there is none."""

    def save(event: Event) -> None:
        if not isinstance(event, RoundEnd):
            return
        names = ["best"] if best and event.best else []
        if every and event.round % every == 0:
            names.append(f"round-{event.round:05d}")
        for name in names:
            if event.model is None:
                raise UserError(
                    "this method has no global model: leave out save_best and save_every"
                )
            folder.mkdir(exist_ok=True)
            save_model(event.model, folder / f"{name}.safetensors")

    return save


CHECKPOINTS = "fusion"
"""Where a run saves the states of its fits, until it ends, and of its last round."""


def execute(
    launch: Launch,
    prepared: Prepared,
    run_dir: Path,
    console: Console,
    *others: Listener,
    early: EarlyRay | None = None,
    report: bool = True,
    metrics: Mapping[str, Metric] | None = None,
    end: Callable[[nn.Module | None], object] = lambda model: None,
) -> JsonObject:
    """Runs the method and writes all files of the run; returns what ``result.json`` holds.

    Args:
        launch: the run.
        prepared: what it is made of.
        run_dir: its directory, which is this process's.
        console: where its progress is shown.
        *others: are called with the run's events too.
        early: its Ray, where that was begun.
        report: draw the report; without, trackers get one all the same.
        metrics: the user's own figures of the global model, for each round.
        end: called with the global model at the end, if there is one.
    """
    own = Tracking(launch.track, run_dir, flatten(nested(prepared.run)))
    with interrupt_first(), closing(own) as tracking:
        listeners: tuple[Listener, ...] = (tracking, *others)
        result = _execute(launch, prepared, run_dir, console, early, metrics or {}, end, *listeners)
        if early:
            early.end()
        if report or launch.track:
            from fl.report.page import write_report  # imports matplotlib: clients need not wait

            write_report(run_dir)
        tracking.finish(result, run_dir / "report.html")
    return result


def _execute(
    launch: Launch,
    prepared: Prepared,
    run_dir: Path,
    console: Console,
    early: EarlyRay | None,
    metrics: Mapping[str, Metric],
    end: Callable[[nn.Module | None], object],
    *others: Listener,
) -> JsonObject:
    write_json(run_dir / "partition.json", _partition(prepared))
    _save_lists(run_dir / "partition.npz", prepared)
    with ExitStack() as stack:
        # Else OMP_NUM_THREADS would decide, and another number of threads rounds differently.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(max(1, min(usable_cores(), prepared.inventory.cpus)))
        placements = Placements(prepared.members)
        listeners = _listeners(launch, prepared, run_dir, console, stack)
        events = Events(placements, *listeners, *others)
        events.emit(
            RunStart(run=run_dir.name, rounds=prepared.run.rounds, metric=_metric(prepared))
        )
        if launch.runtime == "ray":
            events.emit(Preparing(what="joining Ray" if launch.ray_address else "starting Ray"))
        bundles = stack.enter_context(open_cluster(launch, prepared.inventory, run_dir, early))
        clients, server = open_federation(launch, prepared, run_dir, events, bundles, stack)
        inputs: JsonObject = dict(prepared.inputs)
        if not prepared.method.one_shot:
            inputs["rounds"] = _rounds(prepared, run_dir / CHECKPOINTS, metrics)
        outcome = _outcome(prepared, clients, server, inputs)
        end(outcome.model)
        result = _result(launch, prepared, outcome, clients, server)
        if prepared.run.fid and outcome.synthetic:
            result |= _of_samples(prepared.dataset, outcome.synthetic, server)
        result |= _confusion(server, outcome)
        result["placements"] = placements.entries
        if bundles:
            result["makespan"] = placements.makespan(bundles.all)
        result = with_figures(result, outcome.figures)
        _save(run_dir, prepared, outcome, real_images=launch.report_real_images)
        events.emit(RunEnd(accuracy=result["accuracy"]))
    write_json(run_dir / "result.json", result)
    _tidy(run_dir / CHECKPOINTS, {STATE} if can_go_on(prepared.run) else set())
    return result


def _listeners(
    launch: Launch, prepared: Prepared, run_dir: Path, console: Console, stack: ExitStack
) -> list[Listener]:
    """What writes the run's events, draws them and shows them, until the stack ends; and what saves
    models after rounds."""
    settings = flatten(nested(prepared.run))
    tensorboard = TensorBoard(run_dir / "tensorboard", prepared.members, settings)
    return [
        stack.enter_context(closing(JsonLines(run_dir / "metrics.jsonl"))),
        stack.enter_context(closing(tensorboard)),
        stack.enter_context(progress(prepared.members, console)),
        saving_models(run_dir / "model", best=launch.save_best, every=launch.save_every),
    ]


def _outcome(prepared: Prepared, clients: Clients, server: Server, inputs: JsonObject) -> Outcome:
    """What the method makes of the clients; what a method of the user's returns is checked."""
    method, options = prepared.method, prepared.run.options
    with seeded(prepared.run.seed, "method"):  # a method of the user's may draw
        found = method.run(clients, server, options, **inputs)
    return found if method.name in OURS else check_outcome(method.name, found, server, options)


def _of_samples(dataset: Dataset, synthetic: Tensors, server: Server) -> JsonObject:
    """How far the synthetic images are from the real ones, and what an oracle says of them."""
    with server.events.phase("fid"):
        return {
            "fid": measure(dataset.train, dataset.num_classes, synthetic, server.device),
            "oracle": ask_oracle(dataset, synthetic, server.device),
        }


def _rounds(prepared: Prepared, folder: Path, metrics: Mapping[str, Metric]) -> Rounds:
    run = prepared.run
    about = f"{run.method} {run.options} {prepared.run_spec}"
    own = run.method not in OURS
    return Rounds(run.rounds, folder, about, metrics, run.stop_after, own=own)


def _tidy(folder: Path, kept: Set[str]) -> None:
    """Deletes the states of the run's fits, and of its last round unless it may go on."""
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
    for file in folder.glob("*"):
        if file.name not in kept:
            file.unlink()


def open_federation(
    launch: Launch,
    prepared: Prepared,
    run_dir: Path,
    events: Events,
    bundles: "Bundles | None",
    stack: ExitStack,
) -> tuple[Clients, Server]:
    """The run's clients and server, which live as long as the stack."""
    dataset = prepared.dataset
    every_test = np.arange(len(dataset.test.labels))
    test = Shard.from_split(dataset.test, every_test, dataset.num_classes)
    checkpoints = Checkpoints(run_dir / CHECKPOINTS, every=launch.fusion_checkpoint)
    machine = replace(launch, fusion_ranks=prepared.fusion_ranks)
    store = launch.output_dir / ".store"
    opened = open_server(
        *(machine, prepared.run_spec, test, events, bundles, checkpoints),
        inference=prepared.run.inference,
    )
    server = stack.enter_context(opened)
    executor = open_executor(machine, prepared, bundles, server, store)
    train, counted = dataset.train, None
    if (own := dataset.targets) is not None:
        counted = own.counted(torch.from_numpy(train.targets)).double().numpy()
    tests = OwnTests.of(prepared.partition.test, train.labels, dataset.num_classes, counted)
    clients = Clients(
        prepared.members,
        prepared.partition.train,
        prepared.run_spec,
        stack.enter_context(executor),
        Store(store, run_dir / "updates", dataset.train),
        events,
        on_failure=launch.on_client_failure,
        tests=tests,
    )
    return clients, server


def _result(
    launch: Launch, prepared: Prepared, outcome: Outcome, clients: Clients, server: Server
) -> JsonObject:
    run = prepared.run
    last = outcome.epochs[-1]
    accuracies = [e.accuracy for e in outcome.epochs]
    best, counted = max(accuracies), [*range(1, 1 + len(accuracies))]
    tested = [e.epoch or number for e, number in zip(outcome.epochs, counted, strict=True)]
    tested = tested if tested == sorted({*tested}) else counted  # of several fits none's epochs
    domains = prepared.run_spec.domains if last.per_domain else ()
    by_domain = dict(zip(domains, last.per_domain, strict=True))
    return {
        "method": run.method,
        "protocol": "one-shot" if run.rounds == 1 else prepared.method.many_rounds,
        "dataset": run.dataset,
        "alpha": run.skew,
        "clients": run.num_clients,
        "rounds": run.rounds,
        "seed": run.seed,
        "scored_on": _scored_on(run),
        "metric": _metric(prepared),
        "accuracy": last.accuracy,
        "per_class_accuracy": last.per_class,
        **({"per_domain_accuracy": by_domain} if by_domain else {}),
        "leaked": 0 if run.dataset in NAMES else prepared.dataset.leaked,
        "start_accuracy": outcome.start.accuracy,
        "best_accuracy": best,
        "best_epoch": tested[accuracies.index(best)],
        "accuracy_curve": accuracies,
        **({"curve_epochs": tested} if tested != counted else {}),
        "bytes_up": sum(clients.bytes_up.values()),
        "bytes_down": sum(clients.bytes_down.values()),
        "bytes_peer": sum(clients.bytes_peer.values()),
        "on_client_failure": launch.on_client_failure,
        "dropped": clients.dropped,
        "seconds": {name: round(s, 3) for name, s in server.events.seconds().items()},
        **_privacy(prepared),
        "partition": {"kind": run.partition.kind, "hash": prepared.partition.digest},
        "runtime": launch.runtime,
        "fusion": {"ranks": server.size, "restarts": server.restarts},
        "device": _device_name(server.device),
        "precision": "tf32" if run.tf32 else "fp32",
        "versions": versions(),
    }


def _privacy(prepared: Prepared) -> JsonObject:
    """The budget, and the most that any client spends of it; none without privacy."""
    if prepared.run.dp.epsilon is None:
        return {}
    spent = [getattr(client.training, "spent", None) or 0.0 for client in prepared.members]
    return {"dp": {**asdict(prepared.run.dp), "accountant": ACCOUNTANT, "spent": max(spent)}}


def _scored_on(run: RunConfig) -> str:
    """Which samples the accuracy is of: ``validation`` whether a share was held out, be it of each
    client's, else the clients' own or the test split."""
    if run.data.validation:
        return "validation"
    return "clients" if run.scores_clients else "test"


def _metric(prepared: Prepared) -> str:
    """What the figure called accuracy is."""
    targets = prepared.run_spec.targets
    return "accuracy" if targets is None else targets.metric


def _confusion(server: Server, outcome: Outcome) -> JsonObject:
    """The global model's confusion matrix; none where something else was tested last."""
    last = outcome.epochs[-1]
    if outcome.model is None or last.per_client or server.run_spec.targets is not None:
        return {}
    counts = server.confusion(outcome.model)
    of_the_tested = int(counts.trace()) / int(counts.sum()) == last.accuracy
    return {"confusion": counts.tolist()} if of_the_tested else {}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({usable_cores()} cores)"


def _save(run_dir: Path, prepared: Prepared, outcome: Outcome, *, real_images: bool) -> None:
    if outcome.model is not None:
        (run_dir / "model").mkdir(exist_ok=True)
        save_model(outcome.model, run_dir / "model" / "global.safetensors")
        if describe(outcome.model) is None:
            log.warning(
                "model/global.safetensors holds only the global model's weights: its class is "
                "not registered: take the model from the result, in this process"
            )
    if outcome.synthetic:
        (run_dir / "synthetic").mkdir(exist_ok=True)
        dataset = prepared.dataset
        real = dataset.train if real_images else None
        pictures = gallery(outcome.synthetic, dataset.num_classes, real)
        save_tensors(pictures, run_dir / "synthetic" / "samples.safetensors")
    if outcome.sent and real_images:  # they start from real images, and may be equal to them
        (run_dir / "sent").mkdir(exist_ok=True)
        save_tensors(outcome.sent, run_dir / "sent" / "examples.safetensors")


def _save_lists(path: Path, prepared: Prepared) -> None:
    """Writes whose samples are which, by their indices among those that were given."""
    split, cut = prepared.dataset.train, prepared.partition
    train, test = ([split.rows[own] for own in lists] for lists in (cut.train, cut.test))
    save_lists(path, train, test, split.num_given)


def _partition(prepared: Prepared) -> JsonObject:
    run, dataset = prepared.run, prepared.dataset
    return {
        "kind": run.partition.kind,
        "hash": prepared.partition.digest,
        "alpha": run.skew,
        "counts": prepared.partition.counts.tolist(),
        "class_names": list(dataset.class_names) or [*map(str, range(dataset.num_classes))],
        "roles": [c.role for c in prepared.members],
    }
