"""Whether the server's training had come to rest when it ended, by the run's own loss curve."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

from fl.events import Epoch, parse_events
from fl.whole_files import no_pipe

STILL_FALLING = 0.1
"""Share of the whole fall of the loss above which its last fifth's makes a run undertrained."""
PARTS = 5


def loss_curve(run_dir: Path) -> tuple[float, ...]:
    """Losses of the run's last fit at the server, by round and epoch, of ``metrics.jsonl``.

    Of epochs that were not tested nothing is told, and none is there without a fit.
    """
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return ()
    with no_pipe(path).open(errors="replace") as lines:
        epochs = [event for event in parse_events(lines) if isinstance(event, Epoch)]
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
    """Whether the losses of a cell's runs, on the mean of those that tell, were still falling."""
    shares = [share for share in map(late_share, curves) if share is not None]
    return bool(shares) and mean(shares) > STILL_FALLING
