"""Which client ran where and when: the placements that a result records and the report draws."""

from collections.abc import Sequence
from dataclasses import asdict

from cluster.scheduling.bound import lower_bound
from cluster.scheduling.capacity import Bundle
from fl.events import AttemptFailed, ClientDropped, ClientEnd, ClientStart, Event, RoundEnd
from fl.federation import Client, Request
from fl.json_values import JsonObject


class Placements:
    """Makes an entry per client from a run's events, of the last round that it took part in."""

    def __init__(self, members: tuple[Client, ...]) -> None:
        self._entries: dict[int, JsonObject] = {
            c.id: {
                "client": c.id,
                "role": c.role,
                "model": c.model,
                "requested": asdict(c.request),
                "assigned": None,
                "node": None,
                "device_uuid": None,
                "peak_bytes": None,
                "seconds": 0.0,
                "start": None,
                "end": None,
                "attempts": 0,
                "reused": False,
                "failures": [],
                "dropped": False,
            }
            for c in members
        }
        self._last_round = self._next_round = 0.0

    def __call__(self, event: Event) -> None:
        """Records starts, failures, ends, and which clients were dropped."""
        match event:
            case ClientStart():
                self._start(event)
            case AttemptFailed():
                entry = self._entries[event.client]
                failure = {"reason": event.reason, "start": entry["start"]}
                entry["failures"].append({**failure, "end": event.seconds})
            case ClientDropped():
                self._entries[event.client]["dropped"] = True
            case ClientEnd():
                self._end(event)
            case RoundEnd():
                self._last_round, self._next_round = self._next_round, event.seconds

    def _start(self, event: ClientStart) -> None:
        entry = self._entries[event.client]
        if entry["end"] is not None:  # the entry is of an earlier round
            entry |= {"end": None, "attempts": 0, "failures": []}
        entry["attempts"] += 1
        entry["start"] = event.seconds
        entry["requested"] = event.requested

    def _end(self, event: ClientEnd) -> None:
        entry = self._entries[event.client]
        entry["seconds"] = event.seconds_training
        entry["reused"] = event.reused
        entry["peak_bytes"] = event.peak_bytes
        if not event.reused:
            entry["end"] = event.seconds
            entry["assigned"] = event.assigned
            entry["node"], entry["device_uuid"] = event.node, event.device_uuid

    def makespan(self, bundles: Sequence[Bundle]) -> dict[str, float] | None:
        """Seconds from the first start to the last end, and the least that any placement needs.

        Of the last round, where there were many. None where every update came from the store. A
        client counts from its start to its end, its process's start included; one that shares a
        process by its share of the time in which its cohort was at work.
        """
        ended = (e for e in self._entries.values() if e["end"] is not None)
        trained = [e for e in ended if e["start"] >= self._last_round]
        if not trained:
            return None
        jobs = [(Request(**e["requested"]), _occupied(e)) for e in trained]
        starts = [e["start"] for e in trained]
        starts += [failure["start"] for e in trained for failure in e["failures"]]
        seconds = max(e["end"] for e in trained) - min(starts)
        bound = lower_bound(bundles, jobs)
        return {"seconds": round(seconds, 3), "lower_bound": round(bound, 3)}

    @property
    def entries(self) -> list[JsonObject]:
        """One entry per client, by client id."""
        return [self._entries[k] for k in sorted(self._entries)]


def _occupied(entry: JsonObject) -> float:
    """Seconds for which the client alone had what it asked for."""
    if entry["requested"]["shared"]:
        return float(entry["seconds"])
    return float(entry["end"] - entry["start"])
