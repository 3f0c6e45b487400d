"""Which pictures a report has: those that what the run has left allows, each with its caption."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fl.report import style
from fl.report.figures import Picture, pictures
from fl.report.read import ClientRow, LossCurve, Placed, RoundRow, RunRecord, SentImages, read_run
from tests.fl.report.conftest import MakeRun

NOTHING: dict[str, Any] = {
    "clients": [],
    "accuracy": {},
    "rounds": [],
    "placements": {},
    "result": None,
    "partition": None,
    "samples": None,
}


@pytest.fixture
def whole(make_run: MakeRun) -> RunRecord:
    return read_run(make_run())


@pytest.fixture
def bare(whole: RunRecord) -> RunRecord:
    """A run of which only the configuration is left."""
    return replace(whole, **NOTHING)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What was drawn; made into no file, which takes most of the time."""
    drawn: list[Figure] = []

    def keep(figure: Figure) -> bytes:
        drawn.append(figure)
        return b""

    monkeypatch.setattr(style, "svg", keep)
    monkeypatch.setattr(style, "png", keep)
    return drawn


def only(run: RunRecord) -> Picture:
    (picture,) = pictures(run)
    return picture


def names_below(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_xticklabels()]


def placed(client: int, start: float, end: float) -> Placed:
    return Placed(client, "classifier", "node-a", "", start, end, 1)


def test_a_finished_run_has_its_pictures_in_the_pages_order(
    whole: RunRecord, figures: list[Figure]
) -> None:
    names = [picture.name for picture in pictures(whole)]
    assert names == ["accuracy", "time", "per_class", "bytes", "partition", "samples"]
    assert len(figures) == 6


def test_nothing_left_is_no_picture(bare: RunRecord, figures: list[Figure]) -> None:
    assert list(pictures(bare)) == []


def test_images_that_left_clients_are_the_last_picture(
    whole: RunRecord, figures: list[Figure]
) -> None:
    images = np.ones((3, 1, 8, 8), np.uint8)
    *_, last = pictures(replace(whole, sent=SentImages(images, np.array([3, 1, 3]))))
    assert last.title == "What left the clients"
    names = [label.get_text() for label in figures[-1].axes[0].get_yticklabels()]
    assert names == ["class 1", "class 3"]


def test_the_samples_show_real_images_where_the_run_kept_some(
    whole: RunRecord, figures: list[Figure]
) -> None:
    assert whole.samples is not None
    older = whole.samples | {"real": whole.samples["before"]}  # kept without being asked for
    *_, last = pictures(replace(whole, samples=older))
    assert "real" not in last.caption
    assert names_below(figures[-1]) == ["raw synthetic", "kept by filter"]
    *_, last = pictures(
        replace(whole, samples=whole.samples | {"real_images": whole.samples["before"]})
    )
    assert "Each row is a class: real images, synthetic images" in last.caption
    assert names_below(figures[-1]) == ["real", "raw synthetic", "kept by filter"]


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({"accuracy": {}}, {"accuracy"}),
        ({"partition": None}, {"partition"}),
        ({"samples": None}, {"samples"}),
        ({"clients": []}, {"bytes"}),
        ({"result": None}, {"per_class", "time"}),
    ],
    ids=["accuracy", "partition", "samples", "clients", "result"],
)
def test_what_is_missing_takes_its_own_picture_with_it(
    whole: RunRecord, figures: list[Figure], changes: dict[str, Any], gone: set[str]
) -> None:
    names = {picture.name for picture in pictures(whole)}
    assert {picture.name for picture in pictures(replace(whole, **changes))} == names - gone


def test_the_curve_says_what_it_counts_and_what_its_start_is(
    bare: RunRecord, figures: list[Figure]
) -> None:
    curve = {1: 0.5, 2: 0.75}
    found = [
        only(replace(bare, accuracy=curve)).caption,
        next(pictures(replace(bare, accuracy=curve, result={"start_accuracy": 0.3}))).caption,
    ]
    assert found == [
        "Test accuracy of the global model after each epoch of fusion.",
        "Test accuracy of the global model after each epoch of fusion; epoch 0 is the model that "
        "fusion starts from.",
    ]


def test_clients_that_are_scored_have_their_pictures_after_the_curve(
    make_scored: MakeRun, figures: list[Figure]
) -> None:
    make_scored("alone", "local", [(0.1, 0.1, None, 0.1), (0.6, 0.6, None, 0.8)])
    drawn = list(pictures(read_run(make_scored("fedper"))))
    names = [picture.name for picture in drawn]
    assert names[:4] == ["accuracy", "clients", "client_accuracy", "rounds"]
    curve, spread, each = drawn[:3]
    assert curve.caption == (
        "Mean over clients after each round, each client on test samples of its own; round 0 is "
        "before the first."
    )
    assert spread.title == "Clients' accuracy"
    assert "1 client is below training alone (run alone)." in each.caption
    (by_class,) = [picture for picture in drawn if picture.name == "per_class"]
    assert by_class.caption.endswith("the dashed line is the mean over clients.")


def test_an_unfinished_run_shows_its_clients_so_far(
    make_scored: MakeRun, figures: list[Figure]
) -> None:
    run = read_run(make_scored())
    names = {picture.name for picture in pictures(replace(run, result=None))}
    assert names >= {"accuracy", "clients", "client_accuracy"}


def test_where_nobody_sends_anything_no_picture_shows_it(
    make_scored: MakeRun, figures: list[Figure]
) -> None:
    run = read_run(make_scored("alone", "local"))
    silent = replace(run, clients=[replace(row, bytes_up=0) for row in run.clients])
    names = {picture.name for picture in pictures(run)}
    assert names - {picture.name for picture in pictures(silent)} == {"bytes"}


def test_a_run_of_rounds_says_where_their_time_went(bare: RunRecord, figures: list[Figure]) -> None:
    took = {"local": 8.0, "server": 1.5, "overhead": 0.5}
    rounds = [RoundRow(1, 0.5, took, 9), RoundRow(2, 0.6, {**took, "overhead": 1.5}, 9)]
    run = replace(bare, rounds=rounds, accuracy={1: 0.5, 2: 0.6}, result={"start_accuracy": 0.3})
    curve, times = pictures(run)
    assert curve.caption.endswith("after each round; round 0 is the model that it starts from.")
    assert times.name == "rounds"
    assert times.caption.endswith("beside them, 1.0 s a round and 10% of all.")


@pytest.mark.parametrize(
    ("classes", "names"),
    [(4, [f"class {k}" for k in range(4)]), (3, ["0", "1", "2"])],
    ids=["named", "of another number"],
)
def test_classes_have_the_partitions_names_where_it_has_as_many(
    whole: RunRecord,
    bare: RunRecord,
    figures: list[Figure],
    classes: int,
    names: list[str],
) -> None:
    result = {"per_class_accuracy": [0.5] * classes, "accuracy": 0.5}
    run = replace(bare, result=result, partition=whole.partition)
    assert [picture.name for picture in pictures(run)] == ["per_class", "partition"]
    assert names_below(figures[0]) == names


def test_domains_have_their_own_names(bare: RunRecord, figures: list[Figure]) -> None:
    result = {"per_domain_accuracy": {"photo": 0.5, "sketch": 0.25}, "accuracy": 0.4}
    assert only(replace(bare, result=result)).name == "per_domain"
    assert names_below(figures[0]) == ["photo", "sketch"]
    assert [bar.get_height() for bar in figures[0].axes[0].patches] == [0.5, 0.25]


def test_the_partition_is_named_by_the_beginning_of_its_hash(
    whole: RunRecord, bare: RunRecord, figures: list[Figure]
) -> None:
    assert whole.partition is not None
    partition = replace(whole.partition, hash="0123456789abcdef")
    assert "dirichlet partition 0123456789ab:" in only(replace(bare, partition=partition)).caption


def test_samples_are_counted_where_the_result_counts_them(
    whole: RunRecord, bare: RunRecord, figures: list[Figure]
) -> None:
    alone = replace(bare, samples=whole.samples)
    assert only(alone).caption.endswith("those that the filter kept.")
    counted = replace(alone, result={"synthetic": {"generated": 3000, "kept": 2400}})
    assert only(counted).caption.endswith("(2,400 of 3,000 in the whole run).")


def test_the_runs_time_is_its_total_or_the_sum_of_its_phases(
    bare: RunRecord, figures: list[Figure]
) -> None:
    for seconds, said in (
        ({"local": 4.0, "fusion": 3.0, "total": 9.0}, "Where the 9.0 s of the run went"),
        ({"local": 4.0, "fusion": 3.0}, "Where the 7.0 s of the run went"),
    ):
        assert only(replace(bare, result={"seconds": seconds})).caption.startswith(said)


def test_bytes_are_of_who_reported_and_a_logarithmic_axis_says_why(
    bare: RunRecord, figures: list[Figure]
) -> None:
    rows = [ClientRow(k, "classifier", bytes_up=sent) for k, sent in enumerate((1000, 2000, None))]
    alike = only(replace(bare, clients=rows))
    assert alike.caption == "What each client sent to the server, 3.0 kB in all."
    assert names_below(figures[0]) == ["0", "1"]
    apart = only(replace(bare, clients=[*rows, ClientRow(3, "generator", bytes_up=50_000)]))
    assert apart.caption.endswith(
        "53.0 kB in all; the axis is logarithmic, as the largest is 50 times the smallest."
    )
    nobody = [ClientRow(0, "classifier")]
    assert list(pictures(replace(bare, clients=nobody))) == []


def test_the_placement_is_held_against_its_bound_where_there_is_one(
    bare: RunRecord, figures: list[Figure]
) -> None:
    run = replace(bare, placements={0: placed(0, 1.0, 4.0), 1: placed(1, 4.0, 8.0)})
    assert only(run).caption.endswith("first client's start to the last one's end.")
    bounded = replace(run, result={"makespan": {"seconds": 7.0, "lower_bound": 5.6}})
    assert only(bounded).caption.endswith(
        "Makespan 7.0 s, lower bound 5.6 s, which no placement could undercut; ratio 1.25."
    )


def test_pictures_of_many_things_take_the_pages_whole_width(
    bare: RunRecord, figures: list[Figure]
) -> None:
    def of(classes: int) -> Picture:
        result = {"per_class_accuracy": [0.5] * classes, "accuracy": 0.5}
        return only(replace(bare, result=result))

    assert not of(10).wide
    assert of(47).wide
    assert of(47).width > of(10).width


def test_drawings_are_svg_and_images_are_png_twice_as_large_as_shown(whole: RunRecord) -> None:
    found = {picture.name: picture for picture in pictures(whole)}
    assert found["time"].file == "time.svg"
    assert found["time"].content.startswith(b"<?xml")
    samples = found["samples"]
    assert samples.file == "samples.png"
    image = Image.open(io.BytesIO(samples.content), formats=["PNG"])
    assert image.width == pytest.approx(2 * samples.width, abs=2)
    assert np.asarray(image.convert("L")).std() > 1  # something is drawn


def test_the_attacks_are_told_with_their_largest_areas(
    bare: RunRecord, figures: list[Figure]
) -> None:
    curve = {"auc": 0.7, "curve": [0.0, 0.1, 1.0]}
    uploads = [{"client": k, "attacks": {"loss": {**curve, "auc": 0.5 + k / 10}}} for k in (2, 1)]
    best = {"attacks": {"ratio": {**curve, "auc": 0.9}}}
    privacy = {"false_positives": [1e-3, 1e-2, 1.0], "uploads": uploads, "global": best}
    found = only(replace(bare, privacy=privacy))
    assert found.caption.endswith(": 0.700 for an upload, 0.900 for the global model.")


def test_the_confusion_stands_by_the_classes_and_names_the_worst_mistakes(
    whole: RunRecord, figures: list[Figure]
) -> None:
    counts = np.diag([9, 9, 9, 9])
    counts[2, 0] = 3
    names = [picture.name for picture in pictures(replace(whole, confusion=counts))]
    assert names.index("confusion") == names.index("per_class") + 1
    names_only = {**NOTHING, "partition": whole.partition}
    found = next(pictures(replace(whole, confusion=counts, **names_only)))
    assert found.caption.endswith("Most often class 2 is taken for class 0 (3 of 12).")
    right = only(replace(whole, confusion=np.diag([9, 9]), **NOTHING))
    assert "Most often" not in right.caption


def test_training_curves_say_what_a_step_is(bare: RunRecord, figures: list[Figure]) -> None:
    run = replace(bare, losses=[LossCurve(0, "classifier", "cnn", [1.0, 2.0], [2.0, 1.0])])
    assert only(run).caption.endswith("samples by epoch.")
    by_round = [replace(run.losses[0], unit="round")]
    assert "a point for each epoch" in only(replace(run, losses=by_round, in_rounds=True)).caption
    assert [figure.axes[0].get_xlabel() for figure in figures] == ["epoch", "round"]
    many = [replace(run.losses[0], client=k) for k in range(100)]
    assert only(replace(run, losses=many)).caption.endswith("all lie in the light one.")
