"""Runs a federation from Python: what the command takes, plus your objects."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from cluster.run.command_line import as_arguments, flatten, parse
from cluster.run.options import Launch
from cluster.run.plan import print_dry_run
from cluster.run.prepare import Prepared, prepare
from cluster.run.run_dir import check_place, claimed
from cluster.run.steps import Steps
from fl.data.catalogue import register_dataset
from fl.data.shard import Shard
from fl.errors import UserError
from fl.events import Listener
from fl.json_files import write_json
from fl.methods.method import Method
from fl.methods.prototypes import PrototypesConfig
from fl.methods.registry import register
from fl.models.registry import register_model
from fl.whole_files import write_atomically
from onefold.callers import plain_torch
from onefold.kept import call_of, code_of
from onefold.own_partition import partition_arguments
from onefold.result import OWN_CODE, Result, load_model

Metric = Callable[[nn.Module, Tensor, Tensor], float]
"""A figure of the global model, of test images (N, C, H, W) in [0, 1] and labels (N,)."""
OWN = "own"
"""Name of data that has none."""


def run(
    data: Any = None,
    model: Any = None,
    method: Any = None,
    partition: Any = None,
    *,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Trains a federation and gives back what came of it; as ``python -m cluster.launch`` does.

    Args:
        data: name or path of a data set; or your own, in any form that
            :func:`fl.data.own.as_dataset` takes.
        model: name of a classifier; or a `torch.nn.Module` class, or a function that makes one, see
            :func:`fl.models.registry.register_model`. All clients train it, unless ``num_large``,
            ``prototypes`` or ``small_model`` say otherwise; in methods with generators, such as
            FedMHO, all that train a classifier.
        method: name of a method; or a `Method`, such as :func:`onefold.method` makes.
        partition: kind of a partition; a list of index arrays into the training split, one for each
            client; or a partitioner of flwr-datasets.
        metrics: further figures of the global model by name, computed on the test split.
        callbacks: called with each event of the run, see :mod:`fl.events`.
        progress: whether to show bars.
        settings: any of the command's options, with ``_`` for ``-``; nested ones as mappings, as in
            ``classifier={"epochs": 2}``, or by dotted name.

    Returns:
        The result; None with ``dry_run=True``, which prints what would run, and trains nothing.

    Raises:
        UserError: one line, for whatever is wrong with what was given.
        ClientFailed: a client failed for good.
    """
    with plain_torch():
        arguments = [
            *_data_arguments(data),
            *_method_arguments(method),
            *_model_arguments(model),
            *partition_arguments(partition, data, Path(settings.get("output_dir", "runs"))),
        ]
        for name, value in flatten(settings).items():
            if value is not None:
                arguments += as_arguments(name, value)
        launch = _parsed(arguments)
        if model is not None:
            launch = _for_all_clients(arguments, launch)
        given = {"data": data, "model": model, "method": method, "partition": partition, **settings}
        return _run(launch, given, metrics or {}, callbacks, progress)


def _run(
    launch: Launch,
    given: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    callbacks: Sequence[Listener],
    progress: bool,
) -> Result:
    launch.refuse_smoke()
    if not launch.dry_run:
        check_place(launch)
    console = Console(quiet=not progress, markup=False)
    with Steps(console) as say:
        prepared = prepare(launch, say=say)
    _say_whose(prepared, console)
    if launch.dry_run:
        print_dry_run(launch, prepared, Console(markup=False))
        return None  # type: ignore[return-value]
    from cluster.run.runner import execute

    with claimed(launch, call_of(given, prepared.dataset)) as run_dir:
        model = given["model"]
        if callable(model) and (code := code_of(_name_of(model), model)):
            write_atomically(run_dir / OWN_CODE, code.encode())
        figures = execute(launch, prepared, run_dir, console, *callbacks)
        if metrics:
            figures["metrics"] = _measured(metrics, run_dir, prepared)
            write_json(run_dir / "result.json", figures)
    return Result(run_dir, figures)


def _data_arguments(data: Any) -> list[str]:
    if data is None:
        return []
    if isinstance(data, str | Path):
        return ["--dataset", str(data)]
    register_dataset(OWN, data)
    return ["--dataset", OWN]


def _method_arguments(method: Any) -> list[str]:
    if method is None:
        return []
    if isinstance(method, str):
        return ["--method", method]
    if not isinstance(method, Method):
        raise UserError(
            f"method: expected a name or a Method, got {type(method).__name__}; decorate a "
            "function with onefold.method(name)"
        )
    register(method)
    return ["--method", method.name]


def _model_arguments(model: Any) -> list[str]:
    if model is None:
        return []
    if isinstance(model, str):
        return ["--classifier.model", model]
    name = _name_of(model)
    register_model(name, model)
    return ["--classifier.model", name]


def _name_of(model: Any) -> str:
    return str(getattr(model, "__name__", OWN)).strip("<>")


def _for_all_clients(arguments: list[str], launch: Launch) -> Launch:
    """The launch with its classifier for all clients, where the method by itself would give some
    of them another one, and nobody asked for that."""
    options = launch.run.options
    usual = PrototypesConfig()
    if not isinstance(options, PrototypesConfig) or options.num_large is not None:
        return launch
    if options.prototypes or options.small_model != usual.small_model:
        return launch
    return _parsed([*arguments, "--num-large", str(launch.run.num_clients)])


def _parsed(arguments: list[str]) -> Launch:
    return parse(arguments, prog="onefold.run")


def _say_whose(prepared: Prepared, console: Console) -> None:
    """Tells which models clients train, where there are several."""
    counts = Counter(client.model for client in prepared.members)
    if len(counts) > 1:
        told = ", ".join(f"{count} train {name}" for name, count in counts.items())
        console.print(f"of {len(prepared.members)} clients {told}", highlight=False)


def _measured(metrics: Mapping[str, Metric], run_dir: Path, prepared: Prepared) -> dict[str, float]:
    """The metrics of the global model, on the test split."""
    model, test = load_model(run_dir), prepared.dataset.test
    every = np.arange(len(test.labels))
    shard = Shard.from_split(test, every, prepared.dataset.num_classes)
    with torch.no_grad():
        return {
            n: float(metric(model, shard.images, shard.labels)) for n, metric in metrics.items()
        }
