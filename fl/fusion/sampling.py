"""Has the ranks draw samples: each its share, of decoders that are sent to it in portions."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from fl.fusion.rank import COLUMNS, Rank
from fl.fusion.synthesis import Draw, Drawn, portions
from fl.models import Decoder

Block = Any
"""A rank's value, or a reference to it."""
OnEach = Callable[..., list[Block]]
"""As of :class:`fl.fusion.ranked_server.RankedServer`."""


def sampled(
    shares: Sequence[Sequence[Draw]],
    decoders: Mapping[int, Decoder],
    on_each: OnEach,
    *,
    latent: int,
    stream: str,
    drawn: Mapping[int, Drawn],
    at_once: int | None,
) -> list[tuple[Block, ...]]:
    """Each rank's images, labels and z.

    Args:
        shares: what each rank draws.
        decoders: by client id, each looked up when it is sent or draws.
        on_each: calls a method on every rank.
        latent: size of z.
        stream: names the noise.
        drawn: what was drawn before, by client.
        at_once: decoders that are sent to a rank in one call; None: the mapping itself is.
    """

    def needed(draws: Sequence[Draw]) -> Mapping[int, Decoder]:
        return {draw.client: decoders[draw.client] for draw in draws} if at_once else decoders

    cut = [portions(share, at_once or max(1, len(share))) for share in shares]
    blocks = [
        on_each(
            Rank.sample,
            [(needed(own), own, latent, stream, drawn) for own in portion],
            returns=COLUMNS,
        )
        for portion in zip_longest(*cut, fillvalue=[])
    ]
    if len(blocks) == 1:
        return blocks[0]
    of_rank = [tuple(chain.from_iterable(own)) for own in zip(*blocks, strict=True)]
    return on_each(Rank.join, of_rank, returns=COLUMNS)
