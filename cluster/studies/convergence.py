"""Whether a training has converged: by the loss of the server's fit, by accuracy over rounds, by
the losses of clients' own trainings."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

from fl.events import Epoch
from fl.report.read import client_ends, read_events

STILL_FALLING = 0.1
"""Share of the whole fall of the loss above which its last fifth's makes a run undertrained."""
HARDLY = 0.2
"""Share of its first value by which a client's loss must fall at least."""
ENOUGH = 0.05
"""A loss below which a client has learned its samples, whatever its course."""
PARTS = 5


def loss_curve(run_dir: Path) -> tuple[float, ...]:
    """Losses of the run's last fit at the server, by round and epoch, of ``metrics.jsonl``.

    Of epochs that were not tested nothing is known, and nothing at all without a fit.
    """
    events = read_events(run_dir / "metrics.jsonl")
    epochs = [event for event in events if isinstance(event, Epoch)]
    # Epochs that a run trained again after it was killed are there twice; the last one counts.
    found = {(e.round, e.epoch): e.loss for e in epochs if e.stage == epochs[-1].stage}
    return tuple(found[key] for key in sorted(found))


def late_share(losses: Sequence[float]) -> float | None:
    """The fall of the loss in the last fifth of its curve over the fall in all of it.

    Both are between means of fifths, which single epochs' noise does not decide: a loss that falls
    evenly gives a quarter. None for fewer than five epochs, and where the loss did not fall.

    >>> late_share([5, 4, 3, 2, 1]), late_share([5, 1, 1, 1, 1]), late_share([1, 2])
    (0.25, 0.0, None)
    """
    if len(losses) < PARTS:
        return None
    cuts = [len(losses) * part // PARTS for part in range(PARTS + 1)]
    means = [mean(losses[a:b]) for a, b in pairwise(cuts)]
    whole = means[0] - means[-1]
    return (means[-2] - means[-1]) / whole if whole > 0 else None


def still_falling(curves: Sequence[Sequence[float]]) -> bool:
    """Whether the losses of a cell's runs, on the mean of those with any, were still falling."""
    shares = [share for share in map(late_share, curves) if share is not None]
    return bool(shares) and mean(shares) > STILL_FALLING


def rising(curves: Sequence[Sequence[float]]) -> bool:
    """Whether the accuracies after each round of a cell's runs, on their mean, still rose."""
    return still_falling([[-accuracy for accuracy in curve] for curve in curves])


def client_curves(run_dir: Path) -> dict[int, Sequence[float]]:
    """The losses of each client's first training, by epoch, of ``metrics.jsonl``; without clients
    that have none."""
    first = {k: ends[0] for k, ends in client_ends(read_events(run_dir / "metrics.jsonl")).items()}
    return {k: end.losses for k, end in first.items() if end.round == 1 and end.losses}


def untrained_clients(runs: Sequence[Mapping[int, Sequence[float]]]) -> bool:
    """Whether half of the clients or more have not learned their own samples."""
    untrained = [
        _untrained(losses) for run in runs for losses in run.values() if len(losses) >= PARTS
    ]
    return bool(untrained) and 2 * sum(untrained) >= len(untrained)


def _untrained(losses: Sequence[float]) -> bool:
    if losses[-1] <= ENOUGH:
        return False
    hardly = losses[0] - losses[-1] < HARDLY * losses[0]
    share = late_share(losses)
    return hardly or (share is not None and share > STILL_FALLING)
