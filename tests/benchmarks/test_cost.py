"""What a model costs: counted by hand, and as the papers' profiler counts."""

import pickle

import pytest
import torch
from cost import macs, parameters
from table2 import BILINEAR_OPS, profiler_ops
from torch import nn


def test_frozen_weights_are_parameters_too_and_buffers_are_none() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[0].requires_grad_(False)
    assert parameters(model) == 3 * 4 + 4 + 2 * 4


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


def test_without_a_multiplication_a_model_costs_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    assert macs(model, torch.empty(1, 1, 4, 4)) == 16
    assert profiler_ops(model, torch.empty(1, 1, 4, 4)) == 16


def test_nothing_is_computed_where_there_is_no_data() -> None:
    with torch.device("meta"):
        assert macs(nn.Linear(10**6, 10**6), torch.empty(1, 10**6)) == 10**12


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        (nn.AdaptiveAvgPool2d(2), (1, 3, 8, 8), 12 * (4 * 4 + 1)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 4, 4), BILINEAR_OPS * 3 * 8 * 8),
        (nn.Softmax(dim=1), (5, 10), 5 * (10 + 10 + 9)),
    ],
    ids=["pooling", "enlargement", "softmax"],
)
def test_the_profiler_counts_more_than_products(
    layer: nn.Module, inputs: tuple[int, ...], expected: int
) -> None:
    x = torch.empty(inputs)
    assert profiler_ops(layer, x) == expected
    assert macs(layer, x) == 0


def test_profiler_counts_a_strided_transposed_convolution_fourfold() -> None:
    x = torch.empty(1, 3, 5, 5)
    up = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)
    assert profiler_ops(up, x) == 4 * macs(up, x)


def test_counting_leaves_the_model_as_it_was() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1)), torch.rand(2, 3)
    before, first = model(x), profiler_ops(model, x)
    assert profiler_ops(model, x) == first
    assert torch.equal(model(x), before)
    pickle.dumps(model)  # which a hook that was left behind would prevent
