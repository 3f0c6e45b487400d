"""How clients did, each on samples of its own."""

import pytest

from fl.report.scores import Scores, scores_of
from fl.scoring import figures
from fl.server import Evaluation


def test_only_clients_that_were_scored_count() -> None:
    scores = Scores([0.5, None, 0.9])
    assert (scores.tested, scores.untested) == ({0: 0.5, 2: 0.9}, [1])
    assert scores.mean == pytest.approx(0.7)
    assert scores.spread == pytest.approx(0.2)
    assert scores_of([None, None]) is None
    assert scores_of([]) is None


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (19, 1), (20, 2), (100, 10)])
def test_the_worst_tenth_is_one_client_at_least(clients: int, worst: int) -> None:
    scores = Scores([1 - k / clients for k in range(clients)])
    assert scores.worst == list(range(clients))[::-1][:worst]


def test_equal_clients_are_ranked_by_their_ids() -> None:
    assert Scores([0.9, 0.5, None, 0.5]).ranked == [1, 3, 0]


def test_below_is_strictly_lower_among_clients_that_both_scored() -> None:
    here, there = Scores([0.5, 0.5, 0.5, None, 0.5]), Scores([0.6, 0.5, 0.4, 0.9, None])
    assert here.below(there) == [0]


@pytest.mark.parametrize("count", [1, 7, 25])
def test_the_report_reckons_as_the_engine_does(count: int) -> None:
    by_client = (None, *(((k * 37) % 41) / 41 for k in range(count)))
    scores = Scores(by_client)
    engine = figures([Evaluation(accuracy=0.5, per_class=(), per_client=by_client)])
    assert engine["untested"] == scores.untested
    assert engine["client_scores"] == pytest.approx(
        {"mean": scores.mean, "spread": scores.spread, "worst_tenth": scores.worst_tenth}
    )
