"""The allocation's options: what is taken, and what is refused in one line."""

import pytest

from cluster.run.command_line import parse
from cluster.run.slurm_options import SlurmOptions
from fl.errors import UserError


@pytest.mark.parametrize("arguments", [["--slurm"], ["--slurm.nodes=2"], ["--slurm.nodes", "2"]])
def test_any_slurm_argument_submits(arguments: list[str]) -> None:
    assert parse(arguments).slurm.submit


def test_without_one_nothing_is_submitted() -> None:
    assert not parse([]).slurm.submit


def test_slurm_may_stand_anywhere() -> None:
    launch = parse(["--slurm", "--seed", "3", "--slurm.setup", "module load a", "b; c"])
    assert (launch.run.seed, launch.slurm.setup) == (3, ("module load a", "b; c"))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("0:30", 1), ("1:30", 2), ("2:00:00", 120), ("1-0", 1440), ("1-02:03:04", 1564)],
)
def test_time_is_read_as_sbatch_reads_it(text: str, minutes: int) -> None:
    assert SlurmOptions(time=text).minutes == minutes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slurm.foo=1"], "unknown option '--slurm.foo'.*; --help-all names all"),
        (["--slurm.nodes=0"], "slurm.nodes must be at least 1"),
        (["--slurm.gpus-per-node=-1"], "slurm.gpus_per_node must be at least 0"),
        (["--slurm.cpus-per-task=0"], "slurm.cpus_per_task must be at least 1"),
        (["--slurm.mem-gb=0"], "slurm.mem_gb must be a positive number"),
        (["--slurm.time=soon"], "slurm.time must be minutes, H:MM:SS or D-HH:MM:SS, got 'soon'"),
        (["--slurm.time=0"], "slurm.time in minutes must be at least 1"),
        (["--slurm.additional", "--exclusive"], "slurm.additional|nrecognized|unknown option"),
        (["--slurm.additional", "Exclusive"], "takes KEY or KEY=VALUE, got 'Exclusive'"),
        (["--slurm.additional", "nodes=3"], "cannot set nodes: .* for nodes"),
        (["--slurm.additional", "output=x"], "cannot set output: .* for logs"),
        (["--slurm.additional", "cpus-per-task=8"], "use --slurm.cpus-per-task"),
        (["--slurm.additional", "mem=8G"], "use --slurm.mem-gb"),
        (["--slurm.additional", "gpus=2"], "use --slurm.gpus-per-node"),
        (["--slurm.gpus-per-node=1", "--slurm.additional", "gres=tmp:1"], "use --slurm.gpus"),
        (["--slurm.additional", "nice=1", "nice=2"], "sets nice twice"),
        (["--slurm.partition", "a\n#SBATCH --uid=0"], "slurm.partition must be printable text"),
        (["--slurm.setup", "a\nb"], "slurm.setup must be printable text"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse(arguments)
    assert "\n" not in str(caught.value)


def test_other_settings_are_passed_on() -> None:
    options = SlurmOptions(additional=("exclusive", "reservation=a=b", "comment="))
    assert options.flags == {"exclusive": True, "reservation": "a=b", "comment": ""}


def test_the_shape_is_what_was_asked_for_not_this_machine() -> None:
    shape = SlurmOptions(nodes=8, gpus_per_node=4, cpus_per_task=96, mem_gb=500).shape
    assert (shape.cpus, len(shape.gpus), shape.memory_bytes) == (96, 4, 500 * 2**30)
