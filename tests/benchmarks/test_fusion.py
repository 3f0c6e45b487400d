"""The server's fit and the plain loop that it is held against do the same work."""

import io
import json
from contextlib import suppress
from pathlib import Path

import fusion
import pytest
import torch
from fusion import Fusion, Setting
from machine import Rows
from rich.console import Console
from servers import limited, servers

from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.single_server import SingleServer

CPU = torch.device("cpu")
TINY = Fusion(samples=(40,), teachers=(2,), epochs=2, batch_size=16, width=0.02, ranks=(1,))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_plain_loop_and_the_server_end_with_the_same_loss(precision: str) -> None:
    """Three teachers asked about every batch, or once: in the same order, with equal dropout."""
    setting = Setting(40, 3, precision, TINY)  # type: ignore[arg-type]
    seconds, asking, loss = fusion.plain_loop(setting, CPU)
    assert 0 < asking < seconds
    with servers(fusion.PROBLEM, TINY.ranks, CPU, Events(fusion.HEARD.append)) as ready:
        assert list(ready) == ["1 rank"]
        own_seconds, own_asking, own_loss = fusion.by_server(ready["1 rank"], setting)
    assert 0 < own_asking < own_seconds
    assert own_loss == pytest.approx(loss, rel=1e-4 if precision == "fp32" else 1e-2)


def test_a_setting_is_told_with_its_arithmetic_bound_and_every_loop(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=110)
    with servers(fusion.PROBLEM, TINY.ranks, CPU, Events(fusion.HEARD.append)) as ready:
        rows = Rows("fusion", tmp_path / "rows")
        row = fusion.run_setting(Setting(40, 2, "fp32", TINY), ready, CPU, console, rows)
    loops = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [(loop["name"], loop["precision"]) for loop in loops] == [
        ("plain", "fp32"),
        ("1 rank", "fp32"),
    ]
    assert row["forwards"] == {"plain": 3 + 2, "ours": 3 + 2 / 2}
    assert row["bound"] == 5 / 4
    plain, ours = row["loops"]["plain"], row["loops"]["1 rank"]
    assert ours["ratio"] == plain["seconds"] / ours["seconds"]
    assert plain["ratio"] == 1
    assert ours["last_loss"] == pytest.approx(plain["last_loss"], rel=1e-4)
    assert row["fit_speedup"]["1 rank"] == 1
    reached = row["fit_flop_per_second"]["1 rank"] / row["best_flop_per_second"]
    assert row["fit_share_of_best"]["1 rank"] == pytest.approx(reached, abs=1e-3)


def test_student_and_teachers_are_different_networks_the_same_every_time() -> None:
    images = fusion.images_and_labels(3)["images"]
    student, teacher, again = (fusion.network(k, TINY).eval()(images) for k in (0, 1, 0))
    assert torch.equal(student, again)
    assert not torch.equal(student, teacher)


def test_passes_without_training_are_timed_in_both_arithmetics() -> None:
    said = io.StringIO()
    told = fusion.inference(TINY, CPU, Console(file=said, width=200))
    rates = told["images_per_second"]
    assert all(rates[name] > 0 for name in ("fp32", "bf16"))
    assert 0 <= told["same_answers"] <= 1
    assert f"{told['same_answers']:.2%} are the same" in said.getvalue()


def test_a_state_is_made_and_a_fit_starts_from_it_apart_from_the_fit() -> None:
    found = fusion.state_apart(TINY, CPU, Console(quiet=True))
    assert found["bytes"] > 4 * sum(p.numel() for p in fusion.network(0, TINY).parameters())
    assert found["made_s"] > 0
    assert found["fit_started_from_it_s"] > 0


SPEC = RunSpec.of_images((1, 1, 5), num_classes=3, seed=0)


def test_threads_are_limited_and_given_back_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with suppress(ZeroDivisionError), limited(before + 1):
        assert torch.get_num_threads() == before + 1
        _ = 1 / 0
    assert torch.get_num_threads() == before


def test_one_rank_is_the_server_of_a_run_and_needs_no_ray() -> None:
    with servers(SPEC, (1,), torch.device("cpu"), Events()) as ready:
        assert list(ready) == ["1 rank"]
        assert isinstance(ready["1 rank"], SingleServer)
        images, labels = torch.rand(9, 1, 1, 5), torch.arange(9) % 3
        samples = ready["1 rank"].place({"images": images, "labels": labels})
        kept = ready["1 rank"].nearest(samples, 0.4)
        assert len(kept) == 3
