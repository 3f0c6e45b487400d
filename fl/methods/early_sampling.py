"""Samples decoders while other clients are at work, where what each is to make is known by then."""

from collections.abc import Callable

from fl.clients import Clients
from fl.federation import Update
from fl.fusion.synthesis import label_share_of
from fl.methods.uploads import Decoders, load_label_counts
from fl.server import Server


def by_label_share(
    clients: Clients, server: Server, *, total: int, latent: int
) -> Callable[[Update], None]:
    """What to call with each update: samples its decoder, if it is a generator client's.

    By label-share a decoder's row of the allocation follows from its own label counts, as long as
    no generator client is dropped; then the server draws anew.

    Args:
        clients: all of the run.
        server: which draws.
        total: number of synthetic samples wanted of all decoders.
        latent: size of z.
    """
    generators = [client.id for client in clients.members if client.role == "generator"]
    positions = {client: position for position, client in enumerate(generators)}

    def sample(update: Update) -> None:
        if (position := positions.get(update.client.id)) is not None:
            counts = load_label_counts(update, server)
            row = label_share_of(counts, total, position, len(positions))
            server.sample_early(Decoders([update], server), row[None], latent=latent)

    return sample
