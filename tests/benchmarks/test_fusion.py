"""The server's fit and the plain loop that it is held against do the same work."""

from contextlib import suppress

import fusion
import pytest
import torch
from fusion import Fusion, Setting
from servers import limited, servers

from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.server import SingleServer

CPU = torch.device("cpu")
TINY = Fusion(samples=(40,), teachers=(2,), epochs=2, batch_size=16, width=0.02, ranks=(1,))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_plain_loop_and_the_server_end_with_the_same_loss(precision: str) -> None:
    """Three teachers asked about every batch, or once: in the same order, with equal dropout."""
    setting = Setting(40, 3, precision, TINY)  # type: ignore[arg-type]
    seconds, asking, loss = fusion.plain_loop(setting, CPU)
    assert 0 < asking < seconds
    with servers(fusion.PROBLEM, TINY.ranks, CPU, Events(fusion.HEARD.append)) as ready:
        assert list(ready) == ["1 rank"]
        own_seconds, own_asking, own_loss = fusion.by_server(ready["1 rank"], setting)
    assert 0 < own_asking < own_seconds
    assert own_loss == pytest.approx(loss, rel=1e-4 if precision == "fp32" else 1e-2)


SPEC = RunSpec.of_images((1, 1, 5), num_classes=3, seed=0)


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
