"""FedGen (Zhu et al., ICML 2021): FedAvg with a generator of features, which teaches the clients.

The server trains the generator so that the clients' last layers recognise the features of a class.
From the second round on the clients learn from it: their last layer to recognise its features, and
their whole model to answer for an image as their last layer does for features of its class.
"""

from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative
from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors, load_prefixed, prefixed
from fl.federation import Batch, RunSpec, TaskInput, Training
from fl.fusion.feature_generation import GeneratorFitConfig, LastLayers, fit_generator
from fl.fusion.server import Server
from fl.methods import prototypes
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import Assignment
from fl.methods.uploads import ask_label_counts
from fl.rounds import Rounds
from fl.server import Outcome
from fl.spaces import LogUniform
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.features import check_head, head_of, starting_generator, with_features
from fl.training.personal import AfterFedAvg
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalFedGen(AfterFedAvg, ClassifierConfig):
    """Local training of a FedGen client: a classifier's, with two terms of generated features."""

    recognition: NotNegative = 10.0
    """Weight of the cross-entropy of generated features; 0 leaves it out."""
    imitation: NotNegative = 10.0
    """Weight of the divergence of the answers for images from those for generated features of
    their classes; 0 leaves it out."""
    decay: NotNegative = 0.98
    """Factor on both weights from round to round."""
    taught_epochs: Count = 20
    """Local epochs with the two terms, the first ones."""

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` for a model without a head too, which the generator teaches."""
        super().check(run_spec)
        check_head("fedgen", self.model, self.width, run_spec)

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """Without the two terms: a probe is sent no generator, which is small beside the model."""
        training, samples = super().probe(steps, num_classes)
        return replace(training, recognition=0.0, imitation=0.0), samples

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains by :meth:`losses`, with the generator that was sent."""
        model = received_classifier(inputs, self)
        if not (self.recognition or self.imitation):
            return classifier_recipe(inputs, self, model)
        generator = starting_generator(model, inputs.run_spec)
        load_prefixed(generator, inputs.payload, "generator", sender="the server")
        held = inputs.payload["held"].nonzero().squeeze(1)
        weight = self.decay ** (inputs.round - 1)
        weights = chain(repeat(weight, self.taught_epochs), repeat(0.0))
        recipe = classifier_recipe(inputs, self, model, losses=self.losses)
        generator, stream = generator.to(inputs.device).eval(), inputs.stream("local/features")
        return replace(
            recipe, epochs=with_features(recipe.epochs, generator, held, weights, stream)
        )

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Eq. 6 and the authors' code, (B,): CE(f(x), y) + decay^(r - 1) (recognition * CE(h(g), c)
        + imitation * KL(h(g_y) || f(x))), with the head h and the features g of drawn classes c,
        g_y of the samples' own. Of samples that are held out, without features: CE(f(x), y)."""
        logits, head = model(batch["images"]), head_of(model)
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        if "generated" not in batch:
            return entropy
        drawn = F.cross_entropy(head(batch["generated"]), batch["drawn"], reduction="none")
        answers = head(batch["of_label"]).detach().softmax(1)
        apart = F.kl_div(logits.log_softmax(1), answers, reduction="none").sum(1)
        terms = self.recognition * drawn + self.imitation * apart
        return entropy + batch["weight"] * terms


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


def run(clients: Clients, server: Server, config: FedGenConfig, *, rounds: Rounds) -> Outcome:
    """Algorithm 1: FedAvg's rounds, each with a fit of the generator after the average."""
    frame = Averaging(clients, server, config, rounds)
    ((training, average),) = frame.model.items()
    generator = starting_generator(average, server.run_spec).to(server.device)
    counts = torch.zeros(len(clients.members), server.run_spec.num_classes, dtype=torch.int64)
    memory = {"label_counts": counts, **prefixed("generator", generator)}

    def start() -> dict[Training, Tensors]:
        load_prefixed(generator, memory, "generator", sender="the round before")
        if not memory["label_counts"].any():
            for client, own in ask_label_counts(clients, server).items():
                memory["label_counts"][client] = torch.from_numpy(own)
        held = {"held": memory["label_counts"].sum(0) > 0}
        weights = frame.weights()[training]
        return {training: {**weights, **prefixed("generator", generator), **held}}

    for updates in frame.play(memory, start=start):
        own_counts = memory["label_counts"][[update.client.id for update in updates]]
        layers = LastLayers.of(generator, updates, average, own_counts)
        fit_generator(layers, server, config.generator)
        memory |= prefixed("generator", generator)
    return rounds.outcome(frame.ensemble)


WEIGHTS = ("classifier.recognition", "classifier.imitation")
METHOD = averaging_method(
    "fedgen", FedGenConfig, run, assign=assign, local=dict.fromkeys(WEIGHTS, LogUniform(0.1, 10.0))
)
