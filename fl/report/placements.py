"""Reads from result.json which client was placed where and when."""

from dataclasses import dataclass

from fl.errors import UserError
from fl.json_values import JsonObject

UUID_LETTERS = 12  # of "GPU-8f3c2d1e-…": enough to distinguish the devices of a run


@dataclass(frozen=True)
class Placed:
    """Where and when a client was trained; times in seconds since the run began."""

    client: int
    role: str
    node: str
    device: str
    """The start of a GPU's UUID; empty for the cores."""
    start: float
    end: float
    attempts: int

    @property
    def where(self) -> str:
        """Its node, its GPU if it had one, and its attempts if they were several."""
        tries = f"{self.attempts} attempts" if self.attempts > 1 else ""
        return ", ".join(part for part in (self.node, self.device, tries) if part)


def read_placements(result: JsonObject | None) -> dict[int, Placed]:
    """The clients that this run trained; none where the result has no placements.

    Raises:
        UserError: an entry lacks a field that is needed here.
    """
    try:
        entries = (result or {}).get("placements") or []
        return {e["client"]: _placed(e) for e in entries if None not in (e["start"], e["end"])}
    except (KeyError, TypeError, ValueError):
        raise UserError("result.json holds placements without client, node or times") from None


def _placed(entry: JsonObject) -> Placed:
    return Placed(
        client=int(entry["client"]),
        role=str(entry["role"]),
        node=str(entry["node"] or ""),
        device=str(entry["device_uuid"] or "")[:UUID_LETTERS],
        start=float(entry["start"]),
        end=float(entry["end"]),
        attempts=int(entry["attempts"]),
    )
