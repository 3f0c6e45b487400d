"""Dropout whose masks follow from the sample."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.training.masks import sample_dropout, sample_keys

ONES = torch.ones(300, 40)
KEYS = sample_keys(0, "fusion", 1, torch.arange(300))


def dropped(layer: nn.Module, x: Tensor = ONES, keys: Tensor = KEYS) -> Tensor:
    with sample_dropout(layer) as masks:
        masks.start_step(keys)
        return layer(x)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_units_are_dropped_with_the_layers_chance_and_the_rest_scaled(p: float) -> None:
    out = dropped(nn.Dropout(p))
    assert abs((out == 0).float().mean() - p) < 0.02
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / (1 - p)))


def test_a_slice_of_a_batch_drops_what_the_whole_batch_drops() -> None:
    whole = dropped(nn.Dropout(0.5))
    for part in (slice(0, 1), slice(120, 260)):
        assert torch.equal(dropped(nn.Dropout(0.5), ONES[part], KEYS[part]), whole[part])


def test_each_layer_and_each_pass_has_masks_of_its_own() -> None:
    one, two = nn.Dropout(0.5), nn.Dropout(0.5)
    model = nn.ModuleList([one, two])
    with sample_dropout(model) as masks:
        masks.start_step(KEYS)
        first, second, third = one(ONES), two(ONES), one(ONES)
        masks.start_step(KEYS)
        again = one(ONES)
    assert torch.equal(first, again)
    for a, b in ((first, second), (first, third), (second, third)):
        assert abs((a == b).float().mean() - 0.5) < 0.02


def test_images_are_dropped_unit_by_unit_and_gradients_pass_where_units_stay() -> None:
    x = torch.rand(300, 2, 4, 5, requires_grad=True)
    out = dropped(nn.Dropout(0.5), x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)


def test_a_model_in_eval_mode_drops_nothing_and_is_as_before_afterwards() -> None:
    layer = nn.Dropout(0.5).eval()
    assert torch.equal(dropped(layer), ONES)
    layer.train()
    torch.manual_seed(0)
    plain = copy.deepcopy(layer)(ONES)
    torch.manual_seed(0)
    assert torch.equal(layer(ONES), plain)


def test_p_of_one_drops_all_and_p_of_zero_nothing() -> None:
    assert not dropped(nn.Dropout(1.0)).any()
    assert torch.equal(dropped(nn.Dropout(0.0)), ONES)


def test_rows_that_are_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="600 rows"):
        dropped(nn.Dropout(0.5), ONES.repeat(2, 1))


def test_other_kinds_of_dropout_are_refused() -> None:
    with pytest.raises(UserError, match="Dropout2d"):
        dropped(nn.Sequential(nn.Dropout2d(0.5)))
