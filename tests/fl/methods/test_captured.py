"""What every method has its server train can be captured by a GPU: shown by its operations."""

from pathlib import Path

import pytest

from fl.methods.registry import METHODS
from tests.fl.methods.small import play, problem, small
from tests.fl.operations import assert_can_be_captured, of_every_step

FITTING = (
    *("fedmho", "fedmho-md", "fedmho-sd", "fedmho-open", "fedcvae-ens", "fedcvae-kd", "feddf"),
    *("feddm", "fedaf", "centralised"),
)
"""Methods whose server trains on samples that stay the same in all epochs."""


@pytest.mark.parametrize("name", FITTING)
def test_a_servers_step_is_the_same_operations_each_time_and_waits_for_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of_every_step(monkeypatch)
    config = small(METHODS[name].config(), epochs=3, batch_size=4)
    play(name, config, problem(48, 20, 0.0), tmp_path)
    assert found
    for times in found.values():
        assert_can_be_captured(times)
