"""Costs of a few rounds are extended to all of them, phase by phase."""

from cluster.rehearsal.costs import CLIENTS, FUSION, OWN, PREPARATION, TEST, Costs
from fl.events import Phase, RoundEnd


def round_end(number: int) -> RoundEnd:
    told = {"bytes_up": 0, "bytes_down": 0}
    return RoundEnd(rounds=9, took={}, round=number, accuracy=0.5, **told)


def ended(name: str, took: float) -> Phase:
    return Phase(phase=name, status="end", took=took)


def test_other_rounds_are_as_the_last_one() -> None:
    costs = Costs({})
    costs.add(CLIENTS, 100.0, 7)  # the first round does what others do not
    costs(round_end(1))
    costs.add(CLIENTS, 3.0, 5)
    found = costs.whole(11)[CLIENTS]
    assert (found.seconds, found.peak_bytes) == (130.0, 7)
    assert costs.of_round() == 3.0


def test_what_happens_once_is_counted_once_whenever_it_was() -> None:
    costs = Costs({}, frozenset({PREPARATION}))
    costs(round_end(1))
    costs.add(PREPARATION, 50.0)
    costs.add(TEST, 1.0)
    assert costs.whole(300)[PREPARATION].seconds == 50.0
    assert costs.whole(300)[TEST].seconds == 299.0


def test_the_methods_own_phases_are_counted_by_name_and_as_often_as_they_loop() -> None:
    costs = Costs({"synthesis": 30.0})
    costs.repeat("synthesis", 2)
    for name in ("synthesis", "clustering", "fusion", "local", "scoring", f"{OWN}{TEST}"):
        costs(ended(name, 1.0))
    seconds = {phase: cost.seconds for phase, cost in costs.whole(1).items()}
    assert seconds == {CLIENTS: 0.0, PREPARATION: 61.0, FUSION: 1.0, TEST: 0.0}
