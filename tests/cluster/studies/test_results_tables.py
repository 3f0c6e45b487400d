"""Tables of the page: of runs, and of bytes."""

from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.run.run_dir import claim
from cluster.studies import fedaf_table7, results_tables
from cluster.studies.cell import Cell
from cluster.studies.digests import digest_of_cell
from cluster.studies.results_tables import (
    MainJob,
    OfBytes,
    OfRuns,
    digits,
    mnist,
)
from cluster.studies.suite_options import parse_suite
from fl.json_files import write_json
from tests.cluster.studies.made_up import figures

RESULT = {
    "method": "fedmho",
    "accuracy": 0.9,
    "start_accuracy": 0.25,
    "protocol": "one-shot",
    "seconds": {"total": 43.4, "local": 20.0, "fusion": 19.5},
}
CELL = Cell("digits-alpha0.5", "fedmho", ("--method=fedmho", "--dataset=digits"))


def finished(name: str, root: Path, beneath: str = "") -> list[str]:
    """A finished run of this code, for that table; the command's arguments."""
    where = [f"--output-dir={root / beneath}", "--runtime=inprocess"]
    named = f"--name={name}-small-{CELL.name}-seed0-{digest_of_cell(CELL)}"
    launch = parse([*CELL.arguments, *where, "--seed=0", named])
    write_json(claim(launch) / "result.json", RESULT)
    return ["results", "--seeds=0", f"--output-dir={root}", "--runtime=inprocess"]


def test_a_table_is_made_of_runs_that_are_named_by_their_code(tmp_path: Path) -> None:
    asked = parse_suite(finished("table3", tmp_path))
    text = OfRuns("table3", lambda: [CELL]).make(asked, tmp_path)
    assert text.startswith("table3 at small scale, seeds 0.\n\n| Row | Method | Accuracy, % |")
    assert "| digits-alpha0.5 | fedmho | 90.00 | " in text
    assert "\nEach run: [table3.jsonl](runs/table3.jsonl).\n\n- 1 of 1 runs: " in text
    assert "digits-alpha0.5-fedmho" in (tmp_path / "runs" / "table3.jsonl").read_text()


def test_the_main_job_tells_its_time_with_a_store_of_its_own(tmp_path: Path) -> None:
    asked = parse_suite(finished("results", tmp_path, f"main-job-{digest_of_cell(CELL)}"))
    told = MainJob(CELL).make(asked, tmp_path).splitlines()
    assert told[0].startswith("| Method | Accuracy | Averaged start | Run, in one process |")
    assert told[2] == "| fedmho | 0.9000 | 0.2500 | 43.4 s | 20.0 s | 19.5 s |"


def test_a_figures_picture_is_drawn_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (figures("fedaf")[:3], ["- 3 of 3 runs: today"])
    monkeypatch.setattr(results_tables, "figures_of", lambda *args: found)
    text = OfRuns("fedaf", lambda: []).make(parse_suite(["results", "--seeds=0,1"]), tmp_path)
    assert "\n\n![fedaf-small](fedaf-small.png)\n\nEach run: [fedaf.jsonl]" in text
    assert text.endswith("\n- 3 of 3 runs: today")
    assert (tmp_path / "fedaf-small.png").read_bytes().startswith(b"\x89PNG")


def test_bytes_need_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedaf_table7, "measured", lambda seeds: [])
    monkeypatch.setattr(fedaf_table7, "FEDAVG", {})
    text = OfBytes().make(parse_suite(["results"]), tmp_path)
    assert text.startswith("FedAF's Table 7: MiB up per client and round")


def test_our_table_3_has_the_released_weights_and_our_own_method_beside_the_papers() -> None:
    rows = [(mnist("0.5"), 11), (mnist("0.3"), 11), (mnist("0.1"), 11), (digits(), 10)]
    for cells, count in rows:
        assert len({cell.name for cell in cells}) == len(cells) == count
        (found,) = {c.arguments[-1] for c in cells if c.method == "fedmho-md-released"}
        assert found == "--betas=released"
        assert all(parse(cell.arguments).run.method in cell.method for cell in cells[-3:])


def test_the_digits_table_needs_no_other_data_set() -> None:
    """FedDF's images would be the preset's: the digits, which a run on the digits refuses."""
    assert {cell.method for cell in mnist("0.5")} - {cell.method for cell in digits()} == {"feddf"}
