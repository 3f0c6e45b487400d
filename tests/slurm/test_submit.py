"""Submitting, with an sbatch that only says yes."""

import json
from pathlib import Path

import pytest

from cluster.launch import main
from cluster.run.command_line import parse
from slurm.status import State, read_state
from slurm.submit import job_of
from tests.cluster.commands import SMALL
from tests.slurm.fake import calls, fake_command


def test_a_submission_returns_and_says_where_everything_is(
    commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs here"
    assert main([*SMALL, "--slurm", f"--output-dir={root}", "--name=a"]) == 0
    said = capsys.readouterr().out
    for line in ("job      7", f"results  {root}/a", f"{root}/a/slurm/7_0_log.out", "scancel 7"):
        assert line in said
    assert read_state(root / "a") == State(job="7", phase="submitted")
    assert (root / "a" / "config.yaml").exists()
    assert len(calls(commands, "sbatch")) == 1


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(
    commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--slurm.nodes=3", "--slurm.cpus-per-task=64", "--name=a"]
    arguments.append(f"--output-dir={tmp_path / 'runs'}")
    assert main([*arguments, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert not calls(commands, "sbatch")
    assert not (tmp_path / "runs").exists()
    # The plan is for the nodes, not for the machine that one submits from.
    assert "each of 3 nodes" in planned
    assert "64 cores" in planned
    assert main(arguments) == 0
    assert (commands / "sent").read_text() in planned


def test_without_sbatch_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--slurm", f"--output-dir={tmp_path / 'runs'}"]) == 2
    assert capsys.readouterr().err == (
        "onefold: sbatch is not on the PATH: --slurm needs a machine that can submit jobs\n"
    )
    assert not (tmp_path / "runs").exists()


def test_a_refused_submission_is_one_line_and_leaves_nothing(
    commands: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--slurm", f"--output-dir={tmp_path / 'runs'}", "--name=a"]
    refusal = "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1"
    fake_command(commands, "sbatch", refusal)
    assert main(arguments) == 2
    assert capfd.readouterr().err == "onefold: sbatch refused: invalid partition specified: x\n"
    assert not (tmp_path / "runs" / "a").exists()


def test_a_run_has_one_job_at_a_time(
    commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--slurm", f"--output-dir={tmp_path / 'runs'}", "--name=a"]
    fake_command(commands, "squeue", "echo '7|RUNNING|None'")
    assert main(arguments) == 0
    assert main([*arguments, "--resume"]) == 2
    assert "job 7 of" in capsys.readouterr().err
    fake_command(commands, "squeue", "echo '7|CANCELLED|None'")
    assert main([*arguments, "--resume"]) == 0


def test_what_can_never_be_met_is_refused_before_it_is_sent(
    commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--slurm.cpus-per-task=2", "--resources.classifier.cpus=3"]
    assert main([*SMALL, *asked, f"--output-dir={tmp_path / 'runs'}"]) == 2
    assert "asks for 3 cores" in capsys.readouterr().err
    assert not calls(commands, "sbatch")


def test_the_job_is_the_same_launch_without_slurm(tmp_path: Path) -> None:
    submitted = parse([*SMALL, "--slurm.nodes=2", "--max-actors=3", "--seed=5", "--wait"])
    run_dir = tmp_path / "runs" / "a b"
    run_dir.mkdir(parents=True)
    from cluster.run.run_dir import nested

    (run_dir / "config.yaml").write_text(json.dumps(nested(submitted.run)))  # JSON is YAML
    job = job_of(submitted, run_dir)
    inside = parse(job.arguments)
    assert inside.run == submitted.run
    assert (inside.output_dir, inside.name) == (run_dir.parent, "a b")
    assert (inside.resume, inside.max_actors, inside.slurm.submit) == (True, 3, False)
    assert inside.data_root.is_absolute()
    assert job.nodes == 2
