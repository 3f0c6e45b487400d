"""Figures by tag."""

from cluster.run.tracking import final_figures, scalars_of
from fl.events import Epoch, RoundEnd, RunStart


def test_an_event_has_its_figures_at_its_own_step() -> None:
    epoch = scalars_of(Epoch(stage="kd", epoch=2, epochs=5, loss=0.5, accuracy=0.25))
    assert (epoch.step, epoch.values) == (2, {"kd/loss": 0.5, "kd/accuracy": 0.25})
    took = {"server": 1.5}
    ended = RoundEnd(round=7, rounds=9, took=took, accuracy=0.5, bytes_up=0, bytes_down=0)
    assert scalars_of(ended).step == 7
    assert scalars_of(ended).values == {"rounds/accuracy": 0.5, "rounds/server_seconds": 1.5}
    assert not scalars_of(RunStart()).values


def test_final_figures_are_the_numbers_of_a_result() -> None:
    result = {"accuracy": 0.5, "method": "fedavg", "whole": True, "per_class_accuracy": [0.1]}
    result["seconds"] = {"local": 2.0, "total": 3}
    assert final_figures(result) == {
        "final/accuracy": 0.5,
        "final/seconds/local": 2.0,
        "final/seconds/total": 3.0,
    }
