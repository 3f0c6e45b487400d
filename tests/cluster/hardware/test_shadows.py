"""Files of the user's with the names of Onefold's packages are passed by, in every process.

In a whole run on Ray: see tests/cluster/run/test_runner.py.
"""

import subprocess
from pathlib import Path

import pytest

from cluster.hardware import private_ray
from cluster.hardware.private_ray import first_for_workers, refuse_shadows, shadows
from cluster.hardware.processes import ROOT, environment, python
from fl.errors import UserError

NOT_OURS = "raise RuntimeError('not ours')"


@pytest.mark.parametrize("name", ["cluster.py", "fl/__init__.py"])
def test_a_shadow_in_the_present_folder_puts_ours_first_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert first_for_workers() is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert shadows() == [tmp_path / name]
    assert first_for_workers() == str(ROOT)


@pytest.mark.parametrize(
    ("path", "refused"), [(None, False), (["/there", str(ROOT)], False), (["/there"], True)]
)
def test_only_a_ray_that_was_started_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: list[str] | None, refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(private_ray, "path_of_workers", lambda: path)
    refuse_shadows()
    (tmp_path / "cluster.py").touch()
    if refused:
        with pytest.raises(UserError, match=r"cluster\.py has the name of one of"):
            refuse_shadows()
    else:
        refuse_shadows()


@pytest.mark.process
def test_a_module_of_ours_is_found_in_a_folder_with_shadows(tmp_path: Path) -> None:
    for name in ("cluster", "fl", "slurm"):
        (tmp_path / f"{name}.py").write_text(NOT_OURS)
    command = python("cluster.hardware.gpus")  # imports little
    assert subprocess.run(command, cwd=tmp_path, env=environment(), check=False).returncode == 0
    without_us = [part for part in command if part != "-P"]
    assert subprocess.run(without_us, cwd=tmp_path, capture_output=True, check=False).returncode
