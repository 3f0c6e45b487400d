"""The servers that benchmarks time, and the threads that they time them with."""

from contextlib import suppress

import torch
from servers import limited, servers

from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.single_server import SingleServer

SPEC = RunSpec(image_shape=(1, 1, 5), num_classes=3, seed=0)


def test_threads_are_limited_and_given_back_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with suppress(ZeroDivisionError), limited(before + 1):
        assert torch.get_num_threads() == before + 1
        _ = 1 / 0
    assert torch.get_num_threads() == before


def test_one_rank_is_the_server_of_a_run_and_needs_no_ray() -> None:
    with servers(SPEC, (1,), torch.device("cpu"), Events()) as ready:
        assert list(ready) == ["1 rank"]
        assert isinstance(ready["1 rank"], SingleServer)
        images, labels = torch.rand(9, 1, 1, 5), torch.arange(9) % 3
        samples = ready["1 rank"].place({"images": images, "labels": labels})
        kept = ready["1 rank"].nearest(samples, 0.4)
        assert len(kept) == 3
