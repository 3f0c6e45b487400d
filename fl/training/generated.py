"""Local training with features that a generator makes, which the server sends (FedGen)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative
from fl.exchange import load_prefixed
from fl.federation import Batch, RunSpec, TaskInput
from fl.models.generators import FeatureGenerator, asked
from fl.seeding import seeded
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.features import check_head, head_of
from fl.training.personal import AfterFedAvg
from fl.training.recipe import Epoch, Recipe


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
