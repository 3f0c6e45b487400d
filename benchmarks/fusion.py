"""The server's fit on one rank and on two, against a plain loop that asks teachers at every batch.

    python benchmarks/fusion.py --json FILE

The same work for all: synthetic images, a VGG-9 student, its VGG-9 teachers, the loss of Eq. 7,
the same order of samples and the same dropout, so that the last losses agree. The plain loop loads
each batch by a DataLoader and asks every teacher for logits, as the released code does: 3 + T
forward-equivalents per sample and epoch (a backward pass counts as two forward passes). Ours asks
once: 3 + T / E. The ratio of the two is the arithmetic bound. One thread per rank. The speed of the
fit alone stands beside the machine's best for the student's products: that of each of its
convolutions and linear layers by itself, forward and backward, at a batch's shapes. Passes without
training are timed in float32 and in bfloat16, with the share of answers that are the same. With a
GPU it does the same, and also images per second in each precision, against the card's measured
matrix rate:

    python benchmarks/fusion.py --width 1 --samples 12000 100000 --ranks 1 --json FILE
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
import tyro
from distance import describe_machine
from rich.console import Console
from rich.table import Table
from servers import limited, servers
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from fl.data.shard import Shard
from fl.events import Epoch, Event, Events
from fl.federation import Batch, RunSpec
from fl.fusion.distillation import FusionLoss
from fl.fusion.draws import sample_keys
from fl.fusion.dropout import sample_dropout
from fl.fusion.fit import FitConfig, Inference
from fl.fusion.ranked_server import RankedServer
from fl.fusion.single_server import SingleServer
from fl.json_values import JsonObject
from fl.models import build_classifier
from fl.models.cost import macs
from fl.seeding import torch_generator, torch_seeded

PROBLEM = RunSpec(image_shape=(1, 28, 28), num_classes=10, seed=0)
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
    rounds: int = 1
    """How often all loops run in turn; the fastest of each counts."""
    precisions: tuple[str, ...] = ("fp32", "tf32", "bf16") if torch.cuda.is_available() else ()
    """Precisions to compare on one rank."""
    json: Path | None = None
    """Also write the figures here."""


def main(options: Fusion) -> int:
    """Runs every setting, prints a table for each, and returns the exit status."""
    console = Console(width=110)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = describe_machine(device.type)
    console.print(", ".join(f"{k} {v}" for k, v in machine.items()))
    if machine["busy_percent"] > 5:
        console.print("[red]The machine is busy: these figures are not the machine's.[/red]")
    settings = [(n, options.teachers[0]) for n in options.samples]
    settings += [(options.samples[0], t) for t in options.teachers[1:]]
    heard = Events(HEARD.append)
    with limited(1), servers(PROBLEM, options.ranks, device, heard) as ready:
        rows = [run_setting(n, t, options, ready, device, console) for n, t in settings]
        passes = inference(options, device, console)
    report: JsonObject = {"machine": machine, "rows": rows, "inference": passes}
    if options.precisions:
        report["precisions"] = precisions(options, device, console)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    return 0


def run_setting(
    samples: int,
    teachers: int,
    options: Fusion,
    ready: dict[str, RankedServer],
    device: torch.device,
    console: Console,
) -> JsonObject:
    """One number of samples and of teachers, by the plain loop and by each server."""
    config = FitConfig(epochs=options.epochs, batch_size=options.batch_size)
    counts = {"plain": 3 + teachers, "ours": 3 + teachers / options.epochs}
    rounds: list[dict[str, Times]] = []
    for _ in range(options.rounds):
        rounds.append({"plain": plain_loop(samples, teachers, options, config, device)})
        for name, server in ready.items():
            rounds[-1][name] = by_server(server, samples, teachers, options, config)
    timed = {name: min(times[name] for times in rounds) for name in rounds[0]}
    table = Table("loop", "forwards", "seconds", "of which asking", "times plain", "last loss")
    for name, (seconds, asking, loss) in timed.items():
        ratio = timed["plain"][0] / seconds
        forwards = counts["plain" if name == "plain" else "ours"]
        table.add_row(
            name, f"{forwards:g}", f"{seconds:.1f}", f"{asking:.1f}", f"{ratio:.2f}", f"{loss:.5f}"
        )
    bound = counts["plain"] / counts["ours"]
    console.print(f"\n{samples} samples, {teachers} teachers, bound {bound:.2f}")
    console.print(table)
    fits = {name: seconds - asking for name, (seconds, asking, _) in timed.items()}
    speedup = {name: round(fits["1 rank"] / fits[name], 3) for name in ready if "1 rank" in fits}
    console.print(f"the fit alone, against 1 rank: {speedup}")
    flops, best = step_at_best(options, device)
    steps = config.epochs * samples / config.batch_size
    shares = {name: round(steps * best / seconds, 3) for name, seconds in fits.items()}
    rate = {name: steps * flops / seconds for name, seconds in fits.items()}
    console.print(
        f"the fit alone, GFLOP/s: { {name: round(r / 1e9, 1) for name, r in rate.items()} }; its "
        f"layers by themselves reach {flops / best / 1e9:.1f} on one rank; shares of that: {shares}"
    )
    return {
        "samples": samples,
        "teachers": teachers,
        "epochs": options.epochs,
        "forwards": counts,
        "bound": bound,
        "loops": {
            name: {"seconds": s, "asking": a, "last_loss": loss, "ratio": timed["plain"][0] / s}
            for name, (s, a, loss) in timed.items()
        },
        "fit_speedup": speedup,
        "fit_flop_per_second": rate,
        "best_flop_per_second": flops / best,
        "fit_share_of_best": shares,
    }


def plain_loop(
    samples: int, teachers: int, options: Fusion, config: FitConfig, device: torch.device
) -> Times:
    """Seconds in all, of which asking teachers, and the last epoch's mean loss."""
    data, student = images_and_labels(samples), network(0, options).to(device).train()
    asked = [network(k, options).to(device).eval() for k in range(1, teachers + 1)]
    optimizer = optim.Adam(student.parameters(), lr=config.lr)
    order = torch_generator(PROBLEM.seed, "fusion/order")
    dataset = TensorDataset(data["images"], data["labels"], torch.arange(samples))
    began, asking, losses = time.perf_counter(), 0.0, []
    for epoch in range(1, config.epochs + 1):
        shuffled = torch.randperm(samples, generator=order).tolist()
        losses.clear()
        for images, labels, rows in DataLoader(dataset, config.batch_size, sampler=shuffled):
            images, labels = images.to(device), labels.to(device)
            before = time.perf_counter()
            with torch.no_grad():
                logits = sum(teacher(images) for teacher in asked) / teachers
            asking += time.perf_counter() - before
            batch = {"images": images, "labels": labels, "teacher_logits": logits}
            with sample_dropout(student) as masks:
                keys = sample_keys(PROBLEM.seed, "fusion/dropout", epoch, rows)
                masks.start_step(keys.to(device))
                loss = LOSS(student, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return time.perf_counter() - began, asking, sum(losses) / len(losses)


def by_server(
    server: RankedServer, samples: int, teachers: int, options: Fusion, config: FitConfig
) -> Times:
    """As :func:`plain_loop`, by the server's operations."""
    placed = server.place(images_and_labels(samples))
    student = network(0, options)
    server.evaluate(student)  # starts the ranks before the clock starts
    began = time.perf_counter()
    taught = server.teach(placed, (network(k, options) for k in range(1, teachers + 1)))
    server.fetch(taught, "teacher_logits")[0, 0].item()  # a GPU has finished by then
    asking = time.perf_counter() - began
    server.fit(student, taught, loss=LOSS, config=config, stage="fusion")
    seconds = time.perf_counter() - began
    last = HEARD[-1]
    assert isinstance(last, Epoch)
    return seconds, asking, last.loss


HEARD: list[Event] = []


def precisions(options: Fusion, device: torch.device, console: Console) -> list[JsonObject]:
    """Images per second of one rank in each precision, beside the rate of matrix products."""
    samples, rows = options.samples[0], []
    per_image = 6 * macs(network(0, options), torch.zeros(1, *PROBLEM.image_shape))
    for name in options.precisions:
        config = FitConfig(epochs=2, batch_size=options.batch_size, precision=name)  # type: ignore[arg-type]
        test = Shard(torch.rand(64, 1, 28, 28), torch.zeros(64, dtype=torch.int64), 10)
        server = SingleServer(PROBLEM, test, Events(HEARD.append), device)
        taught = server.teach(server.place(images_and_labels(samples)), [network(1, options)])
        server.fit(network(0, options), taught, loss=LOSS, config=config, stage="fusion")
        first, second = (event.seconds for event in HEARD[-2:])
        rate = samples / (second - first)
        peak = matrix_rate(name, device)
        rows.append(
            {
                "precision": name,
                "images_per_second": rate,
                "flop_per_second": rate * per_image,
                "matrix_flop_per_second": peak,
                "last_loss": HEARD[-1].loss,
            }
        )
        console.print(
            f"{name}: {rate:,.0f} images/s, {rate * per_image / 1e12:.2f} TFLOP/s of "
            f"{peak / 1e12:.1f} that matrix products reach, last loss {HEARD[-1].loss:.5f}"
        )
    return rows


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


def step_at_best(options: Fusion, device: torch.device) -> tuple[float, float]:
    """FLOP of a step of the student, and the seconds that its layers take by themselves at best."""
    student = network(0, options).to(device, memory_format=torch.channels_last).train()
    batch = images_and_labels(options.batch_size)["images"].to(device)
    met: list[tuple[nn.Module, torch.Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, given, _: met.append((layer, given[0].detach())))
        for layer in student.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    student(batch)
    for hook in hooks:
        hook.remove()
    # The first layer's input needs no gradient.
    best = sum(seconds_of(layer, x, first=x is met[0][1], device=device) for layer, x in met)
    return 6 * macs(student, batch[:1]) * len(batch), best


def seconds_of(layer: nn.Module, x: torch.Tensor, *, first: bool, device: torch.device) -> float:
    """Forward and backward of one layer, the quickest of ten times."""
    x.requires_grad_(not first)
    wanted = [*layer.parameters(), *([] if first else [x])]
    gradient, times = torch.ones_like(layer(x)), []
    for _ in range(10):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        torch.autograd.grad(layer(x), wanted, gradient)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def matrix_rate(precision: str, device: torch.device, size: int = 8192) -> float:
    """FLOP per second of a large product."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    factor = torch.randn(size, size, device=device, dtype=kind)
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    for repetitions in (2, 10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repetitions):
            factor @ factor
        torch.cuda.synchronize()
    torch.backends.cuda.matmul.allow_tf32 = False
    return 10 * 2 * size**3 / (time.perf_counter() - began)


def images_and_labels(samples: int) -> Batch:
    """Random images in [0, 1] and labels."""
    stream = torch_generator(0, "benchmark")
    return {
        "images": torch.rand(samples, *PROBLEM.image_shape, generator=stream),
        "labels": torch.randint(10, (samples,), generator=stream),
    }


def network(number: int, options: Fusion) -> nn.Module:
    """The student (0) or a teacher."""
    with torch_seeded(number, "benchmark"):
        return build_classifier("vgg9", PROBLEM.image_shape, 10, width=options.width)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Fusion)))
