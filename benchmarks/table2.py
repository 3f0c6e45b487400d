"""Table 2 of the FedMHO paper ("FLOPs"), recounted from the models as built here.

    python benchmarks/table2.py

Prints the table of docs/methods/models.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fl.models.common import ImageShape
from fl.models.registry import CLASSIFIERS, build_classifier, build_generator

BILINEAR_OPS = 11  # per output element, in thop's book-keeping


def parameters(model: nn.Module) -> int:
    """The number of trainable and fixed parameters; buffers do not count."""
    return sum(p.numel() for p in model.parameters())


def macs(model: nn.Module, *inputs: Tensor) -> int:
    """Multiply-accumulates of one forward pass, counted by torch as it runs (meta device too)."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    return counter.get_total_flops() // 2


def profiler_ops(model: nn.Module, *inputs: Tensor) -> int:
    """Operations of one forward pass as the profiler thop counts them; FedMHO's Table 2 fits it.

    Multiply-accumulates of convolutions and linear layers, plus operations of adaptive pooling,
    bilinear enlargement and softmax. A transposed convolution is counted from its output as if it
    were an ordinary one, which overstates a stride of 2 fourfold.
    """
    total = 0

    def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        for kind, ops in _OPS.items():
            if isinstance(module, kind):
                total += ops(module, args[0], output)

    hooks = [module.register_forward_hook(add) for module in model.modules()]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return total


def _conv_ops(module: Any, x: Tensor, y: Tensor) -> int:
    return y.numel() * (x.shape[1] // module.groups) * module.kernel_size[0] * module.kernel_size[1]


def _adaptive_pool_ops(module: Any, x: Tensor, y: Tensor) -> int:
    window = x.shape[2] / y.shape[2] * x.shape[3] / y.shape[3]
    return int((window + 1) * y.numel())


_OPS: dict[Any, Callable[[Any, Tensor, Tensor], int]] = {
    nn.Linear: lambda module, x, y: module.in_features * y.numel(),
    nn.Conv2d: _conv_ops,
    nn.ConvTranspose2d: _conv_ops,
    nn.AdaptiveAvgPool2d: _adaptive_pool_ops,
    nn.Upsample: lambda module, x, y: BILINEAR_OPS * y.numel(),
    # Exponentials and quotients of every class, and one addition fewer.
    nn.Softmax: lambda module, x, y: 3 * y.numel() - len(y),
}


GRAY, COLOR = (1, 28, 28), (3, 32, 32)


@dataclass(frozen=True)
class Table2Row:
    """One printed figure of the table, and the setting under which our count agrees with it."""

    model: str
    data_set: str
    image_shape: ImageShape
    num_classes: int
    paper: str
    note: str
    paper_latent: int = 20
    paper_softmax: bool = False


@dataclass(frozen=True)
class Counted:
    """A row's model, counted for one image: `ops` by the profiler at the row's own setting."""

    parameters: int
    macs: int
    ops: int


POOLING = "MACs + adaptive pooling"
ENLARGING = "MACs + bilinear enlarging, latent 10"
TRANSPOSED = "strided transposed convolutions counted fourfold"

ROWS = (
    Table2Row("vgg9", "MNIST", GRAY, 10, "126.47M", POOLING),
    Table2Row("vgg9", "SVHN", COLOR, 10, "145.48M", POOLING),
    Table2Row("vgg9", "EMNIST", GRAY, 47, "126.47M", "no: MNIST's figure, for 10 classes"),
    Table2Row("cnn", "MNIST", GRAY, 10, "467.23K", "MACs + the code's softmax", paper_softmax=True),
    Table2Row("cnn", "SVHN", COLOR, 10, "4.00M", "MACs"),
    Table2Row("cnn", "EMNIST", GRAY, 47, "3.96M", "MACs"),
    Table2Row("cvae-small", "MNIST", GRAY, 10, "408.06K", "MACs, latent 2", paper_latent=2),
    Table2Row("cvae-small", "SVHN", COLOR, 10, "2.08M", TRANSPOSED),
    Table2Row("cvae-small", "EMNIST", GRAY, 47, "1.06M", TRANSPOSED),
    Table2Row("cvae-large", "MNIST", GRAY, 10, "152.67M", ENLARGING, paper_latent=10),
    Table2Row("cvae-large", "SVHN", COLOR, 10, "201.76M", ENLARGING, paper_latent=10),
    Table2Row(
        "cvae-large",
        "EMNIST",
        GRAY,
        47,
        "152.67M",
        "no, at latent 10 or 20: MNIST's figure",
        paper_latent=10,
    ),
)


def count(row: Table2Row) -> Counted:
    """Counts a row's model on the meta device; parameters and MACs are at latent 20."""
    with torch.device("meta"):
        model, inputs = _model_and_inputs(row, latent=20)
        profiled, profiled_inputs = _model_and_inputs(row, row.paper_latent)
        if row.paper_softmax:
            profiled = nn.Sequential(profiled, nn.Softmax(dim=1))
        ops = profiler_ops(profiled, *profiled_inputs)
        return Counted(parameters(model), macs(model, *inputs), ops)


def as_printed(figure: int, like: str) -> str:
    """A count to two decimals in the unit of the printed figure `like`, "…M" or "…K"."""
    unit = like[-1]
    return f"{figure / {'K': 1e3, 'M': 1e6}[unit]:.2f}{unit}"


def _model_and_inputs(row: Table2Row, latent: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    image = torch.empty(1, *row.image_shape)
    if row.model in CLASSIFIERS:
        return build_classifier(row.model, row.image_shape, row.num_classes), (image,)
    label = torch.empty(1, dtype=torch.long)
    model = build_generator(row.model, row.image_shape, row.num_classes, latent=latent)
    return model, (image, label, torch.empty(1, latent))


def main() -> None:
    """Prints the table."""
    table = Table(
        "Model", "Data set", "Parameters", "MACs", "Profiler", "Paper", "By", box=box.MARKDOWN
    )
    for row in ROWS:
        counted = count(row)
        figures = (as_printed(counted.macs, row.paper), as_printed(counted.ops, row.paper))
        table.add_row(
            row.model, row.data_set, f"{counted.parameters:,}", *figures, row.paper, row.note
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
