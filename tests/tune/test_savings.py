"""What a sweep did not train."""

from pathlib import Path

from cluster.hardware.inventory import Inventory
from fl.federation import Client, Request
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tune.rows import read_rows
from tune.savings import savings


def members() -> list[Client]:
    trainings = (ClassifierConfig(), GeneratorConfig())
    return [
        Client(id=k, role="r", training=t, num_samples=9, request=Request(cpus=1 / (k + 1), gpus=0))
        for k, t in enumerate(trainings)
    ]


INVENTORY = Inventory(node="n", cpus=2, memory_bytes=10**9, gpus=(), source="machine")


def test_savings_add_up_what_was_reused(folder: Path) -> None:
    saved = savings(read_rows(folder, {"keep": 0.8}), members(), INVENTORY)
    assert (saved.trained, saved.reused) == (2, 6)
    assert (saved.trained_seconds, saved.saved_seconds) == (12.0, 36.0)
    # Two of client 0 run at once, four of client 1.
    assert saved.least_seconds_saved == 3 * (10 / 2 + 2 / 4)
