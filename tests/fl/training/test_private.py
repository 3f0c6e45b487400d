"""DP-SGD: its budget, what is clipped, what noise is added, and what leaves the client."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.exchange import prefixed
from fl.federation import TaskInput
from fl.models.registry import MODELS, register_model
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig
from fl.training.private import (
    DpConfig,
    PrivateClassifier,
    PrivateGenerator,
    Sampling,
    clipped_sums,
    noise_for,
    poisson_batches,
    private,
    train_privately,
)
from fl.training.recipe import Recipe
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, VGG, same_bits, shard, task_input

pytest.importorskip("opacus")
DP = DpConfig(epsilon=4.0, noise_from_seed=True)


@pytest.fixture(autouse=True)
def _quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opacus' takes seconds; this one is about right."""

    def noise(epsilon: float, delta: float, sampling: Sampling) -> tuple[float, float]:
        return 16 * sampling.rate * sampling.steps**0.5 / epsilon, 0.99 * epsilon

    monkeypatch.setattr("fl.training.private.noise_for", noise)


def record(training: object = CLASSIFIER, rounds: int = 1, **dp: object) -> PrivateClassifier:
    made = private(training, replace(DP, **dp), rounds, PROBLEM)  # type: ignore[arg-type]
    assert isinstance(made, PrivateClassifier | PrivateGenerator)
    return made  # type: ignore[return-value]


def inputs(training: PrivateClassifier, *counts: int) -> TaskInput:
    data = shard(*(counts or (7, 5, 8)))
    return task_input(training.for_samples(len(data)), data)


def one_by_one(own: Recipe, batch: dict[str, Tensor], clip: float) -> list[Tensor]:
    """The same by plain autograd, a sample at a time."""
    sums = [torch.zeros_like(p) for p in own.parameters]
    for row in range(len(batch["labels"])):
        loss = own.losses(own.model, {n: c[row : row + 1] for n, c in batch.items()}).sum()
        gradients = torch.autograd.grad(loss, own.parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient * min(1.0, clip / float(norm))
    return sums


@pytest.mark.parametrize("training", [CLASSIFIER, GENERATOR], ids=["classifier", "generator"])
def test_every_samples_gradient_is_clipped_by_itself(
    training: ClassifierConfig | GeneratorConfig,
) -> None:
    private_record = record(training)
    data = inputs(private_record, 20, 10, 15)
    own, batch = training.recipe(data), next(poisson_batches(data, private_record))
    batch = {n: torch.cat([c] * 8)[:40] for n, c in batch.items()}  # more than at once
    for clip in (0.1, 1e6):
        for ours, plain in zip(
            clipped_sums(own, batch, clip), one_by_one(own, batch, clip), strict=True
        ):
            torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)


def test_an_empty_batch_has_no_gradient() -> None:
    data = inputs(record())
    empty = {"images": torch.empty(0, 1, 28, 28), "labels": torch.empty(0, dtype=torch.long)}
    assert not any(total.any() for total in clipped_sums(CLASSIFIER.recipe(data), empty, 1.0))


def test_a_client_with_less_than_a_batch_is_all_in_each_step() -> None:
    training = record()
    few = poisson_batches(inputs(training, 2, 1, 1), training)
    assert [len(batch["labels"]) for batch in few] == [4, 4]


@pytest.mark.parametrize("from_seed", [True, False], ids=["seeded", "secret"])
def test_noise_has_the_accountants_deviation_and_batches_its_rate(from_seed: bool) -> None:
    """With a clip that leaves nothing of the gradients, what moves the weights is noise alone."""
    settings = replace(CLASSIFIER, epochs=60, batch_size=20, lr=1.0, momentum=0)
    data = inputs(record(settings, clip=1e-2, noise_from_seed=from_seed), 20, 10, 20)
    own = data.client.training
    assert isinstance(own, PrivateClassifier)
    sizes = [len(batch["labels"]) for batch in poisson_batches(data, own)]
    assert len(sizes) == 60 * 3
    assert len(set(sizes)) > 5
    assert sum(sizes) / len(sizes) == pytest.approx(20, abs=1.5)
    before, after = CLASSIFIER.recipe(data).model.state_dict(), train_privately(data).tensors
    moved = torch.cat([(after[f"classifier.{n}"] - w).flatten() for n, w in before.items()])
    deviation = float(own.noise or 0) * 1e-2 / 20 * len(sizes) ** 0.5
    assert float(moved.std()) == pytest.approx(deviation, rel=0.2)


def test_neither_losses_nor_their_mean_leave_the_client() -> None:
    output = train_privately(inputs(record()))
    assert output.losses == []
    assert output.stats.keys() == {"epochs", "epsilon", "delta", "noise_multiplier"}
    assert 3.9 < output.stats["epsilon"] <= 4.0


@pytest.mark.parametrize("training", [CLASSIFIER, VGG, GENERATOR], ids=lambda t: t.model)
def test_noise_is_secret_unless_it_is_asked_for_from_the_seed(training: object) -> None:
    data = inputs(record(training))
    assert same_bits(train_privately(data).tensors, train_privately(data).tensors)
    assert not DpConfig(epsilon=4.0).noise_from_seed
    data = inputs(record(training, noise_from_seed=False))
    assert not same_bits(train_privately(data).tensors, train_privately(data).tensors)


def test_secret_numbers_come_whole_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by way of a seed, which could be tried: as many bytes as there are numbers."""
    asked: list[int] = []

    def bytes_of(count: int) -> bytes:
        asked.append(count)
        return b"\xff" * count

    monkeypatch.setattr("fl.training.private.os.urandom", bytes_of)
    data = inputs(record(noise_from_seed=False))
    train_privately(data)
    weights = sum(t.numel() for t in starting_classifier(CLASSIFIER, PROBLEM).parameters())
    steps = len(asked) // (1 + len([*starting_classifier(CLASSIFIER, PROBLEM).parameters()]))
    assert sum(asked) == 8 * steps * (weights + len(data.shard))


def test_the_upload_is_one_that_the_server_expects() -> None:
    for training in (CLASSIFIER, GENERATOR):
        plain = task_input(training, shard(7, 5, 8))
        uploaded = train_privately(inputs(record(training))).tensors
        assert uploaded.keys() == training.task(plain).tensors.keys()


def test_with_much_budget_the_classes_are_learned() -> None:
    training = record(replace(CLASSIFIER, epochs=10, lr=0.1), epsilon=1000.0)
    data = inputs(training, 20, 20, 20)
    model = CLASSIFIER.recipe(data).model
    uploaded = train_privately(data).tensors
    model.load_state_dict({n.removeprefix("classifier."): t for n, t in uploaded.items()})
    right = model.eval()(data.shard.images).argmax(1) == data.shard.labels
    assert float(right.float().mean()) > 0.9


def test_more_rounds_share_one_budget() -> None:
    once, often = (record(rounds=n).for_samples(50) for n in (1, 5))
    assert (often.noise or 0) > (once.noise or 0)
    assert (often.spent or 9) <= 4.0


def test_the_noise_is_in_the_stores_key_and_makes_no_other_prototype() -> None:
    small, large = record().for_samples(20), record().for_samples(200)
    assert small == large == record()
    assert hash(small) == hash(large)
    assert asdict(small)["noise"] != asdict(large)["noise"]


class Other(ClassifierConfig):
    """A method's own record."""


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (replace(CLASSIFIER, patience=2), "excludes patience and validation"),
        (replace(CLASSIFIER, model="convnet"), "cannot train convnet: its .* is a BatchNorm2d"),
        (Other(model="cnn"), "cannot train clients by Other"),
    ],
)
def test_what_would_leak_is_refused(training: ClassifierConfig, said: str) -> None:
    with pytest.raises(UserError, match=said):
        private(training, DP, 1, PROBLEM)


class Frozen(nn.Module):
    """A backbone that is not trained, and a head that is."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.Tanh())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(6, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))


def test_what_is_frozen_is_neither_noised_nor_trained(request: pytest.FixtureRequest) -> None:
    register_model("frozen", Frozen)
    request.addfinalizer(lambda: MODELS.pop("frozen"))
    training = record(replace(CLASSIFIER, model="frozen"))
    data = inputs(training)
    start = prefixed("classifier", starting_classifier(training, PROBLEM))
    sent = train_privately(data).tensors
    moved = {name for name in start if not torch.equal(start[name], sent[name])}
    assert moved == {"classifier.head.weight", "classifier.head.bias"}


class Scaled(Frozen):
    """Has a weight without axes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * super().forward(images)


def test_a_weight_may_be_a_single_number(request: pytest.FixtureRequest) -> None:
    register_model("scaled", Scaled)
    request.addfinalizer(lambda: MODELS.pop("scaled"))
    sent = train_privately(inputs(record(replace(CLASSIFIER, model="scaled")))).tensors
    assert sent["classifier.scale"].shape == ()
    assert sent["classifier.scale"] != 1.0


class Shifted(Frozen):
    """Has a constant, and may count what it sees."""

    counts = False

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("mean", torch.tensor(0.5))

    def forward(self, images: Tensor) -> Tensor:
        if self.counts:
            self.mean = self.mean + 1
        return super().forward(images - self.mean)


def test_a_buffer_may_be_a_constant_and_nothing_else(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_model("shifted", Shifted)
    request.addfinalizer(lambda: MODELS.pop("shifted"))
    data = inputs(record(replace(CLASSIFIER, model="shifted")))
    assert train_privately(data).tensors["classifier.mean"] == 0.5
    monkeypatch.setattr(Shifted, "counts", True)
    with pytest.raises(ValueError, match="a buffer of its model has changed"):
        train_privately(data)


def test_a_sampling_has_the_batches_that_training_would_have() -> None:
    assert Sampling.of(100, 16, 3) == Sampling(0.16, 21)
    assert Sampling.of(5, 16, 3) == Sampling(1.0, 3)


def test_the_budget_is_kept_and_nearly_spent() -> None:
    for epsilon in (0.5, 3.0):
        noise, spent = noise_for(epsilon, 1e-5, Sampling(0.1, 100))
        assert 0.95 * epsilon < spent <= epsilon
        assert noise > 0


def test_less_epsilon_and_more_steps_need_more_noise() -> None:
    few = noise_for(3.0, 1e-5, Sampling(0.1, 100))[0]
    assert noise_for(1.0, 1e-5, Sampling(0.1, 100))[0] > few
    assert noise_for(3.0, 1e-5, Sampling(0.1, 1000))[0] > few
    assert noise_for(3.0, 1e-5, Sampling(0.05, 100))[0] < few


def test_a_budget_that_nothing_keeps_is_one_line() -> None:
    with pytest.raises(UserError, match=r"dp\.epsilon 0\.0001 with delta 1e-05"):
        noise_for(1e-4, 1e-5, Sampling(1.0, 10_000))


@pytest.mark.parametrize("given", [{"delta": 1e-3}, {"clip": 2.0}, {"noise_from_seed": True}])
def test_what_is_set_without_a_budget_is_refused_since_nothing_is_private(
    given: dict[str, float],
) -> None:
    with pytest.raises(UserError, match="epsilon is missing: without it the other settings"):
        DpConfig(**given)  # type: ignore[arg-type]


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl.training.private.find_spec", lambda name: None)
    DpConfig()
    with pytest.raises(UserError, match=r"pip install 'onefold\[dp\]'"):
        DpConfig(epsilon=1.0)
