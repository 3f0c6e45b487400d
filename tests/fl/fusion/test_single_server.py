"""The server of one rank: what it has is where it is used, and nothing is copied."""

from collections.abc import Iterator, Mapping

import torch

from fl.events import Events
from fl.fusion.single_server import SingleServer
from fl.models import Decoder
from fl.training.generator import starting_generator
from tests.fl.toy import CPU, GENERATOR, PROBLEM, shard


def server() -> SingleServer:
    return SingleServer(PROBLEM, shard(2, 2, 2), Events(), CPU)


def test_tensors_that_are_here_are_its_samples_uncopied() -> None:
    images, labels = torch.rand(5, 1, 28, 28), torch.arange(5) % 3
    placed = server().place({"images": images, "labels": labels})
    assert len(placed) == 5
    assert placed.columns["images"][0].data_ptr() == images.data_ptr()
    assert server().fetch(placed, "labels").data_ptr() == labels.data_ptr()


class OneAtATime(Mapping[int, Decoder]):
    """Decoders that note which are looked up."""

    def __init__(self, clients: list[int]) -> None:
        self.clients, self.read = clients, list[int]()

    def __getitem__(self, client: int) -> Decoder:
        self.read.append(client)
        return starting_generator(GENERATOR, PROBLEM).decoder

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def test_decoders_are_read_one_after_the_other_and_only_when_they_draw() -> None:
    decoders = OneAtATime([4, 7])
    allocation = torch.tensor([[0, 2, 1], [300, 0, 0]]).numpy()
    made = server().sample(decoders, allocation, latent=GENERATOR.latent)
    assert len(made) == 303
    assert decoders.read == [4, 7]
    assert set(made.columns) == {"images", "labels"}


EARLY = torch.tensor([[0, 2, 1], [300, 0, 0], [1, 1, 0]]).numpy()


def test_what_was_drawn_early_is_what_would_be_drawn_and_is_not_drawn_again() -> None:
    late, early = OneAtATime([4, 7, 9]), OneAtATime([4, 7, 9])
    expected, ours = server(), server()
    latent = GENERATOR.latent
    for client, row in ((7, EARLY[1:2]), (4, EARLY[:1])):  # in any order
        ours.sample_early(OneAtATime([client]), row, latent=latent)
    plain = expected.sample(late, EARLY, latent=latent, with_z=True)
    made = ours.sample(early, EARLY, latent=latent, with_z=True)
    assert early.read == [9]
    for column in ("images", "labels", "z"):
        assert torch.equal(ours.fetch(made, column), expected.fetch(plain, column))
    ours.sample(early, EARLY, latent=latent)
    assert early.read == [9, 4, 7, 9]  # it was held for one time


def test_what_was_drawn_early_is_drawn_anew_where_other_samples_are_wanted() -> None:
    ours, decoders = server(), OneAtATime([4, 7])
    ours.sample_early(OneAtATime([4]), EARLY[:1], latent=GENERATOR.latent)
    ours.sample_early(OneAtATime([7]), EARLY[1:2], latent=GENERATOR.latent, stream="other")
    changed = EARLY[:2] + 1
    made = ours.sample(decoders, changed, latent=GENERATOR.latent)
    assert decoders.read == [4, 7]
    plain = server().sample(decoders, changed, latent=GENERATOR.latent)
    assert torch.equal(ours.fetch(made, "images"), server().fetch(plain, "images"))


def test_z_is_given_where_it_is_asked_for() -> None:
    allocation = torch.tensor([[1, 1, 1]]).numpy()
    made = server().sample(
        OneAtATime([0]), allocation, latent=GENERATOR.latent, stream="examples", with_z=True
    )
    z = server().fetch(made, "z")
    assert z.shape == (3, GENERATOR.latent)
    again = server().sample(OneAtATime([0]), allocation, latent=GENERATOR.latent, with_z=True)
    assert not torch.equal(z, server().fetch(again, "z"))  # another stream, other numbers
