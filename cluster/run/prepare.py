"""Prepares a run: data, partition, clients and requests, with all checks before anything starts."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from cluster.hardware.inventory import Inventory, main_memory, take_inventory
from cluster.hardware.private_ray import joined_inventory, refuse_other_systems, refuse_shadows
from cluster.profiling import Requests, measured, stated
from cluster.run.options import Launch
from cluster.scheduling.capacity import world_size
from fl.config import RunConfig
from fl.data.catalogue import load, load_domains, read_again
from fl.data.datasets import NAMES, Dataset, Split, load_auxiliary, subset
from fl.data.lazy import Lazy
from fl.data.partition import Partition, hold_out, make_partition, validated
from fl.errors import UserError, unknown
from fl.federation import Client, RunSpec, Training
from fl.inputs import NotImages
from fl.methods.method import Assignment
from fl.methods.registry import METHODS, Method, get_method
from fl.models.own import Factory, squashes, unsteady
from fl.models.registry import CLASSIFIERS, MODELS, build_generator, build_shell, register_model
from fl.report.words import size
from fl.seeding import numpy_generator
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.losses import check_own_loss
from fl.training.private import PrivateClassifier, PrivateGenerator, private, train_privately
from fl.training.task import train_by_recipe

log = logging.getLogger(__name__)


def refuse_large(training: Training, run_spec: RunSpec) -> None:
    """Raises `UserError`, before it is built, for a client's model whose weights alone exceed main
    memory."""
    name, width = training.model, getattr(training, "width", 1.0)
    known = MODELS.get(name)
    if known is None or known.source:  # one of the user's is built as it is, on one step
        return
    model: nn.Module
    if name in CLASSIFIERS:
        model = build_shell(name, run_spec.inputs, run_spec.outputs, width=width)
    else:
        shape, latent = run_spec.image_shape, getattr(training, "latent", 20)
        with torch.device("meta"):  # without memory for its weights
            model = build_generator(name, shape, run_spec.outputs, latent=latent, width=width)
    needed = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    if needed > (there := main_memory()):
        raise UserError(
            f"{name} with width {width:g} has {size(needed)} of weights, this machine has "
            f"{size(there)} of memory: lower width"
        )


Changes = tuple[tuple[str, object], ...]
"""Settings by name, with values."""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A run that nothing but its data can rule out."""

    run: RunConfig[Any]
    method: Method
    run_spec: RunSpec
    assignments: Sequence[Assignment]
    """By client id."""
    inventory: Inventory
    requests: Requests
    """As far as they are known before a step is measured."""
    fusion_ranks: int | None
    """Ranks of the server: as asked for, or the method's default; None for one per GPU."""
    changes: Mapping[int, Changes]
    """By client id its own settings."""


def admit(launch: Launch, inventory: Inventory | None = None) -> Admitted:
    """Checks the run against itself and against what it may use: by default all that there is on
    this machine or cluster.

    Raises:
        UserError: one line, for whatever the configuration or this machine rule out.
    """
    if launch.runtime == "ray":
        refuse_other_systems()
        refuse_shadows()
    run = launch.run
    method = get_method(run.method)
    read_again(run.dataset)
    for name, info in [*CLASSIFIERS.items()]:  # starts are kept, but what code reads may change
        if isinstance(info.build, Factory):
            register_model(name, info.build.make, info.build.loss)
    run_spec = run.run_spec  # reads the disk where the data is a folder
    if run_spec.targets is not None and not method.any_targets:
        raise UserError(
            f"{run.method} needs one class label for each sample, but the targets are "
            f"{run_spec.targets.kind}; methods for these: {_for_any_targets()}"
        )
    with _named(run):
        assignments = _assignments(run, method, run_spec)
    changes = changes_of(run, assignments)
    trainings = [assignment.training for assignment in assignments]
    trainings += [replace(assignments[k].training, **dict(own)) for k, own in changes.items()]
    # A model is built and tried for each of these, which differ in no more than its settings.
    for training in {_tried_as(training): training for training in trainings}.values():
        refuse_large(training, run_spec)
        _check_own_model(training, method, run_spec, dp=run.dp.epsilon is not None)
    inventory = inventory or _inventory(launch)
    ranks = launch.fusion_ranks or method.default_ranks
    if not (launch.slurm.submit or launch.ray_address):  # the inventory covers all GPUs of the run
        world_size(ranks, len(inventory.gpus))
    return Admitted(
        run=run,
        method=method,
        run_spec=run_spec,
        assignments=assignments,
        inventory=inventory,
        requests=stated(assignments, run.resources, inventory),
        fusion_ranks=ranks,
        changes=changes,
    )


def _for_any_targets() -> str:
    """The methods whose clients train by the user's own loss, for any targets."""
    return ", ".join(name for name, method in METHODS.items() if method.any_targets)


def changes_of(run: RunConfig[Any], assignments: Sequence[Assignment]) -> dict[int, Changes]:
    """By client id the settings of its training that ``per_client`` gives it alone.

    Raises:
        UserError: no such client or setting, a value that it cannot have, or a client whose
            training the method reckons with.
    """
    found: dict[int, Changes] = {}
    for entry in run.per_client:
        left, _, text = entry.partition("=")
        client, _, name = left.partition(".")
        try:
            k = _client(client, run.num_clients)
            found[k] = (*found.get(k, ()), _change(name, text, assignments[k].training))
        except UserError as error:
            raise UserError(f"per_client {entry}: {error}") from None
    common = getattr(run.options, "classifier", None)
    for k, changes in found.items():
        own = assignments[k].training
        try:
            replace(own, **dict(changes)).check(run.run_spec)
            if type(common) is type(own):  # what the method refuses of all clients
                replace(run.options, classifier=replace(common, **dict(changes)))
        except UserError as error:
            entries = " ".join(f"{k}.{name}={value}" for name, value in changes)
            raise UserError(f"per_client {entries}: {error}") from None
    return found


def _client(text: str, count: int) -> int:
    if not (text.isdecimal() and int(text) < count):
        raise UserError(f"no client {text!r}; allowed: 0 to {count - 1}, as in 3.lr=0.01")
    return int(text)


def _change(name: str, text: str, training: Training) -> tuple[str, object]:
    if type(training) is not ClassifierConfig:
        raise UserError("allowed only for clients with plain classifier settings")
    names = [f.name for f in fields(training) if f.name not in ("model", "width")]
    name = name.replace("-", "_")
    if name not in names:
        raise unknown("setting", name, names)
    if not text:
        raise UserError("the value is missing")
    kind = get_type_hints(type(training))[name]
    for number in {int, float} & {kind, *get_args(kind)}:
        with suppress(ValueError):
            return name, number(text)
    return name, text


def _tried_as(training: Training) -> tuple[object, ...]:
    """What the checks of a client's model depend on."""
    own = (getattr(training, name, None) for name in ("model", "width", "micro_batch"))
    return type(training), *own


def _check_own_model(training: Training, method: Method, run_spec: RunSpec, *, dp: bool) -> None:
    """Raises `UserError` for what would train otherwise than a model of the user's, or its loss, is
    meant: the method's clients train by another loss, the loss fails, or the model answers with
    probabilities where logits are taken."""
    if not (isinstance(training, ClassifierConfig) and MODELS[training.model].source):
        return
    model, inputs = starting_classifier(training, training.answered(run_spec)), run_spec.inputs
    apart = dp or training.micro_batch is not None
    own_loss = check_own_loss(starting_classifier(training, run_spec), run_spec, apart=apart)
    as_it_is = type(training).recipe is ClassifierConfig.recipe
    as_it_is &= training.task in (train_by_recipe, train_privately)
    uses_it = method.any_targets or as_it_is
    if own_loss and not uses_it:
        raise UserError(
            f"{method.name} has its own loss, so {training.model} cannot have one; use "
            f"{_for_any_targets()}, or a method that fuses what such clients train"
        )
    if reason := unsteady(model, inputs):
        log.warning(
            "%s: its output in evaluation %s: figures depend on the number of ranks",
            *(training.model, reason),
        )
    kind = run_spec.targets and run_spec.targets.kind
    if kind == "values" and getattr(vars(model).get("own_loss"), "log_input", False):
        log.warning("R2 uses the model's outputs, which the loss takes for logarithms")
    if kind == "values" or (own_loss and method.any_targets and kind != "labels"):
        return  # any answer may be meant; of classes the largest counts
    if found := squashes(model, inputs):
        who = f"{method.name} fuses" if own_loss else "cross-entropy takes"
        instead = "" if own_loss else ", or give the loss that goes with it"
        if kind == "labels":
            who, instead = "labels are scored by", ", and take nn.BCEWithLogitsLoss for nn.BCELoss"
        raise UserError(
            f"{training.model} ends with a {found}, but {who} logits: leave it out{instead}"
        )


@contextmanager
def _named(run: RunConfig[Any]) -> Iterator[None]:
    """Says which method it is that needs images, where something inside does."""
    try:
        yield
    except NotImages:
        raise UserError(
            f"{run.method} needs images of 1 or 3 channels; the samples are {run.run_spec.inputs}"
            f"{run.run_spec.inputs.hint}"
        ) from None


def _assignments(run: RunConfig[Any], method: Method, run_spec: RunSpec) -> list[Assignment]:
    """The method's, with differential privacy if that is asked for."""
    plain = method.assign(run.options, run.num_clients, run_spec)
    if run.dp.epsilon is None:
        return plain
    changed = {a: private(a.training, run.dp, run.rounds, run_spec) for a in set(plain)}
    return [replace(a, training=changed[a]) for a in plain]


def _inventory(launch: Launch) -> Inventory:
    if launch.slurm.submit:
        return launch.slurm.shape
    if launch.ray_address:
        return joined_inventory(launch.ray_address)
    return take_inventory()


@dataclass(frozen=True, kw_only=True)
class Prepared(Admitted):
    """A run that is ready to start."""

    dataset: Dataset
    partition: Partition
    members: tuple[Client, ...]
    inputs: Mapping[str, Tensor]
    """What the method's ``run`` takes by name, beside clients, server and options."""


def prepare(
    launch: Launch,
    inventory: Inventory | None = None,
    *,
    drawn: int | None = None,
    measure: bool = True,
    say: Callable[[str], None] = lambda what: None,
    checked: Callable[[Inventory], None] = lambda inventory: None,
) -> Prepared:
    """Reads the data, cuts it among the clients and gives each its assignment.

    Args:
        launch: the run.
        inventory: what it may use. Default: what there is on this machine or cluster.
        drawn: number of samples to draw with replacement from the training samples and cut in
            their place, for a study with more clients than there is data for.
        measure: whether to measure what clients need, where that is not stated.
        say: called with each step as it begins.
        checked: called with the inventory once nothing that was configured rules the run out, and
            what takes time begins.

    Raises:
        UserError: one line, for whatever the configuration, the data or this machine rule out.
    """
    run, admitted = launch.run, admit(launch, inventory)
    checked(admitted.inventory)
    say(f"reading the data: {run.dataset}")
    dataset = read_dataset(launch)
    _check_transforms(admitted, dataset.train)
    say(f"cutting it among {run.num_clients} clients")
    partition = _partition(run, dataset, drawn)
    _check_tested(run, dataset, partition)
    # A Slurm job measures on its own node.
    if measure and (launch.runtime == "ray" or launch.smoke) and not launch.slurm.submit:
        say("measuring what clients need")
        admitted = _with_measured(admitted, partition, anew=launch.smoke)
    if admitted.method.auxiliary is not None:
        say("reading images of another data set")
    return Prepared(
        **vars(admitted),
        dataset=dataset,
        partition=partition,
        members=_members(admitted, partition),
        inputs=_inputs(launch, admitted.method),
    )


def _varies(split: Split, rows: Any = slice(None)) -> bool:
    try:
        return isinstance(split.images, Lazy) and split.images[rows].varies
    except ValueError as error:  # what it reads now is no sample
        raise UserError(str(error)) from None


def _check_transforms(admitted: Admitted, train: Split) -> None:
    """Refuses transforms of training samples that the method's clients would not train on."""
    method, augmented = admitted.method, train.augment is not None
    if method.fixed_samples and (augmented or _varies(train)):
        raise UserError(
            f"{method.name} needs samples that never change: leave out augment, and random "
            "transforms of the data set object"
        )
    if augmented and not any(
        isinstance(a.training, ClassifierConfig) for a in admitted.assignments
    ):
        raise UserError(f"augment needs clients that train classifiers; {method.name} has none")
    targets = admitted.run_spec.targets
    if augmented and targets and targets.kind == "tokens":
        log.warning("augment changes only samples: if it moves pixels, their targets become wrong")


def _check_tested(run: RunConfig[Any], dataset: Dataset, partition: Partition) -> None:
    """Refuses test samples that would change; warns of those whose class nobody trains on, and
    where they choose the last round."""
    split = dataset.train if run.scores_clients else dataset.test
    rows: Any = np.concatenate(partition.test) if run.scores_clients else slice(None)
    if _varies(split, rows):
        raise UserError(
            "data: random transforms of the data set object would change test samples too: pass "
            "them as augment=, or give separate test data without them"
        )
    if run.stop_after and not run.data.validation:
        log.warning(
            "stop_after chooses the last round by test samples: set data.validation (such as 0.1) "
            "to choose it by held-out training samples"
        )
    trained = partition.counts.sum(0)[split.labels[rows]]
    if not trained.all():
        log.warning(
            "%d of the %d test samples are of classes that no client trains on",
            *((trained == 0).sum(), len(trained)),
        )


def read_dataset(launch: Launch) -> Dataset:
    """The data set, as much of it as the run takes; with validation that is its test split."""
    run, data = launch.run, launch.run.data
    if data.folder is None:
        limits = {"max_train": data.max_train, "max_test": data.max_test}
        dataset = load(run.dataset, launch.data_root, **limits)
    else:
        whole = load_domains(Path(data.folder), data.side, run.seed)
        dataset = subset(whole, max_train=data.max_train, max_test=data.max_test)
    if run.dataset not in NAMES and dataset.leaked:
        tests = len(dataset.test.labels)
        log.warning("%d of the %d test samples equal a training sample", dataset.leaked, tests)
    if run.data.validation and not run.scores_clients:  # else each client holds out its own
        return hold_out(dataset, run.data.validation, run.seed)
    return dataset


def _partition(run: RunConfig[Any], dataset: Dataset, drawn: int | None) -> Partition:
    """The clients' shares of the training samples, or of ``drawn`` samples drawn from them."""
    pool = np.arange(len(dataset.train.labels))
    if drawn is not None:
        if run.partition.kind == "file":
            raise UserError("partition.kind file cannot be used: samples are drawn anew")
        pool = numpy_generator(run.seed, "drawn").choice(pool, drawn)
    train, classes = dataset.train, dataset.num_classes
    labels, owners = train.labels[pool], None
    if train.clients is not None and train.held is not None:  # the data is divided already
        owners = train.clients[pool], train.held[pool]
    by_classes = ("dirichlet", "mixture", "classes")
    if dataset.targets is not None and run.partition.kind in by_classes:
        raise UserError(
            f"partition.kind {run.partition.kind} needs class labels; allowed for "
            f"{dataset.targets.kind}: iid, natural, file"
        )
    partition = make_partition(
        labels,
        run.num_clients,
        classes,
        run.partition,
        alpha=run.alpha,
        seed=run.seed,
        domains=None if train.domains is None else train.domains[pool],
        owners=owners,
        taken=train.taken,
        tested=run.scores_clients,
    )
    if run.data.validation and run.scores_clients:
        partition = validated(partition, labels, classes, run.data.validation, run.seed)
    own, held = (tuple(pool[k] for k in part) for part in (partition.train, partition.test))
    repeated = drawn is not None and np.isin(np.concatenate(held), np.concatenate(own)).any()
    if run.scores_clients and repeated:
        raise UserError(
            f"{run.method} scores clients on samples of their own, but samples are drawn "
            "repeatedly, so some would be trained on too: use fewer clients, or fewer samples each"
        )
    return replace(partition, train=own, test=held)


def _with_measured(admitted: Admitted, partition: Partition, *, anew: bool) -> Admitted:
    """With requests that were measured, where they are not stated."""
    return replace(
        admitted,
        requests=measured(
            admitted.assignments,
            [len(own) for own in partition.train],
            admitted.run_spec,
            admitted.run.resources,
            admitted.inventory,
            anew=anew,
        ),
    )


def _members(admitted: Admitted, partition: Partition) -> tuple[Client, ...]:
    """The clients, each with its assignment, its share of the data and its request; where it is
    private, with the noise that goes with so many samples."""
    found = []
    for k, assignment in enumerate(admitted.assignments):
        training, count = assignment.training, len(partition.train[k])
        if isinstance(training, PrivateClassifier | PrivateGenerator):
            training = training.for_samples(count)
        client = Client(
            id=k,
            role=assignment.role,
            training=training,
            num_samples=count,
            request=admitted.requests.by_assignment[assignment],
            changes=admitted.changes.get(k, ()),
        )
        found.append(client)
    return tuple(found)


def _inputs(launch: Launch, method: Method) -> dict[str, Tensor]:
    if method.auxiliary is None:
        return {}
    run = launch.run
    config = method.auxiliary(run.options)
    with _named(run):
        shape = run.run_spec.image_shape
    return {"auxiliary": load_auxiliary(config, run.dataset, shape, launch.data_root)}
