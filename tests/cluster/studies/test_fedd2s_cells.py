"""The rows and columns of FedD2S's tables and figures."""

from cluster.run.command_line import parse
from cluster.studies import fedd2s_cells
from cluster.studies.cells import make
from fl.methods.fedd2s import FedD2SConfig


def test_table_2_has_every_method_at_every_alpha_and_the_papers_dropping_rates() -> None:
    made = make("fedd2s-table2", "paper")
    assert len(made) == 4 * 3 * len(fedd2s_cells.METHODS)
    rates = {}
    for cell in made:
        if cell.method not in ("local", "fedmd", "fedd2s"):  # reading one takes a while
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


def test_table_3_has_both_distances_for_every_dropping_set() -> None:
    found = set()
    for cell in make("fedd2s-table3", "small"):
        options = parse(cell.arguments).run.options
        assert isinstance(options, FedD2SConfig)
        found.add((options.dropping.layers, options.classifier.distance))
    assert found == {(s, d) for s in fedd2s_cells.SETS.values() for d in ("kl", "mse")}


def test_figure_5_fixes_the_layer_and_has_as_many_epochs_at_the_server() -> None:
    found = set()
    for cell in make("fedd2s-fig5", "small"):
        options = parse(cell.arguments).run.options
        assert options.classifier.epochs == options.server_epochs
        found.add((options.fixed_layer, options.server_epochs))
    assert found == {(layer, epochs) for layer in (None, 3) for epochs in (1, 2, 4, 8)}


def test_figure_7_has_every_rate_at_every_alpha() -> None:
    runs = [parse(cell.arguments).run for cell in make("fedd2s-fig7", "small")]
    rates = {(run.alpha, run.options.dropping.rate) for run in runs}
    assert rates == {(alpha, rate) for alpha in (0.1, 0.5, 1.0) for rate in (1, 2, 4, 8)}
