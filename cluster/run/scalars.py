"""An event's figures by tag, for whatever draws curves: TensorBoard, Weights & Biases, MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fl.events import Epoch, Event, RoundEnd
from fl.json_values import SettingValues


@dataclass(frozen=True)
class Scalars:
    """Figures by tag, as in ``fusion/loss``, all of one step: an epoch or a round."""

    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)


def scalars_of(event: Event) -> Scalars:
    """The figures of an epoch at the server, or of a round; none of other events."""
    match event:
        case Epoch():
            # A fit of a later round goes on where that of the round before ended.
            step = (event.round - 1) * event.epochs + event.epoch
            stage = event.stage
            return Scalars(step, {f"{stage}/loss": event.loss, f"{stage}/accuracy": event.accuracy})
        case RoundEnd():
            seconds = {f"rounds/{part}_seconds": took for part, took in event.took.items()}
            return Scalars(event.round, {"rounds/accuracy": event.accuracy, **seconds})
    return Scalars()


def final_figures(result: SettingValues) -> dict[str, float]:
    """The numbers of ``result.json`` at its top level, as ``final/NAME``, and each phase's seconds.

    Under ``final/``, since some trackers make folders of tags, and a run has ``rounds/accuracy``.
    """
    seconds = {f"seconds/{name}": took for name, took in result["seconds"].items()}
    figures = {**result, **seconds}
    return {
        f"final/{name}": float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
