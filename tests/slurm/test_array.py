"""Many runs as one job array, with an sbatch that only says yes."""

import re
from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.studies.cells import TABLES
from cluster.studies.comparison import Cell
from cluster.suite import main as suite
from slurm.array import main as array
from slurm.array import read_runs
from slurm.status import State, read_state
from tests.cluster.commands import SMALL
from tests.slurm.fake import calls, fake_command


def test_an_array_is_one_submission(
    commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.txt"
    runs.write_text("# two seeds\n--seed 0\n\n--seed 1 --name 'the second'\n")
    root = tmp_path / "out"
    common = [*SMALL, f"--output-dir={root}", "--slurm.partition=gpu"]
    assert array([str(runs), *common, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert not root.exists()
    assert array([str(runs), *common]) == 0
    said = capsys.readouterr().out
    assert len(calls(commands, "sbatch")) == 1
    sent = (commands / "sent").read_text()
    assert sent in planned
    assert "#SBATCH --array=0-1%2\n" in sent
    assert re.findall(r"job (7_\d)", said) == ["7_0", "7_1"]
    assert read_state(root / "the second") == State(job="7_1", phase="submitted")


def test_a_table_is_an_array_of_what_no_job_is_at_work_on(
    commands: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cell = Cell("digits", "fedmho", ("--method=fedmho", "--dataset=digits", *SMALL))
    monkeypatch.setitem(TABLES, "table3", lambda scale: [cell])
    asked = ["table3", f"--output-dir={tmp_path}", "--slurm", "--slurm.partition=gpu"]
    fake_command(commands, "squeue", "echo '7|RUNNING|None'; echo '7_0|RUNNING|None'")
    assert suite([*asked, "--seeds=0"]) == 0
    assert suite([*asked, "--seeds=0,1"]) == 0
    assert capsys.readouterr().out.count("seed0 is running; scancel 7") == 1
    assert len(calls(commands, "sbatch")) == 2
    assert "#SBATCH --partition=gpu" in (commands / "sent").read_text()
    states = [read_state(tmp_path / f"table3-small-digits-fedmho-seed{seed}") for seed in (0, 1)]
    assert [state.phase for state in states if state] == ["submitted"] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--seed 0\n--sed 1\n", "line 2: unknown option '--sed'"),
        ("--name 'a\n", "line 1: No closing quotation"),
        ("\n# nothing\n", "names no runs"),
        ("--seed 0\n--seed 1 --slurm.nodes 2\n", "one allocation"),
        ("--seed 0 --wait\n", "--wait follows one run"),
        ("--name \udcff\n", "cannot read"),  # no text
        (None, "cannot read"),
    ],
)
def test_a_bad_list_of_runs_is_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.txt"
    if text is not None:
        runs.write_bytes(text.encode(errors="surrogateescape"))
    assert array([str(runs)]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


def test_a_line_is_read_as_a_shell_reads_it_and_what_follows_the_file_holds_for_all(
    tmp_path: Path,
) -> None:
    runs, text = tmp_path / "runs.txt", "# seeds\n\n  # indented\n--seed=1 --name 'a b'\n--seed=2"
    # With a byte order mark, as Windows writes it.
    runs.write_text(f"{text} --alpha=0.3\n".replace("\n", "\r\n"), encoding="utf-8-sig")
    first, second = read_runs(runs, ["--alpha=0.7", "--slurm.nodes=2"])
    assert (first.run.seed, first.name, first.run.alpha) == (1, "a b", 0.7)
    assert (second.run.seed, second.run.alpha) == (2, 0.3)  # a line's own words come last
    assert first.slurm == second.slurm == parse(["--slurm.nodes=2"]).slurm
    assert first.slurm.submit


def test_no_run_is_claimed_before_all_are_known_to_be_possible(
    commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.txt"
    runs.write_text("--name=good\n--name=bad --num-clients=1000\n")
    assert array([str(runs), *SMALL, f"--output-dir={tmp_path / 'out'}"]) == 2
    assert "samples" in capsys.readouterr().err
    assert not calls(commands, "sbatch")
    assert not (tmp_path / "out" / "good").exists()


def test_a_refused_array_can_be_submitted_again(commands: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs.txt"
    runs.write_text("--name=a\n--name=b\n")
    asked = [str(runs), *SMALL, f"--output-dir={tmp_path / 'out'}"]
    fake_command(commands, "sbatch", "echo 'sbatch: error: no such partition' >&2; exit 1")
    assert array(asked) == 2
    fake_command(commands, "sbatch", 'echo "Submitted batch job 7"')
    assert array(asked) == 0
