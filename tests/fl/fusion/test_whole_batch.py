"""BatchNorm and losses over a batch whose rows lie with several ranks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.fusion.group import Group
from fl.fusion.whole_batch import WholeBatch, needs_whole_batch
from fl.models.ensemble import Ensemble
from tests.fl.fusion.networks import KNOWLEDGE, LOSS, convnet, vgg9
from tests.fl.fusion.threads import on_ranks
from tests.fl.toy import same_bits

ROWS = 7


def images() -> Tensor:
    """Far from zero, where a variance of sums of squares would lose its digits."""
    return 100 + torch.rand(ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double()


def seeded(*layers: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(make() for make in layers)).double()


def normed() -> nn.Module:
    """BatchNorm of maps and of vectors."""
    return seeded(
        lambda: nn.Conv2d(1, 3, 3),
        lambda: nn.BatchNorm2d(3),
        nn.Tanh,
        nn.Flatten,
        lambda: nn.Linear(108, 4),
        lambda: nn.BatchNorm1d(4),
        lambda: nn.Linear(4, 2),
    )


def cumulative() -> nn.Module:
    """Running statistics that are plain means; and neither weights nor running statistics."""
    return seeded(
        nn.Flatten,
        lambda: nn.BatchNorm1d(64, momentum=None),
        lambda: nn.Linear(64, 4),
        lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        lambda: nn.Linear(4, 2),
    )


def of_all(x: Tensor) -> Tensor:
    """A loss that is no mean over rows."""
    return (x - x.mean(0)).pow(3).sum().square() + x.logsumexp(0).sum()


def part(model: nn.Module, group: Group) -> Tensor:
    """A rank's two steps on its part of the rows: the last answer, with gradients on the model."""
    cuts = torch.arange(ROWS).tensor_split(group.size)
    first, count = sum(map(len, cuts[: group.rank])), len(cuts[group.rank])
    whole = WholeBatch(model, group)
    with whole.watching():
        for _ in range(2):
            model.zero_grad()
            whole.start_step(first, count, ROWS)
            answer = model(images()[first : first + count])
            (of_all(answer) / group.size).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        group.sum(parameter.grad)
    return answer.detach()


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
@pytest.mark.parametrize("make", [normed, cumulative])
def test_ranks_answer_and_learn_as_one_with_the_whole_batch(
    make: Callable[[], nn.Module], ranks: int
) -> None:
    """Logits, gradients and running statistics; with nine ranks two have no row."""
    plain = make()
    for _ in range(2):
        plain.zero_grad()
        expected = plain(images())
        of_all(expected).backward()
    models = [make() for _ in range(ranks)]
    answers = on_ranks(ranks, lambda group: part(models[group.rank], group))
    for model, answer in zip(models, answers, strict=True):
        torch.testing.assert_close(answer, expected.detach(), rtol=1e-9, atol=1e-9)
        for own, one in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, one.grad, rtol=1e-7, atol=1e-9)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_each_member_of_an_ensemble_answers_with_all_rows() -> None:
    plain = Ensemble([normed(), cumulative()]).double()
    with torch.no_grad():
        expected = [member(images()) for member in plain.members]
    ensembles = [Ensemble([normed(), cumulative()]).double() for _ in range(2)]

    def work(group: Group) -> list[Tensor]:
        rows = slice(0, 4) if group.rank == 0 else slice(4, ROWS)
        model = ensembles[group.rank]
        whole = WholeBatch(model, group)
        with whole.watching(), torch.no_grad():
            whole.start_step(rows.start, rows.stop - rows.start, ROWS)
            return [member(images()[rows]) for member in model.members]

    for found in on_ranks(2, work):
        for answer, one in zip(found, expected, strict=True):
            torch.testing.assert_close(answer, one, rtol=1e-9, atol=1e-9)


def test_in_eval_mode_rows_are_normalised_by_the_running_statistics() -> None:
    model, twin = normed().eval(), normed().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = WholeBatch(model, Group())
    with whole.watching():
        whole.start_step(0, ROWS, ROWS)
        assert torch.equal(model(images()), twin(images()))
    assert same_bits(model.state_dict(), before)


def test_afterwards_the_model_is_a_plain_one() -> None:
    model, twin = normed(), normed()
    whole = WholeBatch(model, Group())
    with whole.watching():
        whole.start_step(0, 3, 3)
    assert torch.equal(model(images()), twin(images()))
    assert same_bits(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize(
    ("model", "given", "rows", "message"),
    [
        (nn.Flatten(), 3, 4, "the loss passed the model 3 rows of 4: .* one rank"),
        (nn.Flatten(0, 2), 4, 4, "BatchNorm met 32 rows of 4"),
        (nn.Flatten(), 1, 1, "and 1 values per channel; it needs a row for each sample, and two"),
    ],
)
def test_rows_of_another_number_are_refused(
    model: nn.Module, given: int, rows: int, message: str
) -> None:
    model = nn.Sequential(model, nn.BatchNorm1d(64)).double()
    whole = WholeBatch(model, Group())
    with whole.watching():
        whole.start_step(0, rows, rows)
        with pytest.raises(ValueError, match=message):
            model(images()[:given])


def test_batches_are_whole_where_the_model_or_the_loss_asks_for_it() -> None:
    assert needs_whole_batch(convnet(), LOSS)
    assert not needs_whole_batch(vgg9(), LOSS)
    assert needs_whole_batch(vgg9(), KNOWLEDGE)
    assert not needs_whole_batch(vgg9(), replace(KNOWLEDGE, weight=0.0))
