"""Makes models of what clients uploaded; each upload is checked before its use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

import numpy as np
from torch import Tensor, nn

from fl.federation import Training, Update
from fl.fusion.aggregation import AggregationConfig, aggregate_states
from fl.fusion.average import average_into
from fl.models import Decoder
from fl.receiving import check_label_counts
from fl.server import Server
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig, starting_decoder, starting_generator
from fl.wire import Tensors, checked, load_prefixed


def load_classifier(update: Update, server: Server) -> nn.Module:
    """The client's classifier, on the server's device, in eval mode.

    Raises:
        ValueError: the upload is not what this architecture's weights look like.
    """
    model = untrained_classifier(update.client.training, server)
    load_prefixed(model, update.tensors, "classifier", sender=_sender(update))
    return model.eval()


def untrained_classifier(training: Training, server: Server) -> nn.Module:
    """The weights from which such clients first start, on the server's device, in eval mode."""
    if not isinstance(training, ClassifierConfig):
        raise TypeError(f"{training.model} is no classifier")
    return starting_classifier(training, server.run_spec).to(server.device).eval()


class ClassifierTensors(Mapping[str, Tensor]):
    """The client's classifier's weights, each read and checked when it is asked for."""

    def __init__(self, update: Update, expected: Tensors) -> None:
        """``expected``: of each name a tensor of that shape and type, on the device to use."""
        self._update, self._expected = update, expected

    def __getitem__(self, name: str) -> Tensor:
        wanted, sent = self._expected[name], f"classifier.{name}"
        own = {sent: self._update.tensors[sent]}
        tensors = checked({name: wanted}, own, "classifier", sender=_sender(self._update))
        return tensors[name].to(wanted.device)

    def __iter__(self) -> Iterator[str]:
        start = "classifier."
        return (n.removeprefix(start) for n in self._update.tensors if n.startswith(start))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def aggregate_classifiers(
    model: nn.Module,
    updates: Sequence[Update],
    server: Server,
    config: AggregationConfig,
    weights: Iterable[int] = repeat(1),
) -> None:
    """Loads what the clients' classifiers are together into the model from which they started.

    ``weights``: of the clients, where the rule can weight them.

    Raises:
        UserError: too few clients are left for the rule.
        ValueError: an upload is not what this architecture's weights look like.
    """
    if config.aggregate == "mean":
        average_into(model, (load_classifier(u, server).state_dict() for u in updates), weights)
        return
    start = model.state_dict()
    states = [ClassifierTensors(update, start) for update in updates]
    model.load_state_dict(aggregate_states(states, start, config, weights))


def load_decoder(update: Update, server: Server) -> Decoder:
    """The client's decoder, uploaded alone or within its whole CVAE.

    Raises:
        ValueError: the upload is not what this architecture's weights look like.
    """
    training, run_spec = update.client.training, server.run_spec
    if not isinstance(training, GeneratorConfig):
        raise TypeError(f"{_sender(update)} trains no generator")
    tensors = dict(update.tensors.items())  # by one reading
    if training.upload == "cvae":
        whole = starting_generator(training, run_spec)
        load_prefixed(whole, tensors, "cvae", sender=_sender(update))
        return whole.decoder
    decoder = starting_decoder(training, run_spec)
    load_prefixed(decoder, tensors, "decoder", sender=_sender(update))
    return decoder


class Decoders(Mapping[int, Decoder]):
    """The clients' decoders by client id, each read when it is needed, as there may be many."""

    def __init__(
        self,
        updates: Iterable[Update],
        server: Server,
        change: Callable[[Decoder], Decoder] = lambda decoder: decoder,
    ) -> None:
        """``change``: what is made of each before it draws."""
        self._updates = {update.client.id: update for update in updates}
        self._server, self._change = server, change

    def __getitem__(self, client: int) -> Decoder:
        return self._change(load_decoder(self._updates[client], self._server))

    def __iter__(self) -> Iterator[int]:
        return iter(self._updates)

    def __len__(self) -> int:
        return len(self._updates)


def load_label_counts(update: Update, server: Server) -> np.ndarray:
    """The client's samples per class, (classes,) int64.

    Raises:
        ValueError: another shape or type, or counts that are not of its samples.
    """
    return check_label_counts(update, server.run_spec).numpy()


def _sender(update: Update) -> str:
    return f"client {update.client.id}"
