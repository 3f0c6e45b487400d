"""Runs a federation from Python: what the command takes, plus your objects."""

import ast
import hashlib
import inspect
import logging
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from cluster.run.command_line import as_arguments, parse
from cluster.run.options import Launch
from cluster.run.prepare import Prepared, prepare
from cluster.run.progress import print_dry_run
from cluster.run.run_dir import check_place, claimed
from cluster.run.steps import Steps
from fl.data.catalogue import REGISTERED, register_dataset
from fl.data.datasets import Dataset
from fl.data.partition_file import save_lists
from fl.data.shard import Shard
from fl.errors import UserError, reason_of, unknown
from fl.events import Event, Listener, RoundEnd
from fl.json_files import flatten, write_json
from fl.methods.method import Method
from fl.methods.prototypes import PrototypesConfig
from fl.methods.registry import METHODS, register
from fl.models.ensemble import unwrapped
from fl.models.registry import CLASSIFIERS, MODELS, copied, holds_own, register_model
from fl.models.saved import describe
from fl.seeding import streams_restored
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.whole_files import write_atomically
from onefold.result import OWN_CODE, Result, plain_torch

log = logging.getLogger(__name__)
Metric = Callable[[nn.Module, Tensor, Tensor], float]
"""A figure of the global model, of test samples (N, ...) and labels (N,) or targets (N, D)."""
OWN = "own"
"""Name of data that has none."""
OBJECTS = ("data", "model", "method", "partition")
"""Settings that may be objects."""
PLACE = ("name", "output_dir", "resume", "overwrite")
"""Settings of where a run lies, which another run of the same has otherwise."""
HEAD = "# The model as the run was given it. Read it, then: onefold export --plugin THIS_FILE ...\n"


def run(
    data: Any = None,
    model: Any = None,
    method: Any = None,
    partition: Any = None,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Trains a federation and gives back what came of it; as ``python -m cluster.launch`` does.

    Args:
        data: name or path of a data set; or your own, as :func:`fl.data.own.as_dataset` takes it:
            arrays, a data set object, or a mapping of clients, each with data of its own.
        model: name of a classifier, a `torch.nn.Module` class, or a function that makes one, see
            :func:`fl.models.registry.register_model`. All clients train it, unless ``num_large``,
            ``prototypes`` or ``small_model`` say otherwise; in methods with generators all that
            train a classifier. A list of these is assigned to the clients in turn; a function with
            the one parameter ``client`` is given each client's number.
        method: name of a method; or a `Method`, such as :func:`onefold.method` makes.
        partition: kind of a partition; a list of index arrays into the training split, one for each
            client; or a partitioner of flwr-datasets.
        loss: what clients minimise in place of cross-entropy, or of what the targets say: a
            function, or a module without parameters, of the model's answers and the targets, to a
            number or one for each sample. A model may have a method ``training_loss(samples,
            targets)`` instead.
        augment: a function of one sample, as a model gets it, by which it is changed each time that
            a classifier trains on it, such as torchvision's random transforms.
        metrics: further figures of the global model by name, computed on the test split after each
            round and at the end.
        callbacks: called with each event, see :mod:`fl.events`. A round's end has the metrics and a
            copy of the model; who raises :class:`fl.events.StopRounds` then ends the rounds.
        progress: whether to show bars.
        settings: any of the command's options, with ``_`` for ``-``; nested ones by dotted name or
            as mappings, as in ``classifier={"epochs": 2}``.

    Returns:
        The result; None with ``dry_run=True``, which prints what would run, and trains nothing.

    Raises:
        UserError: one line, for whatever is wrong with what was given.
        ClientFailed: a client failed for good.
    """
    given = {"data": data, "model": model, "method": method, "partition": partition, **settings}
    with plain_torch():
        return _run(launch_of(given, loss, augment), given, metrics or {}, callbacks, progress)


def launch_of(given: Mapping[str, Any], loss: Any, augment: Any) -> Launch:
    """The settings as the command has them; objects are registered, and named in it."""
    data, model, method, partition = (given[name] for name in OBJECTS)
    settings = {name: value for name, value in given.items() if name not in OBJECTS}
    several = (isinstance(model, Sequence) and not isinstance(model, str)) or _by_client(model)
    if loss is not None and model is None:
        raise UserError("loss needs model: name the model that it trains")
    names = _names(data, method, None if several else model, loss, augment)
    arguments = partition_arguments(partition, data, Path(settings.get("output_dir", "runs")))
    if partition is None and (clients := _clients_of(names)):
        arguments = ["--partition.kind", "natural", "--num-clients", str(clients)]
    if twice := sorted({n for n, v in names.items() if v is not None} & flatten(settings).keys()):
        raise UserError(f"{twice[0]} is given twice, as an object and as a setting")
    for name, value in [*names.items(), *flatten(settings).items()]:
        if value is not None:
            arguments += as_arguments(name, value)
    launch = parse(arguments, prog="onefold.run")
    further: list[str] = []
    if several:
        further = _models_of(model, loss, launch)
    elif model is not None and _chooses_models(launch):
        further = ["--num-large", str(launch.run.num_clients)]
    return parse([*arguments, *further], prog="onefold.run") if further else launch


def _run(
    launch: Launch,
    given: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    callbacks: Sequence[Listener],
    progress: bool,
) -> Result:
    refuse_elsewhere(launch)
    if not launch.dry_run:
        check_place(launch)
    console = Console(quiet=not progress, markup=False)
    with Steps(console) as say:
        prepared = prepare(launch, say=say)
    counts = Counter(client.model for client in prepared.members)
    if len(counts) > 1:
        parts = ", ".join(f"{count} train {name}" for name, count in counts.items())
        console.print(f"of {len(prepared.members)} clients {parts}", highlight=False)
    if launch.dry_run:
        print_dry_run(launch, prepared, Console(markup=False))
        return None  # type: ignore[return-value]
    from cluster.run.runner import execute

    own = on_test(metrics, prepared)
    with claimed(launch, call_of(given, prepared.dataset)) as run_dir:
        model = given["model"]
        if callable(model) and not _by_client(model) and (code := code_of(_name_of(model), model)):
            write_atomically(run_dir / OWN_CODE, code.encode())
        listeners = map(_given_copies, callbacks)
        ended: list[nn.Module | None] = []
        figures = execute(
            launch, prepared, run_dir, console, *listeners, metrics=own, end=ended.append
        )
        result = Result(run_dir, figures, _of_own_code(ended[0]))
        if metrics:
            last = result.model
            figures["metrics"] = {name: metric(last) for name, metric in own.items()}
            write_json(run_dir / "result.json", figures)
    return result


def _of_own_code(model: nn.Module | None) -> nn.Module | None:
    """The model, on the CPU, where a file of its weights may not be enough to make it again."""
    if model is None or not (holds_own(model) or describe(model) is None):
        return None
    return unwrapped(model).cpu().eval()


def refuse_elsewhere(launch: Launch) -> None:
    """Raises `UserError` for what only the command can do: a smoke run, or a job."""
    launch.refuse_smoke()
    if launch.slurm.submit:
        raise UserError(
            "slurm needs the command line: use onefold run --slurm, or start Python in a job"
        )


def _given_copies(listener: Listener) -> Listener:
    """The user's listener, to which a round's end gives a copy of the model: it may change it."""

    def hear(event: Event) -> None:
        if isinstance(event, RoundEnd) and event.model is not None:
            event = replace(event, model=copied(event.model))
        listener(event)

    return hear


def _names(data: Any, method: Any, model: Any, loss: Any, augment: Any) -> dict[str, Any]:
    """By setting the names of what is given; objects are registered under theirs."""
    names = {"dataset": data, "method": method, "classifier.model": model}
    if data is None or isinstance(data, str | Path):
        if augment is not None:
            raise UserError(
                "augment needs data that is given as an object; register other data under its own "
                "name: onefold.register_dataset(name, data, augment)"
            )
    else:
        register_dataset(OWN, data, augment)
        names["dataset"] = OWN
    if not (method is None or isinstance(method, str | Method)):
        raise UserError(
            f"method: expected a name or a Method, got {type(method).__name__}; decorate a "
            "function with onefold.method(name)"
        )
    if isinstance(method, Method):
        register(method)
        names["method"] = method.name
    if model is not None:
        names["classifier.model"] = _registered(model, loss)
        own = METHODS.get(str(names["method"]))
        if own is not None and "classifier" not in {field.name for field in fields(own.config)}:
            raise UserError(
                f"{own.name} trains no classifier at its clients, so it takes no model; "
                f"onefold run --method {own.name} --help names its settings"
            )
    return names


def _by_client(model: Any) -> bool:
    """Whether it is a function of the client, which says what that one trains."""
    return inspect.isfunction(model) and [*inspect.signature(model).parameters] == ["client"]


def _models_of(model: Any, loss: Any, launch: Launch) -> list[str]:
    """Arguments that give each client its model, of several; raises `UserError` if the method needs
    one for all."""
    count, options = launch.run.num_clients, launch.run.options
    asked = [model(k) for k in range(count)] if _by_client(model) else [*model]
    setting = next((n for n in ("prototypes", "models") if hasattr(options, n)), None)
    if setting is None:
        able = [
            n
            for n, m in METHODS.items()
            if {"prototypes", "models"} & {field.name for field in fields(m.config)}
        ]
        raise UserError(
            f"{launch.run.method} takes one model for all clients; {', '.join(able)} take several"
        )
    names: dict[Any, str] = {}
    for own in asked:
        if own not in names:
            like = sum(_name_of(own) == _name_of(other) for other in names)
            names[own] = _registered(own, loss, f"-{like + 1}" if like else "")
    chosen = [f"--{setting}", *(names[own] for own in asked)]
    return [*chosen, "--num-large", str(count)] if setting == "prototypes" else chosen


def _registered(model: Any, loss: Any, ending: str = "") -> str:
    """The name of a model, under which it is registered if it is the user's."""
    if isinstance(model, str):
        if loss is None:
            return model
        register_model(f"{model}-{OWN}", _maker_of(model), loss)
        return f"{model}-{OWN}"
    register_model(name := _name_of(model) + ending, model, loss)
    return name


def _maker_of(name: str) -> Callable[..., nn.Module]:
    """A function that makes a model of the registry."""
    if name not in CLASSIFIERS:
        raise unknown("classifier", name, CLASSIFIERS)
    info = MODELS[name]

    def make(shape: tuple[int, ...], num_classes: int, width: float) -> nn.Module:
        return info.build(shape, num_classes, width)

    return make


def _clients_of(names: Mapping[str, Any]) -> int | None:
    """How many clients the data is of, where it was given by client."""
    own = REGISTERED.get(OWN) if names["dataset"] == OWN else None
    return None if own is None or own.train.clients is None else 1 + int(own.train.clients.max())


def _name_of(model: Any) -> str:
    return str(getattr(model, "__name__", OWN)).strip("<>")


def _chooses_models(launch: Launch) -> bool:
    """Whether the method by itself gives some clients another model than the classifier, and nobody
    asked for that."""
    options = launch.run.options
    return (
        isinstance(options, PrototypesConfig)
        and options.num_large is None
        and not options.prototypes
        and options.small_model == PrototypesConfig().small_model
    )


def partition_arguments(partition: Any, data: Any, output_dir: Path) -> list[str]:
    """Arguments for a partition: none, a kind, lists of indices, or a flwr-datasets partitioner.

    Lists are written to a file below ``output_dir``, by which the run can be repeated.

    Raises:
        UserError: it is none of these.
    """
    if partition is None:
        return []
    if isinstance(partition, str):
        return ["--partition.kind", partition]
    if hasattr(partition, "load_partition"):
        partition = _of_partitioner(partition, data)
    if not isinstance(partition, Sequence | np.ndarray):
        raise UserError(
            "partition: expected a kind, a list of index arrays or a flwr-datasets partitioner, "
            f"got {type(partition).__name__}"
        )
    lists = [np.asarray(own) for own in partition]
    for k, own in enumerate(lists):
        if not own.size:
            raise UserError(f"partition: client {k} has no samples: leave it out")
        if own.ndim != 1 or not np.issubdtype(own.dtype, np.integer):
            raise UserError(f"partition: client {k} must have a list of whole numbers")
    digest = hashlib.sha256(b"|".join(own.astype(np.int64).tobytes() for own in lists))
    path = (output_dir / ".partitions" / f"{digest.hexdigest()[:16]}.npz").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_lists(path, lists, [])
    file = ["--partition.kind", "file", "--partition.file", str(path)]
    return [*file, "--num-clients", str(len(lists))]


def _of_partitioner(partitioner: Any, data: Any) -> list[np.ndarray]:
    """Each client's indices, by a partitioner that is shown indices and labels for samples."""
    own = REGISTERED.get(OWN)
    if own is None or isinstance(data, str | Path):
        raise UserError("partition: a partitioner needs data that is given as an object")
    import datasets

    columns: dict[str, Any] = {"index": range(len(own.train.labels)), "label": own.train.labels}
    if own.targets is not None:  # of which the labels are all 0
        del columns["label"]
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    try:
        return [
            own.train.rows[np.asarray(partitioner.load_partition(k)["index"], np.int64)]
            for k in range(partitioner.num_partitions)
        ]
    except (KeyError, ValueError) as error:
        raise UserError(
            f"partition: {type(partitioner).__name__} fails: {reason_of(error)}; samples have the "
            "column index, and label where targets are classes"
        ) from None


def on_test(
    metrics: Mapping[str, Metric], prepared: Prepared
) -> dict[str, Callable[[nn.Module], float]]:
    """The metrics as figures of a model, on what the run's accuracy is of. Each is tried on an
    untrained one, before the run begins.

    Raises:
        UserError: a metric is no function, fails, or gives no number.
    """
    if not metrics:
        return {}
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise UserError("metrics: expected a mapping of names to functions")
    run, test = prepared.run, prepared.dataset.test
    if run.data.validation and run.scores_clients:  # then the clients' own hold it
        test = prepared.dataset.train.take(np.concatenate(prepared.partition.test))
    every = np.arange(len(test.labels))
    shard = Shard.from_split(test, every, prepared.dataset.num_classes)

    def figure(name: str, model: nn.Module, wanted: Tensor = shard.wanted) -> float:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        # It is given copies, as it may change them.
        own, given = copied(model).eval(), partial(Tensor.to, device=device, copy=True)
        try:
            with torch.no_grad(), streams_restored():
                return float(metrics[name](own, given(shard.images), given(wanted)))
        except Exception as error:
            reason = f"{type(error).__name__}: {reason_of(error)}"
            raise UserError(f"metric {name} must give one number, but fails: {reason}") from None

    figures: dict[str, Callable[[nn.Module], float]]
    figures = {name: partial(figure, name) for name in metrics}
    trainings = (member.training for member in prepared.members)
    training = next((own for own in trainings if isinstance(own, ClassifierConfig)), None)
    if training is not None:
        model = starting_classifier(training, prepared.run_spec)
        for name in figures:
            figure(name, model)
            if shard.wanted.is_floating_point() and _mixes_up(partial(figure, name, model), shard):
                log.warning(
                    "metric %s does not change when targets are permuted: targets and outputs have "
                    "shape (N, D), so leave squeeze() out",
                    name,
                )
    return figures


def _mixes_up(figure: Callable[[Tensor], float], shard: Shard) -> bool:
    """Whether a figure depends on the targets, but not on which of them is whose."""
    wanted = shard.wanted
    with suppress(UserError):  # it may refuse targets that are all alike
        found, turned, alike = map(figure, (wanted, wanted.flip(0), wanted[:1].expand_as(wanted)))
        return isclose(found, turned, rel_tol=1e-5) and not isclose(found, alike, rel_tol=1e-5)
    return False


def call_of(given: Mapping[str, Any], dataset: Dataset) -> str | None:
    """The Python call, with names for the objects; None where a command can say all of it."""
    data, objects = given["data"], [given["model"], given["method"]]
    own_data = not (data is None or isinstance(data, str | Path))
    if not own_data and all(thing is None or isinstance(thing, str) for thing in objects):
        return None
    shown = {n: v for n, v in given.items() if v is not None and n not in PLACE}
    words = [f"{n}={_shown(n, v)}" for n, v in shown.items() if "." not in n]
    if dotted := {n: v for n, v in shown.items() if "." in n}:
        words.append(f"**{dotted}")
    call = f"onefold.run({', '.join(words)})"
    if not own_data:
        return call
    sizes = f"{len(dataset.train.labels)} training and {len(dataset.test.labels)} test samples"
    return f"{call}  # data, which is not kept: {sizes}, {dataset.inputs}"


def code_of(name: str, model: Callable[..., Any]) -> str | None:
    """A plugin that registers the model: its source below the imports of its module; None where
    there is no source that defines one thing by its name, as of a lambda."""
    try:
        source = textwrap.dedent(inspect.getsource(model))
        (defined,) = ast.parse(source).body
        module = inspect.getmodule(model)
        around = ast.parse(inspect.getsource(module)).body if module else []
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if getattr(defined, "name", None) != name:
        return None
    imports = [ast.unparse(n) for n in around if isinstance(n, ast.Import | ast.ImportFrom)]
    needed = "\n".join(dict.fromkeys([*imports, "import onefold"]))
    return f"{HEAD}{needed}\n\n\n{source}\n\nonefold.register_model({name!r}, {name})\n"


def _shown(name: str, value: Any) -> str:
    if name in OBJECTS and not isinstance(value, str | Path):
        return str(getattr(value, "__name__", getattr(value, "name", name)))
    return repr(str(value) if isinstance(value, Path) else value)
