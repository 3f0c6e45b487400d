"""Whose labels are believed, and which classes get open-set samples."""

import numpy as np
import pytest
import torch

from fl.methods.trust import label_trust, open_quotas


def test_labels_are_trusted_by_what_generator_clients_hold() -> None:
    held, drawn = np.array([[6, 0, 4, 0], [3, 0, 0, 0]]), np.array([[1, 5, 4, 0]])
    assert label_trust(held, drawn, 100).tolist() == pytest.approx([0.1, 1, 0.5, 0])


def test_that_others_hold_many_more_of_a_class_does_not_make_its_labels_doubtful() -> None:
    for held in (30, 300, 3000):
        trust = label_trust(np.array([[held, held]]), np.array([[90, 1]]), 30)
        assert trust.tolist() == pytest.approx([0.75, 1 / 31])


def test_open_samples_go_to_classes_that_decoders_lack() -> None:
    held, drawn = np.array([[9, 0, 5, 0]]), np.array([[0, 5, 5, 0]])
    assert open_quotas(held, label_trust(held, drawn, 100), 30.0) == [20, 0, 10, 0]
    assert open_quotas(held * [[0, 1, 0, 1]], torch.ones(4), 30.0) == [0, 0, 0, 0]
