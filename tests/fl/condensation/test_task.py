"""What a client that condenses uploads, and at the edges of what it may hold."""

from dataclasses import replace

import torch

from fl.condensation.task import condense, tell_mean_logits
from tests.fl.condensation.condensing import CONFIG, HELD, global_model, inputs
from tests.fl.toy import same_bits, shard


def test_mean_logits_are_of_each_held_class_and_soft_labels_their_softmax() -> None:
    config = replace(CONFIG, temperature=2.0)
    given, model = inputs(config), global_model().eval()
    found = tell_mean_logits(given).tensors
    for c, count in enumerate(HELD):
        own = given.shard.images[given.shard.labels == c]
        if not count:
            assert not found["mean_logits"][c].any()
            assert not found["soft_labels"][c].any()
            continue
        expected = sum(model(image[None])[0] for image in own) / count
        torch.testing.assert_close(found["mean_logits"][c], expected, rtol=1e-4, atol=1e-5)
        powers = (expected / 2).exp()
        torch.testing.assert_close(
            found["soft_labels"][c], powers / powers.sum(), rtol=1e-4, atol=1e-5
        )


def test_each_setting_changes_the_images_and_the_same_seed_gives_the_same_bits() -> None:
    first = condense(inputs()).tensors
    torch.rand(3)  # the global stream decides nothing
    assert same_bits(first, condense(inputs()).tensors)
    others = [
        inputs(replace(CONFIG, gamma=1.0)),
        inputs(replace(CONFIG, gamma=1.0, rho=1.0)),
        inputs(replace(CONFIG, network="eval")),
        inputs(replace(CONFIG, init="noise")),
        inputs(replace(CONFIG, averaged=1)),
        inputs(replace(CONFIG, augment=("rotate",))),
        inputs(round=2),
    ]
    images = [first["images"], *(condense(given).tensors["images"] for given in others)]
    for k, one in enumerate(images):
        assert one.isfinite().all()
        assert not any(torch.equal(one, other) for other in images[:k])


def test_pixels_leave_as_bytes() -> None:
    as_float = condense(inputs()).tensors["images"]
    as_bytes = condense(inputs(replace(CONFIG, pixels="uint8"))).tensors["images"]
    assert as_bytes.dtype == torch.uint8
    assert as_bytes.nbytes == 2 * 3 * 28 * 28
    difference = as_bytes.float() / 255 - as_float.clamp(0, 1)
    assert difference.abs().max() <= 0.5 / 255 + 1e-6


def test_one_sample_more_images_than_samples_and_no_class_at_all() -> None:
    lonely = condense(inputs(data=shard(0, 1, 0))).tensors
    assert lonely["classes"].tolist() == [1]
    assert lonely["images"].shape == (3, 1, 28, 28)
    few = replace(CONFIG, min_samples=7)
    assert condense(inputs(few)).tensors["images"].shape == (0, 1, 28, 28)
    assert not tell_mean_logits(inputs(few)).tensors["mean_logits"].any()
    assert condense(inputs(replace(CONFIG, min_samples=4))).tensors["classes"].tolist() == [0]
