"""Local training of a conditional VAE: its loss, what it learns, and what it uploads."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.errors import UserError
from fl.exchange import load_prefixed, prefixed
from fl.models.registry import build_generator
from tests.fl.toy import GENERATOR, PROBLEM, same_bits, shard, task_input
from tests.fl.training.local import STILL, train, weights


def test_a_generators_loss_is_told_per_sample_whichever_way_it_is_reduced() -> None:
    still = replace(GENERATOR, lr=STILL)
    mean, total = (
        train(replace(still, loss_reduction=way)).stats["train_loss"] for way in ("mean", "sum")
    )
    assert mean == pytest.approx(total, rel=1e-5)
    assert 28 * 28 * 0.3 < mean < 28 * 28  # about log 2 for each pixel


@pytest.mark.parametrize("counts", [(7, 5, 8), (0, 4, 0), (1, 0, 30)])
def test_a_generator_uploads_its_exact_label_counts(counts: tuple[int, ...]) -> None:
    uploaded = train(replace(GENERATOR, epochs=1), shard(*counts)).tensors["label_counts"]
    assert uploaded.dtype == torch.int64
    assert uploaded.tolist() == list(counts)


def test_a_generator_uploads_its_decoder_or_the_whole_cvae() -> None:
    whole = build_generator("cvae-small", PROBLEM.image_shape, 3, latent=4, width=0.1)
    decoder, cvae = train(GENERATOR).tensors, train(replace(GENERATOR, upload="cvae")).tensors
    assert decoder.keys() == {*prefixed("decoder", whole.decoder), "label_counts"}
    assert cvae.keys() == {*prefixed("cvae", whole), "label_counts"}
    load_prefixed(whole, cvae, "cvae", sender="client 0")
    assert same_bits(prefixed("decoder", whole.decoder), weights(train(GENERATOR)))


def test_the_decoder_learns_to_draw_the_class_it_is_asked_for() -> None:
    training = replace(GENERATOR, epochs=60, lr=1e-2)
    decoder = build_generator("cvae-small", PROBLEM.image_shape, 3, latent=4, width=0.1).decoder
    load_prefixed(decoder, train(training).tensors, "decoder", sender="client 0")
    drawn = decoder(torch.zeros(3, 4), torch.eye(3)).sigmoid()
    assert brightest_band(drawn).tolist() == [0, 1, 2]


def brightest_band(images: Tensor) -> Tensor:
    bands = [images[:, 0, 9 * c : 9 * c + 9].mean((1, 2)) for c in range(3)]
    return torch.stack(bands, dim=1).argmax(1)


def test_a_record_says_how_many_bytes_its_upload_has() -> None:
    for training in (GENERATOR, replace(GENERATOR, upload="cvae")):
        sent = weights(train(replace(training, epochs=1)))
        assert training.upload_bytes(PROBLEM) == sum(t.nbytes for t in sent.values())


def test_images_that_the_generator_cannot_make_are_refused() -> None:
    GENERATOR.check(PROBLEM)
    with pytest.raises(UserError, match="cvae-cifar does not take images"):
        replace(GENERATOR, model="cvae-cifar").check(PROBLEM)


def test_the_noise_of_a_batch_is_standard_normal_and_new_in_every_epoch() -> None:
    """What the encoder's mean and variance are applied to."""
    training = replace(GENERATOR, epochs=40)
    recipe = training.recipe(task_input(training, shard(20, 20, 20)))
    noise = torch.cat([batch["noise"] for epoch in recipe.epochs for batch in epoch])
    assert noise.shape == (40 * 60, GENERATOR.latent)
    assert len(noise.unique(dim=0)) == len(noise)
    assert noise.mean(0).abs().max() < 0.1
    assert (noise.T.cov() - torch.eye(GENERATOR.latent)).abs().max() < 0.1
