"""Makes models of what clients uploaded; each upload is checked before its use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

import numpy as np
from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import ClientFailed
from fl.exchange import Tensors, check_forms, checked, load_prefixed
from fl.federation import TaskInput, TaskOutput, Training, Update
from fl.fusion.aggregation import AggregationConfig, aggregate_states, average_into
from fl.fusion.server import Server
from fl.models.architectures.cvaes import Decoder
from fl.models.common import load_sent, load_whole, state_sent
from fl.receiving import Lazy, askable, check_label_counts, check_model
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig, starting_decoder, starting_generator

MEAN = AggregationConfig()


def load_classifier(update: Update, server: Server) -> nn.Module:
    """The client's classifier, on the server's device, in eval mode.

    Raises:
        ValueError: the upload is not what this architecture's weights look like.
    """
    model = untrained_classifier(update.client.training, server)
    load_prefixed(model, update.tensors, "classifier", sender=update.sender)
    return model.eval()


def untrained_classifier(training: Training, server: Server) -> nn.Module:
    """The weights from which such clients first start, on the server's device, in eval mode."""
    if not isinstance(training, ClassifierConfig):
        raise TypeError(f"{training.model} is no classifier")
    run_spec = training.answered(server.run_spec)
    return starting_classifier(training, run_spec).to(server.device).eval()


def classifier_tensors(update: Update, expected: Tensors) -> Mapping[str, Tensor]:
    """The client's classifier's weights, each read when it is asked for.

    ``expected``: of each name a tensor of that shape and type, on the device to use.

    Raises:
        ValueError: the upload has other names, shapes or types.
    """
    check_forms(expected, update.tensors, "classifier", sender=update.sender)

    def read(name: str) -> Tensor:
        return update.tensors[f"classifier.{name}"].to(expected[name].device)

    return Lazy(expected, read)


def aggregate_classifiers(
    model: nn.Module,
    updates: Sequence[Update],
    config: AggregationConfig,
    weights: Iterable[float] = repeat(1),
) -> None:
    """Loads what the clients' classifiers are together into the model from which they started.

    ``weights``: of the clients, where the rule can weight them.

    Raises:
        UserError: too few clients are left for the rule.
        ValueError: an upload is not what this architecture's weights look like.
    """
    start = state_sent(model)
    if config.aggregate == "mean":
        average_into(model, (_classifier_state(update, start) for update in updates), weights)
        return
    states = [classifier_tensors(update, start) for update in updates]
    load_sent(model, aggregate_states(states, start, config, weights))


def _classifier_state(update: Update, expected: Tensors) -> Tensors:
    """The client's classifier's weights, checked, on the devices of ``expected``."""
    found = checked(expected, update.tensors, "classifier", sender=update.sender)
    return {name: tensor.to(expected[name].device) for name, tensor in found.items()}


def combine(
    model: nn.Module,
    updates: Sequence[Update],
    clients: Clients,
    server: Server,
    load: Callable[[Sequence[Update]], object],
) -> list[Update]:
    """Has ``load`` load what the updates are together into the model, and tries it before anybody
    is sent it: where it fails, the client whose weights are farthest from the model before is
    refused, and the others are combined anew.

    Returns:
        The updates that the model is made of.

    Raises:
        ClientFailed: a client was refused and the run is to stop, or none is left.
    """
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    left, asked = list(updates), askable(model, server.run_spec.inputs)
    while True:
        load(left)
        try:
            check_model(model, asked)
        except ValueError as wrong:
            load_whole(model, before)
            liar = max(left, key=lambda update: _distance(update, before))
            reason = f"sent the weights farthest from the start, and the clients' model {wrong}"
            clients.refuse(liar, reason)
            left = [update for update in left if update is not liar]
            if not left:
                reason = f"{reason}; no client is left"
                raise ClientFailed(liar.client.id, liar.client.model, reason) from None
        else:
            return left


def combine_classifiers(
    model: nn.Module,
    updates: Sequence[Update],
    clients: Clients,
    server: Server,
    config: AggregationConfig = MEAN,
    weight: Callable[[Update], float] = lambda update: 1,
) -> list[Update]:
    """:func:`aggregate_classifiers`, whose model is tried: see :func:`combine`.

    ``weight``: of a client, where the rule can weight them.
    """

    def load(left: Sequence[Update]) -> None:
        aggregate_classifiers(model, left, config, map(weight, left))

    return combine(model, updates, clients, server, load)


def _distance(update: Update, start: Mapping[str, Tensor]) -> float:
    """Of the client's weights from these, squared: over those that it sent."""
    total = 0.0
    for name, tensor in update.tensors.items():
        origin = start.get(name.removeprefix("classifier."))
        if origin is not None and origin.is_floating_point():
            total += float((tensor.to(origin.device).double() - origin.double()).square().sum())
    return total


def load_decoder(update: Update, server: Server) -> Decoder:
    """The client's decoder, uploaded alone or within its whole CVAE.

    Raises:
        ValueError: the upload is not what this architecture's weights look like.
    """
    training, run_spec = update.client.training, server.run_spec
    if not isinstance(training, GeneratorConfig):
        raise TypeError(f"{update.sender} trains no generator")
    if training.upload == "cvae":
        whole = starting_generator(training, run_spec)
        load_prefixed(whole, update.tensors, "cvae", sender=update.sender)
        return whole.decoder
    decoder = starting_decoder(training, run_spec)
    load_prefixed(decoder, update.tensors, "decoder", sender=update.sender)
    return decoder


def decoders_of(
    updates: Iterable[Update],
    server: Server,
    change: Callable[[Decoder], Decoder] = lambda decoder: decoder,
) -> Mapping[int, Decoder]:
    """The clients' decoders by client id, each read when it is needed, as there may be many.

    ``change``: what is made of each before it draws.
    """
    own = {update.client.id: update for update in updates}
    return Lazy(own, lambda client: change(load_decoder(own[client], server)))


def label_counts_of(updates: Iterable[Update]) -> np.ndarray:
    """The clients' samples per class, (updates, classes) int64."""
    return np.stack([update.tensors["label_counts"].numpy() for update in updates])


def send_label_counts(inputs: TaskInput) -> TaskOutput:
    """A client's task: uploads ``label_counts`` (classes,)."""
    return TaskOutput(tensors={"label_counts": inputs.shard.label_counts})


def ask_label_counts(clients: Clients, only: Iterable[int] | None = None) -> list[Update]:
    """The ``label_counts`` of all clients or some."""
    return clients.map(send_label_counts, only=only, check=check_label_counts)
