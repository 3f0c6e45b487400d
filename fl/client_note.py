"""The note beside a client's upload: where it trained, how long, and with how much memory."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Self

from fl.json_values import SettingValues
from fl.wire import Tensors, pack, unpack_note


@dataclass(frozen=True, kw_only=True)
class ClientNote:
    """Metadata packed with a client's upload, and not counted in its bytes."""

    client: int = -1
    role: str = ""
    model: str = ""
    seconds: float
    """Seconds of training: this client's share of its cohort's, by its samples."""
    span: tuple[float, float] = (0.0, 0.0)
    """Begin and end of the cohort's training, on its machine's clock."""
    node: str | None = None
    device: str | None = None
    device_uuid: str | None = None
    assigned: dict[str, float] | None = None
    """What a scheduler gave the process."""
    peak_bytes: int | None = None
    """The client's share of its cohort's peak memory; None where that cannot be measured."""
    cohort: int = 1
    """Clients that trained as one computation with this one, itself included."""
    stats: dict[str, float] = field(default_factory=dict)
    """Figures that the task reports of the training."""
    losses: list[float] = field(default_factory=list)
    """The mean training loss of each epoch, where the task trains in epochs."""

    @classmethod
    def of(cls, packed: bytes | memoryview) -> Self:
        """The note of a packed upload, which may be an older one without some fields.

        Raises:
            ValueError: it is no valid note; clients are not trusted to send one.
        """
        values = unpack_note(packed)
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in values.items() if name in names}
        _check(given)
        return cls(**given | {"span": tuple(given.get("span", (0.0, 0.0)))})

    def pack(self, tensors: Tensors) -> bytes:
        """The upload with this note."""
        return pack(tensors, asdict(self))


def _check(note: SettingValues) -> None:
    seconds, span = note.get("seconds"), note.get("span", (0.0, 0.0))
    stats, losses = note.get("stats", {}), note.get("losses", [])
    numbers = [seconds, *span, note.get("peak_bytes") or 0]
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        raise ValueError(f"client {note.get('client')} tells impossible times or bytes: {numbers}")
    if len(span) != 2 or not isinstance(stats, dict):
        raise ValueError(f"client {note.get('client')} tells neither span nor stats as it should")
    if not isinstance(losses, list) or not all(isinstance(n, int | float) for n in losses):
        raise ValueError(f"client {note.get('client')} tells losses that are no numbers")
