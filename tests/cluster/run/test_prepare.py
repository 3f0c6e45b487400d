"""What a method asks for beyond its clients: auxiliary images, and the ranks of its server."""

from pathlib import Path

import numpy as np
import pytest

from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from fl.errors import UserError
from tests.cluster.run.made_up import measure_nothing

SMALL = ["--data.max-train=200", "--num-clients=4", "--runtime=inprocess"]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_nothing(monkeypatch)


@pytest.mark.parametrize(
    ("method", "asked", "ranks"),
    [
        # These two make data between epochs.
        *(("dense", SMALL, 1), ("co-boosting", SMALL, 1)),
        ("dense", [*SMALL[:2], "--fusion-ranks=2"], 2),
        *(("fedavg", SMALL, None), ("fedavg", [*SMALL, "--fusion-ranks=1"], 1)),
        ("fedaf", [*SMALL[:2], "--fusion-ranks=2"], 2),
    ],
)
def test_a_server_has_the_ranks_that_are_asked_for_else_its_methods(
    method: str, asked: list[str], ranks: int | None
) -> None:
    assert prepare(parse([f"--method={method}", *asked])).fusion_ranks == ranks


def test_missing_auxiliary_data_are_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="auxiliary data: mnist: missing"):
        prepare(parse(["--method=feddf", *SMALL, f"--data-root={tmp_path}"]))


def test_methods_without_auxiliary_data_get_none() -> None:
    assert prepare(parse(["--method=fedavg", *SMALL])).inputs == {}


def indices(parts: tuple[np.ndarray, ...]) -> set[int]:
    return {int(k) for own in parts for k in own}


def test_who_is_scored_on_its_own_samples_has_a_fifth_of_them_held_out() -> None:
    found = prepare(parse(["--method=local", *SMALL])).partition
    for train, test in zip(found.train, found.test, strict=True):
        assert len(test) == round(0.2 * (len(train) + len(test)))
    assert not indices(found.train) & indices(found.test)
    assert not indices(prepare(parse(["--method=fedavg", *SMALL])).partition.test)
    tuned = ["--method=fedavg", "--tested=tuned", *SMALL]
    assert indices(prepare(parse(tuned)).partition.test) == indices(found.test)
    asked = ["--method=fedavg", "--partition.test-fraction=0.5", *SMALL]
    assert len(indices(prepare(parse(asked)).partition.test)) == pytest.approx(100, abs=4)


def test_settings_are_chosen_on_training_samples_of_each_client() -> None:
    """With validation the clients' test samples are neither scored nor trained on."""
    final = prepare(parse(["--method=local", *SMALL])).partition
    found = prepare(parse(["--method=local", "--data.validation=0.25", *SMALL])).partition
    assert indices(found.train) | indices(found.test) == indices(final.train)
    assert not indices(found.train) & indices(found.test)
    for train, held_out in zip(found.train, found.test, strict=True):
        assert len(held_out) == round(0.25 * (len(train) + len(held_out)))
    assert found.digest != final.digest
