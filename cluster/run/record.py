"""Listeners that save a run's events: as metrics.jsonl, and as TensorBoard scalars."""

import json
from pathlib import Path

from fl.events import ClientEnd, ClientProgress, Epoch, Event, RoundEnd


class JsonLines:
    """Appends each event to ``metrics.jsonl`` as it happens, but for clients' progress, of which
    there is too much, and which depends on the clock."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def __call__(self, event: Event) -> None:
        """Writes one line."""
        if isinstance(event, ClientProgress):
            return
        self._file.write(json.dumps(event.to_json()) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Writes losses, accuracies and training times as TensorBoard scalars."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory))

    def __call__(self, event: Event) -> None:
        """Writes the event's figures, if it has any."""
        add = self._writer.add_scalar
        match event:
            case Epoch(stage=stage, epoch=epoch):
                add(f"{stage}/loss", event.loss, epoch)
                add(f"{stage}/accuracy", event.accuracy, epoch)
            case RoundEnd(round=number):
                add("rounds/accuracy", event.accuracy, number)
                for part, seconds in event.took.items():
                    add(f"rounds/{part}_seconds", seconds, number)
            case ClientEnd(client=client):
                add("local/seconds", event.seconds_training, client)
                if "train_loss" in event.stats:  # not every task trains
                    add("local/train_loss", event.stats["train_loss"], client)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()
