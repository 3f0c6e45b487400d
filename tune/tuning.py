"""A whole sweep: the default configuration, trials under Ray Tune, and the best against it.

Each trial has a placement group of its own, on one cluster.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import SearchAlgorithm, Searcher
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rich.console import Console

from cluster.hardware.inventory import Inventory
from cluster.run.options import Launch
from cluster.run.prepare import Prepared, prepare
from cluster.run.run_dir import nested, versions
from cluster.run.runtime import EarlyRay, ray_cluster
from cluster.run.steps import Steps
from fl.errors import UserError, ended_by, reason_of
from fl.events import Event
from fl.federation import Request
from fl.json_files import JsonObject, flatten, write_json
from fl.methods.method import Choice, Distribution, Integers, LogUniform, Space
from fl.report.words import tally
from tune.folder import add_seconds, write_configuration
from tune.options import METRICS, SweepOptions, longest_fit, num_trials
from tune.outcome import (
    compare,
    is_epoch,
    last_scores,
    listed,
    print_trials,
    ranked,
    read_rows,
    reported,
    savings,
)
from tune.trials import DEFAULT, FAILURE, SETTINGS, default_run, derive, run_trial, share_of
from tune.tune_internals import number_in


def search(
    options: SweepOptions,
    launch: Launch,
    space: Space,
    prepared: Prepared,
    folder: Path,
    console: Console,
    early: EarlyRay | None = None,
) -> JsonObject:
    """Runs default, trials, and best against default; returns what ``result.json`` is to hold.

    ``early``: its Ray, where that was begun.

    Raises:
        UserError: no trial finished.
    """
    with ExitStack() as held:
        with Steps(console) as say:
            say("joining Ray" if launch.ray_address else "starting Ray")
            held.enter_context(ray_cluster(launch, prepared.inventory, folder, early))
        # First and on the whole machine, so that the trials find the clients' updates stored.
        console.print(f"default configuration, on {options.validation:g} of the training images")
        run_trial(default_run(launch, options.validation), {}, prepare_with=lambda _: prepared)
        console.print(f"{num_trials(space, options)} trials of {', '.join(space)}")
        seconds = run_trials(options, launch, space, prepared, folder)
        flat = flatten(nested(launch.run))
        rows = read_rows(folder / "trials", {name: flat[name] for name in space})
        print_trials(rows, options, console)
        finished = [row for row in ranked(rows, options) if row.status == "finished"]
        if not finished:
            raise UserError(f"no trial finished; the reasons are in {folder / 'trials'}")
        best = finished[0]
        settings = {} if best.name == DEFAULT else dict(best.settings)
        write_configuration(folder / "best.yaml", derive(launch, settings, "best").run)
        seeds = tally(["seed"] * options.final_seeds)
        console.print(f"best and default with {seeds}, on the test split")
        comparison = compare(launch, settings, prepared.inventory, seeds=options.final_seeds)
    return {
        **_described(options, launch, space, prepared),
        "trials": [row.to_json() for row in rows],
        "best": {"trial": best.name, "settings": dict(best.settings)},
        "test": comparison,
        "clients_trained_and_reused": savings(rows, prepared.members, prepared.inventory),
        "seconds": round(seconds, 3),
        "versions": versions(),
    }


def _described(
    options: SweepOptions, launch: Launch, space: Space, prepared: Prepared
) -> JsonObject:
    """What was searched, in what, and on which images trials were compared."""
    run = launch.run
    return {
        "method": run.method,
        "dataset": run.dataset,
        "alpha": run.skew,
        "clients": run.num_clients,
        "seed": run.seed,
        "sweep": asdict(options),
        "scored_on": "validation",
        "validation": {
            "share": options.validation,
            "of": "training images, held out from all clients",
            "partition": prepared.partition.digest,
        },
        "space": {name: str(distribution) for name, distribution in space.items()},
    }


# How much of the cluster a trial gets: a bundle of its own, large enough for every client.

DRIVER_BYTES = 4 * 2**30
"""Memory that a trial takes beside its clients, roughly: for its own process and the server."""

Resources = Mapping[str, float]


def concurrency(nodes: Sequence[Resources], requests: Iterable[Request]) -> int:
    """Trials at once by default: one per GPU, else as many as cores and memory allow."""
    least = _least(requests)
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    beside = least["memory"] + DRIVER_BYTES
    fit = (min(n["CPU"] / least["CPU"], n.get("memory", math.inf) / beside) for n in nodes)
    return gpus or sum(max(1, int(trials)) for trials in fit)


def trial_bundle(
    nodes: Sequence[Resources], requests: Iterable[Request], trials: int
) -> dict[str, float]:
    """The bundle of each of so many trials: an even part of a node, whole cores and whole GPUs.

    It is never less than what the largest client asks for: then fewer trials run at once. Nodes
    may differ, and a trial must fit on each.
    """
    beside, bundle = math.ceil(trials / len(nodes)), {}
    for kind, least in _least(requests).items():
        there = min(node.get(kind, 0) for node in nodes)
        bundle[kind] = max(there // beside, min(least, there))
    return {kind: amount for kind, amount in bundle.items() if amount}


def _least(requests: Iterable[Request]) -> dict[str, float]:
    """The most that any client asks for of each kind, in whole cores and GPUs."""
    requests = tuple(requests)
    return {
        "CPU": max(1, *(math.ceil(r.cpus) for r in requests)),
        "GPU": 1,
        "memory": max(0, *(r.memory_bytes for r in requests)),
    }


# Makes Ray Tune's searchers, schedulers and parameter space from a sweep's options and space.

REDUCTION = 3
"""ASHA lets one in so many trials continue past each of its rungs."""


def param_space(space: Space, search: str) -> JsonObject:
    """The space as Tune samples it."""
    if search == "grid":
        return {name: tune.grid_search(list(d.grid)) for name, d in space.items()}
    return {name: _domain(distribution) for name, distribution in space.items()}


def _domain(distribution: Distribution) -> Any:
    if isinstance(distribution, Choice):
        return tune.choice(list(distribution.values))
    if isinstance(distribution, Integers):
        return tune.randint(distribution.low, distribution.high + 1)
    if isinstance(distribution, LogUniform):
        return tune.loguniform(distribution.low, distribution.high)
    return tune.uniform(distribution.low, distribution.high)


def make_searcher(options: SweepOptions, seed: int) -> Searcher | SearchAlgorithm:
    """The searcher, which proposes settings; the same seed gives the same ones."""
    if options.search == "optuna":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
    searcher: Searcher | SearchAlgorithm = tune.create_searcher(
        "random" if options.search == "grid" else options.search,  # the space says that it is one
        metric=options.metric,
        mode=METRICS[options.metric],
        # Each searcher takes the argument that it has.
        **dict.fromkeys(("random_state", "seed", "random_state_seed"), seed),
    )
    return searcher


def make_scheduler(options: SweepOptions, epochs: int) -> TrialScheduler:
    """The scheduler, which may stop trials; ``epochs``: of the longest fit among them."""
    if options.scheduler == "fifo":
        return FIFOScheduler()
    return ASHAScheduler(
        time_attr="epoch",
        metric=options.metric,
        mode=METRICS[options.metric],
        # At max_t Tune stops a trial, which would then not write its result: so one more.
        max_t=epochs + 1,
        grace_period=max(1, epochs // REDUCTION**2),
        reduction_factor=REDUCTION,
    )


ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial's run directory has all of it
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the sweep; --resume continues it
    "TUNE_GLOBAL_CHECKPOINT_S": "1",  # seconds of its state that a killed sweep loses
    "TUNE_FORCE_TRIAL_CLEANUP_S": "5",  # for a trial that is busy when it is stopped
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints even with verbose=0
}
STORAGE, STATES = "ray", "trials"
"""Folder of Tune's own files in the sweep's folder, and in it the folder of all trials."""
FINISHED = "finished"
"""Key in the last report of a trial that has finished."""


def run_trials(
    options: SweepOptions, launch: Launch, space: Space, prepared: Prepared, folder: Path
) -> float:
    """Runs all trials, or those that are left of an interrupted sweep.

    Their results are in their directories. Returns the seconds that they took, over all starts of
    the sweep.
    """
    os.environ |= ENVIRONMENT
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # Lines prints failures instead
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
    requests = [client.request for client in prepared.members]
    at_once = options.max_concurrent or concurrency(nodes, requests)
    bundle = trial_bundle(nodes, requests, at_once)
    epochs = longest_fit(space, launch)
    trainable = tune.with_resources(
        trainable_of(launch, share_of(prepared.inventory, bundle), options),
        # The trial's process only waits: its clients and ranks have the bundle to themselves.
        PlacementGroupFactory([{}, bundle]),
    )
    path = str(folder / STORAGE / STATES)
    samples = param_space(space, options.search)
    if tune.Tuner.can_restore(path):
        tuner = restored(path, trainable, samples)
    else:
        tuner = tune.Tuner(
            trainable,
            param_space=samples,
            tune_config=_tune_config(options, launch.run.seed, epochs, at_once),
            run_config=tune.RunConfig(
                name=STATES,
                storage_path=str(folder / STORAGE),
                stop={FINISHED: True},  # else a scheduler could still continue the trial
                callbacks=[Lines()],
                verbose=0,
            ),
        )
    began, seconds = time.perf_counter(), list[float]()
    # A sweep that is stopped goes on later, and its trials took all of it.
    with ended_by(lambda: seconds.append(add_seconds(folder, time.perf_counter() - began))):
        tuner.fit()
    return seconds[0]


def _tune_config(options: SweepOptions, seed: int, epochs: int, at_once: int) -> tune.TuneConfig:
    """How trials are chosen, which of them go on, and how many run at once."""
    return tune.TuneConfig(
        search_alg=make_searcher(options, seed),
        scheduler=make_scheduler(options, epochs),
        # Tune counts a whole grid as one sample.
        num_samples=1 if options.search == "grid" else options.num_samples,
        max_concurrent_trials=at_once,
        time_budget_s=options.time_budget,
        trial_dirname_creator=lambda trial: number_in(trial.trial_id),
        reuse_actors=True,  # a new process would cost each trial the imports
    )


def restored(path: str, trainable: Any, samples: JsonObject) -> tune.Tuner:
    """The search as Tune's own files in the sweep's folder have it; raises `UserError` if they are
    damaged."""
    try:
        return tune.Tuner.restore(
            path, trainable, resume_unfinished=True, restart_errored=True, param_space=samples
        )
    except Exception as error:  # whatever a damaged pickle raises
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {reason_of(error)[:200]}): delete it; "
            "--resume then searches anew and takes finished trials as they are"
        ) from error


def trainable_of(
    launch: Launch, share: Inventory, options: SweepOptions
) -> Callable[[JsonObject], None]:
    """The function that Tune runs for each trial, in a process inside the trial's reservation."""

    def trial(settings: JsonObject) -> None:
        # As many threads as its bundle has cores, as other trials use the other cores.
        torch.set_num_threads(max(1, share.cpus))
        plain = plain_values(settings)
        name = f"{launch.name}/trials/{number_in(tune.get_context().get_trial_id())}"
        own = derive(launch, plain, name, validation=options.validation)
        ready = partial(prepare_in_bundle, share=share)
        run_trial(own, plain, report, prepare_with=ready)
        tune.report({**last_scores(launch.output_dir / name), FINISHED: True})

    return trial


def plain_values(settings: Mapping[str, Any]) -> JsonObject:
    """A trial's settings, without NumPy's numbers, which some searchers give."""
    return {n: v.item() if hasattr(v, "item") else v for n, v in settings.items()}


def report(event: Event) -> None:
    """Reports each epoch of the server's fit to Tune but the last, when the run is not over yet."""
    if is_epoch(event) and event.epoch < event.epochs:
        tune.report(reported(event))


class Lines(tune.Callback):
    """Prints a line for each trial that ends."""

    def __init__(self) -> None:
        self._ended = 0

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """Prints the trial's scores."""
        result = trial.last_result or {}
        text = ", ".join(f"{name} {result[name]:.4f}" for name in METRICS if name in result)
        if FINISHED not in result:
            text = f"stopped after epoch {result.get('epoch', 0)}, {text}".rstrip(", ")
        self._print(trial, text)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Prints that it failed; the reason is in its directory, even if it never had one."""
        run_dir = (
            Path(trial.remote_experiment_path).parents[1] / "trials" / number_in(trial.trial_id)
        )
        if not (run_dir / FAILURE).exists():
            told = Path(trial.error_file).read_text().split("\n") if trial.error_file else []
            last = next((line for line in reversed(told) if line.strip()), "Ray Tune does not say")
            run_dir.mkdir(parents=True, exist_ok=True)
            write_json(run_dir / SETTINGS, plain_values(trial.config))
            (run_dir / FAILURE).write_text(f"{last}\n")
        self._print(trial, "failed")

    def _print(self, trial: Trial, text: str) -> None:
        self._ended += 1
        tried = f"trial {number_in(trial.trial_id)} ({self._ended} ended)"
        print(f"{tried}: {text}; {listed(trial.config)}", flush=True)


def prepare_in_bundle(launch: Launch, share: Inventory) -> Prepared:
    """Prepares a trial in its bundle, so that its clients' needs are measured on their GPU."""
    if not share.gpus:
        return prepare(launch, share)
    own: Any = get_current_placement_group()
    strategy = PlacementGroupSchedulingStrategy(own, placement_group_bundle_index=0)
    task: Any = ray.remote(prepare).options(num_cpus=0, num_gpus=1, scheduling_strategy=strategy)
    prepared: Prepared = ray.get(task.remote(launch, share))
    return prepared
