"""The oracle: it knows the real images, and the labels of synthetic ones that are right."""

import pytest
import torch

from fl.metrics import samples
from fl.metrics.samples import ask_oracle
from tests.fl.devices import EXACT, Where, on_both
from tests.fl.methods.tiny import tiny_data


def test_labels_are_confirmed_where_they_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real images as synthetic ones, of which the second half have wrong labels."""
    monkeypatch.setattr(samples, "STEPS", 100)
    data = tiny_data(train=300, test=100)
    images = torch.from_numpy(data.train.images).float() / 255
    labels = torch.from_numpy(data.train.labels).clone()
    teacher = 8.0 * torch.nn.functional.one_hot(labels, 10)
    labels[150:] = (labels[150:] + 1) % 10
    synthetic = {"images": images, "labels": labels, "kept": torch.arange(300)}
    found = ask_oracle(data, {**synthetic, "teacher_logits": teacher}, torch.device("cpu"))
    assert found["accuracy"] > 0.7
    assert found["agreement"] == pytest.approx(0.5, abs=0.1)
    assert found["teacher"]["agreement"] > 0.85
    assert found["teacher"]["agreement_where_confirmed"] > 0.95


@pytest.mark.gpu
def test_a_gpus_oracle_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "STEPS", 3)
    data = tiny_data(train=48, test=20)

    def work(where: Where) -> dict[str, float]:
        images = torch.from_numpy(data.train.images).float().to(where.device) / 255
        labels = torch.from_numpy(data.train.labels).to(where.device)
        kept = torch.arange(20, device=where.device)
        synthetic = {"images": images, "labels": labels, "kept": kept}
        return ask_oracle(data, synthetic, where.device)

    on_cpu, on_gpu = on_both(work)
    assert on_gpu == pytest.approx(on_cpu, rel=1e-5 if EXACT else 1e-3)
