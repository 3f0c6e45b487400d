"""The real images beside those that were sent: of the right class, of the right client."""

import numpy as np
import torch

from fl.data.datasets import Split
from fl.report.nearest_real import beside_real
from fl.wire import Tensors


def sent(*values_labels_clients: tuple[int, int, int]) -> Tensors:
    """Images of one value each."""
    values, labels, clients = (
        torch.tensor(row) for row in zip(*values_labels_clients, strict=True)
    )
    images = values.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return {"images": images.contiguous(), "labels": labels, "clients": clients}


def test_the_nearest_image_is_of_the_class_and_of_the_sender() -> None:
    values = np.array([10, 20, 30, 40, 21, 19], np.uint8)
    train = Split(
        values[:, None, None, None].repeat(2, 2).repeat(2, 3), np.array([0, 1, 0, 1, 1, 0])
    )
    shards = [np.array([3, 1, 0]), np.array([2, 4, 5])]
    found = beside_real(train, shards, sent((22, 0, 0), (22, 1, 0), (22, 0, 1), (22, 1, 1)))
    assert found["real"].dtype == torch.uint8
    assert found["real"].shape == found["images"].shape
    assert found["real"][:, 0, 0, 0].tolist() == [10, 20, 19, 21]
    assert found["clients"].tolist() == [0, 0, 1, 1]
