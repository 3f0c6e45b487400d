"""One rank of the server, alone in this process or as one of many in processes of their own.

Between calls a rank holds nothing but its share of the test split. Its arguments and results are
blocks of columns, on its device or, where they are large beside the device's memory, on the host.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic

import torch
from torch import Tensor, nn

from fl.accuracy import answers, confusion, scores
from fl.data.shard import Shard
from fl.errors import ServerFailed, UserError
from fl.federation import Batch, RunSpec
from fl.fusion.distillation import agreed_logits
from fl.fusion.fit import Fit, FitSpec, Inference, State
from fl.fusion.group import Group
from fl.fusion.synthesis import Draw, Drawn, draw_samples
from fl.models.architectures.cvaes import Decoder
from fl.models.registry import in_fast_layout
from fl.process import threads
from fl.targets import Targets
from fl.training.recipe import check_labels
from fl.training.reduced import Reduced
from kernels.filter import Local, nearest_of
from kernels.groups import Sums

# The samples of a filter, as a rank of several sees them: its own, and what all make of theirs.


class RankParts(Local):
    """A rank's samples of all ranks'; all of them must ask for the same together.

    Ranks exchange their classes' sums, and a label and a distance for each sample: no samples.
    Each value is a rank's own and zero at the others, so that sums are exact.
    """

    def __init__(
        self,
        flat: Tensor,
        labels: Tensor,
        num_classes: int,
        *,
        device: torch.device,
        group: Group,
        first: int,
        total: int,
    ) -> None:
        """``first`` of ``total`` is the number of this rank's first sample."""
        super().__init__(flat, labels, num_classes, device=device)
        self._ranks, self._first, self._total = group, first, total
        self.all_labels = self._gather(self.labels)

    def largest(self) -> float:
        """See :meth:`kernels.filter.Local.largest`."""
        found = torch.zeros(self._ranks.size, device=self.labels.device)
        found[self._ranks.rank] = super().largest()
        self._ranks.sum(found)
        return float(found.max())

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """See :meth:`kernels.filter.Local.sums`."""
        own = super().sums(unit, whole=whole)
        both = torch.cat((own.units, own.counts.unsqueeze(1)), 1)
        self._ranks.sum(both)
        return Sums(both[:, :-1], both[:, -1])

    def distances(self, centroids: Tensor) -> Tensor:
        """See :meth:`kernels.filter.Local.distances`."""
        return self._gather(super().distances(centroids))

    def ordered_distances(self, numbers: Tensor, centroids: Tensor) -> Tensor:
        """See :meth:`kernels.filter.Local.ordered_distances`."""
        own = numbers - self._first
        here = (own >= 0) & (own < len(self.labels))
        values = super().ordered_distances(own[here], centroids)
        found = values.new_zeros(len(numbers)).index_put((here,), values)
        self._ranks.sum(found)
        return found

    def _gather(self, own: Tensor) -> Tensor:
        """All ranks' values, of which this rank has its own."""
        found = own.new_zeros(self._total)
        found[self._first : self._first + len(own)] = own
        self._ranks.sum(found)
        return found


COLUMNS = 3
"""Of samples as they are drawn: images, labels, and z."""
ASKED = 1024
"""Rows in one forward pass of a teacher."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A rank's report of an epoch of a fit."""

    epoch: int
    losses: list[float]
    """Loss of each step, over the whole batch."""
    hits: list[float] | None
    """Right answers for each group of the whole test split, if the model was tested."""
    state: State | None
    """Result of :meth:`fl.fusion.fit.Fit.state`, if a state of this epoch was asked for."""
    undivided: str | None = None
    """See :attr:`fl.fusion.fit.Fit.undivided`."""
    memory: State | None = None
    """Memory of the lessons, beside the state: see :class:`fl.server.Lessons`."""


class Rank:
    """One of the server's ranks."""

    def __init__(
        self, run_spec: RunSpec, test: Shard, device: torch.device, group: Group | None = None
    ) -> None:
        """``test`` is this rank's share of the test split."""
        self.run_spec = run_spec
        self.device = device
        self.group = group or Group()
        targets = None if test.targets is None else test.targets.to(device)
        images, labels = test.images.to(device), test.labels.to(device)
        self._test = replace(test, samples=images, labels=labels, targets=targets)
        self._test_groups = run_spec.groups(test).to(device)

    def sample(
        self,
        decoders: Mapping[int, Decoder],
        draws: Sequence[Draw],
        latent: int,
        stream: str,
        drawn: Mapping[int, Drawn],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Images of these draws, their labels, and the z that they were drawn from.

        ``drawn``: what was drawn before, by client.
        """
        count = sum(map(len, draws))
        shape = (count, *self.run_spec.image_shape)
        home = self._home(4 * torch.Size(shape).numel())
        images, z = torch.empty(shape, device=home), torch.empty(count, latent, device=home)
        with threads(1):  # another number rounds differently: the filter would keep others
            draw_samples(
                decoders,
                draws,
                latent=latent,
                stream=(self.run_spec.seed, stream),
                device=self.device,
                into=(images, z),
                drawn=drawn,
            )
        labels = [draw.labels for draw in draws]
        return images, torch.cat([torch.empty(0, dtype=torch.int64), *labels]).to(home), z

    def apply(self, function: Callable[[Tensor], Tensor], column: Tensor) -> Tensor:
        """The function applied to the column, some rows at a time."""
        return torch.cat([function(rows) for rows in column.split(ASKED)])

    def join(self, *blocks: Tensor) -> tuple[Tensor, ...]:
        """Each column of several blocks as one: of the first block, then those of the second."""
        return tuple(torch.cat(blocks[column::COLUMNS]) for column in range(COLUMNS))

    def take(self, indices: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
        """The rows at ``indices`` of each column."""
        return tuple(column[indices.to(column.device)] for column in columns)

    def nearest(
        self,
        images: Tensor,
        labels: Tensor,
        keep: float,
        step: float | None,
        first: int,
        total: int,
    ) -> Tensor:
        """See :meth:`fl.fusion.server.Server.nearest`; all ranks must do so together.

        ``first`` of ``total`` is the number of this rank's first sample; numbers that are returned
        are those of all ranks' samples, the same on each of them.
        """
        samples = (images.flatten(1), labels, self.run_spec.num_classes)
        if self.group.size == 1:
            return nearest_of(Local(*samples, device=self.device), keep, step).indices
        parts = RankParts(*samples, device=self.device, group=self.group, first=first, total=total)
        return nearest_of(parts, keep, step).indices

    @torch.no_grad()
    def ask(
        self, teacher: nn.Module, images: Tensor, total: Tensor | None, inference: Inference
    ) -> Tensor:
        """``total`` plus the teacher's logits, (N, classes), in eval mode."""
        self._here(teacher).eval()
        with Reduced(teacher), self._computing_in(inference):
            parts = [teacher(rows.to(self.device)) for rows in images.split(ASKED)]
        logits = torch.cat(parts).float()
        return logits if total is None else total.to(self.device) + logits

    def agree(self, *logits: Tensor) -> Tensor:
        """The teachers' logits as one, each weighted by how far it agrees with the others."""
        parts = zip(*(own.split(ASKED) for own in logits), strict=True)
        return torch.cat([agreed_logits(torch.stack(rows).to(self.device)) for rows in parts])

    def digest(self, *columns: Tensor) -> str:
        """A hash of the columns' values."""
        found = hashlib.sha256()
        for column in columns:
            found.update(column.cpu().contiguous().numpy().data)
        return found.hexdigest()

    def count_hits(self, model: nn.Module, inference: Inference) -> Tensor:
        """Right answers for each group of this rank's share of the test split, (groups,); of other
        targets than classes the sum of their scores, float64."""
        if self.run_spec.targets is not None:
            return self._sum_scores(model, inference, self.run_spec.targets)
        right = self._answers(model, inference) == self._test.labels
        groups = self._test_groups[right]
        return torch.bincount(groups, minlength=self.run_spec.num_groups).cpu()

    def _sum_scores(self, model: nn.Module, inference: Inference, targets: Targets) -> Tensor:
        with self._computing_in(inference), _named_test():
            found = scores(self._here(model), self._test, targets).double()
        total = torch.zeros(self.run_spec.num_groups, dtype=torch.float64, device=found.device)
        return total.index_add_(0, self._test_groups, found).cpu()

    def count_confusion(self, model: nn.Module, inference: Inference) -> Tensor:
        """What this rank's share of the test split is taken for: (true classes, predicted)."""
        predicted = self._answers(model, inference)
        return confusion(predicted, self._test.labels, self.run_spec.num_classes).cpu()

    def release(self) -> None:
        """Returns the memory that its allocator holds unused to the GPU."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def fit(self, spec: FitSpec) -> Iterator[Report]:
        """Trains the model in place and reports every epoch; all ranks must do so together.

        Raises:
            UserError: a label is no class of the model's.
        """
        model, data = self._here(spec.model), self._gathered(spec.columns)
        _check_labels(spec, data, self.run_spec)
        fit = Fit(replace(spec, model=model), data, seed=self.run_spec.seed, group=self.group)
        saved = monotonic()
        for epoch, losses in enumerate(fit.epochs(), start=fit.done + 1):
            if not losses.isfinite().all():
                raise ServerFailed(
                    f"{spec.stage}: its training diverged: the loss of epoch {epoch} is NaN or "
                    "infinite; lower its learning rate"
                )
            due = _is_due(spec, epoch, monotonic() - saved)
            yield Report(
                epoch=epoch,
                losses=losses.tolist(),
                hits=self._hits_of_all(model, spec) if _is_tested(spec, epoch) else None,
                state=fit.state() if due and self.group.rank == 0 else None,
                undivided=fit.undivided,
            )
            saved = monotonic() if due else saved

    def _hits_of_all(self, model: nn.Module, spec: FitSpec) -> list[float]:
        """Right answers for each group of the whole test split."""
        try:
            hits = self.count_hits(model, spec.inference).to(self.device)
        except ServerFailed as error:
            raise ServerFailed(f"{spec.stage}: its training diverged: {error}") from None
        self.group.sum(hits)
        return hits.tolist()

    def _answers(self, model: nn.Module, inference: Inference) -> Tensor:
        with self._computing_in(inference), _named_test():
            return answers(self._here(model), self._test.images)

    def _computing_in(self, inference: Inference) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, inference == "bf16")

    def _gathered(self, columns: Mapping[str, Sequence[Tensor]]) -> Batch:
        """Whole columns on the device, or all on the host where they do not fit there."""
        size = sum(block.nbytes for blocks in columns.values() for block in blocks)
        home = self._home(size)
        whole = {}
        for name, blocks in columns.items():
            moved = [block.to(home) for block in blocks]
            whole[name] = moved[0] if len(moved) == 1 else torch.cat(moved)
        return whole

    def _here(self, model: nn.Module) -> nn.Module:
        """The model on the device, in the layout in which convolutions are fastest."""
        return in_fast_layout(model.to(self.device))

    def _home(self, nbytes: int) -> torch.device:
        """The device, if twice the bytes fit its free memory; else the host."""
        if self.device.type == "cuda" and 2 * nbytes > torch.cuda.mem_get_info(self.device)[0]:
            return torch.device("cpu")
        return self.device


def _check_labels(spec: FitSpec, data: Batch, run_spec: RunSpec) -> None:
    try:
        if "labels" in data:
            check_labels(data["labels"], spec.model, run_spec.outputs)
    except UserError as error:
        raise UserError(f"{spec.stage}: {error}") from None


def _is_due(spec: FitSpec, epoch: int, seconds: float) -> bool:
    """Whether a state is to be reported, so many seconds after the one before."""
    return spec.state_every is not None and (seconds >= spec.state_every or epoch == spec.last)


def _is_tested(spec: FitSpec, epoch: int) -> bool:
    every, last = spec.config.test_every, epoch == spec.config.epochs
    return spec.tested and (epoch % every == 0 or last)


@contextmanager
def _named_test() -> Iterator[None]:
    """Says of what is not finite that the server found it in its test."""
    try:
        yield
    except FloatingPointError as error:
        raise ServerFailed(f"the server's test: {error}") from None
