"""What is said of clients that were each scored."""

from dataclasses import replace

import pytest

from fl.report.client_notes import beside_table, last_round, which_samples
from fl.report.read import Failure, RunRecord, read_run
from fl.report.scores import Alone, Scores
from tests.fl.report.conftest import MakeRun

NOBODY_LEFT_OUT = [(0.5, 0.7, 0.6, 0.9)]


@pytest.fixture
def run(make_scored: MakeRun) -> RunRecord:
    """Four clients, all of which were scored."""
    return read_run(make_scored(accuracies=NOBODY_LEFT_OUT))


def alone(*accuracies: float | None) -> Alone:
    return Alone("by-itself", Scores(accuracies))


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        ((0.6, 0.7, 0.5, 0.95), "Below training alone (run by-itself): clients 0, 3."),
        ((0.5, 0.7, 0.7, None), "Below training alone (run by-itself): client 2."),
        ((0.5, 0.7, 0.6, 0.9), "No client is below training alone (run by-itself)."),
    ],
)
def test_clients_below_training_alone_are_named(
    run: RunRecord, reached: tuple[float | None, ...], said: str
) -> None:
    assert beside_table(replace(run, alone=alone(*reached))) == [said]


def test_without_such_a_run_the_page_says_how_to_get_one(run: RunRecord) -> None:
    (said,) = beside_table(run)
    assert said.startswith("No finished run of method local on this partition")
    assert said.endswith("python -m cluster.launch --method local ...")


def test_a_run_alone_needs_no_other(make_scored: MakeRun) -> None:
    assert beside_table(read_run(make_scored("a", "local", NOBODY_LEFT_OUT))) == []


def test_who_is_left_out_of_the_mean_and_why(make_scored: MakeRun) -> None:
    run = read_run(make_scored("a", "local", [(0.5, None, None, None)], dropped={"3": "it died"}))
    assert beside_table(
        replace(run, failures=[Failure(1, None, "it died"), Failure(2, 1, "x")])
    ) == [
        "Left out of the mean for want of test samples: client 2.",
        "Left out of the mean as they failed for good: clients 1, 3.",
    ]


def test_an_unfinished_run_is_held_against_nothing(run: RunRecord) -> None:
    assert beside_table(replace(run, result=None)) == []


def test_runs_that_do_not_score_clients_say_nothing(make_run: MakeRun) -> None:
    assert beside_table(read_run(make_run(rounds=2))) == []


def test_the_last_round_in_figures() -> None:
    scores = Scores([0.5, None, 0.9])
    text = "Each client after the last round: mean 70.0%, standard deviation 20.0 points, "
    assert last_round(scores, None) == text + "the worst client has 50.0%."
    text += "the worst client has 50.0%. "
    assert last_round(scores, alone(0.6, 0.1, 0.8)) == (
        text + "1 client is below training alone (run by-itself)."
    )
    assert last_round(scores, alone(0.6, 0.1, 0.95)).endswith(
        "2 clients are below training alone (run by-itself)."
    )
    many = Scores([k / 20 for k in range(20)])
    assert "the worst tenth (2 clients) has 2.5%." in last_round(many, None)


def test_held_out_samples_are_no_test_samples(run: RunRecord) -> None:
    assert which_samples(run) == "test samples of its own"
    validated = replace(run, config=run.config | {"data": {"validation": 0.1}})
    assert which_samples(validated) == "held-out training samples of its own"


def test_models_that_were_tested_on_the_whole_split_are_not_held_against_training_alone(
    run: RunRecord,
) -> None:
    personal = replace(run, config=run.config | {"method": "fedbn", "tested": "personal"})
    assert which_samples(personal) == "all test samples"
    assert beside_table(personal) == []


def test_it_is_said_how_near_sent_images_are_to_real_ones(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.result is not None
    told = {"images": 1800, "steps": 1.0, "nearest_real": 0.000071}
    (said,) = beside_table(replace(run, result=run.result | {"distilled": told}))
    assert said.startswith("1,800 images left the clients, after 1 step of distillation; ")
    assert "is 7.1e-05 of the pixels' range" in said
    plain = told | {"steps": 0.0, "nearest_real": 0.0}
    (said,) = beside_table(replace(run, result=run.result | {"distilled": plain}))
    assert "without distillation; " in said
    assert "is 0 of the pixels' range" in said
