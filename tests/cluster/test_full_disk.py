"""A disk that fills while a run is at work: one line, no litter, and --resume to the same bits."""

import errno
import fnmatch
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.launch import main
from tests.undrawn import WRITE_REPORT, draw_nothing

SMALL = (
    *("--runtime=inprocess", "--num-clients=2", "--data.max-train=100", "--data.max-test=60"),
    *("--classifier.epochs=1", "--generator.epochs=1", "--num-samples=60", "--fusion.epochs=2"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--generator.width=0.2"),
    *("--fusion-checkpoint=0", "--name=a"),
)
SITES = ("config.yaml", "partition.json", "*.safetensors", "fusion.state", "result.json", "*.svg")
"""One for each step of a run: they are written in one way."""
BEFORE_IT_RUNS = ("config.yaml",)


def launch(folder: Path, *further: str) -> int:
    return main([*SMALL, f"--output-dir={folder}", *further])


def model(folder: Path) -> bytes:
    return (folder / "a" / "model" / "global.safetensors").read_bytes()


def litter(folder: Path) -> list[Path]:
    """Temporary files."""
    return [p for p in folder.rglob(".*.*") if p.is_file()]


@pytest.fixture(autouse=True)
def quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws the report only where that is what fails: it takes seconds."""
    if request.node.name.partition("[")[2] != "*.svg]":
        monkeypatch.setattr(WRITE_REPORT, draw_nothing)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert launch(folder) == 0
    return model(folder)


@pytest.mark.parametrize("site", SITES)
def test_a_full_disk_at_any_write_is_one_line_and_resume_goes_on(
    tmp_path: Path,
    site: str,
    undisturbed: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace = os.replace

    def full(source: str | Path, target: str | Path) -> None:
        if fnmatch.fnmatch(Path(target).name, site):
            raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    capsys.readouterr()
    assert launch(tmp_path) == (2 if site in BEFORE_IT_RUNS else 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device; make room there" in line
    assert site in BEFORE_IT_RUNS or "then --resume goes on in" in line
    assert not litter(tmp_path)
    monkeypatch.setattr(os, "replace", replace)
    assert launch(tmp_path, "--resume") == 0
    assert model(tmp_path) == undisturbed


def test_a_store_that_was_emptied_is_filled_again_and_a_cache_may_fail(
    tmp_path: Path, undisturbed: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".store" / "cohorts.json").mkdir(parents=True)  # a folder in the cache's place
    capsys.readouterr()
    assert launch(tmp_path) == 0
    assert len(capsys.readouterr().err.splitlines()) <= 1
    for file in (tmp_path / ".store").iterdir():
        if file.is_file():
            file.unlink()
    assert launch(tmp_path, "--resume") == 0
    assert model(tmp_path) == undisturbed


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_real_full_disk_and_then_room(
    tiny: Path, undisturbed: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert launch(tiny) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device; make room there; then --resume goes on in" in line
    assert not litter(tiny)
    more = ["mount", "-o", "remount,size=64m", str(tiny)]
    subprocess.run(more, check=True)
    assert launch(tiny, "--resume") == 0
    assert model(tiny) == undisturbed
