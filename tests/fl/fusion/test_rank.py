"""One rank of the server, and the filter over several."""

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.errors import ServerFailed, UserError
from fl.federation import Batch, RunSpec
from fl.fusion import rank
from fl.fusion.fit import FitConfig, FitSpec
from fl.fusion.group import Group
from fl.fusion.rank import Rank, RankParts, Report
from fl.fusion.synthesis import Draw
from fl.training.generator import starting_generator
from kernels import Filtered, nearest_to_centroid
from kernels.exact import rounded, unit_for
from kernels.filter import nearest_of
from tests.fl.fusion.serving import CE, TEST, data, model, server
from tests.fl.fusion.threads import ThreadGroup, on_ranks
from tests.fl.toy import CPU, GENERATOR, PROBLEM, same_bits

CONFIG = FitConfig(epochs=4, lr=0.01, batch_size=16)


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(28 * 28, 3))


def a_rank(test: Shard = TEST, run_spec: RunSpec = PROBLEM, group: Group | None = None) -> Rank:
    return Rank(run_spec, test, CPU, group)


def spec(model: nn.Module, **changes: Any) -> FitSpec:
    """A fit on all of the data, in one block."""
    columns = {name: [column] for name, column in data().items()}
    how = {"config": CONFIG, "stage": "fusion", "streams": "fusion", **changes}
    return FitSpec(model=model, columns=columns, loss=CE, **how)


def halves(test: Shard, index: int) -> Shard:
    rows = slice(0, 7) if index == 0 else slice(7, None)
    return replace(test, samples=test.images[rows], labels=test.labels[rows])


def test_teachers_and_functions_see_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return rows.neg()

    images, teacher = data()["images"], linear()
    whole = a_rank().ask(teacher, images, None, "fp32")
    monkeypatch.setattr(rank, "ASKED", 13)
    torch.testing.assert_close(a_rank().ask(teacher, images, None, "fp32"), whole)
    assert torch.equal(a_rank().apply(counted, images), -images)
    assert seen == [13, 13, 4]


def test_a_teachers_answer_is_added_to_those_before() -> None:
    images, one, other = data()["images"], linear(1), linear(2)
    first = a_rank().ask(one, images, None, "fp32")
    both = a_rank().ask(other, images, first, "fp32")
    torch.testing.assert_close(both, first + a_rank().ask(other, images, None, "fp32"))
    torch.testing.assert_close(first, one.eval()(images).detach())
    assert not both.requires_grad


def test_right_answers_are_counted_by_domain_and_class() -> None:
    class Shade(nn.Module):
        """Sees a class in an image's only shade."""

        def forward(self, images: Tensor) -> Tensor:
            return torch.eye(3)[images.flatten(1)[:, 0].round().long()]

    answers, labels = torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([0, 1, 2, 1, 1, 2])
    domains = torch.tensor([0, 0, 0, 0, 1, 1])
    images = answers.float().view(6, 1, 1, 1).expand(6, 1, 28, 28)
    two = replace(PROBLEM, domains=("photo", "sketch"))
    counted = a_rank(Shard(images, labels, 3, domains), two).count_hits(Shade(), "fp32")
    assert counted.tolist() == [1, 1, 1, 0, 1, 0]
    assert a_rank(Shard(images, labels, 3)).count_hits(Shade(), "fp32").tolist() == [1, 2, 1]
    taken = a_rank(Shard(images, labels, 3, domains), two).count_confusion(Shade(), "fp32")
    assert taken.tolist() == [[1, 0, 0], [0, 2, 1], [1, 0, 1]]


def test_a_digest_tells_columns_apart_by_their_values() -> None:
    images = data()["images"]
    changed = images.clone()
    changed[3, 0, 5, 5] += 1e-6
    first = a_rank().digest(images, data()["labels"])
    assert a_rank().digest(images.clone(), data()["labels"]) == first
    assert a_rank().digest(changed, data()["labels"]) != first


def test_samples_do_not_depend_on_the_processs_threads_which_stay_as_they_were() -> None:
    decoder = starting_generator(GENERATOR, PROBLEM).decoder
    draws = [Draw(client=4, labels=torch.arange(60) % 3, start=0, total=60)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(a_rank().sample({4: decoder}, draws, GENERATOR.latent, "synthesis", {}))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    images, labels, z = found[0]
    assert (images.shape, z.shape) == ((60, 1, 28, 28), (60, GENERATOR.latent))
    assert torch.equal(labels, draws[0].labels)


@pytest.mark.parametrize(
    ("changes", "tested"),
    [({}, [1, 2, 3, 4]), ({"test_every": 3}, [3, 4]), ({"test_every": 9}, [4])],
)
def test_every_so_many_epochs_the_model_is_tested_and_after_the_last(
    changes: dict[str, int], tested: list[int]
) -> None:
    config = replace(CONFIG, **changes)
    reports = list(a_rank().fit(spec(linear(), config=config)))
    assert [report.epoch for report in reports] == [1, 2, 3, 4]
    assert [report.epoch for report in reports if report.hits is not None] == tested
    assert all(len(report.losses) == 2 for report in reports)


@pytest.mark.parametrize("tested", [True, False])
def test_a_fit_that_diverges_ends_with_its_stage(tested: bool) -> None:
    deep = nn.Sequential(nn.Flatten(), *[nn.LazyLinear(n) for n in (8, 8, 8, 8, 8, 3)])
    deep(TEST.images)
    fit = spec(deep, config=replace(CONFIG, lr=1e9), stage="distil-init", tested=tested)
    with pytest.raises(
        ServerFailed, match=r"^distil-init: .* diverged: the loss of epoch \d is NaN"
    ):
        list(a_rank().fit(fit))


def test_a_model_that_answers_nan_has_no_accuracy() -> None:
    model = linear()
    with torch.no_grad():
        model[2].bias[1] = torch.nan  # type: ignore[index]
    for test in (Rank.count_hits, Rank.count_confusion):
        with pytest.raises(
            ServerFailed, match=rf"answers NaN for {len(TEST)} of {len(TEST)} samples"
        ):
            test(a_rank(), model, "fp32")


def test_what_is_no_classifier_is_never_tested() -> None:
    reports = a_rank().fit(spec(linear(), tested=False))
    assert [report.hits for report in reports] == [None] * 4


@pytest.mark.parametrize(
    ("every", "kept"), [(None, []), (0, [1, 2, 3, 4]), (2.5, [3, 4]), (60, [4])]
)
def test_a_state_is_told_as_often_as_asked_and_after_the_last_epoch(
    every: float | None, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the seconds since the one before; an epoch takes one here."""
    monkeypatch.setattr(rank, "monotonic", partial(next, itertools.count()))
    reports = a_rank().fit(spec(linear(), state_every=every))
    assert [report.epoch for report in reports if report.state] == kept


def test_a_fit_that_stops_in_between_goes_on_to_the_same_bits() -> None:
    whole, parts = linear(), linear()
    expected = list(a_rank().fit(spec(whole)))
    first = list(a_rank().fit(spec(parts, until=3, state_every=99)))
    assert [report.epoch for report in first if report.state] == [3]  # the last for now
    rest = list(a_rank().fit(spec(parts, state=first[-1].state)))
    assert [report.epoch for report in (*first, *rest)] == [1, 2, 3, 4]
    assert [report.losses for report in (*first, *rest)] == [r.losses for r in expected]
    assert same_bits(parts.state_dict(), whole.state_dict())


def test_ranks_test_a_part_of_the_split_each_and_one_of_them_keeps_the_state() -> None:
    (alone,) = on_ranks(1, lambda group: list(a_rank(group=group).fit(spec(linear()))))
    models = [linear(), linear()]

    def work(group: Group) -> list[Report]:
        own = a_rank(halves(TEST, group.rank), group=group)
        return list(own.fit(spec(models[group.rank], state_every=0)))

    first, second = on_ranks(2, work)
    assert [report.hits for report in first] == [report.hits for report in alone]
    assert [report.hits for report in second] == [report.hits for report in alone]
    for one, other, whole in zip(first, second, alone, strict=True):
        assert one.losses == other.losses == pytest.approx(whole.losses, rel=1e-5)
    assert [report.epoch for report in first if report.state] == [1, 2, 3, 4]
    assert not any(report.state for report in second)
    assert same_bits(models[0].state_dict(), models[1].state_dict())


PIXEL = unit_for(1.0)


def over_ranks(
    images: Tensor, labels: Tensor, cuts: list[int], keep: float, step: float | None
) -> tuple[list[Filtered], list[int]]:
    """What each rank finds, and how many values the first one exchanged, call by call."""
    blocks = list(zip(images.tensor_split(cuts), labels.tensor_split(cuts), strict=True))
    exchanged: list[int] = []

    class Counted(Group):
        def __init__(self, group: ThreadGroup) -> None:
            self.rank, self.size, self._group = group.rank, group.size, group

        def sum(self, tensor: Tensor) -> None:
            if self.rank == 0:
                exchanged.append(tensor.numel())
            self._group.sum(tensor)

    def work(group: ThreadGroup) -> Filtered:
        own, first = blocks[group.rank], sum(len(b[1]) for b in blocks[: group.rank])
        where = {"first": first, "total": len(labels)}
        parts = RankParts(*own, 3, device=CPU, group=Counted(group), **where)
        return nearest_of(parts, keep, step)

    return on_ranks(len(blocks), work), exchanged


def draw(count: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(count)
    labels = torch.randint(3, (count,), generator=stream)
    return rounded(torch.rand(count, 50, generator=stream), PIXEL), labels


@pytest.mark.parametrize("cuts", [[20], [0, 7, 7, 50], [60]])
@pytest.mark.parametrize("step", [None, PIXEL])
def test_every_rank_finds_what_one_finds(cuts: list[int], step: float | None) -> None:
    images, labels = draw(60)
    expected = nearest_to_centroid(images, labels, 3, 0.7, backend="reference")
    for found in over_ranks(images, labels, cuts, 0.7, step)[0]:
        assert torch.equal(found.indices, expected.indices)
        assert torch.equal(found.centroids, expected.centroids)


def test_ties_are_decided_among_all_ranks_samples() -> None:
    """All samples are equal: of each class the first half stays, on whichever rank it is."""
    images, labels = draw(1)[0].expand(60, -1), torch.arange(60) % 3
    found, exchanged = over_ranks(images, labels, [13, 45], 0.5, PIXEL)
    assert all(f.indices.tolist() == list(range(30)) for f in found)
    assert exchanged == [60, 3 * (50 + 1), 60, 60]  # labels, sums, distances, exact distances


def test_near_ties_are_decided_among_all_ranks_samples() -> None:
    """Samples around one centre, as far as each other but for the last bits."""
    stream = torch.Generator().manual_seed(0)
    half = torch.randn(50, 7, generator=stream, dtype=torch.float64)
    half = (half / half.norm(dim=1, keepdim=True)).float()
    images, labels = torch.cat((half, -half)), torch.zeros(100, dtype=torch.int64)
    expected = nearest_to_centroid(images, labels, 3, 0.5, backend="reference").indices
    found, exchanged = over_ranks(images, labels, [10, 10, 63], 0.5, None)
    assert all(torch.equal(f.indices, expected) for f in found)
    assert exchanged[-1] > 20  # exact distances


def test_no_samples_are_exchanged() -> None:
    _, exchanged = over_ranks(*draw(60), [20], 0.7, PIXEL)
    assert exchanged == [60, 3 * (50 + 1), 60]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_value_that_is_none_ends_all_ranks(rank: int) -> None:
    images, labels = draw(60)
    images[40 * rank, 3] = torch.nan
    with pytest.raises(ValueError, match=r"sample \d+ has NaN or infinite values"):
        over_ranks(images, labels, [20], 0.7, None)


class OneLesson:
    """The same data in each epoch."""

    def __init__(self, own: Batch) -> None:
        self.memory: dict[str, Tensor] = {}
        self._own = own

    def epoch(self, number: int) -> Batch:
        return self._own

    def digest(self) -> str:
        return ""


@pytest.mark.parametrize("label", [-100, -1, 3])
@pytest.mark.parametrize("form", [dict, OneLesson])
def test_a_label_that_is_no_class_is_refused_by_name(label: int, form: Any) -> None:
    """Cross-entropy leaves -100 out; the kernels' on a GPU would read another row."""
    own = data()
    own["labels"][4] = label
    with pytest.raises(UserError, match=f"^fusion: label {label}; allowed: 0 to 2$"):
        server().fit(model(), form(own), loss=CE, config=CONFIG, stage="fusion")
