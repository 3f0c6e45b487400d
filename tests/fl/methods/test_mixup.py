"""Mixup: images between two, with targets between theirs."""

import torch
from torch import Tensor

from fl.federation import Batch
from fl.methods.fedmho_open import with_mixup


def lessons(size: int = 5) -> Batch:
    """Image i is all i, and its target is all on class i."""
    images = torch.arange(size).float().view(-1, 1, 1, 1).expand(size, 1, 2, 3)
    return {"images": images, "teacher_logits": torch.eye(size).clamp(min=1e-9).log()}


def mixed(share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    batch = with_mixup(lessons(), share, torch.Generator().manual_seed(seed))
    return batch["images"], batch["teacher_logits"]


def test_a_mixture_lies_between_two_lessons_in_image_and_target_alike() -> None:
    images, answers = mixed(40.0)
    assert len(images) == len(answers) == 5 + 200
    seen = set()
    for image, answer in zip(images[5:], answers[5:].exp(), strict=True):
        torch.testing.assert_close(answer.sum(), torch.tensor(1.0))
        told = (answer > 1e-6).nonzero().flatten().tolist()
        assert 1 <= len(told) <= 2
        expected = sum(c * float(answer[c]) for c in told)
        torch.testing.assert_close(image, torch.full_like(image, expected), atol=1e-4, rtol=1e-4)
        seen.update(told)
    assert seen == set(range(5))
    assert images[5:].std() > 0.5


def test_the_lessons_themselves_come_first_and_are_kept() -> None:
    for share, count in ((0.0, 5), (0.5, 7), (1.0, 10)):
        images, answers = mixed(share)
        assert len(images) == count
        assert torch.equal(images[:5], lessons()["images"])
        assert torch.equal(answers[:5], lessons()["teacher_logits"])


def test_the_generator_decides() -> None:
    assert torch.equal(mixed(1.0)[0], mixed(1.0)[0])
    assert not torch.equal(mixed(1.0)[0], mixed(1.0, seed=1)[0])
