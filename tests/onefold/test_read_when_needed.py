"""Data that is read when needed, transforms drawn in each epoch, and augment, in whole runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import onefold
from fl.methods import moon
from tests.onefold.test_going_on import draws
from tests.onefold.test_losses_and_models import weights
from tests.onefold.test_running import Tiny, blobs


class Flipped:
    """Images, such a share of them flipped at random whenever it is read."""

    classes = ("dark", "middle", "bright")

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        images, self.labels = blobs()
        self.images = torch.from_numpy(images).float().permute(0, 3, 1, 2)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = self.images[row]
        return image.flip(2) if torch.rand(()) < self.share else image, int(self.labels[row])


def both() -> tuple[Flipped, Flipped]:
    """Training samples that vary, and test samples that do not."""
    return Flipped(), Flipped(0.0)


def flip(image: Tensor) -> Tensor:
    """At random, at the top of a module, so that it can be sent."""
    return image.flip(2) if torch.rand(()) < 0.5 else image


pytestmark = pytest.mark.usefixtures("elsewhere", "undrawn")


def run(data: object, model: object = Tiny, **options: object) -> onefold.Result:
    base: dict[str, object] = {"num_clients": 3, "classifier": {"epochs": 3, "lr": 0.05}}
    more = {"runtime": "inprocess", "progress": False, "method": "fedavg"}
    base["partition"] = "natural" if isinstance(data, dict) else "iid"
    return onefold.run(data, model, **{**base, **more, **options})  # type: ignore[arg-type]


def test_each_epoch_of_each_client_draws_its_own_transforms_and_repeats() -> None:
    long = {"classifier.epochs": 12}
    first, again = run(both(), output_dir="a", **long), run(both(), output_dir="b", **long)
    assert torch.equal(weights(first), weights(again))
    assert first.accuracy > 0.6
    read_once = (Flipped().images.numpy(), Flipped().labels)
    assert not torch.equal(weights(run(read_once, output_dir="c", **long)), weights(first))


def test_augment_that_changes_nothing_changes_no_bit_and_none_is_drawn_from_others() -> None:
    plain = run(blobs(), output_dir="a")
    for name, augment in (("b", lambda x: x), ("c", lambda x: x + 0 * torch.rand(()))):
        assert torch.equal(weights(run(blobs(), augment=augment, output_dir=name)), weights(plain))


def test_augment_is_for_training_alone() -> None:
    dark = run(blobs(), augment=lambda x: 0 * x, **{"classifier.epochs": 1})
    assert dark.figures["alpha"] is None  # iid
    moved = weights(dark)[: 192 * 3]
    start = weights(run(blobs(), classifier={"epochs": 1, "lr": 1e-30}))[: 192 * 3]
    assert torch.equal(moved, start)  # a black image moves no weight, only biases
    assert dark.figures["scored_on"] == "test"


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (Flipped(), {}),
        *((both(), {"data.validation": 0.2}), (both(), {"tested": "clients"})),
        (both(), {"method": "ditto"}),
    ],
)
def test_transforms_that_would_change_test_samples_are_refused(
    data: object, options: dict[str, object]
) -> None:
    """A fifth that is held out, validation, or clients' own test samples."""
    with pytest.raises(onefold.UserError, match="change test samples too: pass them as"):
        run(data, dry_run=True, **options)


def test_data_may_read_random_numbers_that_change_nothing() -> None:
    run(Flipped(0.0), dry_run=True, tested="clients")


def test_clients_with_an_unknown_class_train_on_what_augment_makes() -> None:
    options = {"method": "fedov", "classifier": {"epochs": 1}}
    plain = run(blobs(), "cnn", output_dir="a", **options)
    dark = run(blobs(), "cnn", augment=lambda x: 0 * x, output_dir="b", **options)
    assert not torch.equal(weights(plain), weights(dark))


def test_decoders_learn_samples_as_they_are() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), dtype=np.uint8)
    options = {"num_clients": 2, "fusion.epochs": 1, "classifier": {"epochs": 1}}
    options |= {"generator.epochs": 1, "generator.width": 0.1, "method": "fedmho"}
    options |= {"num_samples": 60}
    uploads = []
    for name, augment in (("plain", None), ("dark", lambda image: 0 * image)):
        ran = run((pixels, np.arange(40) % 2), "cnn", augment=augment, output_dir=name, **options)
        files = sorted((ran.path / "updates").glob("client-*"))
        uploads.append([load_file(file) for file in files])
    (strong, weak), (dark, still_weak) = uploads
    assert all(torch.equal(weak[name], tensor) for name, tensor in still_weak.items())
    assert not all(torch.equal(strong[name], tensor) for name, tensor in dark.items())


def test_privacy_goes_with_transforms() -> None:
    result = run(both(), **{"dp.epsilon": 8.0, "classifier.momentum": 0.0})
    assert result.figures["dp"]["spent"] <= 8.0


def test_augment_is_refused_where_no_client_trains_a_classifier() -> None:
    with pytest.raises(
        onefold.UserError, match="augment needs clients that train classifiers; fedcv"
    ):
        onefold.run(blobs(), method="fedcvae-ens", augment=lambda image: image, num_clients=3)


@pytest.mark.parametrize("method", ["fedict", "fedd2s", "hfldd", "centralised"])
def test_methods_that_reckon_with_one_form_of_a_sample_refuse_transforms(method: str) -> None:
    data, augment = (blobs(), flip) if method == "fedict" else (both(), None)
    with pytest.raises(onefold.UserError, match=f"{method} needs samples that never change"):
        run(data, "m1", augment=augment, method=method, dry_run=True)


@pytest.mark.parametrize("method", ["moon", "pfedsd"])
def test_frozen_models_answer_for_the_very_samples_that_a_step_trains_on(method: str) -> None:
    """So transforms that are no random ones give what samples give that were changed before."""
    pixels, labels = blobs()
    turned = pixels[:, :, ::-1].copy()
    options = {"method": method, "rounds": 2, "classifier.epochs": 2}
    before = run((turned, labels), "m1", output_dir="before", **options)
    inside = run((pixels, labels), "m1", augment=turned_over, output_dir="inside", **options)
    for name, tensor in before.model.state_dict().items():
        torch.testing.assert_close(inside.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_frozen_models_are_asked_once_where_samples_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def features(model: nn.Module, images: Tensor, size: int) -> Tensor:
        asked.append(len(images))
        return images.flatten(1)

    monkeypatch.setattr(moon, "features_of", features)
    monkeypatch.setattr(moon, "contrast", lambda z, *others: z.sum(1) * 0)
    pixels, labels = blobs()
    np.save(tmp_path / "x.npy", pixels.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings = {"num_clients": 2, "rounds": 2, "classifier.batch_size": 16}
    run((mapped, labels), "m1", method="moon", **settings)
    assert set(asked) == {48}  # all of a client's samples, and no batch


def turned_over(image: Tensor) -> Tensor:
    return image.flip(2)


def test_augment_needs_data_that_is_given() -> None:
    with pytest.raises(onefold.UserError, match="register other data under its own name"):
        run("digits", "cnn", augment=flip)
    onefold.register_dataset("flipped", blobs(), flip)
    assert run("flipped", **{"classifier.epochs": 12}).accuracy > 0.4


@pytest.mark.ray
@pytest.mark.slow
def test_on_ray_each_epoch_and_draw_is_the_same_as_in_process(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", Flipped().images.numpy() / 2)
    in_file = (np.load(tmp_path / "x.npy", mmap_mode="r"), Flipped().labels)
    items = dict(zip(("train", "test"), both(), strict=True))
    data = {"items": items, "file": in_file, "again": items}
    how = {"method": onefold.method("draws")(draws), "rounds": 3, "augment": flip}
    here = run(data, output_dir="here", **how)
    there = run(data, output_dir="there", runtime="ray", **how)
    assert torch.equal(weights(here), weights(there))
    assert len(here.figures["drawn"]) == 3 * 7
    assert here.figures["drawn"] == there.figures["drawn"]
