"""Groups finished runs that differ by their seed alone: one configuration, several seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fl.json_values import JsonObject
from fl.report.read import RunRecord

NO_SETTINGS = ("seed", "versions")
"""What config.yaml holds beside that which runs of one group share."""


@dataclass(frozen=True)
class Group:
    """Finished runs of one configuration, each with a seed of its own; often one run alone."""

    runs: list[RunRecord]

    @property
    def name(self) -> str:
        """The run's name; of several what their names share but for the seed."""
        names = [run.path.resolve().name for run in self.runs]
        without = {
            name.removesuffix(f"-seed{run.config.get('seed')}")
            for name, run in zip(names, self.runs, strict=True)
        }
        if len(names) == 1:
            return names[0]
        return without.pop() if len(without) == 1 else f"{names[0]} and {len(names) - 1} more"

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, in their order."""
        return [run.config.get("seed", 0) for run in self.runs]

    @property
    def result(self) -> JsonObject:
        """The first run's, for what all runs of the group share."""
        return self.runs[0].result or {}

    def mean(self, *path: str) -> float | None:
        """Mean over the seeds of the figure at this path of result.json; None if one lacks it."""
        values = self._values(path)
        return fmean(values) if values else None

    def spread(self, *path: str) -> float | None:
        """Standard deviation over the seeds (n - 1); None for one run, or where one lacks it."""
        values = self._values(path)
        return stdev(values) if len(values) > 1 else None

    @property
    def curve(self) -> dict[int, list[float]]:
        """By round or epoch every seed's accuracy, where all have one; 0 is the start."""
        curves = []
        for run in self.runs:
            start = (run.result or {}).get("start_accuracy")
            curves.append(run.accuracy if start is None else {0: start, **run.accuracy})
        shared = set.intersection(*(set(curve) for curve in curves))
        return {step: [curve[step] for curve in curves] for step in sorted(shared)}

    def _values(self, path: Sequence[str]) -> list[float]:
        found = []
        for run in self.runs:
            value: object = run.result
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if not isinstance(value, int | float):
                return []
            found.append(float(value))
        return found


def groups_of(runs: Sequence[RunRecord]) -> list[Group]:
    """The runs' groups, in the order of their first runs.

    A second run of a seed belongs to another group, as it would count its seed twice.
    """
    groups: list[tuple[str, Group]] = []
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name not in NO_SETTINGS}
        key = json.dumps(settings, sort_keys=True, default=str)
        seed = run.config.get("seed", 0)
        fitting = [group for other, group in groups if other == key and seed not in group.seeds]
        if fitting:
            fitting[0].runs.append(run)
        else:
            groups.append((key, Group([run])))
    return [group for _, group in groups]
