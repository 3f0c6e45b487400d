"""What is drawn and told of each table and figure, beside the table of accuracies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib import figure as drawn

from cluster.studies.comparison import Figure
from cluster.studies.hfldd_plots import draw_clusters, draw_traffic
from cluster.studies.hfldd_tables import tell_hfldd, tell_sent
from cluster.studies.suite_plots import draw_curves, draw_fid, draw_setting, draw_targets
from cluster.studies.suite_tables import (
    tell_clients,
    tell_domains,
    tell_fid,
    tell_forgetting,
    tell_nothing_more,
    tell_rounds,
    tell_targets,
)

Draw = Callable[[Sequence[Figure]], drawn.Figure]


@dataclass(frozen=True)
class Exhibit:
    """How one of the paper's figures is drawn, and which tables state its numbers."""

    draw: Draw
    tell: Callable[[Sequence[Figure]], list[str]]
    also: Mapping[str, Draw] = field(default_factory=dict)
    """Further pictures, by what their names end in."""


EXHIBITS = {
    "fig5": Exhibit(draw_targets, tell_targets),
    "fig6": Exhibit(draw_curves("epoch at the server"), tell_forgetting),
    "fig7": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_nothing_more),
    "fig8": Exhibit(draw_setting("num-samples", "synthetic samples"), tell_nothing_more),
    "fid": Exhibit(draw_fid, tell_fid),
    "fedaf": Exhibit(draw_curves("round"), tell_rounds),
    "fedaf-table2": Exhibit(draw_curves("round"), tell_domains),
    "fedaf-table6": Exhibit(draw_curves("round"), tell_rounds),
    "fedd2s-table2": Exhibit(draw_curves("round"), tell_clients),
    "fedd2s-table3": Exhibit(draw_curves("round"), tell_clients),
    "fedd2s-fig5": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_clients),
    "fedd2s-fig6": Exhibit(draw_curves("round"), tell_clients),
    "fedd2s-fig7": Exhibit(draw_setting("dropping.rate", "dropping rate"), tell_clients),
    "hfldd": Exhibit(
        draw_curves("round"), tell_hfldd, {"traffic": draw_traffic, "clusters": draw_clusters}
    ),
    "hfldd-table5": Exhibit(draw_curves("round"), tell_nothing_more),
    "hfldd-table6": Exhibit(draw_curves("round"), tell_sent),
    "hfldd-fig7": Exhibit(draw_curves("round"), tell_sent),
}
