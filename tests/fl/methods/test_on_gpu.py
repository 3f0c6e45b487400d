"""Every method of the registry on GPUs, to the same as on the CPU."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fl.events import ClientEnd, Epoch, Event, Listener
from fl.fusion.checkpoints import Checkpoints
from fl.methods.registry import METHODS, get_method
from fl.rounds import Rounds
from fl.server import Evaluation
from tests.fl.devices import TOLERANCE, Where, assert_same, on_both
from tests.fl.fusion.threads import ThreadServer
from tests.fl.methods.small import light, small
from tests.fl.methods.tiny import tiny_data, tiny_federation, whole

pytestmark = pytest.mark.gpu

DATA = tiny_data(train=36, test=16)
TOLERANCES = {"fedaf": 1e-3}
"""Of methods that make more of a rounding than others: biases that have hardly left zero."""
KILLED = ("fedmho-sd", "dense", "fedaf", "fedgen")
OTHERWISE = ("fedmho-md", "fedcvae-kd")
LIKE_OTHERS = (
    *("fedprox", "fednova", "fedadagrad", "fedyogi", "moon", "fedmho", "fedcvae-ens", "feddm"),
    *("local", "fedper", "fedrep", "fedrep+"),
)
"""Methods that do nothing at the server or with a client's memory that no other here does; their
clients train on GPUs in tests/fl/training."""
NAMES = sorted({*METHODS} - {*KILLED, *OTHERWISE, *LIKE_OTHERS})


class Result(NamedTuple):
    """All that a run comes to but its times."""

    model: nn.Module | None
    start: Evaluation
    epochs: list[Evaluation]
    synthetic: dict[str, Tensor]


def run(
    name: str,
    where: Where,
    *,
    folder: Path | None = None,
    listener: Listener = lambda event: None,
    ranks: int = 1,
    epochs: int = 1,
) -> Result:
    """The method on three clients, over two rounds if it has any.

    With a folder it saves its states there, and goes on from them.
    """
    method = get_method(name)
    few = {"images": 6, "targets": 4}  # that HFLDD's members distil
    config = light(name, small(method.config(), epochs=epochs, **few))
    how: dict[str, Any] = {"assign": method.assign, "num_clients": 3, "data": DATA}
    checkpoints = Checkpoints(folder, every=0) if folder else None
    clients, single = tiny_federation(
        config, **how, listener=listener, checkpoints=checkpoints, device=where.device
    )
    several = ThreadServer(single.run_spec, whole(DATA.test), single.events, ranks, where)
    server = single if ranks == 1 else several
    inputs: dict[str, Any] = {} if method.one_shot else {"rounds": Rounds(2, folder)}
    if method.auxiliary:
        inputs["auxiliary"] = torch.from_numpy(DATA.test.images).float() / 255
    outcome = method.run(clients, server, config, **inputs)
    if outcome.model is not None:
        assert {p.device.type for p in outcome.model.parameters()} == {server.device.type}
    return Result(outcome.model, outcome.start, outcome.epochs, outcome.synthetic)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_comes_to_the_same_bits(name: str) -> None:
    assert_same(*on_both(lambda where: run(name, where)), TOLERANCES.get(name, TOLERANCE))


def test_columns_that_a_gpu_has_no_memory_for_stay_on_the_host() -> None:
    assert_same(*on_both(lambda where: run("fedmho-md", where), free_bytes=0))


def test_two_ranks_with_a_gpu_each_come_to_the_same_bits() -> None:
    assert_same(*on_both(lambda where: run("fedcvae-kd", where, ranks=2), count=2))


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Killed at the end of its first epoch, or in its second round; a state was saved before."""

    def killed(event: Event) -> None:
        if isinstance(event, Epoch) or (isinstance(event, ClientEnd) and event.round == 2):
            raise KeyboardInterrupt

    def work(where: Where) -> Result:
        if where.device.type == "cpu":
            return run(name, where, epochs=2)
        with pytest.raises(KeyboardInterrupt):
            run(name, where, folder=tmp_path, listener=killed, epochs=2)
        return run(name, where, folder=tmp_path, epochs=2)

    assert_same(*on_both(work), TOLERANCES.get(name, TOLERANCE))
