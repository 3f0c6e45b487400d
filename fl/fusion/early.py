"""What was drawn before all clients were done, until it is asked for."""

from collections.abc import Iterable, Mapping

import numpy as np

from fl.fusion.synthesis import Drawn


class EarlyDraws:
    """Draws by stream and client."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], Drawn] = {}

    def add(self, stream: str, client: int, drawn: Drawn) -> None:
        """Holds it until the next :meth:`take`."""
        self._held[stream, client] = drawn

    def take(
        self, clients: Iterable[int], allocation: np.ndarray, stream: str
    ) -> Mapping[int, Drawn]:
        """By client what was drawn as it is asked for now; nothing is held any more.

        Args:
            clients: whose decoders are asked.
            allocation: (clients, classes), what of each.
            stream: the noise's name.
        """
        held, self._held = self._held, {}
        rows = dict(zip(clients, allocation, strict=True))
        return {
            client: drawn
            for (of_stream, client), drawn in held.items()
            if of_stream == stream and client in rows and np.array_equal(drawn.counts, rows[client])
        }
