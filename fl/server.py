"""The records that the verbs of :class:`fl.fusion.server.Server` take and return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import Batch
from fl.json_files import JsonObject

Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Top-1 accuracy on the test split, 0 to 1, and the same per class (None: no test sample)."""

    accuracy: float
    per_class: tuple[float | None, ...]
    per_domain: tuple[float | None, ...] = ()
    """The same per domain, where there are any."""
    per_client: tuple[float | None, ...] = ()
    """By client id, where each has a model of its own: on its own test samples or, as the method
    says, on the whole split. None: it has no samples, or was dropped. ``accuracy`` is the mean."""
    epoch: int | None = field(default=None, compare=False)
    """Of a fit, after which it was made; a fit may test only some of its epochs."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A fit's results: the loss of every step, and the test accuracy after every tested epoch."""

    step_losses: list[float]
    epochs: list[Evaluation]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Labelled rows that the server's ranks hold: a handle, which only their server reads.

    Rows are numbered through all ranks: those of the first rank come first.
    """

    columns: dict[str, tuple[Any, ...]]
    """Each column's blocks, one for each rank."""
    counts: tuple[int, ...]
    """Rows of each block."""
    step: float | None = None
    """A power of two of which all values of ``images`` are known to be whole multiples, at most
    2**18 of them: the filter's sums are then exact as they are. None if nothing is known."""

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def starts(self) -> list[int]:
        """The number of each block's first row."""
        return list(accumulate(self.counts[:-1], initial=0))

    def with_column(self, name: str, blocks: Sequence[Any]) -> "Samples":
        """These and a column more, or another in place of one."""
        return replace(self, columns={**self.columns, name: tuple(blocks)})

    def only(self, *names: str) -> "Samples":
        """These columns alone."""
        return replace(self, columns={n: self.columns[n] for n in names})


@runtime_checkable
class Lessons(Protocol):
    """Data made anew for each epoch of a fit, from the model after the epochs before.

    It is made in the launch's process.
    """

    memory: dict[str, Tensor]
    """What the epochs to come depend on beside the model: saved with the fit's state."""

    def epoch(self, number: int) -> Batch:
        """The data of this epoch, counted from 1: tensors of one length."""

    def digest(self) -> str:
        """A hash of all that the lessons depend on beside model and memory."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A method's result: the global model, its evaluations, its synthetic images, and figures."""

    model: nn.Module | None
    """None for a method whose clients share no model."""
    start: Evaluation
    """The initial global model, before any training at the server."""
    epochs: list[Evaluation]
    synthetic: dict[str, Tensor] = field(default_factory=dict)
    """``images`` (N, C, H, W) in [0, 1], ``labels`` (N,), and ``kept`` (M,), indices into them;
    with a teacher its ``teacher_logits`` (M, classes) of the kept ones."""
    sent: dict[str, Tensor] = field(default_factory=dict)
    """Examples of the images that left clients: ``images`` uint8 (n, C, H, W), ``labels`` (n,), and
    ``clients`` (n,), the ids of who sent them. They may be equal to real images."""
    figures: JsonObject = field(default_factory=dict)
    """Further JSON values for the result, by names that it has not itself."""


def with_figures(result: JsonObject, figures: JsonObject) -> JsonObject:
    """The result with a method's figures.

    Raises:
        UserError: a figure has the name of one that the result has itself.
    """
    if taken := result.keys() & figures.keys():
        raise UserError(
            f"a method's figures cannot have the names {', '.join(sorted(taken))}: the result uses "
            "these already"
        )
    return result | figures
