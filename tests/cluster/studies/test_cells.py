"""The papers' tables as cells: each a configuration of its own, about what its table is about."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.run.command_line import PRESETS, parse
from cluster.studies import cells
from cluster.studies.cells import DOMAINS_TABLE, TABLES, make
from cluster.studies.comparison import Figure, Published, as_markdown, published, rows
from fl.errors import UserError
from fl.json_files import flatten
from fl.methods.hfldd import HFLDDConfig
from fl.methods.registry import METHODS
from fl.training.classifier import plain
from tests.fl.data.domain_folder import tree


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", [name for name in TABLES if name != DOMAINS_TABLE])
def test_every_cell_is_a_valid_configuration_of_its_own(name: str, scale: cells.Scale) -> None:
    made = make(name, scale, ())
    assert len({cell.name for cell in made}) == len(made)
    # Reading one takes a tenth of a second.
    for cell in made[:: -(-len(made) // 2)] if scale == "small" else made[-1:]:
        run = parse(cell.arguments).run
        assert cell.method.startswith(run.method)
        assert run.method == cell.registered
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
    assert len({cell.name for cell in cells}) == len(cells) == 24  # the paper's own rows, each once
    assert all(cell.paper for cell in cells)
    for table, dataset, preset in (
        ("fedaf", "cifar10", "fedaf-cifar10"),
        ("hfldd-table5", "mnist", "hfldd-mnist"),  # the paper has CIFAR-100 there
        ("fedaf", "mnist", "fedaf-fmnist"),  # for want of one of MNIST's own
    ):
        cells = make(table, "paper", (), dataset)
        assert len({cell.name for cell in cells}) == len(cells)
        found = {cell.arguments[:2] for cell in cells}
        assert found == {(f"--preset={preset}", f"--dataset={dataset}")}
    table = as_markdown("table9", "small", [0], [Figure(cells[0], ({"accuracy": 0.5},))])
    assert "| 50.00 | - |" in table


def test_every_line_is_a_run_of_its_own() -> None:
    assert len({cell.name for cell in make("fedaf", "small")}) == 3 * 11
    without = parse(make("fedaf", "small", ("*0.02-fedaf-without-cdc",))[0].arguments).run
    assert (without.alpha, without.rounds, without.options.collaboration) == (0.02, 10, 0)
    (paper,) = make("fedaf", "paper", ("cifar100-alpha0.05-fedaf",))
    assert parse(paper.arguments).run.rounds == 20
    made = make("fedaf", "small", ("*0.1-*",))
    runs = {cell.method: parse(cell.arguments).run.options for cell in made}
    assert runs["fedaf-without-lgkm"].knowledge == 0
    assert runs["fedaf-clipped"].clip == 2
    assert runs["fedprox"].classifier.proximal == 0.001
    assert runs["moon"].classifier.mu == 0.1  # the preset's own, chosen at this size
    (moon,) = make("fedaf", "paper", ("fmnist-alpha0.1-moon",))
    assert parse(moon.arguments).run.options.classifier.mu == 1
    assert runs["feddyn"].classifier.alpha == 0.01
    # All train the same network from the same start, so that rows can be compared.
    for name in ("fedavg", "fedbn", "moon", "feddyn", "fedgen"):
        assert plain(runs[name].classifier) == runs["fedavg"].classifier


@cache
def preset(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    return found


@pytest.mark.parametrize("name", [name for name in TABLES if name != DOMAINS_TABLE])
def test_no_table_overrides_what_its_preset_has_for_the_method(name: str) -> None:
    """So a rival runs with the settings that were chosen for it at this size."""
    for cell in make(name, "small"):
        if cell.method == cell.registered:  # else it is the method with other settings
            given = dict(a.removeprefix("--").split("=", 1) for a in cell.arguments if "=" in a)
            own = flatten(preset(given["preset"]).get(cell.method) or {})
            swept = {setting for setting, _ in cell.settings}
            assert not ({n.replace("-", "_") for n in given} & own.keys()) - swept


@pytest.mark.parametrize(
    ("table", "scale", "fedaf", "feddm"),
    [
        (
            "fedaf",
            "paper",
            {"fmnist": 0.025, "cifar10": 0.06, "cifar100": 0.007},
            {"fmnist": 0.12, "cifar10": 0.06, "cifar100": 0.07},
        ),
        ("fedaf", "small", {"mnist": 0.019}, {"mnist": 0.095}),
        ("fedaf-table6", "paper", {"cifar10": 0.06}, {"cifar10": 0.06}),
        ("fedaf-table6", "small", {"mnist": 0.019}, {"mnist": 0.095}),
    ],
)
def test_fedaf_and_feddm_learn_images_at_the_rates_of_their_own(
    table: str, scale: cells.Scale, fedaf: dict[str, float], feddm: dict[str, float]
) -> None:
    for method, expected in (("fedaf", fedaf), ("feddm", feddm)):
        runs = [parse(cell.arguments).run for cell in make(table, scale, (f"*0.1-{method}",))]
        assert {run.dataset: run.options.condensation.lr for run in runs} == expected


def test_table2_has_a_client_for_each_of_the_folders_domains(tmp_path: Path) -> None:
    tree(tmp_path)
    for scale, side in (("small", 32), ("paper", 64)):
        made = make(DOMAINS_TABLE, scale, folder=tmp_path)  # type: ignore[arg-type]
        assert [cell.method for cell in made] == list(published()[DOMAINS_TABLE]["methods"])
        for cell in made[:: 1 if scale == "small" else 4]:
            run = parse(cell.arguments).run
            assert (run.num_clients, run.partition.kind, run.data.side) == (3, "domains", side)
            assert getattr(run.options, "num_large", 3) == 3
    assert run.rounds == 10
    (fedbn,) = make(DOMAINS_TABLE, "paper", ("*fedbn*",), folder=tmp_path)
    assert parse(fedbn.arguments).run.options.tested == "domain"


def test_a_folder_goes_with_table2_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fedaf-table2 needs data_folder"):
        make(DOMAINS_TABLE, "small")
    with pytest.raises(UserError, match="fedaf-table2 needs data_folder"):
        make("fedaf", "small", folder=tmp_path)
    with pytest.raises(UserError, match="holds no folders of domains"):
        make(DOMAINS_TABLE, "small", folder=tmp_path)


def test_several_patterns_pick_what_fits_one_of_them() -> None:
    both = make("table3", "small", ("mnist-alpha0.5-fedavg", "svhn-*-fedmho-??"))
    assert [cell.name for cell in both] == [
        "mnist-alpha0.5-fedavg",
        *(f"svhn-alpha{alpha}-fedmho-{v}" for alpha in ("0.5", "0.3", "0.1") for v in ("md", "sd")),
    ]
    assert make("table3", "small", ("mnist",)) == []


def test_scales_differ_in_their_presets_and_not_in_what_a_table_is_about() -> None:
    small, paper = (make("table5", scale) for scale in ("small", "paper"))
    assert [cell.name for cell in small] == [cell.name for cell in paper]
    for one, other in zip(small, paper, strict=True):
        assert one.arguments[0] == "--preset=mnist-small"
        assert other.arguments[0] == "--preset=paper-emnist"
        assert one.arguments[1:] == other.arguments[1:]


def test_fedd2s_table_2_has_every_method_at_every_alpha_and_the_papers_dropping_rates() -> None:
    made = make("fedd2s-table2", "paper")
    assert len(made) == 4 * 3 * 11
    rates = {}
    for cell in made[: len(made) // 4]:  # of one data set: reading one takes a while
        if cell.method not in ("local", "fedmd", "fedd2s"):
            continue
        run = parse(cell.arguments).run
        assert (run.num_clients, run.rounds) == (50, 100)
        assert run.partition.kind == "mixture"
        assert run.scores_clients
        if cell.method == "fedd2s":
            rates[run.alpha] = run.options.dropping.rate
        epochs = run.options.classifier.epochs
        assert epochs == (2 if cell.method in ("fedmd", "fedict", "fedd2s") else 4)
    assert rates == {0.1: 3, 0.5: 5, 1.0: 7}


def test_fedd2s_figure_5_fixes_the_layer_and_has_as_many_epochs_at_the_server() -> None:
    found = set()
    for cell in make("fedd2s-fig5", "small"):
        options = parse(cell.arguments).run.options
        assert options.classifier.epochs == options.server_epochs
        found.add((options.fixed_layer, options.server_epochs))
    assert found == {(layer, epochs) for layer in (None, 3) for epochs in (1, 2, 4, 8)}


HFLDD_MODELS = {"mnist": "lenet5", "cifar10": "hfldd-cnn", "cinic10": "convnet-instance"}


def test_hfldds_figure_3_has_every_method_at_every_number_of_classes() -> None:
    made = make("hfldd", "paper")
    assert len(made) == 3 * 3 * 8
    for cell in made[::7]:  # reading one takes a while
        run = parse(cell.arguments).run
        assert run.num_clients == 100
        classes = dict(cell.settings)["C"]
        assert run.partition.kind == ("iid" if classes == "10" else "classes")
        assert classes == "10" or run.partition.classes_per_client == int(classes)
        if cell.method == "centralised":
            assert run.options.fit.epochs == 300
            continue
        assert run.rounds == 300
        local = run.options.classifier
        assert (local.epochs, local.lr, local.momentum, local.batch_size) == (2, 0.01, 0, 32)
        assert plain(local).model == HFLDD_MODELS[run.dataset]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "cell", "printed"),
    [
        ("fedaf", "cifar10-alpha0.02-fedaf", Published(65.15, 0.86)),
        ("fedaf", "fmnist-alpha0.1-fedaf-without-cdc", None),
        ("hfldd", "cifar10-C1-fedavg", Published(27.0)),
        ("hfldd", "cinic10-C2-hfldd", Published(59.5)),
        ("hfldd", "mnist-C1-fedavg", None),
    ],
)
def test_the_papers_figures_stand_beside_its_own_sizes_alone(
    table: str, cell: str, printed: Published | None
) -> None:
    (found,) = make(table, "paper", (cell,))
    assert found.paper == printed
    assert not any(own.paper for own in make(table, "small"))


def test_no_small_table_of_hfldd_stands_beside_the_paper() -> None:
    for name in ("hfldd-table5", "hfldd-table6", "hfldd-fig7"):
        assert not any(cell.paper for cell in make(name, "small"))


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_hfldds_table_6_varies_the_groups_and_figure_7_the_images(scale: cells.Scale) -> None:
    def options(table: str) -> list[HFLDDConfig]:
        return [parse(c.arguments).run.options for c in make(table, scale)[:7]]

    assert {found.groups for found in options("hfldd-table6")} == set(range(5, 12))
    sizes = {found.kip.images for found in options("hfldd-fig7")}
    assert sizes == ({10, 20, 50, 100} if scale == "small" else {50, 100, 200, 400})


# The papers' figures are what was printed, where it was printed.


FEDMHO_AND_FEDAF = [
    *("table3", "table4", "table5", "table6", "loss-weights", "table8", "table9", "fid"),
    *("fedaf", "fedaf-table6"),
]
DOMAINS = published()["fedaf-table2"]


def test_published_tables_have_their_figures_where_they_belong() -> None:
    table = {row.name: row.figures for row in rows("table3")}
    assert len(table) == 12
    assert table["mnist-alpha0.1"]["fedcvae-ens"] == Published(89.73, 0.40)
    assert table["emnist-alpha0.3"]["fedmho-sd"] == Published(75.36, 0.51)
    last = rows("table8")[5]
    assert (last.name, last.figures["feddf"]) == ("fmnist-alpha0.1", Published(51.10, 1.98))
    assert rows("table6")[-1].settings == {"alpha": "0.1", "keep": "0.9"}


@pytest.mark.parametrize("name", FEDMHO_AND_FEDAF)
def test_every_table_has_rows_of_their_own_and_methods_that_there_are(name: str) -> None:
    found = rows(name)
    assert len({row.name for row in found}) == len(found)
    for row in found:
        assert all(method.startswith(tuple(METHODS)) for method in row.figures)
        printed = [figure for figure in row.figures.values() if figure]
        assert printed
        for figure in printed:
            assert 0 < figure.mean < 100
            assert figure.spread is None or 0 < figure.spread < 10


def test_where_the_paper_prints_nothing_there_is_no_figure() -> None:
    (row,) = (row for row in rows("fedaf") if row.name == "cifar100-alpha0.02")
    assert row.figures["fedaf-without-cdc"] is None
    assert row.figures["feddm"] == Published(44.15, 0.30)


@pytest.mark.parametrize(
    ("method", "printed"),
    zip(DOMAINS["methods"], (42.01, 42.94, 42.08, 43.81, 47.95, 40.15, 52.62, 54.68), strict=True),
)
def test_the_mean_over_domains_is_the_printed_one(method: str, printed: float) -> None:
    figures = DOMAINS["methods"][method]
    assert len(figures) == len(DOMAINS["domains"])
    assert sum(figures) / 6 == pytest.approx(printed, abs=0.011)


def test_distances_are_those_of_the_rows_with_as_many_epochs() -> None:
    assert [row.settings["generator.epochs"] for row in rows("fid")] == list(
        published()["fid-distances"]
    )
    assert rows("fid")[0].figures["fedmho-md"] == Published(67.55)


def test_hfldds_data_sets_have_every_number_of_classes() -> None:
    for table in ("hfldd", "hfldd-table6"):
        found = [(row.dataset, row.settings["C"]) for row in rows(table)]
        assert found == [(d, c) for d in ("mnist", "cifar10", "cinic10") for c in ("1", "2", "10")]
    assert len(rows("hfldd-table5")) == 9


def test_hfldds_table_6_at_ten_groups_is_figure_3_but_for_what_the_paper_prints_twice() -> None:
    differ = {}
    for one, other in zip(rows("hfldd"), rows("hfldd-table6"), strict=True):
        text, table = one.figures["hfldd"], other.figures["hfldd-K10"]
        assert text is not None
        assert table is not None
        if text.mean != table.mean:
            differ[one.name] = (text.mean, table.mean)
    assert differ == {"cinic10-C1": (56.7, 56.5)}


def test_every_cell_of_hfldds_tables_2_to_4_has_its_target() -> None:
    for table in published()["hfldd-traffic"].values():
        assert table["methods"].keys() == {"hfldd", "fedavg", "fedprox", "fedseq", "dynafed"}
        assert all(cell["accuracy"] >= table["target"] for cell in table["methods"].values())
