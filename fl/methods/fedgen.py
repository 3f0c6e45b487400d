"""FedGen (Zhu et al., ICML 2021): FedAvg with a generator of features, which teaches the clients.

The server trains the generator so that the clients' last layers recognise the features of a class.
From the second round on the clients learn from it: their last layer h to recognise its features g,
and their whole model f to answer for an image as h does for features of its class (Eq. 6)::

    CE(f(x), y) + decay^(r - 1) (recognition CE(h(g), c) + imitation KL(h(g_y) || f(x)))
"""

from dataclasses import dataclass, replace

import torch

from fl.errors import UserError
from fl.exchange import Tensors, load_prefixed, prefixed
from fl.federation import RunSpec, Training
from fl.fusion.feature_generation import GeneratorFitConfig, LastLayers, fit_generator
from fl.methods import prototypes
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import Assignment
from fl.methods.uploads import ask_label_counts
from fl.spaces import LogUniform
from fl.training.generated import LocalFedGen, starting_generator


@dataclass(frozen=True, kw_only=True)
class FedGenConfig(AveragingConfig):
    """FedGen's settings: FedAvg's, with a generator. All clients have the same architecture."""

    classifier: LocalFedGen = LocalFedGen()
    generator: GeneratorFitConfig = GeneratorFitConfig()


def assign(config: FedGenConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """The same classifier for all clients; `UserError` if settings name several, or it is none for
    these images."""
    if config.num_large not in (None, num_clients) or len(config.prototypes) > 1:
        raise UserError(
            "fedgen's generator makes features of one architecture: num_large must be all clients "
            f"({num_clients}) or left out, and prototypes one at most"
        )
    return prototypes.assign(replace(config, num_large=num_clients), num_clients, run_spec)


def run(frame: Averaging, config: FedGenConfig) -> None:
    """Algorithm 1: FedAvg's rounds, each with a fit of the generator after the average."""
    clients, server = frame.clients, frame.server
    ((training, average),) = frame.model.items()
    generator = starting_generator(average, server.run_spec).to(server.device)
    counts = torch.zeros(len(clients.members), server.run_spec.num_classes, dtype=torch.int64)
    memory = {"label_counts": counts, **prefixed("generator", generator)}

    def start() -> dict[Training, Tensors]:
        load_prefixed(generator, memory, "generator", sender="the round before")
        if not memory["label_counts"].any():
            for update in ask_label_counts(clients):
                memory["label_counts"][update.client.id] = update.tensors["label_counts"]
        held = {"held": memory["label_counts"].sum(0) > 0}
        return {training: frame.sent()[training] | prefixed("generator", generator) | held}

    for updates in frame.play(memory, start=start):
        own_counts = memory["label_counts"][[update.client.id for update in updates]]
        layers = LastLayers.of(generator, updates, average, own_counts)
        fit_generator(layers, server, config.generator)
        memory |= prefixed("generator", generator)


WEIGHTS = ("classifier.recognition", "classifier.imitation")
METHOD = averaging_method(
    "fedgen", FedGenConfig, run, assign=assign, local=dict.fromkeys(WEIGHTS, LogUniform(0.1, 10.0))
)
