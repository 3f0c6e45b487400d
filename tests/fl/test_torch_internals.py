"""What is used of torch's internals still does what its formula or its docstring says."""

import pytest
import torch
from torch import Tensor, nn

from fl.models.registry import copied
from fl.torch_internals import (
    TESTED_WITH,
    adam_step,
    add_differences,
    onednn_product,
    sgd_step,
    shell,
)
from tests.contracts import contract

TABLES = "the dicts in the __dict__ of torch.nn.Module"
SHAPES = ((3, 5), (7,), (2, 3, 4))


def numbers(seed: int) -> list[Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=stream) for shape in SHAPES]


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=1e-6)


def test_the_fused_kernel_of_adam_is_adam() -> None:
    lr, betas = 0.01, (0.5, 0.99)
    found, means, squares = numbers(0), *([torch.zeros(s) for s in SHAPES] for _ in range(2))
    expected = [p.double() for p in numbers(0)]
    m, v = ([torch.zeros(s, dtype=torch.float64) for s in SHAPES] for _ in range(2))
    with contract("torch", "torch._fused_adam_", TESTED_WITH):
        for t in (1, 2, 3):
            gradients = numbers(t)
            adam_step(found, gradients, means, squares, torch.tensor(float(t)), lr=lr, betas=betas)
            for k, g in enumerate(x.double() for x in gradients):
                m[k] = betas[0] * m[k] + (1 - betas[0]) * g
                v[k] = betas[1] * v[k] + (1 - betas[1]) * g**2
                mean, square = m[k] / (1 - betas[0] ** t), v[k] / (1 - betas[1] ** t)
                expected[k] = expected[k] - lr * mean / (square.sqrt() + 1e-8)
            assert_near(found, expected)
        assert_near(means, m)
        assert_near(squares, v)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_the_fused_kernel_of_sgd_is_sgd(momentum: float, decay: float) -> None:
    lr = 0.1
    # What a velocity was before the first step is not looked at.
    found, velocities = numbers(0), numbers(9) if momentum else []
    expected, v = [p.double() for p in numbers(0)], [torch.zeros(())] * len(SHAPES)
    with contract("torch", "torch._fused_sgd_", TESTED_WITH):
        for t in (1, 2, 3):
            sgd_step(
                found,
                numbers(t),
                velocities,
                lr=lr,
                momentum=momentum,
                weight_decay=decay,
                is_first=t == 1,
            )
            for k, g in enumerate(numbers(t)):
                v[k] = momentum * v[k] + g.double() + decay * expected[k]
                expected[k] = expected[k] - lr * v[k]
            assert_near(found, expected)


def test_differences_are_added_to_all_tensors_at_once() -> None:
    targets, ends, starts = numbers(0), numbers(1), numbers(2)
    with contract("torch", "torch._foreach_sub or torch._foreach_add_", TESTED_WITH):
        add_differences(targets, ends, starts, 0.3)
        parts = zip(numbers(0), ends, starts, strict=True)
        assert_near(targets, [t + 0.3 * (end - start) for t, end, start in parts])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_onednns_product_is_one() -> None:
    stream = torch.Generator().manual_seed(0)
    a, b = torch.randn(6, 5, generator=stream), torch.randn(5, 4, generator=stream)
    with contract("torch", "torch.ops.mkldnn._linear_pointwise", TESTED_WITH):
        for add in (None, torch.randn(4, generator=stream)):
            expected = a.double() @ b.double() + (0 if add is None else add.double())
            assert_near([onednn_product(a, b, add)], [expected])


def test_what_is_exchanged_in_a_shell_stays_in_the_original() -> None:
    with contract("torch", TABLES, TESTED_WITH):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        linear, norm = model
        twin = shell(model)
        assert [*map(id, twin.parameters())] == [*map(id, model.parameters())]
        twin[1] = nn.Identity()
        twin.register_forward_hook(lambda *_: 1 / 0)
        twin.register_buffer("seen", torch.zeros(1))
        own = shell(linear)
        own.weight = nn.Parameter(torch.zeros(3, 3))
        assert [*model] == [linear, norm]
        assert linear.weight.any()
        assert "seen" not in model.state_dict()
        model(torch.rand(2, 3))


def test_a_recurrent_layers_copy_computes_with_weights_of_its_own() -> None:
    with contract("torch", "torch.nn.LSTM's list of its weights", TESTED_WITH):
        layer = nn.LSTM(3, 4)
        x = torch.rand(5, 2, 3)
        before = layer(x)[0]
        twin = copied(layer)
        assert torch.equal(twin(x)[0], before)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert torch.equal(layer(x)[0], before)
        assert not torch.equal(twin(x)[0], before)
