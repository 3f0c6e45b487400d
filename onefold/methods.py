"""What a method of your own is written with: a decorator, and the steps that most methods have."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import nn

from fl.bounds import Settings
from fl.errors import UserError
from fl.exchange import Tensors, prefixed
from fl.federation import Update
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.methods.prototypes import assign_all
from fl.methods.registry import register as register_method
from fl.methods.uploads import MEAN, aggregate_classifiers, load_classifier, untrained_classifier
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class OneClassifier(Settings):
    """Settings of a method whose clients all train the same classifier; to be inherited from."""

    classifier: ClassifierConfig = ClassifierConfig()


def method(
    name: str, *, config: type[Any] = OneClassifier, over_rounds: bool = True
) -> Callable[[Callable[..., Outcome]], Method]:
    """Decorates a function of clients, server, settings and rounds, and registers it by a name.

    The function is :attr:`fl.methods.method.Method.run`. All clients train ``config.classifier``; a
    method that assigns its clients different trainings is a `Method` that is built by hand.

    Args:
        name: for ``--method``; letters, digits and ``. _ + -``.
        config: a frozen dataclass with a ``classifier``, such as a subclass of `OneClassifier`.
        over_rounds: whether it can have more than one round; else the function takes no ``rounds``.

    Raises:
        UserError: the name is taken.
    """

    def registered(run: Callable[..., Outcome]) -> Method:
        made = Method(
            name=name,
            config=config,
            assign=assign_all,
            run=run,
            one_shot=not over_rounds,
            any_targets=True,
        )
        register_method(made)
        return made

    return registered


def starting_model(config: Any, server: Server) -> nn.Module:
    """The classifier that all clients start from, with weights drawn from the seed."""
    return untrained_classifier(config.classifier, server)


def sent(model: nn.Module) -> Tensors:
    """A classifier's weights as a broadcast, from which clients start to train."""
    return prefixed("classifier", model)


def received(update: Update, server: Server) -> nn.Module:
    """The classifier that a client uploaded, checked.

    Raises:
        ValueError: it is not what was expected; names the client.
    """
    return load_classifier(update, server)


def average(
    model: nn.Module, updates: Sequence[Update], weights: Iterable[float] | None = None
) -> None:
    """Gives the model the mean of what clients uploaded, by samples or by these weights.

    Raises:
        UserError: there are more weights or fewer than updates, or not all of them count.
    """
    by = list(weights) if weights is not None else [u.client.num_samples for u in updates]
    if len(by) != len(updates):
        raise UserError(f"average: {len(by)} weights for {len(updates)} updates")
    if not all(0 <= weight < inf for weight in by) or not sum(by):
        raise UserError(f"average: weights must be 0 or more, and not all 0, got {by}")
    aggregate_classifiers(model, updates, MEAN, by)
