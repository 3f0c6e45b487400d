"""The table of what has run on a card tells what the files say, and no more."""

import json
from pathlib import Path
from typing import Any

import first_light
import gpu_page
from first_light import Place
from gpu_page import BEGIN, END, NEVER, PAGE, RUNS, SUBJECTS, page

TEXT = f"before\n{BEGIN}\nold\n{END}\nafter\n"
ROWS: list[dict[str, Any]] = [
    {"kind": "test", "name": "tests/kernels/test_a.py::b", "outcome": "passed"},
    {"kind": "test", "name": "tests/kernels/test_a.py::c", "outcome": "failed"},
    {"benchmark": "machine", "kind": "ceiling", "name": "copy_bytes_per_second", "rate": 3.0e12},
    {"benchmark": "machine", "kind": "ceiling", "name": "tf32_flop_per_second", "rate": 4.0e14},
    {"benchmark": "paper", "kind": "client_end", "client": 3},
    {"benchmark": "ranks", "kind": "ranks", "apart": 2e-7, "backend": "gloo"},
    {
        **{"benchmark": "together", "kind": "together", "width": 0.25, "clients": 5},
        **{"together_ms": 0.5, "alone_ms": 1.0, "eager_ms": 6.0, "same_bits": True},
    },
]


def run(folder: Path, *, card: str | None, date: str, rows: list[dict[str, Any]] = ROWS) -> None:
    folder.mkdir()
    begun = {"begun": date, "commit": "abc1234", "card": card, "cores": 16}
    (folder / "steps.jsonl").write_text(json.dumps(begun) + "\n")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def line(text: str, subject: str) -> str:
    (found,) = (each for each in text.splitlines() if each.startswith(f"| {subject}"))
    return found


def test_figures_are_those_of_the_files_with_card_commit_and_command(tmp_path: Path) -> None:
    run(tmp_path / "a", card="NVIDIA H100", date="2026-12-01 09:00 UTC")
    text = page(TEXT, tmp_path)
    assert text.startswith(f"before\n{BEGIN}\n\n| What")
    assert text.endswith(f"\n\n{END}\nafter\n")
    kernels = line(text, "Kernels")
    assert "| 1 passed; 1 failed | NVIDIA H100 | abc1234, 2026-12-01 |" in kernels
    assert "`benchmarks/first_light.py --only kernels`" in kernels
    assert "3 TB/s copied; 400 tf32 TFLOP/s" in line(text, "What the card")
    assert "cut off after 1 clients and 0 epochs" in line(text, "The paper's size")
    assert "gloo: weights apart 2e-07" in line(text, "Two ranks")
    side = line(text, "VGG-9 clients")
    assert "| 5 of width 0.25: 0.50 ms a step and client, 12.0 times eager one by one, 2.0" in side
    assert NEVER in line(text, "Doctor")
    assert page(text, tmp_path) == text


def test_each_subject_is_shown_by_a_step(tmp_path: Path) -> None:
    steps = first_light.steps_on_a_card(Place(tmp_path, None, tmp_path))
    assert {step for _, step, _ in SUBJECTS} <= {step.name for step in steps}


def test_the_page_is_what_the_files_make_it() -> None:
    text = PAGE.read_text()
    assert page(text, RUNS) == text
    assert gpu_page.main() == 0
    assert PAGE.read_text() == text
