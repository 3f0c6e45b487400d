"""A rehearsal runs every method to its end in single steps, and extends what it measured."""

from pathlib import Path
from types import GenericAlias

import pytest

from cluster import launch
from cluster.rehearsal.costs import CLIENTS, FUSION, PREPARATION, TEST
from cluster.rehearsal.rehearse import Estimate, rehearse
from cluster.run.command_line import parse, setting_types
from cluster.run.options import LaunchOptions
from cluster.run.prepare import prepare
from fl.errors import UserError
from fl.methods.registry import METHODS, get_method
from tests.cluster.rehearsal.made_up import make_up_data

FEW = ("--runtime=inprocess", "--num-clients=4", "--data.max-train=200", "--data.max-test=50")
NARROW = {
    "classifier.width": ("--classifier.width=0.05", "--classifier.epochs=3"),
    "condensation.width": ("--condensation.width=0.05", "--condensation.batch-size=2"),
    "generator.width": ("--generator.width=0.1",),
    "num_large": ("--num-large=4",),
    "matching.inner_steps": ("--matching.inner-steps=2", "--matching.images-per-class=1"),
    "kip": ("--kip.images=8", "--kip.depth=1", "--groups=2"),
}


def arguments(method: str) -> list[str]:
    """A small run of the method."""

    names = [n for n, _ in setting_types(GenericAlias(LaunchOptions, get_method(method).config))]
    own = [
        a for name, more in NARROW.items() for a in more if any(n.startswith(name) for n in names)
    ]
    rounds = [] if get_method(method).one_shot else ["--rounds=7"]
    return [f"--method={method}", *FEW, *own, *rounds]


def estimate(*given: str) -> Estimate:
    parsed = parse(given)
    return rehearse(parsed, prepare(parsed))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_rehearsed_to_its_end(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_up_data(monkeypatch)
    found = estimate(*arguments(method))
    assert found.costs[CLIENTS].seconds > 0
    assert found.costs[TEST].seconds > 0
    assert found.seconds == pytest.approx(sum(c.seconds for c in found.costs.values()))


def test_nothing_is_written_and_the_whole_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    where = f"--output-dir={tmp_path / 'runs'}"
    assert launch.main([*arguments("fedmho-md"), where, "--rehearse"]) == 0
    assert not (tmp_path / "runs").exists()
    said = capsys.readouterr().out
    for word in ("clients", "server: preparation", "server: fusion", "test", "in all about"):
        assert word in said
    assert max(map(len, said.splitlines())) <= 80


def test_more_epochs_take_longer_by_as_much_and_are_not_run() -> None:
    def fusion(epochs: int) -> float:
        found = estimate(*arguments("fedmho"), f"--fusion.epochs={epochs}")
        return found.costs[FUSION].seconds

    assert fusion(100_000) > 100 * fusion(10)


def test_rounds_are_extended_from_the_last_one() -> None:
    few, many = (estimate(*arguments("fedavg"), f"--rounds={n}") for n in (2, 20_000))
    assert many.costs[CLIENTS].seconds > 100 * few.costs[CLIENTS].seconds
    assert few.costs[PREPARATION].seconds == many.costs[PREPARATION].seconds == 0


def test_it_goes_with_no_other_way_to_start_nothing() -> None:
    with pytest.raises(UserError, match="goes without --dry-run"):
        parse(["--rehearse", "--dry-run"])


def test_commands_that_do_not_rehearse_say_so() -> None:
    asked = parse(["--rehearse"])
    with pytest.raises(UserError, match="goes with onefold run alone"):
        asked.refuse_rehearsal()
