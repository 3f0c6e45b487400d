"""A cohort's model: every client's rows meet its own weights, and nothing else."""

import pytest
import torch
from torch import Tensor, nn

from fl.training.stacked import Turns, cohort_model, dropout_in

ROWS = (3, 1, 5)
ACTIVATIONS = (
    *(nn.ReLU(), nn.LeakyReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.SiLU(), nn.Softplus()),
    *(nn.ELU(), nn.Softmax(dim=1), nn.LogSoftmax(dim=1), nn.Hardswish()),
)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 3, bias=False))


def conv() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 3))


def tokens() -> nn.Module:
    """Linear layers of rows that are matrices."""
    return nn.Sequential(nn.Unflatten(3, (2, 4)), nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2))


MODELS = pytest.mark.parametrize("make", [mlp, conv, tokens], ids=lambda make: make.__name__)


def clients(make, dtype: torch.dtype = torch.float32) -> list[nn.Module]:  # type: ignore[no-untyped-def]
    models = []
    for k in range(len(ROWS)):
        torch.manual_seed(k)
        models.append(make().to(dtype))
    return models


def batches(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    stream = torch.Generator().manual_seed(9)
    return [torch.rand(rows, 1, 8, 8, generator=stream).to(dtype) for rows in ROWS]


def together(models: list[nn.Module], who: list[int], parts: list[Tensor]) -> list[Tensor]:
    """Each client's answer to its own rows, in one pass."""
    turns = Turns()
    model = cohort_model(models, turns)
    turns.clients, turns.rows = who, [len(part) for part in parts]
    return list(model(torch.cat(parts)).split(turns.rows))


@MODELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_clients_rows_meet_its_own_model(make, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    """Answers, and what each learns of them."""
    cohort, alone = clients(make, dtype), clients(make, dtype)
    found = together(cohort, [0, 1, 2], batches(dtype))
    sum(answer.square().sum() for answer in found).backward()
    for model, twin, rows, answer in zip(cohort, alone, batches(dtype), found, strict=True):
        expected = twin(rows)
        expected.square().sum().backward()
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-4)


@MODELS
def test_who_has_no_turn_is_not_taught_and_an_answer_is_the_same_bits_in_any_company(make) -> None:  # type: ignore[no-untyped-def]
    cohort = clients(make)
    parts = batches()
    answers = together(cohort, [2, 0], [parts[2], parts[0]])
    sum(answer.sum() for answer in answers).backward()
    everyone = together(clients(make), [0, 1, 2], parts)
    for answer, k in zip(answers, (2, 0), strict=True):
        assert torch.equal(answer, everyone[k])
        assert torch.equal(answer, together(clients(make), [k], [parts[k]])[0])
    assert all(p.grad is None for p in cohort[1].parameters())


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=lambda layer: type(layer).__name__)
def test_no_activation_sees_where_in_a_batch_a_row_lies(layer: nn.Module) -> None:
    """Some of torch's round differently in a tensor's last elements: in sizes that leave some."""
    stream = torch.Generator().manual_seed(0)
    parts = [3 * torch.randn(rows, 13, generator=stream) for rows in (1, 6, 3)]
    for who in ([0, 1, 2], [2, 1, 0], [1, 0]):
        answers = together([layer] * 3, who, [parts[k] for k in who])
        for k, answer in zip(who, answers, strict=True):
            assert torch.equal(answer, layer(parts[k]))


@pytest.mark.parametrize("frozen", [True, False])
def test_images_get_their_gradient_through_frozen_weights_too(frozen: bool) -> None:
    """Condensation learns images by networks that it does not train."""
    cohort, alone = clients(mlp), clients(mlp)
    for model in (*cohort, *alone):
        model.requires_grad_(not frozen)
    ours, plain = ([part.requires_grad_() for part in batches()] for _ in range(2))
    sum(answer.square().sum() for answer in together(cohort, [0, 1, 2], ours)).backward()
    for model, own, images in zip(alone, ours, plain, strict=True):
        model(images).square().sum().backward()
        torch.testing.assert_close(own.grad, images.grad, rtol=1e-4, atol=1e-5)
    assert all((p.grad is None) == frozen for model in cohort for p in model.parameters())


def test_a_dropout_that_is_on_is_found_and_named() -> None:
    off, on = nn.Dropout(0.0), nn.Dropout2d(0.2)
    model = nn.Sequential(nn.Sequential(off, nn.Linear(2, 2)), nn.Sequential(nn.ReLU(), on))
    assert dropout_in(model) == "1.1 is a Dropout2d"
    assert dropout_in(model[0]) is None
