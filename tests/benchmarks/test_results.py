"""The tool that makes the tables of docs/results."""

import json
import re
from pathlib import Path

import pytest
import results
from results import (
    PAGES,
    ROOT,
    TABLES,
    Job,
    Options,
    Provenance,
    digits,
    main,
    mnist,
    of_program,
    of_study,
    record,
    replaced,
)

from cluster.run.command_line import parse
from cluster.run.run_dir import claim
from cluster.studies.comparison import Cell, Figure
from cluster.studies.study_runs import parse_study
from fl.errors import UserError
from fl.json_files import write_json

HERE = Provenance("2026-11-25", "0123abc", "a machine")
CELL = Cell("digits-alpha0.5", "fedmho", ("--method=fedmho", "--dataset=digits"))
PLACES = "".join(f"<!-- table: {name} -->\nold\n<!-- end -->\n" for name in ("placement", "study"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    options = Options(tables=(), seeds="0", output_dir=tmp_path, runtime="inprocess")
    return Job(options, HERE, tmp_path)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "here_and_now", lambda: HERE)
    monkeypatch.setattr(
        results, "TABLES", {n: lambda job: "| 1 |" for n in ("placement", "robust")}
    )
    found = tmp_path / "speed.md"
    found.write_text(PLACES)
    return found


def test_the_pages_have_one_place_for_every_table_and_each_names_what_made_it() -> None:
    text = "".join(page.read_text() for page in PAGES.glob("*.md"))
    tables = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert sorted(name for name, _ in tables) == sorted(TABLES)
    for name, body in tables:
        commit = "commit [0-9a-f]{7,}( with changes)?"
        assert re.match(rf"`python .* {name}`,\n[0-9-]{{10}}, {commit}; .+\.\n", body), name


def test_the_headline_tables_have_the_figures_of_the_pages() -> None:
    """A row of the overview names a method; its figures stand in that method's rows."""
    rows = [
        line
        for page in PAGES.glob("*.md")
        if page.name != "README.md"
        for line in page.read_text().splitlines()
    ]
    for method, figures in re.findall(
        r"^\| `(\S+)` \| (.*) \|$", (PAGES / "README.md").read_text(), re.MULTILINE
    ):
        own = [row for row in rows if f"| {method} |" in row]
        for figure in figures.split(" | "):
            assert figure == "-" or any(f"| {figure} |" in row for row in own), (method, figure)


def test_a_table_names_command_date_commit_and_machine(page: Path) -> None:
    assert main(Options(tables=("placement",)), page.parent) == 0
    where = "2026-11-25, commit 0123abc; a machine."
    own = f"`python benchmarks/results.py placement`,\n{where}\n\n| 1 |\n"
    assert page.read_text() == replaced(PLACES, "placement", own)
    assert page.read_text().endswith("<!-- table: study -->\nold\n<!-- end -->\n")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mine", "unknown table 'mine'; valid: placement, robust"),
        ("robust", "has <!-- table: robust -->"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    page: Path, name: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(Options(tables=("placement", name)), page.parent) == 2
    assert line in capsys.readouterr().err
    assert page.read_text() == PLACES


def test_code_must_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_git", lambda *arguments: " M fl/server.py")
    with pytest.raises(UserError, match="commit your changes first"):
        results.here_and_now()


def test_a_table_is_made_of_runs_and_each_is_written_down(job: Job) -> None:
    for name, folder in (("table3", "."), ("table3", "main-job")):
        cell = CELL if folder == "." else Cell(CELL.row, "fedmho-sd", ("--method=fedmho-sd",))
        named = f"--name={name}-small-{cell.name}-seed0"
        where = f"--output-dir={job.options.output_dir / folder}"
        own = [*cell.arguments, where, "--runtime=inprocess", "--seed=0", named]
        result = {
            **{
                "method": cell.method,
                "accuracy": 0.9,
                "start_accuracy": 0.25,
                "protocol": "one-shot",
            },
            "seconds": {"total": 43.4, "local": 20.0, "fusion": 19.5},
        }
        write_json(claim(parse(own)) / "result.json", result)
    text = results.of_runs("table3", lambda: [CELL], job)
    assert text.startswith("table3 at small scale, seeds 0.\n\n| Row | Method | Accuracy, % |")
    assert "| digits-alpha0.5 | fedmho | 90.00 | " in text
    assert text.endswith("Each run: [table3.jsonl](runs/table3.jsonl).")
    assert "digits-alpha0.5-fedmho" in (job.docs / "runs" / "table3.jsonl").read_text()
    told = results.main_job(job).splitlines()
    assert told[0].startswith("| Method | Accuracy | Averaged start | Run, in one process |")
    assert told[2] == "| fedmho-sd | 0.9000 | 0.2500 | 43.4 s | 20.0 s | 19.5 s |"


def test_a_runs_line_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "table.jsonl"
    for accuracy in (0.5, 0.75):
        found = tuple({"accuracy": accuracy, "placements": [1]} for _ in range(2))
        record(path, [Figure(CELL, found, ((2.0,), ()))], [0, 3], HERE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(run["cell"], run["seed"]) for run in lines] == [(CELL.name, 0), (CELL.name, 3)]
    assert [run["result"] for run in lines] == [{"accuracy": 0.75}] * 2
    assert lines[0]["provenance"] == vars(HERE)


def test_the_lines_in_the_docs_are_of_the_pages_tables() -> None:
    cells = [job.args[1]() for job in TABLES.values() if getattr(job, "func", 0) is results.of_runs]
    names = {cell.name for of_table in cells for cell in of_table}
    for path in (PAGES / "runs").glob("*.jsonl"):
        assert {json.loads(line)["cell"] for line in path.read_text().splitlines()} <= names


def test_our_table_3_has_the_released_weights_and_our_own_method_beside_the_papers() -> None:
    for cells, count in ((mnist("0.5"), 11), (mnist("0.1"), 11), (digits(), 10)):
        assert len({cell.name for cell in cells}) == len(cells) == count
        (found,) = {c.arguments[-1] for c in cells if c.method == "fedmho-md-released"}
        assert found == "--betas=released"
        assert all(parse(cell.arguments).run.method in cell.method for cell in cells[-3:])
    assert {cell.method for cell in mnist("0.5")} - {cell.method for cell in digits()} == {"feddf"}


def test_what_a_program_prints_and_draws_is_shown_with_its_command(job: Job) -> None:
    code = "import sys; print('x ' + sys.argv[-1]); open(sys.argv[-1][9:], 'w').write('drawn')"
    text = of_program(("-c", code), "p.png", job)
    assert text.splitlines()[0] == "![p](p.png)"
    assert text.splitlines()[-1] == f"    x --output={job.docs / 'p.png'}"
    assert (job.docs / "p.png").read_text() == "drawn"
    shown = of_program(("-c", "import sys; print(sys.argv[1])", "{data} {}"), None, job)
    assert shown.splitlines()[-1] == f"    {job.options.data_root.absolute()} {{}}"
    with pytest.raises(UserError, match=r"^-c raise SystemExit\(3\) ended with status 3$"):
        of_program(("-c", "raise SystemExit(3)"), None, job)


def test_a_studys_figures_are_a_row_for_each_number_of_clients(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = {
        **{
            "clients": 1000,
            "clients_per_second": 21.3,
            "accuracy": 0.681,
            "device_peak_bytes": None,
        },
        "seconds": {"local": 47.1, "synthesis": 0.2, "fusion": 4.4, "total": 51.9},
        **{"workers": 2, "workers_peak_bytes": 1_042_000_000, "driver_peak_bytes": 1_100_000_000},
        **{"bytes_up": 837_000_000, "bytes_down": 0},
    }

    def study(arguments: list[str], options: Options) -> str:
        where = Path(arguments[-1].removeprefix("--output-dir="))
        where.mkdir()
        (where / "memory.png").write_text("drawn")
        write_json(where / "study.json", {"cells": [cell]})
        return ""

    monkeypatch.setattr(results, "run", study)
    text = of_study("study", ("--method=local", "--num-clients=1000"), ("memory",), job)
    assert text.startswith(
        "    python -m cluster.study --method=local --num-clients=1000\n\n| Clients"
    )
    times = "| 1,000 | 47.1 s | 4.6 s | 51.9 s | 21.3 |"
    assert f"{times} 1.1 GB | 2 x 521.0 MB | 837.0 MB | 68.1% |" in text
    assert text.endswith("![memory](study-memory.png)")
    assert (job.docs / "study-memory.png").read_text() == "drawn"


def test_the_programs_and_the_studies_are_there() -> None:
    for job in TABLES.values():
        if getattr(job, "func", None) is of_program:
            assert (ROOT / job.args[0][0]).exists()
        if getattr(job, "func", None) is of_study:
            _, arguments = parse_study([a.format(data="data") for a in job.args[1]])
            parse([*arguments, "--num-clients=10"])
