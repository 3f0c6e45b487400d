"""The server's fit on one rank and on two, against a plain loop that asks teachers at every batch.

    python benchmarks/fusion.py --json FILE

The same work for all: synthetic images, a VGG-9 student, its VGG-9 teachers, the loss of Eq. 7,
the same order of samples, dropout and precision, so that the last losses agree. The plain loop
loads each batch by a DataLoader and asks every teacher for logits, as the released code does: 3 + T
forward-equivalents per sample and epoch (a backward pass counts as two forward passes). Ours asks
once: 3 + T / E. The ratio of the two is the arithmetic bound. One thread per rank. The speed of the
fit alone stands beside the machine's best for the student's products: that of each of its
convolutions and linear layers by itself, forward and backward, at a batch's shapes; on a GPU also
beside what its bytes and its FLOP take at the card's rates, whichever is more. Saving the fit's
state is timed apart. Passes without training are timed in float32 and in bfloat16, with the share
of answers that are the same. With a GPU it does the same in each precision:

    python benchmarks/fusion.py --width 1 --samples 12000 100000 --ranks 1 --json FILE
"""

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
import tyro
from machine import (
    PRECISIONS,
    Precision,
    Rows,
    copy_bandwidth,
    default_device,
    describe_machine,
    matrix_rate,
    seconds_of,
    settle,
)
from rich.console import Console
from rich.table import Table
from servers import limited, servers
from table2 import macs
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from fl.data.shard import Shard
from fl.events import Epoch, Event, Events
from fl.federation import Batch, RunSpec
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import Fit, FitConfig, FitSpec, Inference, State
from fl.fusion.server import Server, SingleServer
from fl.json_files import JsonObject
from fl.models.registry import build_classifier
from fl.process import arithmetic
from fl.seeding import seeded, torch_generator
from fl.training.masks import sample_dropout, sample_keys
from fl.training.reduced import Reduced

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
LOSS = FusionLoss(ce_weight=0.5, kd_weight=0.5)
Times = tuple[float, float, float]  # seconds in all, of which asking teachers, and the last loss


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """Times the fit of a student under several teachers."""

    samples: tuple[int, ...] = (6_000, 48_000)
    """Synthetic images."""
    teachers: tuple[int, ...] = (5, 50)
    """Teachers; only the first number is run with more than the first number of samples."""
    epochs: int = 10
    """Epochs."""
    batch_size: int = 64
    """Samples per step."""
    width: float = 0.25
    """Width of student and teachers; 1 is the paper's."""
    ranks: tuple[int, ...] = (1, 2)
    """Numbers of ranks, each with one thread or one GPU."""
    precisions: tuple[Precision, ...] = PRECISIONS if torch.cuda.is_available() else ("fp32",)
    """Precisions in which all loops run; ranks in processes of their own leave out tf32."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main(options: Fusion) -> int:
    """Runs every setting, prints a table for each, and returns the exit status."""
    console, rows, device = Console(width=110), Rows("fusion", options.json), default_device()
    machine = describe_machine(device.type)
    console.print(", ".join(f"{k} {v}" for k, v in machine.items()))
    if machine["busy_percent"] > 5:
        console.print("[red]The machine is busy: these figures are not the machine's.[/red]")
    rows.add(kind="machine", **machine)
    settings = [(n, options.teachers[0]) for n in options.samples]
    settings += [(options.samples[0], t) for t in options.teachers[1:]]
    heard = Events(HEARD.append)
    with limited(1), servers(PROBLEM, options.ranks, device, heard) as ready:
        rows.add(kind="state", width=options.width, **state_apart(options, device, console))
        for precision in options.precisions:
            with arithmetic(device, tf32=precision == "tf32"):
                for n, t in settings:
                    ours = Setting(n, t, precision, options)
                    able = {k: s for k, s in ready.items() if precision != "tf32" or s.size == 1}
                    rows.add(kind="setting", **run_setting(ours, able, device, console, rows))
        rows.add(kind="inference", width=options.width, **inference(options, device, console))
    return 0


@dataclass(frozen=True)
class Setting:
    """What the loops of one table do."""

    samples: int
    teachers: int
    precision: Precision
    options: Fusion

    @property
    def config(self) -> FitConfig:
        """The fit's settings."""
        precision = "bf16" if self.precision == "bf16" else "fp32"
        options = self.options
        return FitConfig(epochs=options.epochs, batch_size=options.batch_size, precision=precision)


def run_setting(
    setting: Setting,
    ready: dict[str, Server],
    device: torch.device,
    console: Console,
    rows: Rows,
) -> JsonObject:
    """One number of samples and of teachers, by the plain loop and by each server."""
    samples, teachers, options = setting.samples, setting.teachers, setting.options
    name_of = {"samples": samples, "teachers": teachers, "precision": setting.precision}
    name_of |= {"width": options.width, "epochs": options.epochs}
    counts = {"plain": 3 + teachers, "ours": 3 + teachers / options.epochs}
    loops: dict[str, Callable[[], Times]] = {"plain": lambda: plain_loop(setting, device)}
    for name, server in ready.items():
        loops[name] = lambda server=server: by_server(server, setting)  # type: ignore[misc]
    timed: dict[str, Times] = {}
    for name, loop in loops.items():
        seconds, asking, loss = timed[name] = loop()
        rows.add(kind="loop", name=name, seconds=seconds, asking=asking, loss=loss, **name_of)
    table = Table("loop", "forwards", "seconds", "of which asking", "times plain", "last loss")
    for name, (seconds, asking, loss) in timed.items():
        ratio = timed["plain"][0] / seconds
        forwards = counts["plain" if name == "plain" else "ours"]
        table.add_row(
            name, f"{forwards:g}", f"{seconds:.1f}", f"{asking:.1f}", f"{ratio:.2f}", f"{loss:.5f}"
        )
    bound = counts["plain"] / counts["ours"]
    console.print(
        f"\n{samples} samples, {teachers} teachers, {setting.precision}, bound {bound:.2f}"
    )
    console.print(table)
    fits = {name: seconds - asking for name, (seconds, asking, _) in timed.items()}
    return {
        **name_of,
        "forwards": counts,
        "bound": bound,
        "loops": {
            name: {"seconds": s, "asking": a, "last_loss": loss, "ratio": timed["plain"][0] / s}
            for name, (s, a, loss) in timed.items()
        },
        **the_fit_alone(setting, fits, device, console),
    }


def the_fit_alone(
    setting: Setting, fits: dict[str, float], device: torch.device, console: Console
) -> JsonObject:
    """Seconds of a step of each loop without asking, beside its bounds, which are of one rank."""
    steps = setting.config.total_steps(setting.samples)
    speedup = {n: round(fits["1 rank"] / s, 3) for n, s in fits.items() if "1 rank" in fits}
    flops, best = step_at_best(setting, device)
    shares = {name: round(steps * best / seconds, 3) for name, seconds in fits.items()}
    rate = {name: steps * flops / seconds for name, seconds in fits.items()}
    console.print(
        f"the fit alone, against 1 rank: {speedup}; GFLOP/s: "
        f"{ {name: round(r / 1e9, 1) for name, r in rate.items()} }; its layers by themselves "
        f"reach {flops / best / 1e9:.1f} on one rank; shares of that: {shares}"
    )
    found: JsonObject = {
        "fit_seconds_per_step": {name: seconds / steps for name, seconds in fits.items()},
        "fit_speedup": speedup,
        "fit_flop_per_second": rate,
        "best_flop_per_second": flops / best,
        "fit_share_of_best": shares,
    }
    if device.type == "cuda":
        found["bound_seconds_per_step"] = step_bounds(setting, flops, device)
        console.print(f"seconds a step at the card's rates: {found['bound_seconds_per_step']}")
    return found


def step_bounds(setting: Setting, flops: int, device: torch.device) -> dict[str, float]:
    """Seconds of a step by its FLOP alone, and by its bytes alone.

    Bytes: each trained weight is read by the forward and the backward pass, its gradient is
    written, and Adam reads four numbers and writes three, of 4 bytes each.
    """
    student = network(0, setting.options)
    with Reduced(student):
        weights = sum(p.numel() for p in student.parameters())
    return {
        "flop": flops / matrix_rate(setting.precision, device),
        "bytes": 4 * 10 * weights / copy_bandwidth(device),
    }


def state_apart(options: Fusion, device: torch.device, console: Console) -> JsonObject:
    """Seconds to make a fit's state after a step, and to read it back; its bytes."""
    config = FitConfig(epochs=2, batch_size=options.batch_size)
    how = {"loss": FusionLoss(ce_weight=1.0, kd_weight=0.0), "stage": "state", "streams": "state"}
    data = {n: t.to(device) for n, t in images_and_labels(options.batch_size).items()}

    def fit(state: State | None = None) -> Fit:
        model = network(0, options).to(device)
        spec = FitSpec(model=model, columns={}, config=config, state=state, **how)  # type: ignore[arg-type]
        return Fit(spec, data, seed=0)

    begun = fit()
    next(begun.epochs())
    began = time.perf_counter()
    state = begun.state()
    assert state.values  # which waits for them
    made = time.perf_counter()
    fit(state)
    settle(device)
    read = time.perf_counter() - made
    found = {
        "bytes": len(pickle.dumps(state)),
        "made_s": made - began,
        "fit_started_from_it_s": read,
    }
    console.print(f"state of a fit, apart: { {k: round(v, 3) for k, v in found.items()} }")
    return found


def plain_loop(setting: Setting, device: torch.device) -> Times:
    """Seconds in all, of which asking teachers, and the last epoch's mean loss.

    What asking takes is measured in one more pass, so that the loop itself never waits for a GPU.
    """
    samples, config, options = setting.samples, setting.config, setting.options
    data, student = images_and_labels(samples), network(0, options).to(device).train()
    asked = [network(k, options).to(device).eval() for k in range(1, setting.teachers + 1)]
    optimizer = optim.Adam(student.parameters(), lr=config.lr)
    order = torch_generator(PROBLEM.seed, "fusion/order")
    dataset = TensorDataset(data["images"], data["labels"], torch.arange(samples))

    @torch.no_grad()
    def ask(images: torch.Tensor) -> torch.Tensor:
        return torch.stack([teacher(images) for teacher in asked]).mean(0)

    losses: list[torch.Tensor] = []
    settle(device)
    began = time.perf_counter()
    for epoch in range(1, config.epochs + 1):
        shuffled = torch.randperm(samples, generator=order).tolist()
        losses.clear()
        for images, labels, rows in DataLoader(dataset, config.batch_size, sampler=shuffled):
            images, labels = images.to(device), labels.to(device)
            batch = {"images": images, "labels": labels, "teacher_logits": ask(images)}
            with sample_dropout(student) as masks:
                keys = sample_keys(PROBLEM.seed, "fusion/dropout", epoch, rows)
                masks.start_step(keys.to(device))
                with torch.autocast(device.type, torch.bfloat16, config.precision == "bf16"):
                    loss = LOSS(student, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    mean = torch.stack(losses).mean().item()
    seconds = time.perf_counter() - began
    batches = [images.to(device) for images in data["images"].split(config.batch_size)]
    settle(device)
    began = time.perf_counter()
    for images in batches:
        ask(images)
    settle(device)
    return seconds, config.epochs * (time.perf_counter() - began), mean


def by_server(server: Server, setting: Setting) -> Times:
    """As :func:`plain_loop`, by the server's operations."""
    options = setting.options
    placed = server.place(images_and_labels(setting.samples))
    student = network(0, options)
    server.evaluate(student)  # starts the ranks before the clock starts
    began = time.perf_counter()
    taught = server.teach(placed, (network(k, options) for k in range(1, setting.teachers + 1)))
    server.fetch(taught, "teacher_logits")[0, 0].item()  # a GPU has finished by then
    asking = time.perf_counter() - began
    server.fit(student, taught, loss=LOSS, config=setting.config, stage="fusion")
    seconds = time.perf_counter() - began
    last = HEARD[-1]
    assert isinstance(last, Epoch)
    return seconds, asking, last.loss


HEARD: list[Event] = []


def inference(options: Fusion, device: torch.device, console: Console) -> JsonObject:
    """Images per second of a teacher that is asked, exactly and rounded: the best of five."""
    images = images_and_labels(options.samples[0])["images"]
    server = SingleServer(PROBLEM, Shard(images[:1], torch.zeros(1).long(), 10), Events(), device)
    placed, teacher = server.place({"images": images}), network(1, options)
    rates: dict[str, float] = {}
    answers: dict[str, torch.Tensor] = {}
    for _ in range(5):
        for name in get_args(Inference):
            server.inference = name
            began = time.perf_counter()
            logits = server.fetch(server.teach(placed, [teacher]), "teacher_logits")
            answers[name] = logits.argmax(1).cpu()
            rates[name] = max(rates.get(name, 0.0), len(images) / (time.perf_counter() - began))
    same = float((answers["fp32"] == answers["bf16"]).double().mean())
    ratio = rates["bf16"] / rates["fp32"]
    console.print(
        f"\npasses without training: {rates['fp32']:,.0f} images/s in fp32, {rates['bf16']:,.0f} "
        f"in bf16 ({ratio:.2f} times), of whose answers {same:.2%} are the same"
    )
    return {"images_per_second": rates, "same_answers": same}


def step_at_best(setting: Setting, device: torch.device) -> tuple[int, float]:
    """FLOP of a step of the student, and the seconds that its layers take by themselves at best."""
    student = network(0, setting.options).to(device, memory_format=torch.channels_last).train()
    batch = images_and_labels(setting.options.batch_size)["images"].to(device)
    met: list[tuple[nn.Module, torch.Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, given, _: met.append((layer, given[0].detach())))
        for layer in student.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    student(batch)
    for hook in hooks:
        hook.remove()
    with torch.autocast(device.type, torch.bfloat16, setting.precision == "bf16"):
        # The first layer's input needs no gradient.
        best = sum(layer_seconds(layer, x, first=x is met[0][1]) for layer, x in met)
    return 6 * macs(student, batch[:1]) * len(batch), best


def layer_seconds(layer: nn.Module, x: torch.Tensor, *, first: bool) -> float:
    """Forward and backward of one layer, the quickest of ten times."""
    x.requires_grad_(not first)
    wanted = [*layer.parameters(), *([] if first else [x])]
    gradient = torch.ones_like(layer(x))
    return seconds_of(lambda: torch.autograd.grad(layer(x), wanted, gradient), x.device)


def images_and_labels(samples: int) -> Batch:
    """Random images in [0, 1] and labels."""
    stream = torch_generator(0, "benchmark")
    return {
        "images": torch.rand(samples, *PROBLEM.image_shape, generator=stream),
        "labels": torch.randint(10, (samples,), generator=stream),
    }


def network(number: int, options: Fusion) -> nn.Module:
    """The student (0) or a teacher."""
    with seeded(number, "benchmark"):
        return build_classifier("vgg9", PROBLEM.image_shape, 10, width=options.width)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Fusion)))
