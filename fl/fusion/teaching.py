"""Asks teachers on the server's ranks, one teacher after the other."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from fl.fusion.distillation import TeacherWeights
from fl.fusion.fit import Inference
from fl.fusion.rank import Rank

Block = Any
"""A rank's rows, or a reference to them."""
OnEach = Callable[[Callable[..., Tensor], list[Any]], list[Block]]
"""Calls a rank's method on every rank, each with its own arguments; gives their results."""


def taught_logits(
    teachers: Iterable[nn.Module],
    images: Sequence[Block],
    weights: TeacherWeights,
    on_each: OnEach,
    inference: Inference,
    share: Callable[[nn.Module], Any],
) -> list[Block]:
    """The teachers' logits as one, (N, classes) in a block for each rank; one teacher is held at a
    time.

    Args:
        teachers: at least one.
        images: each rank's.
        weights: equal: their mean. agreement: see :func:`fl.fusion.distillation.agreed_logits`;
            then all teachers' logits are held at once.
        on_each: calls the ranks.
        inference: arithmetic of the teachers' passes.
        share: what to pass them for a teacher.

    Raises:
        ValueError: there is no teacher.
    """
    if weights == "agreement":
        each = [
            on_each(Rank.ask, [(shared, block, None, inference) for block in images])
            for shared in map(share, teachers)
        ]
        _check(len(each))
        return on_each(Rank.agree, list(zip(*each, strict=True)))
    totals: Sequence[Block] = [None] * len(images)
    count = 0
    for teacher in teachers:
        shared = share(teacher)
        own = [(shared, *pair, inference) for pair in zip(images, totals, strict=True)]
        totals = on_each(Rank.ask, own)
        count += 1
    _check(count)
    return on_each(Rank.apply, [(partial(_divided, count=count), total) for total in totals])


def _check(count: int) -> None:
    if not count:
        raise ValueError("teach needs at least one teacher")


def _divided(rows: Tensor, count: int) -> Tensor:
    return rows / count
