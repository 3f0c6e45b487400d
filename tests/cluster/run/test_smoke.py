"""A smoke run goes through every method in single steps, and estimates the whole."""

import itertools
from pathlib import Path
from types import GenericAlias, SimpleNamespace

import pytest

from cluster import launch
from cluster.run.command_line import parse, setting_types
from cluster.run.options import LaunchOptions
from cluster.run.prepare import prepare
from cluster.run.smoke import Estimate, smoke
from fl.errors import UserError
from fl.methods.registry import get_method
from tests.cluster.run.made_up import make_up_data, measure_nothing

FEW = ("--runtime=inprocess", "--num-clients=3", "--data.max-train=100", "--data.max-test=50")
NARROW = {
    "classifier.width": ("--classifier.width=0.05", "--classifier.epochs=3"),
    "condensation.width": ("--condensation.width=0.05", "--condensation.batch-size=2"),
    "generator.width": ("--generator.width=0.1",),
    "large_width": ("--large-width=0.05",),
    "global_width": ("--global-width=0.05",),
    "inversion.width": ("--inversion.width=0.1", "--inversion.batch-size=8"),
    "num_samples": ("--num-samples=60",),
    "auxiliary.max_images": ("--auxiliary.max-images=60",),
    "num_large": ("--num-large=3",),
    "kip": ("--kip.images=8", "--kip.depth=1", "--groups=2"),
}

EACH_KIND = ("feddf", "fedaf", "fedd2s", "hfldd")
"""A method of each kind; a smoke run takes the same engine as any."""


def arguments(method: str) -> list[str]:
    """A small run of the method."""

    names = [n for n, _ in setting_types(GenericAlias(LaunchOptions, get_method(method).config))]
    own = [
        a for name, more in NARROW.items() for a in more if any(n.startswith(name) for n in names)
    ]
    rounds = [] if get_method(method).one_shot else ["--rounds=25"]
    return [f"--method={method}", "--smoke", *FEW, *own, *rounds]


def estimate(*given: str) -> Estimate:
    parsed = parse(given)
    return smoke(parsed, prepare(parsed))


@pytest.mark.parametrize("method", EACH_KIND)
def test_every_method_runs_to_its_end(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_up_data(monkeypatch)
    measure_nothing(monkeypatch)
    found = estimate(*arguments(method))
    assert found.rest >= 0
    assert found.seconds == found.clients + found.fits + found.rest > 0


def test_nothing_is_kept_and_the_estimate_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_nothing(monkeypatch)
    chosen = f"--output-dir={tmp_path / 'runs'}"
    assert launch.main([*arguments("fedmho-md"), chosen]) == 0
    assert not (tmp_path / "runs").exists()
    printed = capsys.readouterr().out
    for word in ("clients", "server: fits", "server: rest", "in all about"):
        assert word in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_more_epochs_take_longer_in_proportion_and_are_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure_nothing(monkeypatch)
    ticks = itertools.count()  # each step of this clock is as long as any other
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr("cluster.run.smoke.time", clock)

    def fits(epochs: int) -> float:
        return estimate(*arguments("fedmho"), f"--fusion.epochs={epochs}").fits

    assert fits(100_000) > 100 * fits(10)


def test_clients_are_estimated_by_their_epochs_and_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_nothing(monkeypatch)
    few = estimate(*arguments("fedavg"), "--rounds=2")
    many = estimate(*arguments("fedavg"), "--rounds=2000", "--classifier.epochs=30")
    assert many.clients > 100 * few.clients > 0
    assert few.fits == many.fits == 0


def test_a_clients_memory_is_its_share_whatever_the_process_holds_from_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure_nothing(monkeypatch)
    share = "--resources.classifier.memory-bytes=300000000"
    assert estimate(*arguments("fedavg"), share, "--rounds=2").client_bytes == 300_000_000


def test_other_commands_refuse_it() -> None:
    with pytest.raises(UserError, match="only onefold run takes --smoke"):
        parse(["--smoke"]).refuse_smoke()
