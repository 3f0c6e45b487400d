"""The pictures of a run's report, each with its name, its caption and its files."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from fl.report import client_notes, client_plots, confusion, loss_curves, plots, privacy, style
from fl.report.alone import on_whole_split
from fl.report.gantt import placement_chart
from fl.report.mosaic import sample_grid
from fl.report.read import RunRecord
from fl.report.words import duration, size


@dataclass(frozen=True)
class Picture:
    """One figure of the page. `width` is in CSS pixels; `wide` ones take the page's whole width."""

    name: str
    title: str
    caption: str
    files: dict[str, bytes]
    """Its files by ending: ``png``, and ``svg`` or, if it is made of images, ``webp``."""
    width: int
    wide: bool

    @property
    def shown(self) -> str:
        """The ending of the file that the page contains: the smallest."""
        return min(self.files, key=lambda ending: len(self.files[ending]))


def pictures(run: RunRecord) -> Iterator[Picture]:
    """Every picture for which the run has data, in the page's order."""
    makers = (
        _accuracy,
        _clients,
        _client_accuracy,
        _rounds,
        _time,
        _domains,
        _classes,
        _confusion,
        _bytes,
        _losses,
        _placement,
        _partition,
        _samples,
        _sent,
        _privacy,
    )
    return (picture for make in makers if (picture := make(run)) is not None)


def _picture(
    name: str, title: str, caption: str, figure: Figure, *, of_images: bool = False
) -> Picture:
    inches = figure.get_figwidth()
    files = style.files(figure, of_images=of_images)
    return Picture(name, title, caption, files, round(100 * inches), inches > style.HALF + 1)


def _accuracy(run: RunRecord) -> Picture | None:
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
    figure = plots.accuracy_curve(run.accuracy, start, run.step)
    return _picture("accuracy", "Accuracy", f"{caption}.", figure)


def _clients(run: RunRecord) -> Picture | None:
    if not run.client_accuracy:
        return None
    caption = (
        "How accuracy is distributed over clients after each round: all of them lie in the light "
        "band; the dark one reaches from the 10th to the 90th percentile"
    )
    figure = client_plots.client_spread(run.client_accuracy)
    return _picture("clients", "Clients' accuracy", f"{caption}.", figure)


def _client_accuracy(run: RunRecord) -> Picture | None:
    if run.scores is None:
        return None
    alone = run.alone.scores if run.alone else None
    figure = client_plots.client_accuracy(run.scores, alone)
    caption = client_notes.last_round(run.scores, run.alone)
    return _picture("client_accuracy", "Client by client", caption, figure)


def _rounds(run: RunRecord) -> Picture | None:
    if not run.rounds:
        return None
    overhead = [r.seconds.get("overhead", 0.0) for r in run.rounds]
    total = sum(sum(r.seconds.values()) for r in run.rounds)
    caption = (
        "Where each round's time went: clients at work, the server (the test included), and what "
        f"the engine took beside them, {duration(sum(overhead) / len(overhead))} a round and "
        f"{sum(overhead) / max(total, 1e-9):.0%} of all"
    )
    return _picture("rounds", "Rounds", f"{caption}.", plots.round_times(run.rounds))


def _classes(run: RunRecord) -> Picture | None:
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
    return _picture("per_class", "Accuracy by class", caption, figure)


def _confusion(run: RunRecord) -> Picture | None:
    if run.confusion is None:
        return None
    counts = run.confusion
    names = _class_names(run, len(counts))
    caption = (
        "What the test samples of each class are taken for by the global model: the darker, the "
        "larger the share of the class (by its square root, so that rare mistakes show)"
    )
    if told := confusion.most_confused(counts, names):
        caption += f". Most often {told}"
    figure = confusion.confusion_matrix(counts, names)
    return _picture("confusion", "Confusion", f"{caption}.", figure)


def _losses(run: RunRecord) -> Picture | None:
    if not run.losses:
        return None
    units = {curve.unit for curve in run.losses}
    caption = f"Mean training loss over each client's own samples by {' or '.join(sorted(units))}"
    if run.in_rounds:
        caption += ", with a point for each epoch or a few steps within it"
    if loss_curves.has_bands(run.losses):
        caption += (
            "; of many clients the line is their median, the dark band reaches from their 10th to "
            "their 90th percentile, and all lie in the light one"
        )
    figure = loss_curves.loss_curves(run.losses)
    return _picture("losses", "Local training", f"{caption}.", figure)


def _domains(run: RunRecord) -> Picture | None:
    values = (run.result or {}).get("per_domain_accuracy")
    if not values or run.result is None:
        return None
    figure = plots.class_accuracy(
        [*values.values()], [*values], run.result["accuracy"], things="domain"
    )
    caption = "Test accuracy on each domain alone; the dashed line is that over all of them."
    return _picture("per_domain", "Accuracy by domain", caption, figure)


def _partition(run: RunRecord) -> Picture | None:
    if run.partition is None:
        return None
    part = run.partition
    caption = f"Who holds what in the {part.kind} partition {part.hash[:12]}: "
    if len(part.counts) <= plots.MOST_BUBBLES:
        figure = plots.partition_bubbles(part.counts, part.roles, part.class_names)
        caption += (
            "the area of a bubble is the number of training samples a client has of a class, "
            "its colour the client's role"
        )
    else:
        figure = plots.partition_map(part.counts, part.class_names)
        together = plots.per_column(len(part.counts))
        whose = f"each {together} clients have on average" if together > 1 else "a client has"
        caption += f"the darker, the more training samples of a class {whose} (by the square root)"
    return _picture("partition", "Partition", f"{caption}.", figure)


GROUPS = {"real": "real", "before": "raw synthetic", "after": "kept by filter"}
"""The groups of example images in their order, each with its heading."""


def _samples(run: RunRecord) -> Picture | None:
    if run.samples is None:
        return None
    groups = {GROUPS[name]: run.samples[name] for name in GROUPS if name in run.samples}
    real = "real images, " if "real" in run.samples else ""
    caption = (
        f"Each row is a class: {real}synthetic images as the generators drew them, and those that "
        "the filter kept"
    )
    counted = (run.result or {}).get("synthetic")
    if counted:
        generated, kept = counted["generated"], counted["kept"]
        caption += f" ({kept:,} of {generated:,} in the whole run)"
    figure = sample_grid(groups, _class_names(run, len(run.samples["before"])))
    return _picture("samples", "Samples", f"{caption}.", figure, of_images=True)


def _sent(run: RunRecord) -> Picture | None:
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
    figure = sample_grid({"sent": images}, [names[label] for label in classes])
    caption = "Each row is a class: the first image of the class that each of some clients sent."
    return _picture("sent", "What left the clients", caption, figure, of_images=True)


def _privacy(run: RunRecord) -> Picture | None:
    if run.privacy is None or not privacy.has_curves(run.privacy):
        return None
    figure = privacy.roc_curves(run.privacy)
    return _picture("privacy", "Privacy", privacy.told(run.privacy), figure)


def _time(run: RunRecord) -> Picture | None:
    seconds = (run.result or {}).get("seconds")
    if not seconds:
        return None
    total = seconds.get("total", sum(seconds.values()))
    caption = f"Where the {duration(total)} of the run went, phase by phase."
    return _picture("time", "Time", caption, plots.phase_times(seconds))


def _bytes(run: RunRecord) -> Picture | None:
    sent = {row.client: row.bytes_up for row in run.clients if row.bytes_up is not None}
    if not any(sent.values()):  # nobody has reported, or all train alone
        return None
    roles = [row.role for row in run.clients if row.bytes_up is not None]
    caption = f"What each client sent to the server, {size(sum(sent.values()))} in all"
    if plots.is_spread(sent):
        smallest = min(count for count in sent.values() if count > 0)
        factor = max(sent.values()) / smallest
        caption += f"; the axis is logarithmic, as the largest is {factor:,.0f} times the smallest"
    return _picture("bytes", "Communication", f"{caption}.", plots.client_bytes(sent, roles))


def _placement(run: RunRecord) -> Picture | None:
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
    figure = placement_chart(list(run.placements.values()), bound)
    return _picture("placement", "Placement", f"{caption}.", figure)


def _class_names(run: RunRecord, classes: int) -> list[str]:
    if run.partition is None or len(run.partition.class_names) != classes:
        return [str(index) for index in range(classes)]
    return run.partition.class_names
