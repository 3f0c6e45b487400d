"""What a method asks for beyond its clients: auxiliary images, and the ranks of its server."""

from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from fl.errors import UserError

SMALL = ["--data.max-train=200", "--num-clients=4", "--runtime=inprocess"]


@pytest.mark.parametrize("method", ["dense", "co-boosting"])
def test_methods_that_make_data_between_epochs_have_one_rank_unless_asked(method: str) -> None:
    assert prepare(parse([f"--method={method}", *SMALL])).fusion_ranks == 1
    launch = parse([f"--method={method}", *SMALL[:2], "--fusion-ranks=2"])
    assert prepare(launch).fusion_ranks == 2


def test_other_methods_have_as_many_as_are_asked_for() -> None:
    assert prepare(parse(["--method=fedavg", *SMALL])).fusion_ranks is None
    assert prepare(parse(["--method=fedavg", *SMALL, "--fusion-ranks=1"])).fusion_ranks == 1
    condensing = ["--method=fedaf", "--fusion-ranks=2", *SMALL[:2]]
    assert prepare(parse(condensing)).fusion_ranks == 2


def test_missing_auxiliary_data_are_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="auxiliary data: mnist: missing"):
        prepare(parse(["--method=feddf", *SMALL, f"--data-root={tmp_path}"]))


def test_methods_without_auxiliary_data_get_none() -> None:
    assert prepare(parse(["--method=fedavg", *SMALL])).inputs == {}
