"""The paper's tables: their cells, the comparison, and that finished runs are not repeated."""

from pathlib import Path

import pytest

from cluster import suite
from cluster.run.command_line import parse
from cluster.studies import cells
from cluster.studies.cells import TABLES, Cell, make
from cluster.studies.comparison import Figure, as_json, as_markdown, remarks
from cluster.studies.published import TABLE_3, TABLE_6, TABLE_8, Published, rows
from tests.cluster.commands import SMALL

PAPER = Published(90.0, 1.0)


def figure(
    method: str, *accuracies: float, row: str = "mnist-alpha0.5", paper: float = 90
) -> Figure:
    results = [{"accuracy": accuracy, "protocol": "one-shot"} for accuracy in accuracies]
    return Figure(Cell(row, method, (), Published(paper, 1.0)), tuple(results))


def test_published_tables_have_their_figures_where_they_belong() -> None:
    table = {row.name: row.figures for row in rows(TABLE_3)}
    assert len(table) == 12
    assert table["mnist-alpha0.1"]["fedcvae-ens"] == Published(89.73, 0.40)
    assert table["emnist-alpha0.3"]["fedmho-sd"] == Published(75.36, 0.51)
    last = rows(TABLE_8)[5]
    assert (last.name, last.figures["feddf"]) == ("fmnist-alpha0.1", Published(51.10, 1.98))
    assert rows(TABLE_6)[-1].settings == {"alpha": "0.1", "keep": "0.9"}


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_a_valid_configuration_of_its_own(name: str, scale: cells.Scale) -> None:
    made = make(name, scale, ())
    assert len({cell.name for cell in made}) == len(made)
    for cell in made[:: max(1, len(made) // 4)]:
        run = parse(cell.arguments).run
        assert run.method == cell.method.partition("-without")[0].removesuffix("-clipped")
        assert run.dataset in cell.row


def test_cells_carry_what_their_table_is_about() -> None:
    def run(table: str, pattern: str):  # type: ignore[no-untyped-def]
        (cell,) = make(table, "paper", (pattern,))
        return parse(cell.arguments).run

    assert run("table3", "svhn-alpha0.1-dense").alpha == 0.1
    assert run("table4", "mnist-alpha0.3-fedmho-md").options.filter == "none"
    assert run("table5", "emnist-num-clients12-fedcvae-ens").num_clients == 12
    assert run("table6", "emnist-alpha0.3-keep0.6-fedmho-sd").options.keep == 0.6
    assert run("loss-weights", "*0.5-betas1,2-fedmho-md").options.betas == (1.0, 2.0)
    assert run("loss-weights", "*0.3-betaslearned-fedmho-sd").options.betas == "learned"
    mixed = run("table9", "emnist-alpha0.1-fedmho-md").options
    assert mixed.prototypes == ("efficientnet-v2", "resnet50", "mobilenet-v2", "vgg9")
    assert (mixed.num_classifiers, mixed.classifier.optimizer) == (8, "adam")
    assert run("table9", "emnist-alpha0.1-fedcvae-ens").options.global_model == "efficientnet-v2"
    assert run("fig6", "emnist-alpha0.3-fedmho").options.fusion.epochs == 100
    assert run("fig7", "*0.1-classifier.epochs400-fedmho").options.classifier.epochs == 400
    assert run("fig8", "*0.1-num-samples24000-fedmho-sd").options.num_samples == 24000
    assert run("fid", "*-generator.epochs10-fedmho-sd").fid
    assert run("table8", "mnist-alpha0.5-fedcvae-ens").options.num_large == 10


def test_another_data_set_takes_the_papers_place_and_its_numbers() -> None:
    (cell,) = make("fig8", "paper", ("*0.1-num-samples2000-fedmho-sd",), "mnist")
    assert parse(cell.arguments).run.dataset == "mnist"
    assert "--preset=paper-mnist" in cell.arguments
    assert cell.row == "mnist-alpha0.1-num-samples2000"
    cells = make("table3", "small", (), "svhn")
    assert len({cell.name for cell in cells}) == 24  # the paper's own rows stand for all four sets
    table = as_markdown("table9", "small", [0], [Figure(cells[0], ({"accuracy": 0.5},))])
    assert "| 50.00 | - | - | 1 | - |" in table


def test_the_table_stands_beside_the_papers() -> None:
    figures = [
        figure("fedavg", 0.80, 0.84, paper=85.91),
        figure("dense", 0.90, 0.92, paper=90.51),
    ]
    lines = as_markdown("table3", "small", [0, 1], figures).splitlines()
    assert "| mnist-alpha0.5 | fedavg | 82.00 ± 2.83 | 85.91 ± 1.00 | -3.91 | 2 | 2 |" in lines
    assert "| mnist-alpha0.5 | dense | 91.00 ± 1.41 | 90.51 ± 1.00 | +0.49 | 1 | 1 |" in lines
    told = as_json("table3", "small", [0, 1], figures)["cells"][0]
    assert told["accuracies"] == pytest.approx([80, 84])
    assert (told["paper_mean"], told["mean"]) == (85.91, pytest.approx(82))


def test_methods_that_the_seeds_do_not_separate_are_named() -> None:
    near = [figure("a", 0.90, 0.92, 0.91), figure("b", 0.91, 0.90, 0.915)]
    far = [figure("a", 0.90, 0.92, 0.91), figure("b", 0.70, 0.725, 0.705)]
    (remark,) = remarks(near)
    assert "3 seeds do not separate" in remark
    assert remarks(far) == ["The seeds separate all neighbours in every row (paired t-test, 5 %)."]
    assert remarks([figure("a", 0.9), figure("b", 0.8)])[0].startswith("One seed")


def test_equal_methods_are_not_separated_and_constant_differences_are() -> None:
    same = [figure("a", 0.9, 0.8), figure("b", 0.9, 0.8)]
    assert "p = 1.00" in remarks(same)[0]
    assert "separate all" in remarks([figure("a", 0.75, 0.5), figure("b", 0.5, 0.25)])[0]


def test_rows_are_ranked_each_by_itself() -> None:
    figures = [figure("a", 0.1, 0.1), figure("b", 0.9, 0.9, row="other")]
    table = as_markdown("table3", "small", [0, 1], figures)
    assert table.count("| 1 | 1 |") == 2


@pytest.fixture
def tiny_table(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--dataset=digits", *SMALL)
    votes = tuple(o for o in options if not o.startswith(("--gen", "--num-s", "--fusion")))
    made = [
        Cell("digits-alpha0.5", "fedavg", ("--method=fedavg", *votes), PAPER),
        Cell("digits-alpha0.5", "fedmho", ("--method=fedmho", *options), PAPER),
    ]
    monkeypatch.setitem(TABLES, "table3", lambda scale: made)


def run_suite(root: Path, *more: str) -> int:
    return suite.main(["table3", f"--output-dir={root}", "--runtime=inprocess", *more])


@pytest.mark.usefixtures("tiny_table")
def test_finished_runs_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_suite(tmp_path, "--seeds=0", "--only", "*-fedavg") == 0
    first = tmp_path / "table3-small-digits-alpha0.5-fedavg-seed0" / "result.json"
    written = first.stat().st_mtime_ns
    assert "1 of 1" in capsys.readouterr().out
    assert run_suite(tmp_path, "--seeds=0,1") == 0
    assert first.stat().st_mtime_ns == written
    said = capsys.readouterr().out
    assert "4 of 4" in said
    table = (tmp_path / "table3-small.md").read_text()
    assert table in said
    assert table.count("digits-alpha0.5 | fed") == 2
    assert (tmp_path / "table3-small.json").exists()


@pytest.mark.usefixtures("tiny_table")
def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_suite(tmp_path, "--seeds=3", "--dry-run") == 0
    assert capsys.readouterr().out.count("to be run") == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("tiny_table")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--only", "nothing"], "fits no cell of table3; e.g. digits-alpha0.5-fedavg"),
        (["--seeds=a"], "seeds must be whole numbers with commas, got 'a'"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, more: list[str], message: str
) -> None:
    assert run_suite(tmp_path, *more) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_an_unknown_table_is_refused(capsys: pytest.CaptureFixture) -> None:
    assert suite.main(["table99"]) == 2
    valid = "fedaf, fedaf-table7, fid, fig5"
    assert f"unknown table 'table99'; valid: {valid}" in capsys.readouterr().err
