"""A run's figures for TensorBoard, which sees them within seconds while the run goes on."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from cluster.run.progress import LISTED
from cluster.run.tracking import scalars_of
from fl.events import (
    ClientEnd,
    ClientProgress,
    Event,
    Phase,
    RoundEnd,
    RoundsResumed,
    RunEnd,
    RunStart,
)
from fl.federation import Client
from fl.json_files import SettingValues
from fl.whole_files import named_errors

FLUSH_S = 2
"""Seconds after which what was written is in the file."""
QUANTILES_S = 5.0
"""Seconds between two looks at the losses of many clients."""
QUANTILES = {"lowest_tenth": 0.1, "median": 0.5, "highest_tenth": 0.9}


class TensorBoard:
    """Writes losses, accuracies and seconds as scalars, and in the end the hyperparameters.

    Where the run's metric is not accuracy, the tags have its name instead: ``fusion/R2``.
    Up to 32 clients have a curve each, ``clients/00007/loss`` by epoch; of more there are three
    quantiles by role, ``clients/generator/loss_median`` by the run's seconds.
    """

    def __init__(
        self, directory: Path, members: tuple[Client, ...], settings: SettingValues | None = None
    ) -> None:
        """``settings``: flat, for the tab HPARAMS, with the final accuracy."""
        from torch.utils.tensorboard import SummaryWriter

        self._directory = directory
        self._writer = SummaryWriter(str(directory), flush_secs=FLUSH_S)
        self._roles = {c.id: c.role for c in members}
        self._settings = settings or {}
        self._round = 1
        self._metric = "accuracy"
        self._losses: dict[int, float] = {}
        self._looked = 0.0

    def __call__(self, event: Event) -> None:
        """Writes the event's figures, if it has any."""
        with named_errors(self._directory):  # its thread reports a full disk at a later event
            self._write(event)

    def _write(self, event: Event) -> None:
        scalars = scalars_of(event)
        for tag, value in scalars.values.items():
            group, _, name = tag.rpartition("/")
            tag = f"{group}/{self._metric}" if name == "accuracy" else tag
            self._writer.add_scalar(tag, value, scalars.step)
        match event:
            case RunStart():
                self._metric = event.metric
            case RoundEnd() | RoundsResumed():
                self._round = event.round + 1
            case Phase(took=float(took)):
                self._writer.add_scalar(f"seconds/{event.phase}", took, self._round)
            case ClientProgress():
                self._client(event, event.loss, event.done, event.of or 0)
            case ClientEnd():
                self._client_end(event)
            case RunEnd():
                self._hyperparameters(event.accuracy)

    def close(self) -> None:
        """Flushes and closes the event file."""
        with named_errors(self._directory):
            self._writer.close()

    def _client_end(self, event: ClientEnd) -> None:
        self._writer.add_scalar("local/seconds", event.seconds_training, event.client)
        loss = event.stats.get("train_loss")
        if loss is not None:  # not every task trains
            self._writer.add_scalar("local/train_loss", loss, event.client)
            taken = int(event.stats.get("epochs") or event.stats.get("steps") or 1)
            self._client(event, loss, taken, taken)

    def _client(self, event: ClientProgress | ClientEnd, loss: float, done: int, of: int) -> None:
        if len(self._roles) <= LISTED:
            step = (self._round - 1) * of + done
            self._writer.add_scalar(f"clients/{event.client:05d}/loss", loss, step)
            return
        self._losses[event.client] = loss
        if event.seconds - self._looked >= QUANTILES_S:
            self._looked = event.seconds
            self._write_quantiles(int(event.seconds))

    def _write_quantiles(self, second: int) -> None:
        by_role: dict[str, list[float]] = defaultdict(list)
        for client, loss in self._losses.items():
            by_role[self._roles[client]].append(loss)
        for role, losses in by_role.items():
            for name, share in QUANTILES.items():
                value = float(np.quantile(losses, share))
                self._writer.add_scalar(f"clients/{role}/loss_{name}", value, second)

    def _hyperparameters(self, accuracy: float) -> None:
        if not self._settings:
            return
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in self._settings.items()
        }
        # Written into this directory, where TensorBoard looks for them beside the curves.
        self._writer.add_hparams(plain, {f"final/{self._metric}": accuracy}, run_name=".")
