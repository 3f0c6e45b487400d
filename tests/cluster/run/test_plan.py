"""What a dry run shows: the configuration, the machine, and what each client asks of it."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory
from cluster.run.command_line import parse
from cluster.run.prepare import Prepared, prepare
from cluster.run.progress import print_dry_run, print_plan
from fl.federation import Request

ARGUMENTS = ["--runtime=inprocess", "--num-clients=4", "--data.max-train=100", "--data.max-test=9"]
GIB = 2**30
HEADINGS = ("role", "model", "samples", "cores", "GPU", "memory", "at once", "expected")
MACHINE = Inventory(node="host", cpus=8, memory_bytes=16 * GIB, gpus=(), source="machine")


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """Two clients of each role, whose requests are said by hand."""
    return prepare(parse(ARGUMENTS), MACHINE)


def asking(prepared: Prepared, request: Request, count: int = 4) -> Prepared:
    """The same federation with so many clients, each of whom asks for this."""
    members = [replace(prepared.members[k % 4], id=k, request=request) for k in range(count)]
    return replace(prepared, members=tuple(members))


def with_gpus(prepared: Prepared, count: int) -> Prepared:
    gpus = tuple(Gpu(uuid=f"GPU-{k}", name="H200", memory_bytes=100 * GIB) for k in range(count))
    return replace(prepared, inventory=replace(MACHINE, gpus=gpus))


def plan(prepared: Prepared) -> list[str]:
    """The lines that are printed in 80 columns."""
    out = io.StringIO()
    print_plan(prepared, Console(file=out, width=80))
    return out.getvalue().splitlines()


def column(lines: Sequence[str], heading: str) -> list[str]:
    """What stands below a heading."""
    first = next(i for i, line in enumerate(lines) if line.startswith("client role"))
    begin = lines[first].index(heading)
    after = [lines[first].index(h) for h in HEADINGS if lines[first].index(h) > begin]
    return [line[begin : min(after, default=80)].strip() for line in lines[first + 1 :]]


def test_models_of_one_name_are_told_apart_by_their_width() -> None:
    own = ["--method=fedavg", "--classifier.model=cnn", "--num-large=2", "--classifier.width=0.25"]
    shown = column(plan(prepare(parse([*ARGUMENTS, *own]), MACHINE)), "model")
    assert shown == ["cnn 0.25", "cnn 0.25", "cnn 1", "cnn 1"]


def test_each_client_has_a_line_with_what_it_asks_for(prepared: Prepared) -> None:
    lines = plan(asking(prepared, Request(cpus=0.5, gpus=0.25, memory_bytes=2 * 10**9)))
    assert column(lines, "client") == ["0", "1", "2", "3"]
    assert column(lines, "role") == [client.role for client in prepared.members]
    assert column(lines, "samples") == [str(client.num_samples) for client in prepared.members]
    assert column(lines, "memory") == ["2.0 GB"] * 4
    assert column(lines, "at once") == ["8"] * 4  # memory is scarcer than cores
    assert column(lines, "GPU") == ["none"] * 4  # there is no GPU to share


def test_where_there_are_gpus_their_shares_bound_how_many_run_at_once(prepared: Prepared) -> None:
    lines = plan(asking(with_gpus(prepared, 2), Request(cpus=1, gpus=0.4)))
    assert column(lines, "GPU") == ["0.4"] * 4
    assert column(lines, "at once") == ["4"] * 4
    assert column(lines, "memory") == ["no limit"] * 4
    assert "2 x H200" in "\n".join(lines)


def test_a_dry_run_prints_a_configuration_that_gives_the_same_run(
    prepared: Prepared, tmp_path: Path
) -> None:
    launch = parse([*ARGUMENTS, "--alpha=0.7", f"--output-dir={tmp_path}", "--name=a run"])
    out = io.StringIO()
    print_dry_run(launch, prepared, Console(file=out, width=200))
    text = out.getvalue()
    config = tmp_path / "config.yaml"
    config.write_text(text.partition("\nplacement on")[0])
    assert yaml.safe_load(config.read_text())["alpha"] == 0.7
    assert parse([f"--config={config}"]).run == launch.run
    assert text.endswith(f"would run in {tmp_path / 'a run'}\n")
    assert not (tmp_path / "a run").exists()
