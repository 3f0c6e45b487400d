"""A copied model: equal to the original, and apart from it."""

import pytest
import torch

from fl.models import build_classifier, build_generator, copied


@pytest.mark.parametrize("name", ["cvae-small", "cnn", "vgg9"])
def test_a_copy_computes_the_same_and_shares_nothing(name: str) -> None:
    shape = (1, 28, 28)
    if name == "cvae-small":
        model = build_generator(name, shape, 10, latent=3, width=0.1)
        model.register_buffer("seen", torch.zeros(1))
        arguments = (torch.rand(2, *shape), torch.tensor([1, 4]), torch.randn(2, 3))
    else:
        model, arguments = build_classifier(name, shape, 10, width=0.1), (torch.rand(2, *shape),)
    next(model.parameters()).requires_grad_(False)
    model.eval()
    twin = copied(model)
    torch.testing.assert_close(twin(*arguments), model(*arguments), rtol=0, atol=0)
    assert [p.requires_grad for p in twin.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    assert before.keys() == twin.state_dict().keys()
    twin.train()
    twin.register_forward_hook(lambda *_: 1 / 0)
    with torch.no_grad():
        for tensor in [*twin.parameters(), *twin.buffers()]:
            tensor.add_(1)
    assert not any(m.training for m in model.modules())
    model(*arguments)
    for n, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[n])
