"""FedGen (Zhu et al., ICML 2021): FedAvg with a generator of features, which teaches the clients.

The server trains the generator so that the clients' last layers recognise the features of a class.
From the second round on the clients learn from it: their last layer to recognise its features, and
their whole model to answer for an image as their last layer does for features of its class.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative
from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors, load_prefixed, prefixed
from fl.federation import Batch, RunSpec, Task, TaskInput, TaskOutput, Training
from fl.fusion.feature_generation import GeneratorFitConfig, LastLayers, fit_generator
from fl.methods.averaging import Averaging, AveragingConfig
from fl.methods.method import Assignment, Method
from fl.methods.prototypes import LOCAL
from fl.methods.prototypes import assign as assign_prototypes
from fl.methods.uploads import load_label_counts
from fl.models.generators import FeatureGenerator, asked
from fl.receiving import check_label_counts
from fl.rounds import Rounds
from fl.seeding import torch_seeded
from fl.server import Outcome, Server
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain, received_classifier
from fl.training.features import check_head, head_of
from fl.training.recipe import Epoch, Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalFedGen(ClassifierConfig):
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

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: there is no generator yet."""
        return plain(self)

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_with_generator

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` for a model without a head too, which the generator teaches."""
        super().check(run_spec)
        check_head("fedgen", self.model, self.width, run_spec)

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """Without the two terms: a probe is sent no generator, which is small beside the model."""
        training, samples = super().probe(steps, num_classes)
        return replace(training, recognition=0.0, imitation=0.0), samples


@dataclass(frozen=True, kw_only=True)
class FedGenConfig(AveragingConfig):
    """FedGen's settings: FedAvg's, with a generator. All clients have the same architecture."""

    classifier: LocalFedGen = LocalFedGen()
    generator: GeneratorFitConfig = GeneratorFitConfig()


def assign(config: FedGenConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """The same classifier for all clients.

    Raises:
        UserError: the settings name several, or the classifier cannot take these images.
    """
    if config.num_large not in (None, num_clients) or len(config.prototypes) > 1:
        raise UserError(
            "fedgen's generator makes features of one architecture: num_large must be all clients "
            f"({num_clients}) or left out, and prototypes one at most"
        )
    return assign_prototypes(replace(config, num_large=num_clients), num_clients, run_spec)


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
            for update in clients.map(tell_label_counts, check=check_label_counts):
                told = load_label_counts(update, server)
                memory["label_counts"][update.client.id] = torch.from_numpy(told)
        held = {"held": memory["label_counts"].sum(0) > 0}
        weights = frame.weights()[training]
        return {training: {**weights, **prefixed("generator", generator), **held}}

    for updates in frame.play(memory, start=start):
        own_counts = memory["label_counts"][[update.client.id for update in updates]]
        layers = LastLayers.of(generator, updates, average, own_counts)
        fit_generator(layers, server, config.generator)
        memory |= prefixed("generator", generator)
    return rounds.outcome(frame.ensemble)


def tell_label_counts(inputs: TaskInput) -> TaskOutput:
    """Uploads ``label_counts`` (classes,), once."""
    return TaskOutput(tensors={"label_counts": inputs.shard.label_counts})


def starting_generator(classifier: nn.Module, run_spec: RunSpec) -> FeatureGenerator:
    """A generator of the classifier's features, drawn from the run's seed."""
    layer = head_of(classifier)
    assert isinstance(layer, nn.Linear)
    with torch_seeded(run_spec.seed, "start/feature generator"):
        return FeatureGenerator(layer.in_features, run_spec.num_classes)


@task_of
def train_with_generator(inputs: TaskInput) -> Recipe:
    """Trains with the generator that was sent: Eq. 6 and the authors' code."""
    config = inputs.client.training
    assert isinstance(config, LocalFedGen)
    model = received_classifier(inputs, config)
    if not (config.recognition or config.imitation):
        return classifier_recipe(inputs, config, model)
    generator = starting_generator(model, inputs.run_spec)
    load_prefixed(generator, inputs.payload, "generator", sender="the server")
    generator = generator.to(inputs.device).eval()
    weight = config.decay ** (inputs.round - 1)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch["images"], batch["labels"]
        logits, head = model(images), head_of(model)
        drawn = F.cross_entropy(head(batch["generated"]), batch["drawn"], reduction="none")
        answers = head(batch["of_label"]).detach().softmax(1)
        apart = F.kl_div(logits.log_softmax(1), answers, reduction="none").sum(1)
        terms = config.recognition * drawn + config.imitation * apart
        entropy = F.cross_entropy(logits, labels, reduction="none")
        return entropy + batch["weight"] * terms

    recipe = classifier_recipe(inputs, config, model, losses=losses)
    taught = taught_epochs(inputs, config, generator, recipe.epochs, weight)
    return replace(recipe, epochs=taught)


def taught_epochs(
    inputs: TaskInput,
    config: LocalFedGen,
    generator: FeatureGenerator,
    epochs: Iterator[Epoch],
    weight: float,
) -> Iterator[Epoch]:
    """The epochs, whose batches of B samples also have ``generated`` (B, d), features of ``drawn``
    (B,) classes that some client holds; ``of_label`` (B, d), of the samples' own classes; and the
    ``weight`` (B,) of what is learned from them."""
    classes, stream = inputs.run_spec.num_classes, inputs.stream("local/features")
    held = inputs.payload["held"].nonzero().squeeze(1)

    @torch.no_grad()
    def taught(epoch: Epoch, weight: float) -> Epoch:
        for batch in epoch:
            labels = batch["labels"]
            drawn = held[torch.randint(len(held), (len(labels),), generator=stream)]
            inputs_of = [asked(chosen, classes, stream) for chosen in (drawn, labels.cpu())]
            generated, of_label = generator(torch.cat(inputs_of).to(labels.device)).chunk(2)
            batch |= {"generated": generated, "of_label": of_label}
            weights = torch.full((len(labels),), weight, device=labels.device)
            yield batch | {"drawn": drawn.to(labels.device), "weight": weights}

    for number, epoch in enumerate(epochs, start=1):
        yield taught(epoch, weight if number <= config.taught_epochs else 0.0)


METHOD = Method(
    name="fedgen",
    config=FedGenConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(
        local={
            **LOCAL,
            "classifier.recognition": LogUniform(0.1, 10.0),
            "classifier.imitation": LogUniform(0.1, 10.0),
        }
    ),
)
