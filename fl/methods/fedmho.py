"""FedMHO, FedMHO-MD and FedMHO-SD (Yao et al., WWW 2026): Algorithm 1.

Strong clients train a classifier, weak ones a conditional VAE. The server averages the
classifiers, samples the decoders, keeps the samples nearest their class's centre, and trains the
average on them; -MD and -SD distil from the local classifiers or from the average itself, so that
the model does not forget them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fl.bounds import LARGEST, Count, Number, OneOf, Within
from fl.clients import Clients
from fl.errors import UserError, unknown
from fl.exchange import num_bytes
from fl.federation import RunSpec, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.distillation import FusionLoss, LearnedFusionLoss, TeacherWeights, Weighing
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.fusion.synthesis import label_share, label_share_of, squared_counts, truncate_to_bytes
from fl.json_files import JsonObject
from fl.methods.method import Assignment, Choice, Distribution, LogUniform, Method, Spaces, Uniform
from fl.methods.prototypes import LOCAL, dealt, refuse_without
from fl.methods.uploads import (
    combine_classifiers,
    decoders_of,
    label_counts_of,
    load_classifier,
    untrained_classifier,
)
from fl.models.architectures.cvaes import Decoder
from fl.models.registry import CLASSIFIERS
from fl.sample_quality import describe_teacher
from fl.seeding import torch_generator
from fl.server import Outcome, Samples
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from kernels import nearest_to_centroid

# Samples decoders while other clients are at work, where what each is to make is known by then.


def by_label_share(
    clients: Clients, server: Server, *, total: int, latent: int
) -> Callable[[Update], None]:
    """What to call with each update: samples its decoder, if it is a generator client's.

    By label-share a decoder's row of the allocation follows from its own label counts, as long as
    no generator client is dropped; then the server draws anew.

    Args:
        clients: all of the run.
        server: which draws.
        total: number of synthetic samples wanted of all decoders.
        latent: size of z.
    """
    generators = [client.id for client in clients.members if client.role == "generator"]
    positions = {client: position for position, client in enumerate(generators)}

    def sample(update: Update) -> None:
        if (position := positions.get(update.client.id)) is not None:
            (counts,) = label_counts_of([update])
            row = label_share_of(counts, total, position, len(positions))
            server.sample_early(decoders_of([update], server), row[None], latent=latent)

    return sample


Teacher = Literal["none", "models", "start"]
NamedBetas = Literal["learned", "released"]


@dataclass(frozen=True, kw_only=True)
class FedMHOConfig(AggregationConfig):
    """FedMHO's own settings. Defaults are the paper's form, sized for a laptop."""

    num_classifiers: Number | None = None
    """Clients that train a classifier, the first ones; the rest train generators. Default: half."""
    prototypes: tuple[Annotated[str, OneOf(CLASSIFIERS)], ...] = ()
    """Architectures given in turn to the classifier clients; the global model has the first.
    Default: classifier.model for all."""
    decoders: Literal["weak", "all"] = "weak"
    """Who trains a decoder: the generator clients (the paper), or all: a classifier client then
    trains and uploads both."""
    num_samples: Count = 3000
    """Synthetic samples, N_s."""
    allocation: Literal["squared-counts", "label-share"] = "squared-counts"
    """Samples per decoder and class: by squared label counts (released code), or every decoder
    the same total by its own label distribution (paper)."""
    pixels: Literal["float", "uint8"] = "float"
    """uint8 cuts synthetic pixels to 8 bits, as the released code does for colour."""
    filter: Literal["nearest", "random", "none"] = "nearest"
    """Distance filter of Algorithm 2; random keeps as many by chance (what the released code
    does by mistake), none keeps all."""
    keep: Annotated[float, Within(0, 1, "(]")] = 0.8
    """Share of each class that the filter keeps, R_th in (0, 1]."""
    start: Literal["average", "random"] = "average"
    """Global model before fusion: average of the classifiers (Eq. 4), or the untrained start."""
    mixed_init: Literal["distillation", "average"] = "distillation"
    """With several prototypes: distil all classifiers into the global model before fusion, or
    only average those of its architecture."""
    lam: Annotated[float, Within(0, 1)] = 0.5
    """lambda of Eq. 7: weight of cross-entropy; 1 - lambda weighs the distillation."""
    betas: tuple[float, float] | NamedBetas | None = None
    """Weights (KD, CE) in place of lambda. learned: trained with the model, starting from 1 1.
    released: the released code's loss, weights 1 1 with kl_reduction mean."""
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"
    """KL per sample, or also divided by the classes as in the released code."""
    teacher_weights: TeacherWeights = "equal"
    """Weights of the classifiers' logits where they teach: equal, or on each sample by agreement
    with the other classifiers, which needs three of them."""
    classifier: ClassifierConfig = ClassifierConfig()
    generator: GeneratorConfig = GeneratorConfig()
    fusion: FitConfig = FitConfig()
    distil_init: FitConfig = FitConfig(lr=1e-3, epochs=10)

    def check_further(self) -> None:
        """``betas`` are finite, not negative and not both 0; a rule has something to aggregate."""
        super().check_further()
        if self.start == "random" and self.aggregate != "mean":
            raise UserError(f"aggregate {self.aggregate} needs start average, got start random")
        betas = self.betas
        if betas is None or betas in get_args(NamedBetas):
            return
        if isinstance(betas, str):
            raise unknown("betas", betas, get_args(NamedBetas))
        if not all(0 <= beta <= LARGEST for beta in betas) or sum(betas) == 0:
            raise UserError(f"betas must not be negative nor both 0, got {betas}")

    def loss(self, teacher: Teacher) -> FusionLoss | LearnedFusionLoss:
        """Eq. 7 with this configuration's weights; plain FedMHO has cross-entropy alone."""
        if teacher == "none":
            return FusionLoss(ce_weight=1.0, kd_weight=0.0)
        if self.betas == "learned":
            return LearnedFusionLoss(kl_reduction=self.kl_reduction)
        if self.betas == "released":
            return FusionLoss(ce_weight=1.0, kd_weight=1.0, kl_reduction="mean")
        kd, ce = self.betas or (1 - self.lam, self.lam)
        return FusionLoss(ce_weight=ce, kd_weight=kd, kl_reduction=self.kl_reduction)


def spaces(teacher: Teacher) -> Spaces:
    """The spaces of a sweep: the ranges of the paper's ablations and, for rates and epochs, of its
    settings over all data sets. Without a teacher lambda has no effect and is left out."""
    server: dict[str, Distribution] = {
        "keep": Uniform(0.4, 1.0),
        "num_samples": Choice((2000, 6000, 12000, 24000)),
        "fusion.lr": LogUniform(1e-5, 1e-3),
        "fusion.epochs": Choice((10, 20, 30)),
    }
    if teacher != "none":
        server |= {"lam": Uniform(0.2, 0.8)}
    local: dict[str, Distribution] = {
        **LOCAL,
        "generator.epochs": Choice((10, 20, 30, 40, 50)),
        "generator.lr": LogUniform(1e-3, 5e-2),
        "generator.latent": Choice((2, 10, 20)),
    }
    return Spaces(server=server, local=local, epochs="fusion.epochs")


def assign(config: FedMHOConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Classifiers for client 0 to num_classifiers - 1, generators for the rest.

    Raises:
        UserError: a role without a client, too few classifiers for the rule that aggregates them or
            for their weights as teachers, a model that cannot take these images, or too few
            synthetic samples for one of each class.
    """
    strong = num_clients // 2 if config.num_classifiers is None else config.num_classifiers
    if not 0 < strong < num_clients:
        raise UserError(
            "FedMHO needs at least one classifier client and one generator client, "
            f"got {strong} classifiers among {num_clients} clients"
        )
    if config.teacher_weights == "agreement" and strong < 3:
        raise UserError(f"teacher_weights agreement needs three classifier clients, got {strong}")
    own = dealt(config.classifier, config.prototypes, strong, "prototypes", "classifier clients")
    classes = run_spec.num_classes
    if config.num_samples < classes:
        raise UserError(
            f"num_samples must be at least the {classes} classes, got {config.num_samples}"
        )
    classifiers = [Assignment("classifier", training) for training in own]
    assignments = classifiers + [Assignment("generator", config.generator)] * (num_clients - strong)
    for assignment in dict.fromkeys(assignments):
        assignment.training.check(run_spec)
    if config.start == "average":
        config.check_clients(classifiers.count(classifiers[0]))
    return assignments


def run(clients: Clients, server: Server, config: FedMHOConfig, *, teacher: Teacher) -> Outcome:
    """Algorithm 1. ``teacher``: none (FedMHO), models (-MD, Eq. 5) or start (-SD, Eq. 6)."""
    early = None
    if config.allocation == "label-share" and config.decoders == "weak":
        latent = config.generator.latent
        early = by_label_share(clients, server, total=config.num_samples, latent=latent)
    classifiers, generators = train_both(clients, config, early)  # lines 3 to 7, the one round

    with server.events.phase("synthesis"):
        allocation = allocate(generators, server, config)
        synthetic = synthesise(generators, allocation, server, config)  # lines 10 to 12
    with server.events.phase("filter"):
        kept = keep_best(synthetic, server, config)  # line 13, Algorithm 2
        optimised = server.take(synthetic, kept)
    figures: JsonObject = {"synthetic": {"generated": len(synthetic), "kept": len(kept)}}
    figures |= extra_of(classifiers, generators)
    columns: dict[str, Tensor] = {}
    with server.events.phase("fusion"):
        model = initialise(classifiers, optimised, clients, server, config)  # line 9, Eq. 4
        classifiers = [u for u in classifiers if u.client.id not in clients.dropped]
        start = server.evaluate(model)
        if teacher == "models":
            teachers = (load_classifier(u, server) for u in classifiers)
            optimised = server.teach(optimised, teachers, config.teacher_weights)
        elif teacher == "start":
            optimised = server.teach(optimised, [model])
        if teacher != "none":
            columns["teacher_logits"] = server.fetch(optimised, "teacher_logits")
            labels = server.fetch(optimised, "labels")
            figures["teacher"] = describe_teacher(columns["teacher_logits"], labels)
        loss = config.loss(teacher)
        trained = Weighing(model) if isinstance(loss, LearnedFusionLoss) else model
        result = server.fit(  # lines 15 to 17, Eq. 7
            trained, optimised, loss=loss, config=config.fusion, stage="fusion"
        )
        if isinstance(trained, Weighing):
            figures["betas"] = trained.betas
    return Outcome(
        model=model,
        start=start,
        epochs=result.epochs,
        synthetic={**server.pictures(synthetic, kept), **columns},
        figures=figures,
    )


def train_both(
    clients: Clients, config: FedMHOConfig, each: Callable[[Update], object] | None = None
) -> tuple[list[Update], list[Update]]:
    """The round: what classifier clients uploaded, and all decoders, each as a generator client's.

    ``each`` is called with each update of the clients' own training as it comes.
    """
    updates = clients.train(each=each)
    classifiers = [u for u in updates if u.client.role == "classifier"]
    generators = [u for u in updates if u.client.role == "generator"]
    if config.decoders == "all":
        strong = [update.client.id for update in classifiers]
        further = clients.train(config.generator, only=strong)
        classifiers = [u for u in classifiers if u.client.id not in clients.dropped]
        for update in further:
            as_weak = replace(update.client, role="generator", training=config.generator)
            generators.append(replace(update, client=as_weak))
    return classifiers, sorted(generators, key=lambda update: update.client.id)


def extra_of(classifiers: Sequence[Update], generators: Sequence[Update]) -> JsonObject:
    """What the decoders of classifier clients cost: bytes up, and seconds of training of all such
    clients together. Nothing where they train none."""
    strong = {update.client.id for update in classifiers}
    both = [update for update in generators if update.client.id in strong]
    if not both:
        return {}
    extra = sum(num_bytes(dict(update.tensors)) for update in both)
    seconds = sum(update.seconds for update in both)
    return {"extra_decoders": {"clients": len(both), "bytes_up": extra, "seconds": seconds}}


def allocate(generators: list[Update], server: Server, config: FedMHOConfig) -> np.ndarray:
    """Samples per generator client and class, (K_G, classes), from the uploaded label counts."""
    counts = label_counts_of(generators)
    rule = squared_counts if config.allocation == "squared-counts" else label_share
    allocation = rule(counts, config.num_samples)
    if not allocation.any():
        raise UserError(f"num_samples {config.num_samples} is too few: each decoder gets none")
    return allocation


def synthesise(
    generators: list[Update],
    allocation: np.ndarray,
    server: Server,
    config: FedMHOConfig,
    change: Callable[[Decoder], Decoder] = lambda decoder: decoder,
    stream: str = "synthesis",
) -> Samples:
    """Samples every decoder as often as the allocation states.

    ``change``: what is made of each before it draws; ``stream`` names the random numbers.
    """
    decoders = decoders_of(generators, server, change)
    latent = decoders[generators[0].client.id].latent
    synthetic = server.sample(decoders, allocation, latent=latent, stream=stream)
    if config.pixels == "uint8":
        return server.apply(synthetic, "images", truncate_to_bytes)
    return synthetic


def keep_best(synthetic: Samples, server: Server, config: FedMHOConfig) -> Tensor:
    """Indices of the samples that the filter keeps (Algorithm 2), ascending."""
    if config.filter == "none":
        return torch.arange(len(synthetic))
    if config.filter == "nearest":
        return server.nearest(synthetic, config.keep)
    # Random features have random distances, which keep a random share of each class.
    stream = torch_generator(server.run_spec.seed, "filter/random")
    features = torch.rand(len(synthetic), 1, generator=stream)
    labels = server.fetch(synthetic, "labels").cpu()
    return nearest_to_centroid(features, labels, server.run_spec.num_classes, config.keep).indices


def initialise(
    classifiers: list[Update],
    optimised: Samples,
    clients: Clients,
    server: Server,
    config: FedMHOConfig,
) -> nn.Module:
    """w_0: Eq. 4, or with several architectures an ensemble distillation into the first one."""
    training = clients.members[0].training  # whoever is dropped
    own = [update for update in classifiers if update.client.training == training]
    model = untrained_classifier(training, server)
    if config.start == "random":
        return model
    refuse_without(training, clients)
    combine_classifiers(model, own, clients, server, config)
    if len(own) < len(classifiers) and config.mixed_init == "distillation":
        teachers = (load_classifier(u, server) for u in classifiers)
        taught = server.teach(optimised.only("images"), teachers, config.teacher_weights)
        distil = FusionLoss(ce_weight=0.0, kd_weight=1.0)
        server.fit(model, taught, loss=distil, config=config.distil_init, stage="distil-init")
    return model.eval()


def _method(name: str, teacher: Teacher) -> Method:
    return Method(
        name=name,
        config=FedMHOConfig,
        assign=assign,
        run=partial(run, teacher=teacher),
        supports_dp=lambda settings: settings.decoders == "weak",
        spaces=spaces(teacher),
    )


METHODS = (
    _method("fedmho", "none"),
    _method("fedmho-md", "models"),
    _method("fedmho-sd", "start"),
)
