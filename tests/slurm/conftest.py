"""A Slurm for the tests that only says yes."""

from pathlib import Path

import pytest

from tests.slurm.fake import fake_command


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of fake commands."""
    folder = tmp_path / "bin"
    script = 'cp "$1" "$(dirname "$0")/sent"; echo "Submitted batch job 7"'
    monkeypatch.setenv("PATH", fake_command(folder, "sbatch", script)["PATH"])
    fake_command(folder, "srun", "")
    return folder
