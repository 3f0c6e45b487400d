"""The network of each step: near the global model, and where its features are taken."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.condensation.task import LocalCondensation, Networks, radius, within_radius
from fl.models import build_classifier
from tests.fl.condensation.condensing import CONFIG, global_model, inputs
from tests.fl.toy import same_bits

NEAR = replace(CONFIG, gamma=1.0, rho=0.0)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([w.detach().flatten() for w in model.parameters()])


def drawn(config: LocalCondensation, model: nn.Module | None = None, **changes: object) -> Tensor:
    """The weights of the first two steps' networks, a row for each."""
    given = inputs(config, **changes)
    networks = Networks(model or global_model(), given, config)
    found = []
    for _ in range(2):
        networks.move()
        found.append(weights(networks.network))
    return torch.stack(found)


def test_weights_within_a_radius_keep_their_distance() -> None:
    weights = [torch.ones(30, 20), torch.ones(20)]
    stream = torch.Generator().manual_seed(0)
    for rho, expected in [(2.0, 2.0), (1e6, 620**0.5)]:
        moved = within_radius(weights, rho, stream)
        apart = torch.cat([(a - b).flatten() for a, b in zip(moved, weights, strict=True)])
        assert apart.norm().item() == pytest.approx(expected, rel=0.1 if rho > 100 else 1e-4)


def test_without_a_mix_and_a_radius_each_step_has_the_global_model_itself() -> None:
    expected = weights(global_model())
    for found in drawn(NEAR):
        assert torch.equal(found, expected)


def test_weights_lie_on_the_line_between_the_global_model_and_a_random_start() -> None:
    """Eq. 17: gamma w + (1 - gamma) w'. At gamma 0 what is left is w', whatever the model."""
    own, other = global_model(), global_model()
    with torch.no_grad():
        for w in other.parameters():
            w.add_(1.0)
    starts = drawn(replace(NEAR, gamma=0.0), own)
    assert torch.equal(starts, drawn(replace(NEAR, gamma=0.0), other))
    assert not torch.equal(starts[0], starts[1])
    for gamma in (0.3, 0.9):
        expected = gamma * weights(own) + (1 - gamma) * starts
        torch.testing.assert_close(drawn(replace(NEAR, gamma=gamma), own), expected)


def test_each_step_draws_its_own_network_within_the_radius_of_the_global_model() -> None:
    config = replace(NEAR, rho=2.0)
    expected = radius(config, inputs(config).run_spec)
    first, second = drawn(config) - weights(global_model())
    for apart in (first, second):
        assert apart.norm().item() == pytest.approx(expected, rel=1e-4)
    assert abs(torch.cosine_similarity(first, second, dim=0)) < 0.1


@pytest.mark.parametrize("model", ["convnet", "cnn"])
def test_at_any_width_each_weight_is_moved_as_far(model: str) -> None:
    run_spec = inputs(CONFIG).run_spec
    moved = []
    for width in (0.125, 0.5, 1.0):
        config = replace(NEAR, model=model, width=width, rho=5.0)
        network = build_classifier(model, run_spec.image_shape, run_spec.num_classes, width=width)
        count = sum(w.numel() for w in network.parameters())
        moved.append(radius(config, run_spec) / count**0.5)
    assert moved == pytest.approx([moved[-1]] * 3)
    assert radius(config, run_spec) == 5.0
    assert radius(replace(config, width=0.5, rho=0.0), run_spec) == 0.0


@pytest.mark.parametrize("changes", [{"gamma": 0.5}, {"rho": 2.0}], ids=["mix", "radius"])
def test_networks_follow_from_client_and_round_and_leave_the_global_stream_alone(
    changes: dict[str, float],
) -> None:
    config = replace(NEAR, **changes)
    before = torch.random.get_rng_state()
    first = drawn(config)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(drawn(config), first)
    assert not torch.equal(drawn(config, round=2), first)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_network_is_frozen_in_its_mode_and_the_global_model_untouched(mode: str) -> None:
    config, model = replace(NEAR, rho=2.0, network=mode), global_model()  # type: ignore[arg-type]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    networks = Networks(model, inputs(config), config)
    networks.move()
    assert not any(p.requires_grad for p in networks.network.parameters())
    assert networks.network.training == (mode == "train")
    networks.network(torch.rand(4, 1, 28, 28))
    assert same_bits(model.state_dict(), before)
