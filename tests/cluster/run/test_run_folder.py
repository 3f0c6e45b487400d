"""Only a run's own folder is ever deleted, and what it links to never."""

from pathlib import Path

import pytest

from cluster.run.run_dir import LOCK, delete, empty, is_run, locked
from fl.errors import UserError


def make(path: Path, config: str = "method: fedmho\nversions: {}\n") -> Path:
    path.mkdir()
    (path / "config.yaml").write_text(config)
    return path


@pytest.mark.parametrize("config", ["", "[1", "- method", "method: fedmho\n", "[" * 9000, "\0"])
def test_a_folder_with_another_config_is_no_run_and_stays(tmp_path: Path, config: str) -> None:
    run, other = make(tmp_path / "run"), make(tmp_path / "other", config)
    assert is_run(run)
    assert not is_run(other)
    with pytest.raises(UserError, match="no run's folder"):
        delete([run, other])
    assert run.exists()
    assert other.exists()


def test_a_link_to_a_run_is_no_run(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(UserError, match="no run's folder"):
        delete([tmp_path / "link"])
    assert run.exists()


def test_emptying_keeps_the_lock_and_what_links_point_to(tmp_path: Path) -> None:
    run, kept = make(tmp_path / "run"), make(tmp_path / "kept")
    (run / "model").mkdir()
    (run / "link").symlink_to(kept)
    with locked(run):
        empty(run)
        assert [path.name for path in run.iterdir()] == [LOCK]
    assert (kept / "config.yaml").exists()


def test_deleting_a_run_takes_all_of_it(tmp_path: Path) -> None:
    runs = [make(tmp_path / name) for name in "ab"]
    delete(runs)
    assert not list(tmp_path.iterdir())
