"""The study's table, slopes and pictures, from made-up runs."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cluster.studies.study_report import curves, slopes, tables


def cell(clients: int, seed: int = 0, **changes: Any) -> dict[str, Any]:
    seconds = {"local": clients**1.0, "fusion": 5.0, "filter": 0.0, "total": clients + 5.0}
    return {
        "clients": clients,
        "seed": seed,
        "samples": 100,
        "drawn_with_replacement": False,
        "trained": clients,
        "seconds": seconds,
        "clients_per_second": 7.0,
        "driver_peak_bytes": clients**0.5,
        "workers": 2,
        "workers_peak_bytes": 3.0 * clients**2,
        "device_peak_bytes": None,
        "bytes_up": 10 * clients,
        "bytes_down": 0,
        "accuracy": 0.5,
        "start_accuracy": 0.1,
        **changes,
    }


def test_a_slope_is_the_power_by_which_a_curve_grows() -> None:
    found = slopes([cell(k, seed) for k in (10, 100, 1000) for seed in (0, 1)])
    assert found["seconds"]["local"] == pytest.approx(1)
    assert found["seconds"]["fusion"] == pytest.approx(0)
    assert found["memory"]["driver"] == pytest.approx(0.5)
    assert found["memory"]["workers"] == pytest.approx(2)
    assert found["bytes"] == {"up": pytest.approx(1)}
    assert "filter" not in found["seconds"]


def test_a_run_that_reused_clients_has_no_rate() -> None:
    lost = {"local": 1e9, "fusion": 5.0, "total": 1e9}
    reused = cell(1000, trained=3, trainings=1000, clients_per_second=1e9, seconds=lost)
    found = slopes([cell(10), cell(100), reused])
    assert found["rate"]["clients per second"] == pytest.approx(0)
    assert found["seconds"]["local"] == pytest.approx(1)
    assert curves([reused])["seconds"] == {}


def test_the_table_says_what_cannot_be_compared() -> None:
    times, _ = tables([cell(10), cell(20, trained=3, drawn_with_replacement=True)])
    caption = times.caption
    assert isinstance(caption, str)
    assert "drawn with replacement" in caption
    assert "reused" in caption
    assert tables([cell(10)])[0].caption is None


def test_a_curve_is_the_mean_over_seeds_and_leaves_out_what_there_was_none_of() -> None:
    found = curves([cell(20), cell(10, 0, bytes_up=10), cell(10, 1, bytes_up=30)])
    assert found["bytes"] == {"up": {10: 20.0, 20: 200.0}}
    assert found["memory"].keys() == {"driver", "workers"}
    assert [*found["seconds"]["local"]] == [10, 20]
    found = curves([cell(10, 0, accuracy=0.0), cell(10, 1, accuracy=0.2)])
    assert found["accuracy"] == {"accuracy": {10: 0.1}}
    assert curves([cell(10, accuracy=-0.5), cell(20)])["accuracy"] == {"accuracy": {20: 0.5}}  # R²


def test_in_the_table_the_servers_time_is_all_but_the_clients() -> None:
    seconds = {"local": 1.0, "fusion": 5.0, "filter": 2.5, "total": 9.0}
    shown = tables([cell(4096, device_peak_bytes=3_000_000, seconds=seconds)])
    told = {str(c.header): next(iter(c.cells)) for table in shown for c in table.columns}
    assert (told["clients"], told["server"], told["device"]) == ("4,096", "7.5 s", "3.0 MB")


def test_the_tables_of_large_figures_fit_eighty_columns() -> None:
    seconds = {"local": 35_000.0, "fusion": 34_000.0, "total": 69_000.0}
    large = cell(
        100_000,
        12,
        seconds=seconds,
        samples=2_000_000,
        drawn_with_replacement=True,
        trained=3,
        clients_per_second=1234.5,
        driver_peak_bytes=123_456_789_012,
        workers=128,
        workers_peak_bytes=128 * 123_456_789_012,
        device_peak_bytes=78_901_234_567,
        bytes_up=123_456_789_012,
        bytes_down=123_456_789_012,
    )
    console = Console(width=80, file=StringIO(), color_system=None)
    with console.capture() as captured:
        for table in tables([large]):
            console.print(table)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in captured.get()
    assert "100,000" in lines[1]
