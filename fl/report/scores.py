"""How the clients of one run did, each on samples of its own, and how they did alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

import yaml

from fl.json_files import JsonObject, SettingValues, read_json
from fl.whole_files import no_pipe

ALONE = "local"
"""The method in which clients exchange nothing."""
SHARED = ("dataset", "seed", "rounds", "num_clients", "participation")
"""Settings that make two runs comparable, beside the partition itself."""
NAMED = re.compile(rf"^method: *['\"]?{ALONE}\b", re.MULTILINE)


@dataclass(frozen=True)
class Scores:
    """Every client's accuracy after the last round; at least one client has one."""

    by_client: Sequence[float | None]
    """None: the client was not scored."""

    @property
    def tested(self) -> dict[int, float]:
        """Accuracy by the id of each client that was scored."""
        return {k: accuracy for k, accuracy in enumerate(self.by_client) if accuracy is not None}

    @property
    def untested(self) -> list[int]:
        """Ids of the clients that were not scored."""
        return [k for k, accuracy in enumerate(self.by_client) if accuracy is None]

    @property
    def mean(self) -> float:
        """Over the clients that were scored."""
        return fmean(self.tested.values())

    @property
    def spread(self) -> float:
        """Standard deviation over these clients."""
        return pstdev(self.tested.values())

    @property
    def ranked(self) -> list[int]:
        """Their ids, the worst first."""
        tested = self.tested
        return sorted(tested, key=lambda k: (tested[k], k))

    @property
    def worst(self) -> list[int]:
        """Ids of their worst tenth, at least one."""
        ranked = self.ranked
        return ranked[: max(1, len(ranked) // 10)]

    @property
    def worst_tenth(self) -> float:
        """Mean over the worst tenth."""
        tested = self.tested
        return fmean(tested[k] for k in self.worst)

    def below(self, other: "Scores") -> list[int]:
        """Ids of the clients that do worse here than there, of those that both scored."""
        there = other.tested
        return [k for k, accuracy in self.tested.items() if k in there and accuracy < there[k]]


def scores_of(by_client: Sequence[float | None]) -> Scores | None:
    """The scores, or None where no client was scored."""
    return Scores(by_client) if any(a is not None for a in by_client) else None


@dataclass(frozen=True)
class Alone:
    """A run's name, and what its clients reached alone."""

    name: str
    scores: Scores


def find_alone(run_dir: Path, config: SettingValues, result: JsonObject) -> Alone | None:
    """The finished run of the same clients alone that lies beside this run; the newest of several.

    A directory that is damaged, or none of ours, is passed over, since it is not what the user
    asked about. There is none for a run that is such a run itself, or that scores no clients
    on samples of their own.

    Args:
        run_dir: the run's directory.
        config: its settings.
        result: its result, which names its partition; empty while it is unfinished.
    """
    partition = _partition(result)
    if config.get("method") == ALONE or on_whole_split(config):
        return None
    if partition is None or not result.get("client_accuracy"):
        return None
    found: list[tuple[float, str, Scores]] = []
    for path in run_dir.resolve().parent.glob("*/config.yaml"):
        try:
            scores = _scores_alone(path.parent, config, partition)
            changed = path.with_name("result.json").stat().st_mtime
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue
        if scores is not None:
            found.append((changed, path.parent.name, scores))
    if not found:
        return None
    _, name, scores = max(found, key=lambda run: run[:2])
    return Alone(name, scores)


def on_whole_split(config: SettingValues) -> bool:
    """Whether each client's model was tested on the whole split, as by FedBN's ``personal``."""
    return config.get("tested") == "personal"


def _scores_alone(run_dir: Path, config: SettingValues, partition: object) -> Scores | None:
    """What the clients of that partition reached alone; None for any other run."""
    text = no_pipe(run_dir / "config.yaml").read_text(encoding="utf-8")
    if not NAMED.search(text):  # a sweep's hundreds of runs take long to parse
        return None
    other = _mapping(yaml.safe_load(text))
    if other.get("method") != ALONE or any(other.get(n) != config.get(n) for n in SHARED):
        return None
    result = read_json(run_dir / "result.json")
    accuracies = result.get("client_accuracy")
    if _partition(result) != partition or not isinstance(accuracies, list):
        return None
    return scores_of(accuracies) if all(map(_is_share, accuracies)) else None


def _partition(result: JsonObject) -> object:
    """The hash of the partition, or None."""
    return _mapping(result.get("partition")).get("hash")


def _is_share(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value <= 1)


def _mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}
