"""How to run: which of the launch's options exclude or need each other; a Slurm allocation's."""

from dataclasses import fields
from typing import Any

import pytest

from cluster.run.command_line import parse
from cluster.run.options import LaunchOptions, SlurmOptions
from cluster.run.run_dir import nested
from fl.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runtime", "slurm"], "inprocess"),
        (["--on-client-failure=wait"], "drop"),
        (["--report-real-images", "--dp.epsilon=8"], "cannot be used with dp.epsilon"),
        (["--smoke", "--dry-run"], "excludes --dry-run"),
        (["--track", "neptune"], "mlflow"),
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
        (["--max-actors", "0"], "max_actors must be at least 1, got 0"),
        (["--fusion-ranks=2", "--runtime=inprocess"], "fusion_ranks above 1 need --runtime ray"),
        (["--fusion-timeout=0"], "fusion_timeout must be a positive number"),
        (["--slurm", "--ray-address=a:1"], "leave out --ray-address"),
        (["--slurm.nodes=2", "--runtime=inprocess"], "only --runtime ray"),
        (["--wait"], "--wait needs --slurm"),
        (["--runtime=inprocess", "--ray-address=a:1"], "--ray-address needs --runtime ray"),
        (["--ray-address=auto"], "ray_address must be HOST:PORT, got 'auto'"),
        (["--slurm.foo=1"], "unknown option '--slurm.foo'.*; --help-all names all"),
        (["--slurm.gpus-per-node=-1"], "slurm.gpus_per_node must be at least 0"),
        (["--slurm.time=soon"], "slurm.time must be minutes, H:MM:SS or D-HH:MM:SS, got 'soon'"),
        (["--slurm.additional", "--exclusive"], "slurm.additional|nrecognized|unknown option"),
        (["--slurm.additional", "nodes=3"], "slurm.additional cannot set nodes: .* for nodes"),
        (["--slurm.partition", "a\n#SBATCH --uid=0"], "slurm.partition must be printable text"),
    ],
)
def test_what_cannot_be_run_so_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        parse(arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": "0"}, "time in minutes must be at least 1"),
        ({"additional": ("Exclusive",)}, "takes KEY or KEY=VALUE, got 'Exclusive'"),
        ({"additional": ("output=x",)}, "cannot set output: .* for logs"),
        ({"additional": ("cpus-per-task=8",)}, "use --slurm.cpus-per-task"),
        ({"additional": ("mem=8G",)}, "use --slurm.mem-gb"),
        ({"additional": ("gpus=2",)}, "use --slurm.gpus-per-node"),
        ({"additional": ("gres=tmp:1",), "gpus_per_node": 1}, "use --slurm.gpus"),
        ({"additional": ("nice=1", "nice=2")}, "sets nice twice"),
        ({"setup": ("a\nb",)}, "setup must be printable text"),
    ],
)
def test_what_sbatch_would_not_take_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        SlurmOptions(**given)
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


def test_any_slurm_argument_submits_and_slurm_may_stand_anywhere() -> None:
    assert not parse([]).slurm.submit
    assert parse(["--slurm.nodes", "2"]).slurm.submit
    launch = parse(["--slurm", "--seed", "3", "--slurm.setup", "module load a", "b; c"])
    assert launch.slurm.submit
    assert (launch.run.seed, launch.slurm.setup) == (3, ("module load a", "b; c"))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("0:30", 1), ("1:30", 2), ("2:00:00", 120), ("1-0", 1440), ("1-02:03:04", 1564)],
)
def test_time_is_read_as_sbatch_reads_it(text: str, minutes: int) -> None:
    assert SlurmOptions(time=text).minutes == minutes


def test_other_settings_are_passed_on() -> None:
    options = SlurmOptions(additional=("exclusive", "reservation=a=b", "comment="))
    assert options.flags == {"exclusive": True, "reservation": "a=b", "comment": ""}


def test_the_shape_is_what_was_asked_for_not_this_machine() -> None:
    shape = SlurmOptions(nodes=8, gpus_per_node=4, cpus_per_task=96, mem_gb=500).shape
    assert (shape.cpus, len(shape.gpus), shape.memory_bytes) == (96, 4, 500 * 2**30)
