"""The rows and columns of HFLDD's tables and figures."""

import pytest

from cluster.run.command_line import parse
from cluster.studies.cells import make
from cluster.studies.hfldd_cells import METHODS, SET_SIZES
from cluster.studies.published import Published
from fl.methods.hfldd import HFLDDConfig
from fl.training.classifier import plain


def test_figure_3_has_every_method_at_every_number_of_classes() -> None:
    made = make("hfldd", "paper")
    assert len(made) == 3 * 3 * len(METHODS)
    for cell in made[::5]:  # reading one takes a while
        run = parse(cell.arguments).run
        assert run.num_clients == 100
        classes = dict(cell.settings)["C"]
        if classes == "10":
            assert run.partition.kind == "iid"
        else:
            assert (run.partition.kind, run.partition.classes_per_client) == (
                "classes",
                int(classes),
            )
        if cell.method == "centralised":
            assert run.options.fit.epochs == 300
            continue
        assert run.rounds == 300
        local = run.options.classifier
        assert (local.epochs, local.lr, local.momentum, local.batch_size) == (2, 0.01, 0, 32)
        assert (
            plain(local).model
            == {  # type: ignore[attr-defined]
                "mnist": "lenet5",
                "cifar10": "hfldd-cnn",
                "cinic10": "convnet-instance",
            }[run.dataset]
        )


def test_hfldd_is_there_by_both_stopping_rules_and_without_distillation() -> None:
    found = {}
    for cell in make("hfldd", "small", ("mnist-C1-hfldd*",)):
        options = parse(cell.arguments).run.options
        assert isinstance(options, HFLDDConfig)
        found[cell.method] = (options.kip.stop, options.distilled)
    assert found == {
        "hfldd": ("accuracy", True),
        "hfldd-never": ("never", True),
        "hfldd-without-dd": ("accuracy", False),
    }


def test_the_papers_figures_stand_beside_its_own_sizes_alone() -> None:
    cells = {cell.name: cell for cell in make("hfldd", "paper")}
    assert cells["cifar10-C1-fedavg"].paper == Published(27.0)
    assert cells["cinic10-C2-hfldd"].paper == Published(59.5)
    assert cells["mnist-C1-fedavg"].paper is None
    for name in ("hfldd", "hfldd-table5", "hfldd-table6", "hfldd-fig7"):
        assert not any(cell.paper for cell in make(name, "small"))


def test_table_5_has_three_models() -> None:
    models = {
        parse(c.arguments).run.options.classifier.model for c in make("hfldd-table5", "paper")
    }
    assert models == {"mobilenet-v2", "resnet18", "shufflenet-v2"}
    (cell,) = make("hfldd-table5", "paper", ("cifar10-*resnet18-C10-dynafed",))
    assert cell.paper == Published(78.6)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_table_6_varies_the_groups_and_figure_7_the_images(scale: str) -> None:
    groups = {parse(c.arguments).run.options.groups for c in make("hfldd-table6", scale)}  # type: ignore[arg-type]
    assert groups == set(range(5, 12))
    sizes = {parse(c.arguments).run.options.kip.images for c in make("hfldd-fig7", scale)}  # type: ignore[arg-type]
    assert sizes == set(map(int, SET_SIZES[scale]))  # type: ignore[index]
