"""Which clients take part in a round, for methods of many rounds."""

from dataclasses import dataclass
from typing import Annotated

from fl.bounds import Settings, Within
from fl.clients import Clients
from fl.seeding import in_round, numpy_generator


@dataclass(frozen=True, kw_only=True)
class ParticipationConfig(Settings):
    """How many clients take part."""

    participation: Annotated[float, Within(0, 1, "(]")] = 1.0
    """Share of the clients that take part in a round, at least one; drawn anew in each round."""


def num_participants(share: float, num_clients: int) -> int:
    """How many of so many clients take part in a round, if none was dropped."""
    return max(1, round(share * num_clients))


def participants(clients: Clients, share: float, number: int) -> list[int]:
    """Ids of the clients that take part in this round, ascending."""
    able = [client.id for client in clients.members if client.id not in clients.dropped]
    if share == 1:
        return able
    stream = numpy_generator(clients.run_spec.seed, in_round("participation", number))
    count = num_participants(share, len(clients.members))
    return sorted(stream.choice(able, min(count, len(able)), replace=False).tolist())
