"""The clients' losses as a picture: a panel per kind of client, lines of few, bands of many."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fl.report import style
from fl.report.plots import MOST_LINES, loss_curves
from fl.report.read import LossCurve


def curves(count: int, role: str = "classifier", model: str = "cnn") -> list[LossCurve]:
    return [LossCurve(k, role, model, [1.0, 2.0, 3.0], [3.0 + k, 2.0, 1.0]) for k in range(count)]


def test_each_role_and_model_has_a_panel_in_the_roles_colour() -> None:
    several = [*curves(2), *curves(1, "generator", "cvae"), *curves(1, model="vgg9"), *curves(1)]
    panels = loss_curves(several).axes
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == [
        "classifier, cnn: 3 clients",
        "classifier, vgg9: 1 client",
        "generator, cvae: 1 client",
    ]
    assert [len(axes.lines) for axes in panels] == [3, 1, 1]
    assert to_hex(panels[2].lines[0].get_color()) == style.ROLES["generator"]
    assert np.asarray(panels[0].lines[0].get_ydata()).tolist() == [3, 2, 1]
    assert {axes.get_xlabel() for axes in panels} == {"epoch"}


def test_many_kinds_take_several_rows_without_empty_axes() -> None:
    kinds = [curve for k in range(5) for curve in curves(1, model=f"model{k}")]
    assert len(loss_curves(kinds).axes) == 5


def test_of_many_clients_there_are_bands_and_a_median() -> None:
    (axes,) = loss_curves(curves(MOST_LINES + 1)).axes
    assert len(axes.collections) == 2
    (line,) = axes.lines
    assert np.asarray(line.get_ydata()).tolist() == [3 + MOST_LINES / 2, 2, 1]


def test_the_axis_is_logarithmic_where_losses_differ_much() -> None:
    falling = LossCurve(0, "classifier", "cnn", [1.0, 2.0], [2.3, 0.01])
    assert loss_curves([falling]).axes[0].get_yscale() == "log"
    assert loss_curves(curves(1)).axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("count", [1, MOST_LINES + 1])
def test_losses_that_are_no_numbers_are_left_out(count: int) -> None:
    lost = [LossCurve(k, "classifier", None, [1.0, 2.0], [math.nan] * 2) for k in range(count)]
    (axes,) = loss_curves(lost).axes
    assert axes.get_title(loc="left").startswith("classifier: ")


def test_each_panel_names_its_unit() -> None:
    condensing = LossCurve(3, "condenser", "convnet", [10.0, 20.0], [2.0, 1.0], "step")
    panels = loss_curves([*curves(2), condensing]).axes
    assert [axes.get_xlabel() for axes in panels] == ["epoch", "step"]
