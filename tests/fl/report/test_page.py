"""The page and the command that writes it."""

import base64
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rc_context, rcParams
from PIL import Image

from fl.command import run_command
from fl.data.files import LONGEST_NAME
from fl.errors import UserError
from fl.report import page as page_module
from fl.report import style
from fl.report.__main__ import regenerate
from fl.report.page import pictures, write_report
from fl.report.read import RunRecord, read_run
from fl.report.words import NONE
from tests.fl.report.conftest import MakeRun, record

ALL_PLOTS = ["accuracy.svg", "bytes.svg", "partition.svg", "per_class.svg", "samples.png"]
ALL_PLOTS += ["time.svg"]


class Page(HTMLParser):
    """The visible text, the tags with their attributes, and the pictures of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] != "style":
            self.text += data

    @property
    def images(self) -> list[tuple[str, bytes]]:
        """Each picture's kind, as data URLs have it, and its content."""
        sources = [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]
        parts = [source.removeprefix("data:image/").split(";base64,") for source in sources]
        return [(kind, base64.b64decode(content)) for kind, content in parts]

    @property
    def clients(self) -> dict[str, list[str]]:
        """The columns of the table of clients by their names."""
        text = self.source[self.source.index("<h2>Clients</h2>") :].split("</table>")[0]
        rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in text.split("<tr>")[1:]]
        return {head: cells for head, *cells in zip(*rows, strict=True)}


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a page's time."""
    monkeypatch.setattr(style, "svg", lambda figure: b"")
    monkeypatch.setattr(style, "png", lambda figure: b"")


def test_a_finished_run_has_every_plot_and_figure(make_run: MakeRun) -> None:
    run_dir = make_run()
    before = {path for path in run_dir.rglob("*") if path.is_file()}
    path = write_report(run_dir)
    new = {path for path in run_dir.rglob("*") if path.is_file()} - before
    assert new == {path, *(run_dir / "plots" / file for file in ALL_PLOTS)}
    page = Page(path)
    assert len(page.images) == len(ALL_PLOTS)
    for kind, content in page.images:
        if kind == "svg+xml":
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            assert min(Image.open(io.BytesIO(content), formats=["PNG"]).size) > 200
    for figure in ("88.0%", "best 90.0%, epoch 3", "29.0%", "+59.0", "9.0 s", "76.3 MB"):
        assert figure in page.text
    for words in ("fedmho on digits", "2 classifiers, 2 generators", "cvae-small", "lr: 0.0125"):
        assert words in page.text
    assert f"python -m cluster.launch --config {run_dir}/config.yaml" in page.text
    assert "unfinished" not in page.text


def test_what_the_user_has_set_for_other_figures_does_not_reach_the_reports(
    make_run: MakeRun,
) -> None:
    """LaTeX need not be installed, say. Equal runs give equal bytes."""
    run_dir = make_run()
    for name in ("partition.json", "result.json"):
        (run_dir / name).unlink()
    usual = write_report(run_dir).read_bytes()
    with rc_context({"text.usetex": True, "font.size": 30}):
        assert write_report(run_dir).read_bytes() == usual
        assert rcParams["font.size"] == 30


@pytest.mark.usefixtures("no_pictures")
def test_the_page_needs_nothing_beside_it_and_links_to_the_runs_files(make_run: MakeRun) -> None:
    run_dir = make_run()
    page = Page(write_report(run_dir))
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    loads = [a[key] for _, a in page.tags for key in ("src", "srcset") if key in a]
    assert all(load is not None and load.startswith("data:") for load in loads)
    assert "@import" not in page.source
    assert "url(" not in page.source
    links = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
    moved = run_dir.rename(run_dir.with_name("moved"))
    assert {"result.json", "config.yaml", "metrics.jsonl", "plots/", "plots/time.svg"} <= {*links}
    assert all((moved / link).exists() for link in links)


@pytest.mark.usefixtures("no_pictures")
def test_placement_confusion_and_losses_are_shown_if_they_were_recorded(make_run: MakeRun) -> None:
    run_dir = make_run()
    result = json.loads((run_dir / "result.json").read_text())
    placed = {"client": 2, "role": "generator", "node": "a", "device_uuid": "GPU-8f3c2d1e-00"}
    result["placements"] = [placed | {"start": 2.0, "end": 8.0, "attempts": 2}]
    result["confusion"] = np.diag([9] * 4).tolist()
    (run_dir / "result.json").write_text(json.dumps(result))
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) | {"losses": [2.5, math.nan, 0.5]} for line in lines]
    (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, events)))
    page = Page(write_report(run_dir))
    for name in ("confusion", "losses", "placement"):
        assert (run_dir / "plots" / f"{name}.svg").exists()
    assert page.clients["Last loss"] == ["0.5"] * 4
    assert page.clients["Where"] == [NONE, NONE, "a, GPU-8f3c2d1e, 2 attempts", NONE]


def test_names_from_the_run_are_text_neither_markup_nor_formulas(make_run: MakeRun) -> None:
    run_dir = make_run(name="<script>alert(1)<", method="<b>$x^$</b>")
    partition = json.loads((run_dir / "partition.json").read_text())
    partition["class_names"] = ["$", "$\\frac", "<i>", "W" * LONGEST_NAME]
    (run_dir / "partition.json").write_text(json.dumps(partition))
    page = Page(write_report(run_dir))
    assert not {"script", "b", "i"} & {tag for tag, _ in page.tags}
    assert "<script>alert(1)<" in page.text
    assert "<b>$x^$</b> on digits" in page.text


@pytest.mark.usefixtures("no_pictures")
def test_an_interrupted_run_says_so_and_shows_what_is_there(make_run: MakeRun) -> None:
    run_dir = make_run()
    for name in ("result.json", "partition.json", "synthetic/samples.safetensors"):
        (run_dir / name).unlink()
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:30])
    page = Page(write_report(run_dir))
    assert "This run is unfinished." in page.text
    assert "2 of 4 clients had reported" in page.text
    assert len(page.images) == 1  # what the clients sent
    (run_dir / "metrics.jsonl").unlink()
    page = Page(write_report(run_dir))
    assert "This run is unfinished." in page.text
    assert page.images == []


@pytest.mark.usefixtures("no_pictures")
def test_clients_that_have_not_reported_are_listed(make_run: MakeRun) -> None:
    run_dir = make_run()
    (run_dir / "result.json").unlink()
    (run_dir / "metrics.jsonl").unlink()
    page = Page(write_report(run_dir))
    assert page.clients["Client"] == ["0", "1", "2", "3"]
    assert page.clients["Update"] == ["not reported"] * 4
    assert "0 of 4 clients had reported" in page.text


@pytest.mark.usefixtures("no_pictures")
def test_of_many_clients_the_first_are_listed(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "MOST_ROWS", 3)
    page = Page(write_report(make_run()))
    assert page.clients["Client"] == ["0", "1", "2"]
    assert "The first 3 of 4 clients; metrics.jsonl has all." in page.text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("finished", [True, False])
def test_what_went_wrong_is_listed(make_run: MakeRun, finished: bool) -> None:
    run_dir = make_run()
    if not finished:
        (run_dir / "result.json").unlink()
    failed = {"event": "client_failed", "client": 2, "attempt": 1, "reason": "<b> died"}
    dropped = {"event": "client_dropped", "client": 2, "reason": "it died"}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in (failed, dropped))
    page = Page(write_report(run_dir))
    assert "Client 2, attempt 1: <b> died" in page.text
    assert "Client 2, left out of the result: it died" in page.text


@pytest.mark.process
def test_the_command_rewrites_reports_and_refuses_in_one_line(make_run: MakeRun) -> None:
    run_dir = make_run()
    (run_dir / "synthetic" / "samples.safetensors").unlink()
    (run_dir / "report.html").write_text("an old one")
    command = [sys.executable, "-m", "fl.report", str(run_dir), str(run_dir.parent / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.split() == [str(run_dir / "report.html")]
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    assert done.stderr.count("\n") == 1
    assert "none is not a run directory" in done.stderr
    with pytest.raises(UserError, match="not a run directory"):
        write_report(run_dir.parent / "none")


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("privacy.json", '{"attacks": 3}'),
        ("privacy.json", '{"uploads": [17], "global": null}'),
        ("partition.json", '{"kind": "dirichlet"}'),
        ("result.json", '{"confusion": [[1, 2]]}'),
        ("result.json", '{"confusion": "much"}'),
        ("result.json", '{"placements": [{"client": 0}]}'),
        ("result.json", '{"placements": [17]}'),
    ],
)
def test_a_file_with_other_content_than_a_run_writes_is_one_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], file: str, content: str
) -> None:
    run_dir = make_run()
    (run_dir / file).write_text(content)
    assert run_command(regenerate, "report", [str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert f"{run_dir} holds a damaged file" in said
    assert said.count("\n") == 1


@pytest.mark.usefixtures("no_pictures")
def test_a_run_of_many_rounds_shows_its_rounds(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(rounds=5)))
    assert "250 ms a round and 3% of all" in page.text
    assert "Rounds to an accuracy 50.0% 80.0% 1 5" in page.text
    assert "before round 1" in page.text
    assert list(page.clients) == [
        *("Client", "Role", "Model", "Samples", "Training", "Sent up", "Update")
    ]
    for word in ("over clients", "UA", "Worst tenth", "FedAvg", "its own test"):
        assert word not in page.text


@pytest.mark.usefixtures("no_pictures")
def test_clients_that_are_scored_have_their_accuracies(make_scored: MakeRun) -> None:
    scores = {"mean": 0.7, "spread": 0.2, "worst_tenth": 0.5}
    changes = {"fedavg_bytes_up": 910_000, "client_scores": scores, "untested": [2]}
    page = Page(write_report(make_scored("fedper", **changes)))
    assert page.clients["Accuracy"] == ["50.0%", "70.0%", NONE, "90.0%"]
    for said in (
        "Not scored, and left out of the mean: 1 client.",
        "Accuracy 70.0% mean over clients; best 70.0%, round 2",
        "UA 50.0% mean over clients and the last ten rounds",
        "Worst tenth 50.0%",
        "Sent up 76.3 MB 83.8 times FedAvg's; 0 B down",
        "each client scored on its own test samples",
    ):
        assert said in page.text


@pytest.mark.usefixtures("no_pictures")
def test_an_unfinished_run_that_scores_clients(make_scored: MakeRun) -> None:
    run_dir = make_scored()
    (run_dir / "result.json").unlink()
    page = Page(write_report(run_dir))
    assert "Accuracy so far 70.0% round 2; mean over clients" in page.text
    assert page.clients["Accuracy"] == ["50.0%", "70.0%", NONE, "90.0%"]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": {"validation": 0.1}}, "its own held-out training samples"),
        ({"tested": "personal"}, "all test samples"),
    ],
)
def test_the_page_says_which_samples_clients_were_scored_on(
    make_scored: MakeRun, settings: dict[str, object], said: str
) -> None:
    run_dir = make_scored(scored_on="validation")
    with (run_dir / "config.yaml").open("a") as file:
        file.write(json.dumps(settings)[1:-1])
    text = Page(write_report(run_dir)).text
    assert f"each client scored on {said}" in text
    assert "accuracy on held-out training images" not in text


@pytest.mark.usefixtures("no_pictures")
def test_the_page_says_how_near_sent_images_are_to_real_ones(make_scored: MakeRun) -> None:
    told = {"images": 1800, "steps": 1.0, "nearest_real": 0.000071}
    text = Page(write_report(make_scored(distilled=told))).text
    assert "1,800 images left the clients, after 1 steps of distillation" in text
    assert "is 7.1e-05 of the pixels' range" in text


# Which pictures a page has: those for which the run has left data.


def shown(run: RunRecord) -> list[str]:
    return [picture["file"] for picture in pictures(run)]


@pytest.mark.usefixtures("no_pictures")
def test_what_is_missing_takes_its_own_picture_with_it(make_run: MakeRun) -> None:
    whole = read_run(make_run())
    assert shown(record()) == []
    files = ["accuracy", "time", "per_class", "bytes", "partition", "samples"]
    assert [file.split(".")[0] for file in shown(whole)] == files
    assert shown(replace(whole, samples=None)) == shown(whole)[:-1]
    assert shown(replace(whole, accuracy={})) == shown(whole)[1:]
    assert {*shown(whole)} - {*shown(replace(whole, result={}))} == {"per_class.svg", "time.svg"}


@pytest.mark.usefixtures("no_pictures")
def test_clients_that_are_scored_have_their_picture_after_the_curve(make_scored: MakeRun) -> None:
    files = shown(read_run(make_scored()))
    assert files[:3] == ["accuracy.svg", "client_accuracy.svg", "rounds.svg"]


@pytest.mark.usefixtures("no_pictures")
def test_pictures_of_many_things_take_the_pages_whole_width() -> None:
    few, many = (
        next(pictures(record(result={"per_class_accuracy": [0.5] * n, "accuracy": 0.5})))
        for n in (10, 47)
    )
    assert (few["wide"], many["wide"]) == (False, True)
    assert (few["width"], many["width"]) == (500, 1040)


def test_drawings_are_svg_and_images_are_png_twice_as_large_as_shown(make_run: MakeRun) -> None:
    whole = read_run(make_run())
    *_, time, samples = pictures(replace(whole, accuracy={}, clients=[], partition=None))
    assert (time["file"], time["kind"]) == ("per_class.svg", "image/svg+xml")
    assert time["content"].startswith(b"<?xml")
    assert (samples["file"], samples["kind"]) == ("samples.png", "image/png")
    image = Image.open(io.BytesIO(samples["content"]), formats=["PNG"])
    assert image.width == pytest.approx(2 * samples["width"], abs=2)
    assert np.asarray(image.convert("L")).std() > 1  # something is drawn
