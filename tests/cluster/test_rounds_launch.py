"""The main command over rounds: on several GPUs, and with clients that keep their own models."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cluster.launch import main
from fl.rounds import Rounds
from tests.cluster.commands import environment, events, here, result
from tests.cluster.commands import run as run_line
from tests.cluster.fake_driver import CARDS, pretended
from tests.cluster.living import kill_with_family, wait_for
from tests.held import THERE, held

FEDD2S = [
    *("--method=fedd2s", "--num-clients=5", "--rounds=5", "--name=run", "--participation=0.6"),
    *("--data.max-train=300", "--data.max-test=50", "--partition.kind=mixture"),
    *("--classifier.epochs=1", "--dropping.rate=1"),
]

FEDAF = [
    *("--method=fedaf", "--num-clients=4", "--rounds=2", "--name=run"),
    *("--data.max-train=200", "--data.max-test=100", "--fusion.epochs=2", "--fusion.test-every=2"),
    *("--condensation.width=0.05", "--condensation.steps=10", "--condensation.images-per-class=2"),
]


def command(root: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cluster.launch", f"--output-dir={root}", *arguments]


def run(root: Path, *more: str) -> Path:
    """Runs the command to its end, and returns the run's directory."""
    done = run_line(command(root, *FEDD2S, *more))
    assert done.returncode == 0, done.stderr
    scores = result(root / "run")
    assert "clients  mean of 5, each on its own test samples" in done.stdout
    assert f"UA {scores['ua']:.4f}" in done.stdout
    return root / "run"


def outcome(run: Path) -> tuple[object, ...]:
    """What two equal runs have in common."""
    figures = result(run)
    same = ("accuracy_curve", "client_accuracy", "ua", "bytes_up", "bytes_down")
    return *(figures[n] for n in same), (run / "model" / "global.safetensors").read_bytes()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_ray_that_is_killed_in_round_3_goes_on_to_the_bits_of_one_process(
    tmp_path: Path,
) -> None:
    undisturbed = run(tmp_path / "here", "--runtime=inprocess")
    process = subprocess.Popen(
        command(tmp_path / "ray", *FEDD2S),
        env=environment() | held(tmp_path / "held", '"event": "client_end".*"round": 3'),
        stdout=subprocess.DEVNULL,
    )
    wait_for(process, (tmp_path / "held" / THERE).exists)
    kill_with_family(process)
    told = [event["event"] for event in events(tmp_path / "ray" / "run")]
    assert told.count("round") == 2
    resumed = run(tmp_path / "ray", "--resume")
    assert outcome(resumed) == outcome(undisturbed)
    figures = result(resumed)
    assert figures["scored_on"] == "clients"
    assert figures["accuracy"] == pytest.approx(figures["client_scores"]["mean"])
    assert figures["bytes_up"] > 5 * figures["fedavg_bytes_up"]


def test_two_clients_memories_exchanged_are_refused_by_a_run_that_goes_on(tmp_path: Path) -> None:
    """Each is whole and has its own checksum, but is another client's model."""
    save = Rounds._save

    def stop_after_two(rounds: Rounds, *state: Any) -> None:
        save(rounds, *state)
        if len(rounds.played) == 2:
            raise KeyboardInterrupt

    line = [*FEDD2S, "--rounds=3", "--runtime=inprocess", f"--output-dir={tmp_path}"]
    with mock.patch.object(Rounds, "_save", stop_after_two):
        assert here(main, line).returncode == 130
    kept = sorted((tmp_path / "run" / "updates").glob("round-*/*.safetensors"))
    turn(kept, 1)
    done = here(main, [*line, "--resume"])
    assert done.returncode == 2, done.stdout
    assert "is missing or damaged" in done.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    turn(kept, -1)
    assert here(main, [*line, "--resume"]).returncode == 0


def turn(files: list[Path], by: int) -> None:
    """Each file, and its checksum, gets the content of another."""
    for suffix in (".safetensors", ".sha256"):
        there = [file.with_suffix(suffix) for file in files]
        contents = [file.read_bytes() for file in there]
        for file, content in zip(there, contents[by:] + contents[:by], strict=True):
            file.write_bytes(content)


@pytest.mark.ray
@pytest.mark.slow
def test_rounds_on_several_gpus_are_those_of_one_process(tmp_path: Path) -> None:
    """Clients with shares of GPUs, and a rank on each, side by side to the end."""
    here = run_line(command(tmp_path / "here", *FEDAF, "--runtime=inprocess"))
    there = run_line(command(tmp_path, *FEDAF), **pretended(tmp_path, *CARDS))
    assert here.returncode == there.returncode == 0, there.stderr
    expected, figures = result(tmp_path / "here" / "run"), result(tmp_path / "run")
    assert figures["fusion"] == {"ranks": 3, "restarts": 0}
    assert all(0 < p["assigned"]["GPU"] < 1 for p in figures["placements"])
    # As much travels, and what three ranks fit is the same but for rounding.
    for ours, theirs in zip(figures["per_round"], expected["per_round"], strict=True):
        assert (ours["bytes_up"], ours["bytes_down"]) == (theirs["bytes_up"], theirs["bytes_down"])
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.05)
