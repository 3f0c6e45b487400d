"""From what was said and what was measured to what a client class asks for."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from cluster import profiling
from cluster.clients.memory_cap import CUDA_BYTES
from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory
from cluster.profiling import (
    COHORT,
    MARGIN,
    SLACK_BYTES,
    Step,
    Subject,
    measured,
    stated,
)
from fl.errors import UserError
from fl.federation import Request, RunSpec
from fl.methods.method import Assignment
from fl.resources import ResourcesConfig, ShareConfig
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
VGG = Assignment("classifier", ClassifierConfig())
CNN = Assignment("classifier", ClassifierConfig(model="cnn"))
CVAE = Assignment("generator", GeneratorConfig())
PARTS = [VGG, CNN, CVAE, CVAE]
SAMPLES = [100, 100, 50, 200]
PEAKS = {"vgg9": 800 * 2**20, "cnn": 100 * 2**20, "cvae-small": 8 * 2**20}
MEMORY = 2**35


def machine(gpus: int = 0, gpu_memory: int = 2**35) -> Inventory:
    cards = tuple(Gpu(uuid=f"GPU-{i}", name="A", memory_bytes=gpu_memory) for i in range(gpus))
    return Inventory(node="here", cpus=8, memory_bytes=MEMORY, gpus=cards, source="machine")


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measures from the table above; the list holds the devices that it was asked for."""
    asked: list[str] = []

    def pretend(subjects: Iterable[Subject], device: str, *, anew: bool) -> dict[Subject, Step]:
        asked.append(device)
        return {
            s: Step(peak_bytes=PEAKS[s.training.model], seconds_per_sample=0.5) for s in subjects
        }

    monkeypatch.setattr(profiling, "measure_steps", pretend)
    return asked


def ask(config: ResourcesConfig, there: Inventory) -> dict[Assignment, Request]:
    return dict(measured(PARTS, SAMPLES, PROBLEM, config, there).by_assignment)


def test_without_gpus_memory_covers_the_peak_and_the_largest_shard() -> None:
    found = ask(ResourcesConfig(), machine())
    assert found[VGG] == Request(
        cpus=1, gpus=0, memory_bytes=SLACK_BYTES + round(MARGIN * (800 * 2**20 + 100 * 784 * 5))
    )
    light = round(MARGIN * (8 * 2**20 + 200 * 784 * 5))
    assert found[CVAE].memory_bytes == SLACK_BYTES + COHORT * light
    assert found[CVAE].shared
    assert len({r.memory_bytes for r in found.values()}) == 3


def test_with_gpus_the_share_is_of_the_smallest_and_main_memory_is_free(devices: list[str]) -> None:
    found = ask(ResourcesConfig(), machine(gpus=2, gpu_memory=2**34))
    assert devices == ["A"]
    for part, request in found.items():
        peak = PEAKS[part.training.model] * (COHORT if request.shared else 1)
        assert request.memory_bytes == 0
        assert request.gpus == round(request.gpus, 2)
        least = (CUDA_BYTES + MARGIN * peak) / (2**34 - CUDA_BYTES)  # beside a rank of the server
        assert least <= request.gpus < least + 0.02


def test_a_wave_asks_for_all_of_its_clients_at_once_and_at_most_for_a_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pretend(subjects: Iterable[Subject], device: str, *, anew: bool) -> dict[Subject, Step]:
        assert [s.shared for s in subjects] == [s.training is CVAE.training for s in subjects]
        return {
            s: Step(peak_bytes=2**31, seconds_per_sample=1, in_slots=s.shared) for s in subjects
        }

    def of(samples: int, *config: str) -> Request:
        stated = ResourcesConfig(models=("vgg9.gpus=0.1", *config))
        of_each = [1, *[samples] * 300]
        return measured(
            [VGG, *[CVAE] * 300], of_each, PROBLEM, stated, machine(gpus=2)
        ).by_assignment[CVAE]

    monkeypatch.setattr(profiling, "measure_steps", pretend)
    there = 2**35 - CUDA_BYTES
    need = CUDA_BYTES + MARGIN * (2**31 + 256 * 10 * 784 * 10)
    assert of(10).in_waves
    assert need <= of(10).gpus * there < need + 0.02 * there
    assert of(10**6) == replace(of(10), gpus=1.0)
    assert of(10, "cvae-small.gpus=0.3") == replace(of(10), gpus=0.3)
    assert not of(10, "cvae-small.gpus=0").in_waves  # on cores there are no waves


def test_light_clients_ask_for_as_many_as_leave_room_for_their_like() -> None:
    scarce = replace(machine(), memory_bytes=2**32)  # 512 MiB for each of the 8 that cores allow
    request = ask(ResourcesConfig(models=("vgg9.memory-bytes=0",)), scarce)[CVAE]
    assert 2**28 < request.memory_bytes <= 2**29
    tight = replace(machine(), memory_bytes=2**30)
    alone = SLACK_BYTES + round(MARGIN * (8 * 2**20 + 200 * 784 * 5))
    by_hand = ResourcesConfig(models=("vgg9.memory-bytes=0", "cnn.memory-bytes=0"))
    assert ask(by_hand, tight)[CVAE].memory_bytes == alone


def test_what_is_said_by_hand_is_not_measured_over() -> None:
    config = ResourcesConfig(
        generator=ShareConfig(cpus=0.5, memory_bytes=0), models=("vgg9.memory-bytes=12345",)
    )
    found = ask(config, machine())
    assert (found[VGG].memory_bytes, found[CVAE].memory_bytes) == (12345, 0)
    assert found[CNN].memory_bytes > SLACK_BYTES
    by_hand = ResourcesConfig(models=("vgg9.gpus=0.9", "vgg9.cpus=2"))
    found = ask(by_hand, machine(gpus=1))
    assert (found[VGG].gpus, found[VGG].cpus) == (0.9, 2)
    assert found[CNN].gpus < 0.1


def test_times_are_by_model() -> None:
    rates = measured(PARTS, SAMPLES, PROBLEM, ResourcesConfig(), machine()).rates
    assert rates == dict.fromkeys(("vgg9", "cnn", "cvae-small"), 0.5)


def test_the_time_of_a_model_is_the_longest_that_a_client_of_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone it takes longer than each of a wave."""
    small = Assignment("generator", CNN.training)

    def pretend(subjects: Iterable[Subject], device: str, *, anew: bool) -> dict[Subject, Step]:
        return {s: Step(peak_bytes=1, seconds_per_sample=1.0 - 0.9 * s.shared) for s in subjects}

    monkeypatch.setattr(profiling, "measure_steps", pretend)
    for parts in ([CNN, small], [small, CNN]):
        found = measured(parts, [1, 1], PROBLEM, ResourcesConfig(), machine())
        assert found.rates == {"cnn": 1.0}


def test_a_model_that_outgrows_the_machine_is_refused() -> None:
    small = machine(gpus=1, gpu_memory=3 * 2**29)
    with pytest.raises(UserError, match=r"a classifier client asks for 1 cores, 1\.\d+ of a GPU"):
        ask(ResourcesConfig(), small)


def test_cards_of_unknown_memory_want_a_share_by_hand() -> None:
    unknown = machine(gpus=1, gpu_memory=0)
    with pytest.raises(UserError, match=r"as in resources\.classifier\.gpus"):
        ask(ResourcesConfig(), unknown)
    by_hand = ShareConfig(cpus=1, gpus=0.5)
    found = ask(ResourcesConfig(classifier=by_hand, generator=by_hand), unknown)
    assert {request.gpus for request in found.values()} == {0.5}


def test_stated_alone_asks_for_nothing_it_was_not_told() -> None:
    found = stated(PARTS, ResourcesConfig(models=("cnn.gpus=0.5",)), machine(gpus=1)).by_assignment
    assert found[VGG] == Request(cpus=1, gpus=0)
    assert found[CNN] == Request(cpus=1, gpus=0.5)
