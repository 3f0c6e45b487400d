"""One command makes the page's tables anew; the page says which are of older code."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster import suite
from cluster.studies import results
from cluster.studies.digests import ROOT
from cluster.studies.results_page import OLDER, sources, untrue
from cluster.studies.results_tables import TABLES
from cluster.studies.suite_options import parse_suite
from fl.errors import UserError

RENEW = "python -m cluster.suite results --small --mark"
PLACES = "".join(f"<!-- table: {name} -->\nsources unknown\n<!-- end -->\n" for name in "ab")


def test_docs_results_says_truly_which_tables_are_of_older_code() -> None:
    current = {name: table.digest() for name, table in TABLES.items()}
    wrong = untrue((ROOT / "docs" / "results.md").read_text(), current)
    assert not wrong, f"docs/results.md: {', '.join(wrong)}; `{RENEW}` writes it down"


def test_docs_results_has_a_place_for_every_table_that_the_command_makes() -> None:
    assert TABLES.keys() <= sources((ROOT / "docs" / "results.md").read_text()).keys()


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
