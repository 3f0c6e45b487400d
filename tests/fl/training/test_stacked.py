"""Many clients as one computation: the same training, whoever is in the cohort."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Training
from fl.training import stacked
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig, train_generator
from fl.training.optimizers import SGD
from fl.training.recipe import Recipe, one_by_one
from fl.training.task import recipe_of, task_of
from tests.fl.toy import CLASSIFIER, CPU, GENERATOR, PROBLEM, VGG, client, same_bits, shard
from tests.fl.training.plain import train_plainly

EMNIST = RunSpec(image_shape=(1, 28, 28), num_classes=12, seed=0)
SVHN = RunSpec(image_shape=(3, 16, 16), num_classes=3, seed=0)
SIZES = (1, 7, 64, 65, 200)
WIDE = {"width": 0.3, "epochs": 3, "batch_size": 64}
STACKABLE = {
    "cvae-mlp": (PROBLEM, GeneratorConfig(latent=4, **WIDE)),
    "cvae-mlp-sum": (PROBLEM, GeneratorConfig(latent=4, loss_reduction="sum", **WIDE)),
    "cvae-whole": (PROBLEM, GeneratorConfig(latent=4, upload="cvae", **WIDE)),
    "cvae-conv": (EMNIST, GeneratorConfig(latent=4, **WIDE)),
    "cvae-color": (SVHN, GeneratorConfig(latent=4, **WIDE)),
    "cnn-sgd": (PROBLEM, ClassifierConfig(model="cnn", lr=0.05, **WIDE)),
    "cnn-plain-sgd": (PROBLEM, ClassifierConfig(model="cnn", momentum=0, **WIDE)),
    "cnn-proximal": (PROBLEM, ClassifierConfig(model="cnn", lr=0.05, proximal=0.3, **WIDE)),
    "cnn-adam": (EMNIST, ClassifierConfig(model="cnn", optimizer="adam", lr=2e-3, **WIDE)),
}


def recipe_for(inputs: TaskInput) -> Recipe:
    recipe = recipe_of(inputs.client.training.task)
    assert recipe is not None
    return recipe(inputs)


def inputs(training: Training, size: int, id: int, run_spec: RunSpec = PROBLEM) -> TaskInput:
    images = torch.rand(size, *run_spec.image_shape, generator=torch.Generator().manual_seed(id))
    data = replace(shard(1, 0, 0), images=images, labels=torch.arange(size) % 3)
    data = replace(data, num_classes=run_spec.num_classes)
    return TaskInput(
        client=client(id, training),
        run_spec=run_spec,
        shard=data,
        device=CPU,
        broadcast={},
        payload={},
    )


def together(cohort: Sequence[TaskInput]) -> list[TaskOutput]:
    return stacked.train([recipe_for(i) for i in cohort])


def assert_close(one: TaskOutput, other: TaskOutput) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(tensor, other.tensors[name], rtol=1e-3, atol=1e-4)
    assert one.stats["train_loss"] == pytest.approx(other.stats["train_loss"], rel=1e-4)


@pytest.mark.parametrize("kind", STACKABLE)
def test_a_cohort_trains_as_its_clients_do_one_by_one(kind: str) -> None:
    """After several epochs, with shards of very different sizes."""
    run_spec, training = STACKABLE[kind]
    cohort = [inputs(training, size, k, run_spec) for k, size in enumerate(SIZES)]
    assert stacked.conflict(recipe_for(cohort[1])) is None
    for ours, own in zip(together(cohort), cohort, strict=True):
        assert_close(ours, train_plainly(own, recipe_for(own)))


def test_each_client_of_a_cohort_stops_when_its_own_loss_no_longer_falls() -> None:
    """At a rate at which losses jump, so that some stop early and at different epochs."""
    training = GeneratorConfig(latent=4, lr=0.05, patience=1, **{**WIDE, "epochs": 12})
    cohort = [inputs(training, size, k) for k, size in enumerate(SIZES)]
    ours, own = together(cohort), [train_plainly(i, recipe_for(i)) for i in cohort]
    stopped = [output.stats["epochs"] for output in own]
    assert len(set(stopped)) > 2
    assert min(stopped) < 12
    assert [output.stats["epochs"] for output in ours] == stopped
    for one, client_input in zip(ours, cohort, strict=True):
        assert same_bits(one.tensors, together([client_input])[0].tensors)
        alone = one_by_one(client_input, recipe_for(client_input))
        assert alone.stats["epochs"] == one.stats["epochs"]


@pytest.mark.parametrize(
    "training",
    [replace(VGG, epochs=3), replace(VGG, epochs=3, optimizer="adam", lr=2e-3), GENERATOR],
    ids=["sgd", "adam", "generator"],
)
def test_one_by_one_is_the_plain_way(training: Training) -> None:
    """With dropout too, whose masks come from the client's own stream."""
    own = inputs(training, 20, 3)
    assert_close(one_by_one(own, recipe_for(own)), train_plainly(own, recipe_for(own)))


@pytest.mark.parametrize("kind", STACKABLE)
def test_company_and_its_number_leave_every_bit_as_it_is(kind: str) -> None:
    run_spec, training = STACKABLE[kind]
    cohort = [inputs(training, size, k, run_spec) for k, size in enumerate(SIZES)]
    everyone = together(cohort)
    backwards = together(cohort[::-1])[::-1]
    for k, own in enumerate(cohort):
        (alone,) = together([own])
        for other in (everyone[k], backwards[k]):
            assert same_bits(alone.tensors, other.tensors)
            assert alone.stats == other.stats


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 21), min_size=1, max_size=6))
def test_any_sizes_make_the_same_bits_as_alone(sizes: list[int]) -> None:
    cohort = [inputs(GENERATOR, size, k) for k, size in enumerate(sizes)]
    for own, ours in zip(cohort, together(cohort), strict=True):
        assert same_bits(together([own])[0].tensors, ours.tensors)


def test_threads_do_not_tell_apart_who_has_company() -> None:
    training = replace(GENERATOR, batch_size=64)
    cohort = [inputs(training, size, k) for k, size in enumerate((7, 65))]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for own, ours in zip(cohort, together(cohort), strict=True):
            assert same_bits(together([own])[0].tensors, ours.tensors)
    finally:
        torch.set_num_threads(before)


def test_global_random_state_is_left_as_it_was() -> None:
    before = torch.random.get_rng_state()
    stacked.conflict(recipe_for(inputs(GENERATOR, 9, 0)))
    together([inputs(GENERATOR, 9, 0), inputs(GENERATOR, 5, 1)])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_is_refused_with_the_layers_name() -> None:
    reason = stacked.conflict(recipe_for(inputs(VGG, 9, 0)))
    assert reason == "classifier.3 is a Dropout, which draws from one stream for all"


class Own(nn.Module):
    """A model written by someone who never heard of cohorts, with weights at every level."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 6, bias=False))
        self.norm = norm
        self.head = Head()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.gelu(self.norm(self.scale(images))) ** 2)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 18).view(6, 3))
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x @ self.weight)


def recipe_with(model: nn.Module, losses: object = None) -> object:
    def recipe(own: TaskInput) -> Recipe:
        trained = replicate(model)

        def epoch() -> Iterator[Batch]:
            for part in torch.arange(len(own.shard)).split(8):
                yield {"x": own.shard.images[part], "y": own.shard.labels[part]}

        return Recipe(
            model=trained,
            losses=losses or cross_entropies,  # type: ignore[arg-type]
            optimizer=SGD(0.05, 0.9),
            epochs=(epoch() for _ in range(3)),
            upload=lambda: dict(trained.state_dict()),
        )

    return recipe


def replicate(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).train()


def cross_entropies(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False)], ids=str
)
def test_a_strangers_model_needs_nothing_written_for_cohorts(norm: nn.Module) -> None:
    """Batch normalisation too: each client's rows have their own statistics."""
    recipe = recipe_with(Own(norm))
    cohort = [inputs(CLASSIFIER, size, k) for k, size in enumerate((10, 2, 34))]
    assert stacked.conflict(recipe(cohort[0])) is None  # type: ignore[operator]
    outputs = stacked.train([recipe(own) for own in cohort])  # type: ignore[operator]
    for ours, own in zip(outputs, cohort, strict=True):
        assert_close(ours, train_plainly(own, recipe(own)))  # type: ignore[operator]


class Mixes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer(images.flatten(1))
        return x - x.mean(0)


class Noisy(Mixes):
    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(self.layer(images.flatten(1)), 0.5, self.training)


@pytest.mark.parametrize("model", [Mixes(), Noisy()], ids=lambda m: type(m).__name__)
def test_samples_that_influence_each_other_are_found_out(model: nn.Module) -> None:
    recipe = recipe_with(model)
    reason = stacked.conflict(recipe(inputs(CLASSIFIER, 9, 0)))  # type: ignore[operator]
    assert reason == "a sample's loss depends on the other samples of its batch"


def test_a_loss_that_is_reduced_already_is_found_out() -> None:
    recipe = recipe_with(Own(nn.Identity()), lambda m, b: cross_entropies(m, b).mean())
    reason = stacked.conflict(recipe(inputs(CLASSIFIER, 9, 0)))  # type: ignore[operator]
    assert reason == "its losses have the shape (), not one for each sample"


def test_a_task_knows_its_recipe_and_travels_by_name() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(train_generator)) is train_generator
    assert recipe_of(lambda own: TaskOutput(tensors={})) is None
    task = task_of(recipe_with(Own(nn.Identity())))  # type: ignore[arg-type]
    assert task(inputs(CLASSIFIER, 9, 0)).stats["train_loss"] > 0
