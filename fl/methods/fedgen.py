"""FedGen (Zhu et al., ICML 2021): FedAvg with a generator of features, which teaches the clients.

The server trains the generator so that the clients' last layers recognise the features of a class.
From the second round on the clients learn from it: their last layer h to recognise its features g,
and their whole model f to answer for an image as h does for features of its class (Eq. 6)::

    CE(f(x), y) + decay^(r - 1) (recognition CE(h(g), c) + imitation KL(h(g_y) || f(x)))
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, Positive
from fl.errors import UserError
from fl.exchange import Tensors, load_prefixed, prefixed
from fl.federation import Batch, RunSpec, TaskInput, Training, Update
from fl.fusion.fit import DecayedFitConfig
from fl.fusion.server import Server
from fl.methods import prototypes
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import Assignment, LogUniform
from fl.methods.uploads import ask_label_counts
from fl.seeding import in_round, seeded, torch_generator
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.features import head_of
from fl.training.personal import AfterFedAvg
from fl.training.recipe import Epoch, Recipe

NOISE = 32
"""Dimensions of the noise, uniform in [0, 1)."""
HIDDEN = 256


class FeatureGenerator(nn.Module):
    """Features (B, d) of a class, as the classifiers make them.

    It takes noise and a one-hot class, (B, NOISE + classes), and has one hidden layer.
    """

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layers = nn.Sequential(
            nn.Linear(NOISE + num_classes, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, features),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, d) of what :func:`asked` made."""
        return self.layers(x)


def asked(labels: Tensor, num_classes: int, stream: torch.Generator) -> Tensor:
    """What a generator takes for these classes, (B, NOISE + classes), with fresh noise."""
    noise = torch.rand(len(labels), NOISE, generator=stream)
    return torch.cat([noise, F.one_hot(labels, num_classes).float()], dim=1)


@dataclass(frozen=True, kw_only=True)
class LocalFedGen(AfterFedAvg, ClassifierConfig):
    """Local training of a FedGen client: a classifier's, with two terms of generated features."""

    needs_head = "fedgen"

    recognition: NotNegative = 10.0
    """Weight of the cross-entropy of generated features; 0 leaves it out."""
    imitation: NotNegative = 10.0
    """Weight of the divergence of the answers for images from those for generated features of
    their classes; 0 leaves it out."""
    decay: NotNegative = 0.98
    """Factor on both weights from round to round."""
    taught_epochs: Count = 20
    """Local epochs with the two terms, the first ones."""

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


def starting_generator(classifier: nn.Module, run_spec: RunSpec) -> FeatureGenerator:
    """A generator of the classifier's features, drawn from the run's seed."""
    layer = head_of(classifier)
    assert isinstance(layer, nn.Linear)
    with seeded(run_spec.seed, "start/feature generator"):
        return FeatureGenerator(layer.in_features, run_spec.num_classes)


def with_features(
    epochs: Iterable[Epoch],
    generator: FeatureGenerator,
    classes: Tensor,
    weights: Iterable[float],
    stream: torch.Generator,
) -> Iterator[Epoch]:
    """The epochs, with generated features beside the B samples of each batch.

    ``generated`` (B, d) are of ``drawn`` (B,) of the ``classes``; ``of_label`` (B, d) are of the
    samples' own; ``weight`` (B,) is the epoch's.
    """

    @torch.no_grad()
    def added(epoch: Epoch, weight: float) -> Epoch:
        for batch in epoch:
            labels = batch["labels"]
            drawn = classes[torch.randint(len(classes), (len(labels),), generator=stream)]
            given = [asked(y, generator.num_classes, stream) for y in (drawn, labels.cpu())]
            generated, of_label = generator(torch.cat(given).to(labels.device)).chunk(2)
            batch |= {"generated": generated, "of_label": of_label}
            own_weight = torch.full((len(labels),), weight, device=labels.device)
            yield batch | {"drawn": drawn.to(labels.device), "weight": own_weight}

    yield from map(added, epochs, weights)


@dataclass(frozen=True, kw_only=True)
class GeneratorFitConfig(DecayedFitConfig):
    """Training of the generator in each round; the authors' code has these values."""

    epochs: Count = 1
    """Epochs over the classes drawn."""
    steps: Count = 50
    """Batches of an epoch, of classes drawn anew in each round."""
    lr: Positive = 3e-4
    """Learning rate of the first round."""
    decay: Positive = 0.98
    """Factor on the learning rate from round to round."""
    weight_decay: NotNegative = 0.01
    """Weight decay of the optimiser."""
    batch_size: Count = 32
    """Features per step, over all ranks together."""


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
            for update in ask_label_counts(clients, [client.id for client in frame.there]):
                memory["label_counts"][update.client.id] = update.tensors["label_counts"]
        held = {"held": memory["label_counts"].sum(0) > 0}
        return {training: frame.sent()[training] | prefixed("generator", generator) | held}

    for updates in frame.play(memory, start=start):
        if not updates:  # all that took part were dropped
            continue
        own_counts = memory["label_counts"][[update.client.id for update in updates]]
        layers = LastLayers.of(generator, updates, average, own_counts)
        fit_generator(layers, server, config.generator)
        memory |= prefixed("generator", generator)


class LastLayers(nn.Module):
    """A generator, and the clients' last layers that judge it, which do not learn."""

    weight: Tensor
    bias: Tensor
    shares: Tensor

    def __init__(
        self, generator: FeatureGenerator, weight: Tensor, bias: Tensor, shares: Tensor
    ) -> None:
        """``weight`` (K, classes, d) and ``bias`` (K, classes) of K clients; ``shares`` (K,
        classes): of the samples of a class, the part that the client holds."""
        super().__init__()
        self.generator = generator
        for name, tensor in (("weight", weight), ("bias", bias), ("shares", shares)):
            self.register_buffer(name, tensor)

    @classmethod
    def of(
        cls,
        generator: FeatureGenerator,
        updates: Sequence[Update],
        like: nn.Module,
        label_counts: Tensor,
    ) -> "LastLayers":
        """Those of uploads that have been checked to be classifiers ``like`` this one; their
        clients hold ``label_counts`` (K, classes)."""
        layer = head_of(like)
        (name,) = (name for name, module in like.named_modules() if module is layer)
        weight, bias = (
            torch.stack([update.tensors[f"classifier.{name}.{part}"] for update in updates])
            for part in ("weight", "bias")
        )
        shares = label_counts / label_counts.sum(0).clamp(min=1)
        return cls(generator, weight, bias, shares)

    def forward(self, x: Tensor) -> Tensor:
        """The generator's features."""
        return self.generator(x)


@dataclass(frozen=True, kw_only=True)
class GenerationLoss:
    """The generator's loss (Eq. 4 and the authors' code): how well each client's last layer
    recognises the ``labels`` of the features, weighted by its share of the class, and exp(-mean of
    the products of two features' distance and their ``noise``'s)."""

    whole_batch: ClassVar[bool] = True

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, LastLayers)
        features, labels, noise = model(batch["images"]), batch["labels"], batch["noise"]
        logits = torch.einsum("bd,kcd->bkc", features, model.weight) + model.bias
        entropies = -logits.log_softmax(2)[torch.arange(len(labels)), :, labels]  # (B, K)
        recognised = (entropies * model.shares[:, labels].T).sum(1).mean()
        noise_apart = (noise[:, None] - noise[None]).square().mean(2)
        apart = (features[:, None] - features[None]).abs().mean(2)
        return recognised + (-(noise_apart * apart).mean()).exp()


def fit_generator(layers: LastLayers, server: Server, config: GeneratorFitConfig) -> None:
    """Trains the generator in place, on classes drawn from those that the clients hold."""
    stream = torch_generator(server.run_spec.seed, in_round("fedgen/classes", server.round))
    held = (layers.shares.sum(0) > 0).nonzero().squeeze(1).cpu()
    rows = config.steps * config.batch_size
    labels = held[torch.randint(len(held), (rows,), generator=stream)]
    x = asked(labels, server.run_spec.num_classes, stream)
    data = {"images": x, "labels": labels, "noise": x[:, :NOISE]}
    config = replace(config, lr=config.lr * config.decay ** (server.round - 1))
    server.fit(
        layers.to(server.device),
        data,
        loss=GenerationLoss(),
        config=config,
        stage="generator",
        tested=False,
    )


WEIGHTS = ("classifier.recognition", "classifier.imitation")
METHOD = averaging_method(
    "fedgen", FedGenConfig, run, assign=assign, local=dict.fromkeys(WEIGHTS, LogUniform(0.1, 10.0))
)
