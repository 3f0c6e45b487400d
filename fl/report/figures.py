"""The figures of a run's report: one table, and for each figure what draws and captions it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fl.report import client_notes, plots, style
from fl.report.mosaic import sample_grid
from fl.report.read import REAL, RunRecord
from fl.report.scores import on_whole_split
from fl.report.words import duration, size

MOST_NAMED = 3  # mistakes in the caption of the confusion
GROUPS = {REAL: "real", "before": "raw synthetic", "after": "kept by filter"}
"""The groups of example images in their order, each with its heading."""

Drawn = tuple[Figure, str] | None
"""A figure with its caption; None where the run lacks what it shows."""


@dataclass(frozen=True)
class Picture:
    """One figure of the page. `width` is in CSS pixels; `wide` ones take the page's whole width."""

    name: str
    title: str
    caption: str
    content: bytes
    ending: str
    """``svg`` for a drawing, ``png`` for images."""
    width: int
    wide: bool

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.{self.ending}"


def pictures(run: RunRecord) -> Iterator[Picture]:
    """Every picture for which the run has data, in the page's order."""
    for name, (title, draw) in FIGURES.items():
        drawn = draw(run)
        if drawn is None:
            continue
        figure, caption = drawn
        inches = figure.get_figwidth()
        ending = "png" if name in OF_IMAGES else "svg"
        content = style.png(figure) if ending == "png" else style.svg(figure)
        wide = inches > style.HALF + 1
        yield Picture(name, title, caption, content, ending, round(100 * inches), wide)


def most_confused(counts: NDArray[np.int64], class_names: list[str]) -> str:
    """The most frequent mistakes in words; nothing where there is none.

    >>> most_confused(np.array([[9, 1], [3, 5]]), ["cat", "dog"])
    'dog is taken for cat (3 of 8), cat for dog (1 of 10)'
    """
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, counts)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_NAMED].tolist()
    places = [divmod(place, len(counts)) for place in order]
    return ", ".join(
        f"{class_names[true]}{'' if number else ' is taken'} for {class_names[predicted]} "
        f"({wrong[true, predicted]:,} of {counts[true].sum():,})"
        for number, (true, predicted) in enumerate(places)
        if wrong[true, predicted]
    )


def _accuracy(run: RunRecord) -> Drawn:
    if not run.accuracy:
        return None
    start = (run.result or {}).get("start_accuracy")
    many = run.step == "round"
    caption = (
        f"Test accuracy of the global model after each {'round' if many else 'epoch of fusion'}"
    )
    if run.scores is not None:
        which = client_notes.which_samples(run)
        caption = f"Mean over clients after each round, each client on {which}"
        caption += "" if start is None else "; round 0 is before the first"
    elif start is not None:
        caption += f"; {run.step} 0 is the model that {'it' if many else 'fusion'} starts from"
    return plots.accuracy_curve(run.accuracy, start, run.step), f"{caption}."


def _clients(run: RunRecord) -> Drawn:
    if not run.client_accuracy:
        return None
    return plots.client_spread(run.client_accuracy), (
        "How accuracy is distributed over clients after each round: all of them lie in the light "
        "band; the dark one reaches from the 10th to the 90th percentile."
    )


def _client_accuracy(run: RunRecord) -> Drawn:
    if run.scores is None:
        return None
    alone = run.alone.scores if run.alone else None
    figure = plots.client_accuracy(run.scores, alone)
    return figure, client_notes.last_round(run.scores, run.alone)


def _rounds(run: RunRecord) -> Drawn:
    if not run.rounds:
        return None
    overhead = sum(r.seconds.get("overhead", 0.0) for r in run.rounds)
    total = sum(sum(r.seconds.values()) for r in run.rounds)
    return plots.round_times(run.rounds), (
        "Where each round's time went: clients at work, the server (the test included), and what "
        f"the engine took beside them, {duration(overhead / len(run.rounds))} a round and "
        f"{overhead / max(total, 1e-9):.0%} of all."
    )


def _time(run: RunRecord) -> Drawn:
    seconds = (run.result or {}).get("seconds")
    if not seconds:
        return None
    total = seconds.get("total", sum(seconds.values()))
    caption = f"Where the {duration(total)} of the run went, phase by phase."
    return plots.phase_times(seconds), caption


def _domains(run: RunRecord) -> Drawn:
    result = run.result or {}
    values = result.get("per_domain_accuracy")
    if not values:
        return None
    figure = plots.class_accuracy([*values.values()], [*values], result["accuracy"], "domain")
    return figure, "Test accuracy on each domain alone; the dashed line is that over all of them."


def _classes(run: RunRecord) -> Drawn:
    result = run.result or {}
    values = result.get("per_class_accuracy")
    if not values:
        return None
    figure = plots.class_accuracy(values, _class_names(run, len(values)), result["accuracy"])
    caption = "Test accuracy on each class alone; the dashed line is the accuracy over all of them."
    if run.scores is not None:
        own = "over the samples of all clients together; the dashed line is the mean over clients"
        if on_whole_split(run.config):
            own = "the mean over clients; the dashed line is that over all classes"
        caption = f"Accuracy on each class alone, {own}."
    return figure, caption


def _confusion(run: RunRecord) -> Drawn:
    if run.confusion is None:
        return None
    names = _class_names(run, len(run.confusion))
    caption = (
        "What the test samples of each class are taken for by the global model: the darker, the "
        "larger the share of the class (by its square root, so that rare mistakes show)"
    )
    if most := most_confused(run.confusion, names):
        caption += f". Most often {most}"
    return plots.confusion_matrix(run.confusion, names), f"{caption}."


def _bytes(run: RunRecord) -> Drawn:
    sent = {row.client: row.bytes_up for row in run.clients if row.bytes_up is not None}
    if not any(sent.values()):  # nobody has reported, or all train alone
        return None
    roles = [row.role for row in run.clients if row.bytes_up is not None]
    caption = f"What each client sent to the server, {size(sum(sent.values()))} in all"
    if plots.is_spread(sent):
        factor = max(sent.values()) / min(count for count in sent.values() if count > 0)
        caption += f"; the axis is logarithmic, as the largest is {factor:,.0f} times the smallest"
    return plots.client_bytes(sent, roles), f"{caption}."


def _losses(run: RunRecord) -> Drawn:
    if not run.losses:
        return None
    units = " or ".join(sorted({curve.unit for curve in run.losses}))
    caption = f"Mean training loss over each client's own samples by {units}"
    if run.in_rounds:
        caption += ", with a point for each epoch or a few steps within it"
    if plots.has_bands(run.losses):
        caption += (
            "; of many clients the line is their median, the dark band reaches from their 10th to "
            "their 90th percentile, and all lie in the light one"
        )
    return plots.loss_curves(run.losses), f"{caption}."


def _placement(run: RunRecord) -> Drawn:
    if not run.placements:
        return None
    caption = "Who trained where and when, from the first client's start to the last one's end"
    makespan = (run.result or {}).get("makespan") or {}
    took, bound = makespan.get("seconds"), makespan.get("lower_bound")
    if took and bound:
        caption += (
            f". Makespan {duration(took)}, lower bound {duration(bound)}, which no placement could "
            f"undercut; ratio {took / bound:.2f}"
        )
    return plots.placement_chart([*run.placements.values()], bound), f"{caption}."


def _partition(run: RunRecord) -> Drawn:
    if run.partition is None:
        return None
    part = run.partition
    return plots.partition_map(part.counts, part.roles, part.class_names), (
        f"Who holds what in the {part.kind} partition {part.hash[:12]}: the darker, the more "
        "training samples of a class a client has (by the square root); the darkest stands for "
        f"{part.counts.max():,}. The colour is the client's role."
    )


def _samples(run: RunRecord) -> Drawn:
    if run.samples is None:
        return None
    groups = {GROUPS[name]: run.samples[name] for name in GROUPS if name in run.samples}
    real = "real images, " if REAL in run.samples else ""
    caption = (
        f"Each row is a class: {real}synthetic images as the generators drew them, and those that "
        "the filter kept"
    )
    if counted := (run.result or {}).get("synthetic"):
        caption += f" ({counted['kept']:,} of {counted['generated']:,} in the whole run)"
    return sample_grid(groups, _class_names(run, len(run.samples["before"]))), f"{caption}."


def _sent(run: RunRecord) -> Drawn:
    if run.sent is None:
        return None
    sent = run.sent
    classes = np.unique(sent.labels).tolist()
    most = max(np.bincount(sent.labels).tolist())
    images = np.zeros((len(classes), most, *sent.images.shape[1:]), np.uint8)
    for row, label in enumerate(classes):
        own = sent.images[sent.labels == label]
        images[row, : len(own)] = own
    known = len(run.partition.class_names) if run.partition else 1 + max(classes)
    names = _class_names(run, known)
    return sample_grid({"sent": images}, [names[label] for label in classes]), (
        "Each row is a class: the first image of the class that each of some clients sent."
    )


def _privacy(run: RunRecord) -> Drawn:
    attacks = plots.attacks(run.privacy) if run.privacy is not None else []
    if run.privacy is None or not attacks:
        return None
    parts = []
    for is_global, whom in ((False, "an upload"), (True, "the global model")):
        areas = [curve["auc"] for _, curve, own in attacks if own == is_global]
        if areas:
            parts.append(f"{max(areas):.3f} for {whom}")
    return plots.roc_curves(run.privacy), (
        "Membership inference: how many training samples an attack finds, against how many others "
        f"it accuses; the dashes are chance. Largest area under a curve: {', '.join(parts)}."
    )


def _class_names(run: RunRecord, classes: int) -> list[str]:
    if run.partition is None or len(run.partition.class_names) != classes:
        return [str(index) for index in range(classes)]
    return run.partition.class_names


FIGURES: dict[str, tuple[str, Callable[[RunRecord], Drawn]]] = {
    "accuracy": ("Accuracy", _accuracy),
    "clients": ("Clients' accuracy", _clients),
    "client_accuracy": ("Client by client", _client_accuracy),
    "rounds": ("Rounds", _rounds),
    "time": ("Time", _time),
    "per_domain": ("Accuracy by domain", _domains),
    "per_class": ("Accuracy by class", _classes),
    "confusion": ("Confusion", _confusion),
    "bytes": ("Communication", _bytes),
    "losses": ("Local training", _losses),
    "placement": ("Placement", _placement),
    "partition": ("Partition", _partition),
    "samples": ("Samples", _samples),
    "sent": ("What left the clients", _sent),
    "privacy": ("Privacy", _privacy),
}
"""Every figure by its file's name, in the page's order: its title and what draws it."""
OF_IMAGES = ("samples", "sent")
"""Figures that are made of images."""
