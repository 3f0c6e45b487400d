"""What a model costs: counted by hand, and as the papers' profiler counts."""

import pickle

import pytest
import torch
from cost import macs
from table2 import profiler_ops
from torch import nn


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        (nn.Linear(3, 4), (5, 3), 5 * 3 * 4),
        (nn.Linear(3, 4, bias=False), (2, 7, 3), 2 * 7 * 3 * 4),
        (nn.Conv2d(2, 6, 3, padding=1), (1, 2, 5, 7), 5 * 7 * 6 * 2 * 9),
        (nn.Conv2d(4, 8, (3, 1), stride=2, groups=2), (2, 4, 9, 9), 2 * 4 * 5 * 8 * 2 * 3),
    ],
    ids=["linear", "without bias", "convolution", "in groups"],
)
def test_each_output_costs_as_many_products_as_it_has_inputs(
    layer: nn.Module, inputs: tuple[int, ...], expected: int
) -> None:
    x = torch.empty(inputs)
    assert macs(layer, x) == profiler_ops(layer, x) == expected


def test_counting_leaves_the_model_as_it_was() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1)), torch.rand(2, 3)
    before, first = model(x), profiler_ops(model, x)
    assert profiler_ops(model, x) == first
    assert torch.equal(model(x), before)
    pickle.dumps(model)  # which a hook that was left behind would prevent
