"""The page that compares runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.report.compare import accuracy_curves, groups_of, write_comparison
from fl.report.read import read_run
from tests.fl.report.conftest import CURVE, START, MakeRun


def change(run_dir: Path, **changes: object) -> Path:
    path = run_dir / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return run_dir


def test_runs_stand_side_by_side_the_best_first(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("worse"), change(make_run("better", method="dense"), accuracy=0.93)]
    text = write_comparison(runs, tmp_path / "compare.html").read_text()
    assert re.findall(r"<td>(worse|better)</td>", text) == ["better", "worse"]
    assert "93.0%" in text
    assert "<td>dense</td>" in text
    assert text.count("data:image/svg+xml;base64,") == 1
    assert "different" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset": "mnist"}, "different data sets"),
        ({"partition": {"kind": "iid", "hash": "other"}}, "different partitions"),
    ],
)
def test_runs_that_cannot_be_compared_are_marked(
    make_run: MakeRun, tmp_path: Path, changes: dict, said: str
) -> None:
    runs = [make_run("one"), change(make_run("two"), **changes)]
    assert said in write_comparison(runs, tmp_path / "compare.html").read_text()


def test_every_run_has_a_line_of_its_own_from_its_start(make_run: MakeRun) -> None:
    runs = [read_run(make_run(f"cost${k}")) for k in range(9)]
    (axes,) = accuracy_curves(groups_of(runs)).axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 9
    assert list(axes.lines[0].get_ydata()) == [START, *CURVE.values()]


def seeded(make_run: MakeRun, seed: int, **changes: object) -> Path:
    run_dir = make_run(f"dense-seed{seed}", method="dense")
    config = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(config.replace("seed: 0", f"seed: {seed}"))
    return change(run_dir, seed=seed, **changes)


def test_runs_of_one_configuration_are_a_row_and_a_curve(make_run: MakeRun, tmp_path: Path) -> None:
    parts = [{"partition": {"kind": "dirichlet", "hash": f"of seed {seed}"}} for seed in (0, 1)]
    runs = [
        seeded(make_run, 0, accuracy=0.80, bytes_up=1000, **parts[0]),
        seeded(make_run, 1, accuracy=0.90, bytes_up=3000, **parts[1]),
    ]
    text = write_comparison(runs, tmp_path / "compare.html").read_text()
    assert re.findall(r"<td>(dense-seed\d|dense)</td>", text) == ["dense", "dense"]  # run, method
    for figure in ("85.0% ± 7.1", '<td class="number">0, 1</td>', "2.0 kB", "2 runs"):
        assert figure in text
    assert "different partitions" not in text
    (axes,) = accuracy_curves(groups_of([read_run(run) for run in runs])).axes
    assert len(axes.lines) == len(axes.collections) == 1  # the mean, and its band
    assert axes.get_legend_handles_labels()[1] == ["dense (2 seeds)"]


def test_runs_without_fusion_epochs_have_no_picture(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("fedavg")
    (run / "metrics.jsonl").write_text("")
    assert "data:image" not in write_comparison([run], tmp_path / "compare.html").read_text()


def test_an_unfinished_run_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    (run / "result.json").unlink()
    with pytest.raises(UserError, match=r"not finished: it has no result\.json"):
        write_comparison([run], tmp_path / "compare.html")


def test_the_command_writes_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "compare.html"
    command = [sys.executable, "-m", "fl.report", str(make_run("a")), str(make_run("b"))]
    done = subprocess.run([*command, "-o", str(page)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(page)
    assert page.exists()


def test_runs_of_many_rounds_say_when_they_got_there(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("slow", rounds=9), make_run("fast", rounds=7), make_run("one-shot")]
    text = write_comparison(runs, tmp_path / "compare.html").read_text()
    assert "Rounds to 80.0%" in text
    cells = re.findall(r"<td>rounds</td>\s*<td class=\"number\">(\d+)</td>", text)
    assert sorted(cells) == ["7", "9"]
    (axes,) = accuracy_curves(groups_of([read_run(run) for run in runs])).axes
    assert axes.get_xlabel() == "round or fusion epoch"
