"""Models that are copied or come back from a file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fl.errors import UserError
from fl.models.ensemble import Ensemble
from fl.models.registry import build_classifier, build_generator, copied
from fl.models.saved import describe, load_model, save_model, save_tensors


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


SHAPE = (1, 28, 28)


@pytest.fixture(params=["022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    mask = int(request.param, 8)
    before = os.umask(mask)
    yield mask
    os.umask(before)


def test_a_classifier_and_an_ensemble_come_back_and_answer_alike(tmp_path: Path) -> None:
    cnn, vgg = (build_classifier(n, SHAPE, 10, width=w) for n, w in (("cnn", 0.5), ("vgg9", 0.05)))
    images = torch.rand(3, *SHAPE)
    for model in (cnn, Ensemble([cnn, vgg])):
        save_model(model, tmp_path / "model.safetensors")
        again = load_model(tmp_path / "model.safetensors")
        assert not again.training
        assert torch.equal(again(images), model.eval()(images))


def test_a_file_is_as_open_as_the_user_has_it(tmp_path: Path, umask: int) -> None:
    save_tensors({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_what_nobody_knows_how_to_build_is_saved_without_a_description(tmp_path: Path) -> None:
    odd = torch.nn.Linear(2, 2)
    assert describe(odd) is None
    assert describe(Ensemble([odd])) is None
    save_model(odd, tmp_path / "odd.safetensors")
    with pytest.raises(UserError, match="does not name its model's architecture"):
        load_model(tmp_path / "odd.safetensors")


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read model"):
        load_model(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"0" * 40)
    with pytest.raises(UserError, match="cannot read model"):
        load_model(tmp_path / "bad.safetensors")
    about = {
        "onefold": '{"model": "cnn", "image_shape": [1, 28, 28], "num_classes": 3, "width": 1}'
    }
    save_file({"x": torch.ones(1)}, tmp_path / "odd.safetensors", metadata=about)
    with pytest.raises(UserError, match="does not fit its model"):
        load_model(tmp_path / "odd.safetensors")


def test_a_flipped_bit_of_a_weight_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_model(build_classifier("cnn", SHAPE, 10, width=0.1), file)
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        load_model(file)
