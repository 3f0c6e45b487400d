"""How to run: which of the launch's options exclude or need each other."""

from dataclasses import fields

import pytest

from cluster.run.command_line import parse
from cluster.run.options import LaunchOptions
from cluster.run.run_dir import nested
from fl.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runtime", "slurm"], "inprocess"),
        (["--on-client-failure=wait"], "drop"),
        (["--report-real-images", "--dp.epsilon=8"], "goes without dp.epsilon"),
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
        (["--max-actors", "0"], "max_actors must be at least 1, got 0"),
        (["--fusion-ranks=0"], "fusion_ranks must be at least 1, got 0"),
        (["--fusion-ranks=2", "--runtime=inprocess"], "fusion_ranks above 1 need --runtime ray"),
        (["--fusion-timeout=0"], "fusion_timeout must be a positive number"),
        (["--fusion-checkpoint=0"], "fusion_checkpoint must be at least 1"),
        (["--slurm", "--ray-address=a:1"], "leave out --ray-address"),
        (["--slurm.nodes=2", "--runtime=inprocess"], "only --runtime ray"),
        (["--wait"], "--wait goes with --slurm"),
        (["--runtime=inprocess", "--ray-address=a:1"], "--ray-address goes with --runtime ray"),
        (["--ray-address=auto"], "ray_address must be HOST:PORT, got 'auto'"),
    ],
)
def test_what_cannot_be_run_so_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        parse(arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--resume"],
        ["--overwrite"],
        ["--fusion-ranks=1", "--runtime=inprocess"],
        ["--ray-address=a:1", "--fusion-ranks=2"],
        ["--slurm", "--wait", "--slurm.nodes=2"],
    ],
)
def test_what_goes_together_is_taken(arguments: list[str]) -> None:
    parse(arguments)


def test_how_to_run_is_no_part_of_what_determines_the_result() -> None:
    """So a run can be resumed with more ranks, elsewhere, or as a job."""
    how = ["--max-actors=3", "--fusion-ranks=2", "--fusion-checkpoint=1", "--slurm", "--resume"]
    launch = parse([*how, "--on-client-failure=drop"])
    assert launch.run == parse([]).run
    own = {field.name for field in fields(LaunchOptions)} - {"run"}
    assert not own & nested(launch.run).keys()
