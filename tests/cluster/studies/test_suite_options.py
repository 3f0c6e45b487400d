"""The suite command's options: what is refused, and in which words."""

import pytest

from cluster.studies.suite_options import EXHIBITS, parse_suite
from fl.errors import UserError


def test_every_table_and_figure_can_be_asked_for() -> None:
    for name in EXHIBITS:
        assert parse_suite([name]).name == name


def test_seeds_are_numbers_each_once_in_their_order() -> None:
    assert parse_suite(["table3", "--seeds=2,0,2,1"]).seed_numbers == [2, 0, 1]


@pytest.mark.parametrize("given", [["--slurm"], ["--slurm.nodes=2"], ["--slurm", "--slurm.time=9"]])
def test_any_slurm_setting_submits(given: list[str]) -> None:
    assert parse_suite(["table3", *given]).slurm.submit
    assert not parse_suite(["table3"]).slurm.submit


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["table33"], r"unknown name 'table33'; valid: .*table3, "),
        (["table3", "--seeds=one"], "seeds must be whole numbers with commas, got 'one'"),
        (["table3", "--dataset=mnits"], "unknown dataset 'mnits'; valid: .*mnist"),
        (["table3", "--slurm.nodes=0"], "slurm.nodes must be at least 1, got 0"),
        (["table3", "--sede=1"], "unknown option '--sede' .did you mean --seeds"),
    ],
)
def test_bad_input_is_refused_in_one_line(given: list[str], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}") as refused:
        parse_suite(given)
    assert "\n" not in str(refused.value)
