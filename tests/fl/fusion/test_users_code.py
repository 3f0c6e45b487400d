"""Models and losses of users': several ranks train them as one does, or each on whole batches."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.events import Events
from fl.federation import Batch
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.fusion.group import Group
from fl.fusion.server import Server, SingleServer
from fl.fusion.whole_batch import keeps_rows_apart
from fl.server import FitResult, Loss
from fl.training.captured import Replayed
from tests.fl.fusion.networks import CLASSES, LOSS, data, vgg9
from tests.fl.fusion.threads import ThreadServer, on_ranks
from tests.fl.methods.tiny import tiny_data, whole
from tests.fl.toy import CPU, PROBLEM, same_bits

RUN = replace(PROBLEM, num_classes=CLASSES)
TEST = whole(tiny_data(train=10, test=20).test)
CONFIG = FitConfig(epochs=2, lr=0.05, batch_size=12, optimizer="sgd")


class Own(nn.Module):
    """A user's model: a hidden layer, and what is done with it."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(784, 6), middle, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x.view(x.size(0), -1))))


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-5)


class Tripled(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Folded(nn.Module):
    """Its BatchNorm meets other rows than the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.view(-1, 3)).view(len(x), 6)


class Ghost(nn.Module):
    """Normalises groups of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(group) for group in x.split(6)])


class InPairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([group - group.mean(0) for group in x.split(2)])


class OnOneMap(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.view(len(x), 1, 2, 3)).view(len(x), 6)


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class Sequence(nn.Module):
    """Torch's default layout: its dropout's rows are no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.unsqueeze(0)).squeeze(0)


APART: dict[str, Callable[[], nn.Module]] = {
    "plain": nn.ReLU,
    "dropout": lambda: nn.Dropout(0.5),
    "batch norm": lambda: nn.BatchNorm1d(6),
}
MIXED: dict[str, Callable[[], nn.Module]] = {
    "normalised by hand": ByHand,
    "a batch norm of its own": lambda: Tripled(6),
    "batch norm of other rows": Folded,
    "batch norm of groups": Ghost,
    "pairs": InPairs,
    "statistics of instances": lambda: OnOneMap(nn.InstanceNorm2d(1, track_running_stats=True)),
    "dropout of channels": lambda: OnOneMap(nn.Dropout2d(0.5)),
    "dropout by a function": Dropping,
    "dropout of other rows": Sequence,
}


def own(middle: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return Own(middle())


def ranks(size: int) -> Server:
    if size == 1:
        return SingleServer(RUN, TEST, Events(), CPU)
    return ThreadServer(RUN, TEST, Events(), size)


def fitted(
    server: Server, model: nn.Module, loss: Loss = LOSS, config: FitConfig = CONFIG
) -> tuple[dict[str, Tensor], FitResult]:
    result = server.fit(model, data(torch.float32), loss=loss, config=config, stage="fusion")
    return model.state_dict(), result


@pytest.mark.parametrize("name", [*APART, *MIXED])
def test_a_model_that_does_more_in_training_than_answer_by_row_is_told_apart(name: str) -> None:
    model = own({**APART, **MIXED}[name])
    before, stream = model.state_dict(), torch.get_rng_state()
    kept = {n: t.clone() for n, t in before.items()}
    assert keeps_rows_apart(model, data(torch.float32)["images"][:12]) == (name in APART)
    assert same_bits(model.state_dict(), kept)
    assert torch.equal(torch.get_rng_state(), stream)


class Pair(Group):
    """A rank of two, whose peer has what it has."""

    size = 2

    def sum(self, tensor: Tensor) -> None:
        tensor.mul_(2)


def of_rank(model: nn.Module, loss: Loss, group: Group) -> tuple[dict[str, Tensor], Fit]:
    spec = FitSpec(model=model, columns={}, loss=loss, config=CONFIG, stage="", streams="")
    fit = Fit(spec, data(torch.float32), seed=0, group=group)
    list(fit.epochs())
    return model.state_dict(), fit


@pytest.mark.parametrize("name", MIXED)
def test_each_of_several_ranks_trains_such_a_model_to_the_bits_of_one(name: str) -> None:
    one, alone = of_rank(own(MIXED[name]), LOSS, Group())
    two, fit = of_rank(own(MIXED[name]), LOSS, Pair())
    assert same_bits(one, two)
    assert alone.undivided is None
    assert fit.undivided == "Own mixes a batch's rows, draws numbers or counts in training"


def test_the_user_is_told_that_several_ranks_gain_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fitted(ranks(2), own(ByHand))
    (record,) = caplog.records
    assert "fusion: Own mixes a batch's rows" in record.getMessage()


@pytest.mark.parametrize("name", APART)
def test_several_ranks_share_a_batch_of_other_models(name: str) -> None:
    one, alone = fitted(ranks(1), own(APART[name]))
    two, together = fitted(ranks(2), own(APART[name]))
    assert together.step_losses == pytest.approx(alone.step_losses, rel=1e-4)
    for key, tensor in one.items():
        torch.testing.assert_close(two[key], tensor, rtol=1e-3, atol=1e-4)


def test_a_batch_smaller_than_the_ranks_gives_none_of_them_no_rows() -> None:
    """`view(size(0), -1)` fails on none."""
    config = replace(CONFIG, batch_size=27)  # leaves two of 29
    one, _ = fitted(ranks(1), own(APART["batch norm"]), config=config)
    three, _ = fitted(ranks(3), own(APART["batch norm"]), config=config)
    for key, tensor in one.items():
        torch.testing.assert_close(three[key], tensor, rtol=1e-3, atol=1e-4)


def test_a_forward_that_somebody_replaced_stays() -> None:
    models = [own(APART["batch norm"]) for _ in range(2)]
    for model in models:
        model.forward = partial(model.forward)  # type: ignore[method-assign]
    on_ranks(2, lambda group: of_rank(models[group.rank], LOSS, group))
    assert all("forward" in vars(model) for model in models)


def weighted(model: nn.Module, batch: Batch) -> Tensor:
    """No mean over rows."""
    weight = torch.arange(1.0, CLASSES + 1)
    return F.cross_entropy(model(batch["images"]), batch["labels"], weight)


def mixing(model: nn.Module, batch: Batch) -> Tensor:
    """Mixup, inside the loss."""
    images, labels = batch["images"], batch["labels"]
    answer = model((images + images.flip(0)) / 2)
    return (F.cross_entropy(answer, labels) + F.cross_entropy(answer, labels.flip(0))) / 2


@pytest.mark.parametrize("loss", [weighted, mixing])
@pytest.mark.parametrize("name", ["plain", "batch norm"])
def test_a_loss_that_does_not_say_what_it_is_gets_whole_batches(loss: Loss, name: str) -> None:
    one, _ = of_rank(own(APART[name]), loss, Group())
    two, fit = of_rank(own(APART[name]), loss, Pair())
    assert same_bits(one, two)
    assert str(fit.undivided).startswith("its loss has no attribute whole_batch")


def test_what_a_model_draws_follows_from_seed_and_step(tmp_path: Path) -> None:
    """Also where a fit goes on from its state."""
    straight, told = fitted(ranks(1), own(Dropping))
    torch.manual_seed(9)
    model = Own(Dropping())
    model.load_state_dict(own(Dropping).state_dict())
    stream = torch.get_rng_state()
    assert fitted(ranks(1), model)[1] == told
    assert torch.equal(torch.get_rng_state(), stream)

    def stopped(model: nn.Module, batch: Batch) -> Tensor:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return LOSS(model, batch)

    def going_on() -> Server:
        return SingleServer(RUN, TEST, Events(), CPU, Checkpoints(tmp_path, every=0))

    calls = itertools.count()
    stopped.whole_batch = False  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        fitted(going_on(), own(Dropping), stopped)
    calls = itertools.count(5)
    state, again = fitted(going_on(), own(Dropping), stopped)
    assert again == told
    assert same_bits(state, straight)


@pytest.mark.parametrize(("make", "captures"), [(vgg9, 1), (lambda: own(APART["plain"]), 0)])
def test_a_gpu_replays_no_step_of_a_users_model(
    make: Callable[[], nn.Module], captures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may do in one step what it does not do in another."""
    captured = list[Replayed]()

    def capture(step: Replayed, work: Callable[[], None]) -> None:
        captured.append(step)
        step._eager = -1

    monkeypatch.setattr("fl.training.captured.can_capture", lambda device: True)
    monkeypatch.setattr(Replayed, "_capture", capture)
    fitted(ranks(1), make(), config=replace(CONFIG, epochs=16))
    assert len(captured) == captures


def test_a_loss_of_one_element_trains_as_a_scalar_does() -> None:
    def of_one_element(model: nn.Module, batch: Batch) -> Tensor:
        return weighted(model, batch).view(1)

    scalar, _ = of_rank(own(APART["plain"]), weighted, Group())
    vector, _ = of_rank(own(APART["plain"]), of_one_element, Group())
    assert same_bits(scalar, vector)


def test_columns_of_other_lengths_are_refused() -> None:
    columns = {"images": torch.zeros(20, 1, 28, 28), "labels": torch.zeros(65)}
    with pytest.raises(
        ValueError, match=r"a row for each sample, got \{'images': 20, 'labels': 65\}"
    ):
        ranks(1).place(columns)
