"""The figures of a run's report: one table of what draws each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fl.report import classes, clients, course, style
from fl.report.course import Drawn
from fl.report.read import RunRecord

FIGURES: dict[str, tuple[str, Callable[[RunRecord], Drawn]]] = {
    "accuracy": ("{metric}", course.accuracy),
    "client_accuracy": ("{metric} of each client", clients.accuracies),
    "rounds": ("Rounds", course.rounds),
    "time": ("Time", course.time),
    "per_domain": ("{metric} by domain", classes.by_domain),
    "per_class": ("{metric} by class", classes.by_class),
    "confusion": ("Confusion", classes.confusion),
    "bytes": ("Communication", clients.uploads),
    "losses": ("Local training", course.losses),
    "placement": ("Placement", course.placement),
    "partition": ("Partition", clients.partition),
    "samples": ("Samples", classes.samples),
    "sent": ("What left the clients", classes.sent),
    "privacy": ("Privacy", clients.privacy),
}
"""Every figure by its file's name, in the page's order: its title and what draws it."""
OF_IMAGES = ("samples", "sent")
"""Figures that are made of images: PNG files; the others are SVG."""


@dataclass(frozen=True)
class Picture:
    """One figure of the page."""

    file: str
    title: str
    caption: str
    content: bytes
    width: int
    """In CSS pixels."""

    @property
    def wide(self) -> bool:
        """Whether it takes the page's whole width."""
        return self.width > 100 * (style.HALF + 1)

    @property
    def kind(self) -> str:
        """Its media type."""
        return "image/png" if self.file.endswith("png") else "image/svg+xml"


def pictures(run: RunRecord) -> Iterator[Picture]:
    """Every picture for which the run has data, in the page's order."""
    for name, (title, draw) in FIGURES.items():
        if drawn := draw(run):
            figure, caption = drawn
            png = name in OF_IMAGES
            content = style.png(figure) if png else style.svg(figure)
            file = f"{name}.{'png' if png else 'svg'}"
            title = title.format(metric=run.metric_name)
            yield Picture(file, title, caption, content, round(100 * figure.get_figwidth()))
