"""Distilling one client's images with KIP: milliseconds a step, beside its products alone.

    python benchmarks/kip.py --json FILE

A step is the loss of a batch of targets, its gradient by the support and Adam's update. The
baseline, "bare products", is what no step can do without: the matrix products of the two kernels,
the Cholesky factor and its solutions, and the products of the gradients. "loss and gradient" is
`kernels.kip_loss` without Adam, "layers" the element-wise work alone, of pairs that are there.
"plain autograd" takes the same steps by the kernel's formula as it is written, so both end with the
same loss. Everything is float64. In each round all ways run in turn; ratios are those within it.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import tyro
from machine import Rows, describe_machine
from plain_kip import bare_products, plain_loss
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fl.json_values import JsonObject
from kernels import centred, kip_loss
from kernels.tangent_layers import Layer, Network, backward, forward

CLASSES = 10
BATCHES = 20
BARE = "bare products"

Step = Callable[[int], object]
"""One step, given the number of its batch."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times the steps of KIP and their parts."""

    images: int = 100
    """Rows of the support."""
    targets: int = 10
    """Rows of a batch."""
    features: int = 784
    """Pixels of an image."""
    depth: int = 4
    """Hidden layers of the network."""
    steps: int = 200
    """Steps of a round."""
    rounds: int = 5
    """Times that every way is run, after once to warm up."""
    threads: tuple[int, ...] = (1, 2)
    """Of torch, one table for each."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main(options: Options) -> int:
    """Prints a table for each number of threads; returns the exit status."""
    console = Console(width=110)
    machine = describe_machine("cpu")
    console.print(", ".join(f"{k} {v}" for k, v in machine.items()))
    if machine["busy_percent"] > 5:
        console.print("[red]The machine is busy: these figures are not the machine's.[/red]")
    told = Rows("kip", options.json)
    sizes = {n: getattr(options, n) for n in ("images", "targets", "features", "depth")}
    told.add(kind="machine", **machine, sizes=sizes)
    before = torch.get_num_threads()
    for threads in options.threads:
        torch.set_num_threads(threads)
        rows = measure(options)
        for name, row in rows.items():
            told.add(kind="way", threads=threads, name=name, **row)
        console.print(table(rows, options, threads))
    torch.set_num_threads(before)
    return 0


class Problem:
    """One client's images around a mean for each class, and their labels, all float64."""

    def __init__(self, options: Options) -> None:
        self.depth = options.depth
        self._stream = torch.Generator().manual_seed(0)
        self._means = torch.rand(CLASSES, options.features, generator=self._stream).double()
        self.support, self.support_labels = self._images(options.images)
        self.targets, self.target_labels = self._images(BATCHES, options.targets)

    def _images(self, *shape: int) -> tuple[Tensor, Tensor]:
        """(*shape, d) and (*shape, 10)."""
        labels = (torch.arange(math.prod(shape)) % CLASSES).view(shape)
        noise = torch.randn(*shape, self._means.shape[1], generator=self._stream).double()
        return self._means[labels] + 0.3 * noise, centred(labels, CLASSES)

    def batch(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """What a loss takes after the support: its labels, targets and their labels."""
        return self.support_labels, self.targets[number], self.target_labels[number]


def measure(options: Options) -> dict[str, JsonObject]:
    """For every way: milliseconds a step, the ratio to the bare products, and the last loss."""
    problem = Problem(options)
    runs: dict[str, list[float]] = {}
    losses: dict[str, float] = {}
    for _ in range(options.rounds + 1):
        for name, step in ways(problem).items():
            begin = time.perf_counter()
            for number in range(options.steps):
                step(number % BATCHES)
            seconds = time.perf_counter() - begin
            runs.setdefault(name, []).append(1e3 * seconds / options.steps)
            if isinstance(step, Learning):
                losses[name] = step.loss()
    rows: dict[str, JsonObject] = {}
    for name, (_, *found) in runs.items():
        ratios = [own / base for own, base in zip(found, runs[BARE][1:], strict=True)]
        rows[name] = {
            **{"ms": statistics.median(found), "lowest": min(found), "highest": max(found)},
            **{"over_bare": statistics.median(ratios), "last_loss": losses.get(name)},
        }
    return rows


def ways(problem: Problem) -> dict[str, Step]:
    """Each way's step, learning from a fresh start."""
    inside = problem.support @ problem.support.T + torch.eye(len(problem.support))
    return {
        BARE: lambda number: bare_products(problem.support, *problem.batch(number)[:2], inside),
        "layers": layers_alone(problem),
        "loss and gradient": gradient_alone(problem),
        "whole step": Learning(problem, partial(kip_loss, depth=problem.depth)),
        "plain autograd": Learning(problem, partial(plain_loss, depth=problem.depth)),
    }


class Learning:
    """Steps of Adam that lower a loss, which takes what `kip_loss` does."""

    def __init__(self, problem: Problem, loss_of: Callable[..., Tensor]) -> None:
        self._problem, self._loss_of = problem, loss_of
        self._support = problem.support.clone().requires_grad_()
        self._optimizer = torch.optim.Adam([self._support], lr=1e-3, fused=True)

    def __call__(self, number: int) -> None:
        """One step."""
        self._optimizer.zero_grad()
        self._loss_of(self._support, *self._problem.batch(number)).backward()
        self._optimizer.step()

    def loss(self) -> float:
        """Of all targets."""
        with torch.no_grad():
            losses = [self._loss_of(self._support, *self._problem.batch(n)) for n in range(BATCHES)]
        return statistics.mean(map(float, losses))


def gradient_alone(problem: Problem) -> Step:
    """The loss and its gradient, at the start."""
    support = problem.support.clone().requires_grad_()

    def step(number: int) -> object:
        loss = kip_loss(support, *problem.batch(number), depth=problem.depth)
        return torch.autograd.grad(loss, support)

    return step


def layers_alone(problem: Problem) -> Step:
    """The recursion over the support's pairs and the first batch's, and back."""
    x, targets, network = problem.support, problem.targets[0], Network(problem.depth)
    first, second = torch.tril_indices(len(x), len(x), -1)
    left = torch.cat((x[first], targets.repeat_interleave(len(x), 0)))
    right = torch.cat((x[second], x.repeat(len(targets), 1)))
    pairs = ((left, right), (left, left), (right, right))
    k, q_left, q_right = (network.start((a * b).sum(1), x.shape[1]) for a, b in pairs)
    weights = torch.ones_like(k)

    def step(number: int) -> object:
        layers: list[Layer] = []
        forward(k, q_left, q_right, network, layers)
        return backward(weights, layers, network)

    return step


def table(rows: dict[str, JsonObject], options: Options, threads: int) -> Table:
    """The figures, a row for each way."""
    shown = Table("way", "ms a step", "lowest to highest", "over bare products", "last loss")
    shown.title = (
        f"{options.images} images of {options.features} pixels, batches of {options.targets}, "
        f"depth {options.depth}, {options.steps} steps; threads: {threads}"
    )
    shown.title_justify = "left"
    for name, row in rows.items():
        shown.add_row(
            *(name, f"{row['ms']:.2f}", f"{row['lowest']:.2f} to {row['highest']:.2f}"),
            f"{row['over_bare']:.2f}",
            "" if row["last_loss"] is None else f"{row['last_loss']:.6f}",
        )
    return shown


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
