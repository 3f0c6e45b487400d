"""FedMHO's authors beside Onefold: what stands in for MPI, and where both sides begin."""

import torch
from beside_fedmho import Options, World, start

from fl.models.registry import build_classifier
from fl.seeding import seeded


def test_a_worker_runs_once_its_model_is_awaited_and_hears_what_the_master_said() -> None:
    world = World({3: torch.full((2,), 9.0)})
    heard = []

    def work() -> None:
        said, model = torch.zeros(3), torch.zeros(2)
        world.broadcast(said, src=0)
        world.recv(model, src=0)
        heard.append((world.rank, said.tolist()))
        world.send(model + world.rank, dst=0)

    world.work = work
    world.broadcast(torch.tensor([1.0, 2.0, 3.0]), src=0)
    for rank in (1, 2, 3):
        world.send(torch.full((2,), 10.0 * rank), dst=rank)
    assert not heard
    uploads = torch.zeros(3, 2)
    for rank in (1, 2, 3, 1):
        world.irecv(uploads[rank - 1], src=rank).wait()
    assert heard == [(1, [1.0, 2.0, 3.0]), (2, [1.0, 2.0, 3.0])]
    assert uploads.tolist() == [[11.0, 11.0], [22.0, 22.0], [9.0, 9.0]]
    assert world.rank == 0


def test_both_sides_begin_with_our_starts_in_the_order_of_their_layers() -> None:
    options = Options(checkout=".", width=0.0625)  # type: ignore[arg-type]
    with seeded(5, "start/vgg9"):
        ours = build_classifier("vgg9", (1, 28, 28), 10, width=0.0625).state_dict()
    begun = start("vgg9", 5, options)
    assert list(begun) == list(ours)
    assert all(torch.equal(begun[name], ours[name]) for name in ours)
    sizes = [tuple(tensor.shape) for tensor in start("cvae-small", 5, options).values()]
    encoder = [(256, 794), (256,), (20, 256), (20,), (20, 256), (20,)]
    assert sizes == [*encoder, (256, 30), (256,), (784, 256), (784,)]
