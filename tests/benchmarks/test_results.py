"""The tool that makes the tables of docs/results."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
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
    replaced,
    write_domains,
)

from cluster.run.command_line import parse
from cluster.studies import suite_runs
from cluster.studies.comparison import Cell, Figure
from cluster.studies.study_runs import parse_study
from fl.data.catalogue import load_domains
from fl.errors import UserError

HERE = Provenance("2026-11-25", "0123abc", "a machine")
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
        command = rf"`python benchmarks/results\.py {name}( --[^`]*)?`"
        assert re.match(rf"{command},\n[0-9-]{{10}}, {commit}; .+\.\n", body), name


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
    assert main(Options(tables=("placement",), since="abc", recorded=True), page.parent) == 0
    assert "`python benchmarks/results.py placement --since abc --recorded`," in page.read_text()


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


def test_a_file_of_domains_becomes_a_folder_that_a_run_reads(tmp_path: Path) -> None:
    pixels = np.arange(4 * 3 * 2 * 2, dtype=np.uint8).reshape(4, 3, 2, 2)
    train = {"x_train": pixels[:3], "y_train": [0, 1, 0], "domain_train": [1, 1, 0]}
    test = {"x_test": pixels[3:], "y_test": [1], "domain_test": [0]}
    names = {"domain_names": ["photo", "sketch"], "class_names": ["cat", "dog"]}
    np.savez(tmp_path / "two.npz", **train, **test, **names)
    folder = tmp_path / "two"
    write_domains(tmp_path / "two.npz", folder)
    data = load_domains(folder, side=2, seed=0)
    assert (data.domain_names, data.class_names) == (("photo", "sketch"), ("cat", "dog"))
    found = [
        (domain, label, image.tobytes())
        for split in (data.train, data.test)
        for domain, label, image in zip(split.domains, split.labels, split.images, strict=True)
    ]
    given = zip([1, 1, 0, 0], [0, 1, 0, 1], map(np.ndarray.tobytes, pixels), strict=True)
    assert sorted(found) == sorted(given)
    write_domains(tmp_path / "absent.npz", folder)  # the folder is there
    with pytest.raises(UserError, match=r"fedaf-table2 needs .*absent.npz, or its images in .*new"):
        write_domains(tmp_path / "absent.npz", tmp_path / "new")


def test_the_programs_and_the_studies_are_there() -> None:
    for job in TABLES.values():
        if getattr(job, "func", None) is of_program:
            assert (ROOT / job.args[0][0]).exists()
        if getattr(job, "func", None) is of_study:
            _, arguments = parse_study([a.format(data="data") for a in job.args[1]])
            parse([*arguments, "--num-clients=10"])


def test_verify_runs_the_first_seed_of_each_line_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("digits", "fedavg", ())
    launch = parse(["--method=fedavg"])
    runs = {(cell, seed): launch for seed in (3, 4)}
    asked: list[object] = []

    def run_all(runs: suite_runs.Runs) -> list[Figure]:
        asked.extend(runs)
        return [Figure(cell, ({"accuracy": 0.75},))]

    monkeypatch.setattr(results.suite_runs, "run_all", run_all)
    line = {"provenance": vars(HERE), "result": {"accuracy": 0.5}}
    text = results.verified(runs, dict.fromkeys(runs, line))
    assert asked == [(cell, 3)]
    assert text.splitlines()[-1] == "| digits-fedavg | 0123abc | 50.00 | 75.00 |"


def test_a_verified_table_leaves_its_page_as_it_is(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def of_runs(name: str, cells: object, job: Job) -> str:
        return "| differs |"

    monkeypatch.setattr(results, "of_runs", of_runs)
    monkeypatch.setitem(results.TABLES, "study", partial(of_runs, "study", None))  # type: ignore[arg-type]
    assert main(Options(tables=("study",), verify=True), page.parent) == 0
    assert "| differs |" in capsys.readouterr().out
    assert page.read_text() == PLACES
    # What a program measures it would draw into the page's pictures.
    assert main(Options(tables=("placement",), verify=True), page.parent) == 2
    assert "not with placement" in capsys.readouterr().err
