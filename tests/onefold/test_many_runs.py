"""Sweeps, studies, grids and suites in onefold ls and rm."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.run.run_dir import locked
from onefold.runs import main, many_in


def make_run(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("method: fedavg\nversions: {}\n")
    (path / ".lock").touch()
    return path


def make_sweep(path: Path) -> Path:
    for trial in ("default", "00001"):
        make_run(path / "trials" / trial)
    make_run(path / "final" / "best-seed0")
    (path / "sweep.yaml").write_text("sweep: {}\nspace: {}\nrun: {}\nversions: {}\n")
    return path


def make_study(path: Path) -> Path:
    for clients in (2, 5):
        (make_run(path / f"k{clients}-seed0") / "study.json").write_text("{}")
    (path / ".store").mkdir()
    (path / "study.json").write_text("{}")
    (path / "bytes.png").touch()
    return path


def make_table(folder: Path, name: str, scale: str | None, rows: Sequence[str]) -> Path:
    stem = f"{name}-{scale}" if scale else name
    for row in rows:
        for seed in (0, 1):
            make_run(folder / f"{stem}-{row}-fedavg-seed{seed}")
    cells = [{"row": row, "method": "fedavg"} for row in rows]
    table = {"table": name, "scale": scale, "seeds": [0, 1], "cells": cells}
    (folder / f"{stem}.json").write_text(json.dumps(table))
    (folder / f"{stem}.md").touch()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a sweep, a study, a grid, a suite, and a run that is in none of them."""
    make_sweep(tmp_path / "search")
    make_study(tmp_path / "study")
    make_table(tmp_path, "grid", None, ["alpha0.1", "alpha0.5"])
    make_table(tmp_path, "fig6", "small", ["mnist-betas1,1"])
    for picture in ("grid", "grid-2", "fig6-small", "fig6-small-mine"):
        (tmp_path / f"{picture}.png").touch()
    make_run(tmp_path / "alone")
    return tmp_path


def rm(runs: Path, *arguments: str) -> int:
    return main(["rm", "--output-dir", str(runs), *arguments])


def left(runs: Path) -> set[str]:
    return {path.name for path in runs.iterdir()}


def test_ls_lists_what_holds_many_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--output-dir", str(runs)]) == 0
    of_runs, of_many = capsys.readouterr().out.split("\n\n")
    assert len(of_runs.splitlines()) == 1 + 7
    head, *rows = [line.split() for line in of_many.splitlines()]
    assert head == ["name", "date", "kind", "holds"]
    assert [(row[0], *row[3:]) for row in rows] == [
        ("fig6-small", "suite", "2", "runs"),
        ("grid", "grid", "4", "runs"),
        ("search", "sweep", "2", "trials"),
        ("study", "study", "2", "runs"),
    ]


def test_an_unfinished_study_is_known_by_its_runs(tmp_path: Path) -> None:
    (make_study(tmp_path / "study") / "study.json").unlink()
    assert many_in(tmp_path, {})["study"].kind == "study"


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"table": "other", "scale": null}', '{"table": "grid", "scale": null}'),
        '{"table": "grid", "scale": null, "seeds": 3, "cells": [[]]}',
    ],
)
def test_what_only_looks_like_ours_is_not_listed(tmp_path: Path, content: str) -> None:
    (tmp_path / "grid.json").write_text(content)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "sweep.yaml").write_text("program: train.py")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert many_in(tmp_path, {}) == {}


def test_a_folder_that_may_not_be_looked_into_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sweep(tmp_path / "search")
    (tmp_path / "another's").mkdir()
    look = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "another's":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert [*many_in(tmp_path, {})] == ["search"]


def test_a_table_names_no_folder_elsewhere(tmp_path: Path) -> None:
    precious = make_run(tmp_path / "precious-fedavg-seed0")
    folder = tmp_path / "runs"
    (folder / "fig6-small-..").mkdir(parents=True)
    cells = [{"row": "../../../precious", "method": "fedavg"}]
    table = {"table": "fig6", "scale": "small", "seeds": [0], "cells": cells}
    (folder / "fig6-small.json").write_text(json.dumps(table))
    assert rm(folder, "fig6-small", "--yes") == 0
    assert precious.exists()


def test_rm_says_what_it_would_delete(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = left(runs)
    assert rm(runs, "search", "grid", "alone") == 2
    said = capsys.readouterr().err
    assert f"{runs}/search (sweep, 2 trials), {runs}/grid.json (grid, 4 runs); say --yes" in said
    assert left(runs) == before


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("search", {"search"}),
        ("study", {"study"}),
        ("fig6-small", {"fig6-small.json", "fig6-small.md", "fig6-small.png"}),
        ("grid", {"grid.json", "grid.md", "grid.png"}),
    ],
)
def test_rm_deletes_it_with_its_runs_and_nothing_else(
    runs: Path, name: str, gone: set[str]
) -> None:
    before = left(runs)
    assert rm(runs, name, "--yes") == 0
    own = {run for run in before if run.startswith(f"{name}-") and "seed" in run}
    assert before - left(runs) == gone | own
    assert bool(own) == ("json" in str(gone))


def test_a_run_may_be_named_beside_its_grid(runs: Path) -> None:
    assert rm(runs, "grid", "grid-alpha0.1-fedavg-seed0", "--yes") == 0
    assert not any(path.name.startswith("grid-a") for path in runs.iterdir())


@pytest.mark.parametrize(
    "busy",
    [
        *("alone", "search", "search/trials/00001", "study", "study/k2-seed0"),
        "grid-alpha0.1-fedavg-seed1",
    ],
)
def test_rm_deletes_none_where_a_process_is_at_work_in_one(
    runs: Path, busy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(runs)
    with locked(runs / busy):
        assert rm(runs, "alone", "search", "study", "grid", "--yes") == 2
    assert f"{runs / busy} is in use by process" in capsys.readouterr().err
    assert left(runs) == before
    assert rm(runs, "alone", "search", "study", "grid", "--yes") == 0


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("study/thesis.tex", "holds thesis.tex, which is no study's: delete it by hand"),
        ("search/sweep.yaml", "holds sweep.yaml, which is no sweep's: delete it by hand"),
    ],
)
def test_rm_leaves_a_folder_with_what_is_not_ours(
    runs: Path, file: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / file).write_text("program: train.py")
    before = left(runs)
    assert rm(runs, "alone", Path(file).parts[0], "--yes") == 2
    assert said in capsys.readouterr().err
    assert left(runs) == before


def test_rm_leaves_what_a_link_points_to(
    runs: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = make_sweep(tmp_path_factory.mktemp("elsewhere"))
    (runs / "link").symlink_to(elsewhere)
    assert rm(runs, "link", "--yes") == 2
    assert "link is a link: delete it by hand" in capsys.readouterr().err
    assert (elsewhere / "sweep.yaml").exists()
