"""Figures 4 and 6, drawn from made-up runs."""

from cluster.studies.hfldd_plots import draw_clusters, draw_traffic
from fl.report.style import png
from tests.cluster.studies.test_hfldd_tables import figure, run

CLUSTERED = run(0.5, 0.7) | {"heads": [1, 3]}


def test_traffic_has_a_line_for_each_method_with_rounds() -> None:
    sheet = draw_traffic(
        [
            figure("hfldd", CLUSTERED),
            figure("fedavg", run(0.6, 0.96)),
            figure("centralised", {"accuracy": 0.9}),
        ]
    )
    (axes,) = sheet.axes
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines == {
        "hfldd": [[50, 2], [60, 5], [70, 5]],
        "fedavg": [[50, 2], [60, 2], [70, 5], [80, 5], [90, 5], [95, 5]],
    }
    assert png(sheet).startswith(b"\x89PNG")


def test_every_client_is_a_dot_in_its_cluster() -> None:
    (axes,) = draw_clusters([figure("hfldd", CLUSTERED), figure("fedavg", run(0.5))]).axes
    dots = sum(len(points.get_offsets()) for points in axes.collections)
    assert dots == sum(map(len, CLUSTERED["clusters"])) == 4
