"""One command makes the page's tables anew; the page says which are of older code."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster import suite
from cluster.run.command_line import parse
from cluster.run.run_dir import claim
from cluster.studies import fedaf_table7, results, results_tables
from cluster.studies.cell import Cell
from cluster.studies.digests import ROOT, digest_of_cell
from cluster.studies.results_page import OLDER, sources, untrue
from cluster.studies.results_tables import TABLES, MainJob, OfBytes, OfProgram, OfRuns
from cluster.studies.suite_options import parse_suite
from fl.errors import UserError
from fl.json_files import write_json
from tests.cluster.studies.made_up import figures

RENEW = "python -m cluster.suite results --small --mark"
PLACES = "".join(f"<!-- table: {name} -->\nsources unknown\n<!-- end -->\n" for name in "ab")


def test_docs_results_says_truly_which_tables_are_of_older_code() -> None:
    current = {name: table.digest() for name, table in TABLES.items()}
    wrong = untrue((ROOT / "docs" / "results.md").read_text(), current)
    assert not wrong, f"docs/results.md: {', '.join(wrong)}; `{RENEW}` writes it down"


def test_docs_results_has_a_place_for_every_table_that_the_command_makes() -> None:
    assert TABLES.keys() <= sources((ROOT / "docs" / "results.md").read_text()).keys()


def test_programs_rest_on_files_that_exist() -> None:
    for table in TABLES.values():
        if isinstance(table, OfProgram):
            for name in (table.arguments[0], *table.rests_on):
                assert (ROOT / name).exists(), name


@dataclass
class Told:
    """A table that costs nothing."""

    text: str
    code: str = "0123456789ab"
    times: int = 0

    def digest(self) -> str:
        return self.code

    def make(self, options: object, docs: Path) -> str:
        self.times += 1
        if self.text == "no data":
            raise UserError("no data")
        return self.text


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "results.md"
    found.write_text(PLACES)
    monkeypatch.setattr(results, "PAGE", found)
    monkeypatch.setattr(results, "TABLES", {"a": Told("| 1 |"), "b": Told("| 2 |")})
    return found


def run(*more: str) -> int:
    return suite.main(["results", "--small", *more])


def test_the_command_writes_what_is_of_older_code_and_then_has_nothing_to_do(page: Path) -> None:
    assert run() == 0
    written = page.read_text()
    assert "| 1 |" in written
    assert "`python -m cluster.suite results --small --only b`," in written
    assert sources(written) == {"a": "0123456789ab", "b": "0123456789ab"}
    assert ", torch " in written
    assert "commit " in written
    assert run() == 0
    assert [table.times for table in results.TABLES.values()] == [1, 1]
    assert page.read_text() == written


def test_what_was_made_before_a_failure_stays(page: Path) -> None:
    results.TABLES["b"].text = "no data"
    assert run() == 2
    assert sources(page.read_text()) == {"a": "0123456789ab", "b": "unknown"}


def test_marking_runs_nothing_and_says_it_on_the_page(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--only", "a") == 0
    assert run("--mark") == 0
    assert page.read_text().count(OLDER) == 1
    assert results.TABLES["b"].times == 0
    assert "b               to be made" in capsys.readouterr().out
    results.TABLES["a"].code = "ba9876543210"
    assert run("--mark") == 0
    assert page.read_text().count(OLDER) == 2


def test_a_dry_run_changes_nothing(page: Path) -> None:
    assert run("--dry-run") == 0
    assert page.read_text() == PLACES


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--only", "c"], "--only fits no table of results; valid: a, b"),
        (["--scale=paper"], "results makes the small tables here"),
        (["--dataset=digits"], "results makes the small tables here"),
        (["--slurm"], "results makes the small tables here"),
    ],
)
@pytest.mark.usefixtures("page")
def test_bad_input_is_one_line(
    more: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*more) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_a_page_without_a_place_for_a_table_is_refused(page: Path) -> None:
    page.write_text("")
    with pytest.raises(UserError, match="has no place for a: <!-- table: a -->"):
        results.make(parse_suite(["results"]))


RESULT = {
    "method": "fedmho",
    "accuracy": 0.9,
    "start_accuracy": 0.25,
    "protocol": "one-shot",
    "seconds": {"total": 43.4, "local": 20.0, "fusion": 19.5},
}
CELL = Cell("digits-alpha0.5", "fedmho", ("--method=fedmho", "--dataset=digits"))


def finished(name: str, root: Path) -> list[str]:
    """A finished run of this code, for that table; the command's arguments."""
    where = [f"--output-dir={root}", "--runtime=inprocess"]
    named = f"--name={name}-small-{CELL.name}-seed0-{digest_of_cell(CELL)}"
    launch = parse([*CELL.arguments, *where, "--seed=0", named])
    write_json(claim(launch) / "result.json", RESULT)
    return ["results", "--seeds=0", *where]


def test_a_table_is_made_of_runs_that_are_named_by_their_code(tmp_path: Path) -> None:
    asked = parse_suite(finished("table3", tmp_path))
    text = OfRuns("table3", lambda: [CELL]).make(asked, tmp_path)
    assert text.startswith("table3 at small scale, seeds 0.\n\n| Row | Method | Accuracy, % |")
    assert "| digits-alpha0.5 | fedmho | 90.00 | " in text


def test_the_main_job_tells_its_time(tmp_path: Path) -> None:
    told = MainJob(CELL).make(parse_suite(finished("results", tmp_path)), tmp_path).splitlines()
    assert told[0].startswith("| Method | Accuracy | Averaged start | Run, in one process |")
    assert told[2] == "| fedmho | 0.9000 | 0.2500 | 43.4 s | 20.0 s | 19.5 s |"


def test_a_figures_picture_is_drawn_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_tables, "_run", lambda *args: figures("fedaf")[:3])
    text = OfRuns("fedaf", lambda: []).make(parse_suite(["results", "--seeds=0,1"]), tmp_path)
    assert text.endswith("\n\n![fedaf-small](fedaf-small.png)")
    assert (tmp_path / "fedaf-small.png").read_bytes().startswith(b"\x89PNG")


def test_bytes_need_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedaf_table7, "measured", lambda seeds: [])
    monkeypatch.setattr(fedaf_table7, "FEDAVG", {})
    text = OfBytes().make(parse_suite(["results"]), tmp_path)
    assert text.startswith("FedAF's Table 7: MiB up per client and round")


def test_what_a_program_prints_and_draws_is_shown_with_its_command(tmp_path: Path) -> None:
    code = "import sys; print('x ' + sys.argv[-1]); open(sys.argv[-1][9:], 'w').write('drawn')"
    options = parse_suite(["results"])
    text = OfProgram(("-c", code), ("kernels",), picture="p.png").make(options, tmp_path)
    assert text.splitlines()[0] == "![p](p.png)"
    assert text.splitlines()[-1] == f"    x --output={tmp_path / 'p.png'}"
    assert (tmp_path / "p.png").read_text() == "drawn"
    failing = OfProgram(("-c", "raise SystemExit('no GPU')"), ("kernels",))
    with pytest.raises(UserError, match=r"^-c ended with status 1: no GPU$"):
        failing.make(options, tmp_path)
