"""What the server believes of a client's message, and what it makes of several."""

import math

import pytest
import torch
from torch import Tensor

from fl.condensation.task import LocalCondensation
from fl.condensation.uploads import condensed_data, mean_over_holders
from fl.federation import Update
from tests.fl.toy import PROBLEM, client

CONFIG = LocalCondensation(images_per_class=2)


def update(id: int = 0, **tensors: Tensor) -> Update:
    return Update(client=client(id, CONFIG), tensors=tensors, stats={}, seconds=0, reused=False)


def condensed(*classes: int) -> dict[str, Tensor]:
    return {"images": torch.rand(2 * len(classes), 1, 28, 28), "classes": torch.tensor(classes)}


def test_images_get_their_labels_and_bytes_become_pixels() -> None:
    one, other = condensed(0, 2), condensed(2)
    data = condensed_data([update(0, **one), update(1, **other)], PROBLEM, CONFIG)
    assert data["labels"].tolist() == [0, 0, 2, 2, 2, 2]
    assert torch.equal(data["images"], torch.cat([one["images"], other["images"]]))
    as_bytes = LocalCondensation(images_per_class=2, pixels="uint8")
    sent = {**other, "images": (other["images"] * 255).to(torch.uint8)}
    data = condensed_data([update(0, **sent)], PROBLEM, as_bytes)
    torch.testing.assert_close(data["images"] * 255, sent["images"].float())


def test_nothing_from_anybody_is_one_clear_error() -> None:
    nothing = {"images": torch.empty(0, 1, 28, 28), "classes": torch.empty(0, dtype=torch.int64)}
    with pytest.raises(ValueError, match="no client condensed any class"):
        condensed_data([update(0, **nothing)], PROBLEM, CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": torch.tensor([2, 0])}, r"client 4 sent impossible classes \[2, 0\]"),
        ({"classes": torch.tensor([0, 0])}, "impossible classes"),
        ({"classes": torch.tensor([0, 3])}, "impossible classes"),
        ({"classes": torch.tensor([-1, 0])}, "impossible classes"),
        ({"classes": torch.tensor([0.0, 2.0])}, "impossible classes"),
        ({"images": torch.rand(3, 1, 28, 28)}, r"images as torch.float32 \(3, 1, 28, 28\)"),
        ({"images": torch.zeros(4, 1, 28, 28, dtype=torch.uint8)}, "images as torch.uint8"),
        ({"images": torch.full((4, 1, 28, 28), math.inf)}, "pixels above"),
    ],
)
def test_impossible_images_are_refused(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        condensed_data([update(4, **{**condensed(0, 2), **changes})], PROBLEM, CONFIG)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(ValueError, match="client 4 sent no images"):
        condensed_data([update(4, classes=torch.tensor([0]))], PROBLEM, CONFIG)


def test_rows_are_averaged_over_those_who_have_the_class() -> None:
    one, other = torch.arange(9.0).view(3, 3), 10 * torch.ones(3, 3)
    one[1], other[1], other[2] = 0, 0, 0
    updates = [update(k, v=own, soft_labels=own) for k, own in enumerate((one, other))]
    mean = mean_over_holders(updates, "v", PROBLEM)
    assert mean[0].tolist() == [5.0, 5.5, 6.0]  # both
    assert mean[1].isnan().all()  # nobody
    assert mean[2].tolist() == [6.0, 7.0, 8.0]  # one client only


@pytest.mark.parametrize(
    "sent",
    [torch.zeros(3, 2), torch.zeros(3, 3).double(), torch.ones(3, 3)],
)
def test_impossible_rows_are_refused(sent: Tensor) -> None:
    with pytest.raises(ValueError, match="client 4 sent v "):
        mean_over_holders([update(4, v=sent, soft_labels=torch.zeros(3, 3))], "v", PROBLEM)
