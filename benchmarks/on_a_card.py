"""Steps of first_light.py that no other program takes; without a GPU they run on the cores.

python benchmarks/on_a_card.py main --json FILE       # the main job on the card, and on the cores
python benchmarks/on_a_card.py profile --json FILE    # 50 training steps each: kernels and gaps
python benchmarks/on_a_card.py together --json FILE   # clients side by side against one by one
python benchmarks/on_a_card.py ranks --json FILE      # two ranks on one card against one rank
python benchmarks/on_a_card.py paper --data-root DIR --json FILE   # as far as the time goes
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import tyro
from machine import Rows, default_device, settle
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fl.data.datasets import Split
from fl.data.shard import Shard
from fl.events import Events
from fl.executor import input_of, run_jobs
from fl.federation import Client, Job, Request, RunSpec, TaskInput, TaskOutput, Training
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig, FitSpec
from fl.fusion.group import Group, ProcessGroup
from fl.fusion.rank import Rank
from fl.fusion.server import SingleServer
from fl.models.registry import build_classifier
from fl.process import arithmetic
from fl.training import captured
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig
from fl.training.recipe import one_by_one

MNIST = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
TRAINING = ClassifierConfig(model="cnn", width=0.2, epochs=1)
CONFIG = FitConfig(epochs=2, optimizer="sgd", lr=0.01, batch_size=16)
LOSS = FusionLoss(ce_weight=1.0, kd_weight=0.0)
SAMPLES = 64
"""Of the two ranks' fit."""
SUMMED = 1 << 24
"""Elements of the tensor that the ranks sum: 64 MiB."""
STEPS = 50
SHORT = ("--classifier.epochs=2", "--generator.epochs=4", "--fusion.epochs=2")
"""Of the main job, where no card is to be shown."""
TOLD = {
    "client_end": ("seconds", "client", "model", "num_samples", "seconds_training", "peak_bytes"),
    "epoch": ("seconds", "stage", "epoch", "epochs", "loss", "accuracy"),
}
"""What is told of a run's events."""
SILENT_S = 30.0
"""Seconds after which a rank gives up waiting for the other."""
APART = 1e-4
"""How far, of their norm, the weights of two ranks may be from those of one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Takes one step of first_light.py."""

    step: tyro.conf.Positional[Literal["main", "profile", "together", "ranks", "paper"]]
    """The step."""
    data_root: Path = Path("data")
    """Directory of MNIST, in torchvision's layout."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main(options: Options) -> int:
    """Takes the step; returns the exit status."""
    return STEP[options.step](options, Rows(options.step, options.json))


def main_job(options: Options, rows: Rows) -> int:
    """The main job on the card and on the cores alone; without a card a short one."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    if default_device().type == "cpu":
        return launch("short", SHORT, hidden, rows)
    return launch("card", (), {}, rows) | launch("cores", (), hidden, rows)


def paper(options: Options, rows: Rows) -> int:
    """FedMHO-SD at the paper's size; what ended before the time did is told."""
    arguments = ("--preset=paper-mnist", "--method=fedmho-sd", f"--data-root={options.data_root}")
    return launch("paper", arguments, {}, rows)


def launch(name: str, arguments: tuple[str, ...], environment: dict[str, str], rows: Rows) -> int:
    """Runs a launch in process; tells of each client and epoch as it ends, and of the result."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "cluster.launch", "--runtime=inprocess", *arguments]
        command += [f"--output-dir={folder}", "--name=run"]
        process = subprocess.Popen(command, env={**os.environ, **environment})
        for event in followed(run / "metrics.jsonl", process):
            if told := TOLD.get(event["event"]):
                rows.add(kind=event["event"], run=name, **{n: event[n] for n in told})
        if process.returncode == 0:
            result = json.loads((run / "result.json").read_text())
            named = ("accuracy", "seconds", "device", "precision", "versions")
            rows.add(kind="result", run=name, **{n: result[n] for n in named})
    return process.returncode


def followed(file: Path, process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    """The events of a run's file, while its process writes it."""
    read = 0
    while True:
        ended = process.poll() is not None
        lines = file.read_bytes()[read:].splitlines(keepends=True) if file.exists() else []
        for line in lines:
            if line.endswith(b"\n"):
                read += len(line)
                yield json.loads(line)
        if ended:
            return
        time.sleep(0.2)


def profiles(options: Options, rows: Rows) -> int:
    """Fifty steps each of a generator client, a classifier client and the server's fit."""
    steps = STEPS if default_device().type == "cuda" else STEPS // 10
    works: dict[str, Callable[[], object]] = {
        "cvae-small": training_steps(GeneratorConfig(batch_size=64), steps),
        "vgg9, quarter width": training_steps(ClassifierConfig(width=0.25, batch_size=16), steps),
        "vgg9, full width": training_steps(ClassifierConfig(width=1.0, batch_size=64), steps),
        "fit, quarter width": fit_steps(0.25, steps),
    }
    if default_device().type == "cpu":
        works.pop("vgg9, full width")
    for name, work in works.items():
        rows.add(kind="profile", name=name, steps=steps, **profiled(work, steps))
    return 0


def training_steps(training: Training, steps: int) -> Callable[[], object]:
    """A client's whole job of so many steps, on images at random."""
    probe, count = training.probe(steps, MNIST.num_classes)
    split, job = images(count), job_of(probe, np.arange(count))
    return lambda: run_jobs([job], split)


def job_of(training: Training, indices: np.ndarray, id: int = 0) -> Job:
    """A client's job on these samples."""
    client = Client(
        id=id,
        role="profiled",
        training=training,
        num_samples=len(indices),
        request=Request(cpus=1, gpus=1),
    )
    return Job(
        task=training.task,
        client=client,
        run_spec=MNIST,
        indices=indices,
        broadcast=None,
        payload=None,
    )


def side_by_side(options: Options, rows: Rows) -> int:
    """VGG-9s side by side against each by itself, replayed and eager; returns 1 if they are not
    the same to the bit beside each other as alone."""
    quarter, full = (ClassifierConfig(width=width, batch_size=16) for width in (0.25, 1.0))
    if default_device().type == "cpu":
        return beside_others(replace(quarter, width=0.05), 2, 1, STEPS // 10, rows)
    few = beside_others(quarter, 5, 40, STEPS, rows)
    return few | beside_others(full, 2, 20, STEPS, rows)


def beside_others(
    training: ClassifierConfig, clients: int, epochs: int, steps: int, rows: Rows
) -> int:
    """So many clients, of so many epochs of so many steps; those that are eager of a tenth. The
    second time of each way counts."""
    probe, count = training.probe(steps, MNIST.num_classes)
    split, device = images(clients * count), default_device()
    long, short = (replace(probe, epochs=n) for n in (epochs, -(-epochs // 10)))
    ways: dict[str, tuple[ClassifierConfig, Callable[[Sequence[TaskInput]], list[TaskOutput]]]] = {
        "together": (long, lambda own: captured.train(own, [*map(long.recipe, own)])),
        "alone": (long, lambda own: [captured.train([k], [long.recipe(k)])[0] for k in own]),
        "eager": (short, lambda own: [one_by_one(k, short.recipe(k)) for k in own]),
    }
    ms, uploads = dict[str, float](), dict[str, list[TaskOutput]]()
    for name, (own, way) in ways.items():
        rows_of = np.arange(clients * count).reshape(clients, count)
        given = [input_of(job_of(own, r, k), split, device) for k, r in enumerate(rows_of)]
        with arithmetic(device, tf32=False):
            uploads[name] = way(given)
            settle(device)
            began = time.perf_counter()
            way(given)
            settle(device)
        seconds = time.perf_counter() - began
        ms[f"{name}_ms"] = 1e3 * seconds / (clients * own.steps(count))
    pairs = zip(uploads["together"], uploads["alone"], strict=True)
    same = all(torch.equal(t, b.tensors[n]) for a, b in pairs for n, t in a.tensors.items())
    rows.add(kind="together", width=training.width, clients=clients, same_bits=same, **ms)
    print(f"{clients} clients of width {training.width:g}: {ms} a step, same bits: {same}")
    return int(not same)


def fit_steps(width: float, steps: int) -> Callable[[], object]:
    """A fit of so many steps on images at random."""
    config = FitConfig(epochs=1)
    images = torch.rand(steps * config.batch_size, *MNIST.image_shape)
    data = {"images": images, "labels": torch.arange(len(images)) % MNIST.num_classes}
    device = default_device()
    server = SingleServer(MNIST, shard(), Events(), device)

    def work() -> None:
        model = build_classifier("vgg9", MNIST.image_shape, MNIST.num_classes, width=width)
        with arithmetic(device, tf32=False):
            server.fit(model, data, loss=LOSS, config=config, stage="fusion")

    return work


def profiled(work: Callable[[], object], steps: int) -> dict[str, object]:
    """Milliseconds and kernels a step, the share of the time with a kernel on the card, the gaps
    between them, and which take most; without a card, of the operators on the cores."""
    device = default_device()
    work()
    settle(device)
    began = time.perf_counter()
    work()
    settle(device)
    seconds = time.perf_counter() - began  # the profiler itself takes time: this is without it
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        work()
        settle(device)
    wanted = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    found = [e for e in profiler.events() if e.device_type == wanted and e.cpu_parent is None]
    times = Counter[str]()
    for event in found:
        times[event.name] += event.time_range.elapsed_us()
    busy = covered([(e.time_range.start, e.time_range.end) for e in found]) / 1e6
    total = sum(times.values())
    return {
        "ms_a_step": 1e3 * seconds / steps,
        "kernels_a_step": len(found) / steps,
        "busy_share": min(1.0, busy / seconds),
        "gaps_ms_a_step": 1e3 * max(0.0, seconds - busy) / steps,
        "longest": {n[:80]: round(t / total, 3) for n, t in times.most_common(10)} if total else {},
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of these spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def two_ranks(options: Options, rows: Rows) -> int:
    """Two ranks that share the card fit as one does, over gloo; and what a sum of 64 MiB takes."""
    with tempfile.TemporaryDirectory() as folder:
        alone = fitted(Group(), default_device())
        mp.spawn(a_rank, args=(2, folder), nprocs=2)
        both = torch.load(Path(folder, "0"))
    apart = ((alone - both["weights"]).norm() / alone.norm()).item()
    backend = both["backend"]
    rows.add(kind="ranks", apart=apart, sum_64_mib_s=both["sum_s"], backend=backend)
    print(f"two ranks by {backend}: weights apart {apart:.2g} of their norm, at most {APART:g}")
    return int(apart > APART)


def a_rank(number: int, size: int, folder: str) -> None:
    """A rank's process."""
    device = default_device()
    if device.type == "cuda":
        device = torch.device("cuda", 0)  # all on one
    store = dist.FileStore(f"{folder}/store", size)
    group = ProcessGroup(store, number, size, device, b"first light", SILENT_S)
    weights = fitted(group, device)
    seconds = timed_sum(Rank(MNIST, shard(), device, group))
    if number == 0:
        found = {"weights": weights, "sum_s": seconds, "backend": dist.get_backend()}
        torch.save(found, f"{folder}/{number}")
    dist.destroy_process_group()


def timed_sum(rank: Rank) -> float:
    """Sums a tensor over all ranks, twice; seconds of the second time, when all are connected."""
    group, took = rank.group, 0.0
    for _ in range(2):
        tensor = torch.full((SUMMED,), float(group.rank + 1), device=rank.device)
        settle(rank.device)
        began = time.perf_counter()
        group.sum(tensor)
        settle(rank.device)
        took = time.perf_counter() - began
        assert bool((tensor == group.size * (group.size + 1) / 2).all()), "the sum is wrong"
    return took


def shard() -> Shard:
    """A few images at random, the same on every machine."""
    return Shard.from_split(images(SAMPLES), np.arange(SAMPLES), MNIST.num_classes)


def images(count: int) -> Split:
    """So many images at random, with labels."""
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (count, *MNIST.image_shape), dtype=np.uint8)
    return Split(pixels, stream.integers(0, MNIST.num_classes, count))


def fitted(group: Group, device: torch.device) -> Tensor:
    """The weights after a small fit over the group, as one vector on the host."""
    model = starting_classifier(TRAINING, MNIST)
    columns = {"images": [shard().images], "labels": [shard().labels]}
    how: dict[str, Any] = {"loss": LOSS, "config": CONFIG, "stage": "ranks", "streams": "ranks"}
    spec = FitSpec(model=model, columns=columns, **how)
    with arithmetic(device, tf32=False):
        for _ in Rank(MNIST, shard(), device, group).fit(spec):
            pass
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


STEP: dict[str, Callable[[Options, Rows], int]] = {
    "main": main_job,
    "profile": profiles,
    "together": side_by_side,
    "ranks": two_ranks,
    "paper": paper,
}

if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
