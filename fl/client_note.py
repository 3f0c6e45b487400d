"""The note beside a client's upload: where it trained, how long, and with how much memory."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from fl.events import ClientEnd
from fl.json_values import SettingValues
from fl.wire import Tensors, pack, unpack_note

WORDS = ("role", "model", "node", "device", "device_uuid")
WHOLE = (("client", -1), ("peak_bytes", 0), ("cohort", 1))
"""Whole numbers, each with the smallest that it may be."""
OPTIONAL = ("node", "device", "device_uuid", "assigned", "peak_bytes")
"""What may be null."""
RESERVED = {"event", "crc", *(field.name for field in fields(ClientEnd))}
"""Names that no figure may have: in ``metrics.jsonl`` figures stand beside the record's own."""
MOST_FIGURES = 10_000
MOST_CHARACTERS = 200
LARGEST = 1e30
"""What no second and no figure of a training comes near; NaN and infinities are not below it."""


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
    """The mean training loss of each epoch; of a training in steps, of equal parts of them."""

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


def readable_notes(uploads: Iterable[bytes | memoryview]) -> list[ClientNote]:
    """The notes of those uploads that have one; what has none is refused when it is received."""
    notes = []
    for packed in uploads:
        with suppress(ValueError):
            notes.append(ClientNote.of(packed))
    return notes


def _check(note: SettingValues) -> None:
    """Raises `ValueError` for the first entry that is not what it should be."""
    told = {n: value for n, value in note.items() if value is not None or n not in OPTIONAL}
    _check_times(told.get("seconds"), told.get("span", (0.0, 0.0)))
    _check_words(told)
    for name, least in WHOLE:
        value = told.get(name, least)
        if type(value) is not int or not least <= value < 2**62:
            raise ValueError(f"tells an impossible {name}: {str(value)[:60]}")
    for name in ("stats", "assigned"):
        _check_figures(told.get(name, {}))
    if taken := RESERVED & told.get("stats", {}).keys():
        raise ValueError(f"tells a figure by a name that is taken: {min(taken)}")
    losses = told.get("losses", [])
    if not isinstance(losses, list) or len(losses) > MOST_FIGURES or not all(map(_number, losses)):
        raise ValueError("tells losses that are no numbers")


def _check_times(seconds: Any, span: Any) -> None:
    if not isinstance(span, list | tuple) or len(span) != 2 or not all(map(_number, span)):
        raise ValueError(f"tells no span of time: {str(span)[:60]}")
    if not _number(seconds) or seconds < 0 or span[0] > span[1]:
        raise ValueError(f"tells impossible times: {str(seconds)[:60]} s")


def _check_words(note: SettingValues) -> None:
    for name in WORDS:
        word = note.get(name, "")
        if not (isinstance(word, str) and len(word) <= MOST_CHARACTERS):
            raise ValueError(f"tells no readable {name}")
        if not word.isprintable():
            raise ValueError(f"tells a {name} that cannot be printed")


def _check_figures(figures: Any) -> None:
    if not isinstance(figures, dict) or len(figures) > MOST_FIGURES:
        raise ValueError("tells no figures by name")
    for name, value in figures.items():
        if not _number(value) or len(name) > MOST_CHARACTERS or not name.isprintable():
            raise ValueError(f"tells an impossible figure: {name[:60]!r} {str(value)[:60]}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
