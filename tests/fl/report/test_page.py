"""The page and the command that writes it."""

import base64
import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rc_context, rcParams
from PIL import Image

from fl.data.image_files import LONGEST_NAME
from fl.errors import UserError
from fl.report import style
from fl.report.__main__ import main
from fl.report.page import write_report
from tests.fl.report.conftest import MakeRun

NONE = "\N{EN DASH}"
ALL_PLOTS = ["accuracy", "bytes", "partition", "per_class", "samples", "time"]


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
        sources = [attributes["src"] for tag, attributes in self.tags if tag == "img"]
        found = []
        for source in sources:
            kind, content = (source or "").removeprefix("data:image/").split(";base64,")
            found.append((kind, base64.b64decode(content)))
        return found


def test_what_the_user_has_set_for_other_figures_does_not_reach_the_reports(
    make_run: MakeRun,
) -> None:
    """LaTeX need not be installed, say."""
    run_dir = make_run()
    usual = write_report(run_dir).read_bytes()
    with rc_context({"text.usetex": True, "font.size": 30}):
        assert write_report(run_dir).read_bytes() == usual
        assert rcParams["font.size"] == 30


def test_a_finished_run_has_every_plot_and_figure(make_run: MakeRun) -> None:
    run_dir = make_run()
    before = {path for path in run_dir.rglob("*") if path.is_file()}
    path = write_report(run_dir)
    drawn = set(ALL_PLOTS) - {"samples"}
    plots = {run_dir / "plots" / f"{name}.svg" for name in drawn}
    plots.add(run_dir / "plots" / "samples.png")
    new = {path for path in run_dir.rglob("*") if path.is_file()} - before
    assert new == {path, run_dir / "report.html"} | plots
    page = Page(path)
    assert len(page.images) == len(ALL_PLOTS)
    kinds = {kind for kind, _ in page.images}
    assert kinds == {"svg+xml", "png"}
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


def test_the_page_needs_nothing_beside_it(make_run: MakeRun) -> None:
    page = Page(write_report(make_run()))
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    loads = [a[key] for _, a in page.tags for key in ("src", "srcset") if key in a]
    assert all(load is not None and load.startswith("data:") for load in loads)
    assert "@import" not in page.source
    assert "url(" not in page.source


def test_links_lead_to_the_runs_files_wherever_it_is_moved(make_run: MakeRun) -> None:
    run_dir = make_run()
    page = Page(write_report(run_dir))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    moved = run_dir.rename(run_dir.with_name("moved"))
    assert {"result.json", "config.yaml", "metrics.jsonl", "plots/", "plots/time.svg"} <= {*links}
    assert "partition.npz" not in links  # this run has none
    for link in links:
        assert link is not None
        assert (moved / link).exists()


def test_confusion_and_training_curves_are_drawn_where_they_were_recorded(
    make_run: MakeRun,
) -> None:
    run_dir = make_run()
    result = json.loads((run_dir / "result.json").read_text())
    confusion = np.diag([9] * 4).tolist()
    (run_dir / "result.json").write_text(json.dumps(result | {"confusion": confusion}))
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) | {"losses": [2.5, math.nan, 0.5]} for line in lines]
    (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, events)))
    page = Page(write_report(run_dir))
    assert len(page.images) == len(ALL_PLOTS) + 2
    head, *clients = rows(page)
    assert [row[head.index("Last loss")] for row in clients] == ["0.5"] * 4
    assert (run_dir / "plots" / "confusion.svg").exists()
    assert (run_dir / "plots" / "losses.svg").exists()


def test_names_from_the_run_are_text_not_markup(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(name="<script>alert(1)<", method="<b>$x^$</b>")))
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert "<script>alert(1)<" in page.text
    assert "<b>$x^$</b> on digits" in page.text


def test_class_names_are_no_formulas(make_run: MakeRun) -> None:
    run_dir = make_run()
    partition = json.loads((run_dir / "partition.json").read_text())
    partition["class_names"] = ["$", "$\\frac$", "<i>", "_^"]
    (run_dir / "partition.json").write_text(json.dumps(partition))
    assert len(Page(write_report(run_dir)).images) == len(ALL_PLOTS)


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


def test_a_run_of_which_only_the_configuration_is_left(make_run: MakeRun) -> None:
    run_dir = make_run()
    for name in ("result.json", "partition.json", "metrics.jsonl"):
        (run_dir / name).unlink()
    (run_dir / "synthetic" / "samples.safetensors").unlink()
    page = Page(write_report(run_dir))
    assert "This run is unfinished." in page.text
    assert page.images == []


def test_clients_that_have_not_reported_are_listed(make_run: MakeRun) -> None:
    run_dir = make_run()
    (run_dir / "result.json").unlink()
    (run_dir / "metrics.jsonl").unlink()
    page = Page(write_report(run_dir))
    assert page.text.count("not reported") == 4
    assert "0 of 4 clients had reported" in page.text


def test_many_classes_in_colour(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(classes=47, channels=3)))
    assert len(page.images) == len(ALL_PLOTS)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        write_report(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


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


def test_a_run_of_many_rounds_shows_its_rounds(make_run: MakeRun) -> None:
    run_dir = make_run(rounds=5)
    text = write_report(run_dir).read_text()
    assert (run_dir / "plots" / "rounds.svg").exists()
    assert "250 ms a round and 3% of all" in text
    assert "Rounds to an accuracy" in text
    assert "before round 1" in text


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a page's time."""
    monkeypatch.setattr(style, "svg", lambda figure: b"")
    monkeypatch.setattr(style, "png", lambda figure: b"")


def rows(page: Page) -> list[list[str]]:
    """The cells of the table of clients."""
    table = page.source[page.source.index("<h2>Clients</h2>") :].split("</table>")[0]
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S) for row in table.split("<tr>")[1:]]
    return [[" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in row] for row in cells]


@pytest.mark.usefixtures("no_pictures")
def test_clients_that_are_scored_stand_with_their_accuracies(make_scored: MakeRun) -> None:
    make_scored("by-itself", "local", [(0.1, 0.1, None, 0.1), (0.6, 0.6, None, 0.8)])
    page = Page(write_report(make_scored("fedper", fedavg_bytes_up=910_000)))
    head, *clients = rows(page)
    columns = [head.index("Accuracy"), head.index("Alone")]
    assert [[row[c] for c in columns] for row in clients] == [
        ["below alone 50.0%", "60.0%"],
        ["70.0%", "60.0%"],
        [NONE, NONE],
        ["90.0%", "80.0%"],
    ]
    for said in (
        "Below training alone (run by-itself): client 0.",
        "Left out of the mean for want of test samples: client 2.",
        "Accuracy 70.0% mean over clients; its best round",
        "UA 50.0% mean over clients and all rounds",
        "Worst tenth 50.0% client 0",
        "Sent up 76.3 MB 84 times FedAvg's; 0 B down",
        "each client scored on test samples of its own",
    ):
        assert said in page.text


@pytest.mark.usefixtures("no_pictures")
def test_training_alone_sends_nothing_and_is_compared_with_nothing(make_scored: MakeRun) -> None:
    sent = {"bytes_up": 0, "bytes_down": 0, "fedavg_bytes_up": 910_000}
    make_scored("another", "local")
    page = Page(write_report(make_scored("alone", "local", [(0.5, 0.7, None, 0.9)] * 11, **sent)))
    assert "Sent up 0 B nothing is sent Clients" in page.text
    assert "UA 70.0% mean over clients and the last ten rounds" in page.text
    head = rows(page)[0]
    assert "Accuracy" in head
    assert "Alone" not in head
    assert "below alone" not in page.text
    assert "--method local" not in page.text


@pytest.mark.usefixtures("no_pictures")
def test_without_a_run_alone_the_page_says_what_is_missing(make_scored: MakeRun) -> None:
    page = Page(write_report(make_scored(accuracies=[(0.5, 0.7, None, 0.9)])))
    assert "Alone" not in rows(page)[0]
    assert "it cannot be said which clients are better off alone" in page.text
    assert "Start 29.0% before round 1" in page.text


@pytest.mark.usefixtures("no_pictures")
def test_an_unfinished_run_that_scores_clients(make_scored: MakeRun) -> None:
    run_dir = make_scored()
    (run_dir / "result.json").unlink()
    page = Page(write_report(run_dir))
    assert "Accuracy so far 70.0% round 2; mean over clients" in page.text
    assert "Worst tenth" not in page.text
    head, *clients = rows(page)
    assert [row[head.index("Accuracy")] for row in clients] == ["50.0%", "70.0%", NONE, "90.0%"]


@pytest.mark.usefixtures("no_pictures")
def test_held_out_samples_are_named_as_such(make_scored: MakeRun) -> None:
    run_dir = make_scored(scored_on="validation")
    config = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(config.replace("validation: 0.0", "validation: 0.1"))
    page = Page(write_report(run_dir))
    assert "each client scored on held-out training samples of its own" in page.text
    assert "accuracy on held-out training images" not in page.text


@pytest.mark.usefixtures("no_pictures")
def test_runs_that_do_not_score_clients_are_as_they_were(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(rounds=3)))
    head = ["Client", "Role", "Model", "Samples", "Training", "Sent up", "Update"]
    assert rows(page)[0] == head
    for word in ("mean over clients", "UA", "Worst tenth", "alone", "FedAvg", "of its own"):
        assert word not in page.text.replace("on each class alone", "")


def test_a_file_of_a_run_with_other_content_is_one_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run()
    (run_dir / "privacy.json").write_text('{"attacks": 3}')
    assert main([str(run_dir)]) == 2
    assert "a run holds a file that no run wrote so: KeyError" in capsys.readouterr().err


def test_the_longest_name_of_a_class_that_is_allowed_is_drawn(make_run: MakeRun) -> None:
    run_dir = make_run()
    partition = json.loads((run_dir / "partition.json").read_text())
    partition["class_names"][1] = "W" * LONGEST_NAME
    (run_dir / "partition.json").write_text(json.dumps(partition))
    assert len(Page(write_report(run_dir)).images) >= len(ALL_PLOTS)
