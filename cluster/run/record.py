"""Listeners that keep events: metrics.jsonl, and TensorBoard scalars."""

import json
from pathlib import Path

from fl.events import Event


class JsonLines:
    """Appends each event to ``metrics.jsonl`` as it happens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def __call__(self, event: Event) -> None:
        """Writes one line."""
        self._file.write(json.dumps(event) + "\n")

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
        match event["event"]:
            case "epoch":
                stage, epoch = event["stage"], event["epoch"]
                self._writer.add_scalar(f"{stage}/loss", event["loss"], epoch)
                self._writer.add_scalar(f"{stage}/accuracy", event["accuracy"], epoch)
            case "round":
                self._writer.add_scalar("rounds/accuracy", event["accuracy"], event["round"])
                for part, seconds in event["took"].items():
                    self._writer.add_scalar(f"rounds/{part}_seconds", seconds, event["round"])
            case "client_end":
                client = event["client"]
                self._writer.add_scalar("local/seconds", event["seconds_training"], client)
                if "train_loss" in event:  # not every task trains
                    self._writer.add_scalar("local/train_loss", event["train_loss"], client)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()
