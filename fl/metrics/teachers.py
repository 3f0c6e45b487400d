"""How far a teacher can be trusted on synthetic samples.

Where a teacher disagrees with a synthetic label, either may be wrong: a decoder does draw a 4 that
is a 9. So an oracle, a network trained on the real training images, is asked beside it. No method
knows its answers.
"""

import torch
from torch import Tensor

from fl.json_files import JsonObject


def describe_teacher(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """A teacher's answers against the synthetic labels, each figure 0 to 1.

    A teacher that disagrees with the labels does little harm while it is unsure, and much when it
    is confident: distillation then pulls the student towards its mistakes.

    Args:
        logits: (N, classes), the teacher's.
        labels: (N,), the classes the samples were drawn for; on any device, as large columns may
            be on the host.

    Returns:
        ``agreement`` with the labels, mean ``confidence`` (the largest probability), and
        ``confidence_when_wrong``, 0 where it is never wrong.
    """
    top, answer = logits.softmax(1).max(1)
    wrong = answer != labels.to(answer.device)
    return {
        "agreement": 1 - wrong.float().mean().item(),
        "confidence": top.mean().item(),
        "confidence_when_wrong": _mean(top[wrong]),
    }


def describe_oracle(oracle: Tensor, labels: Tensor, teacher: Tensor | None = None) -> JsonObject:
    """The oracle's answers against the synthetic labels, and the teacher's against both.

    Args:
        oracle: (N, classes), logits of a network trained on real images.
        labels: (N,), the classes the samples were drawn for.
        teacher: (N, classes), the teacher's logits; None for a method without one.

    Returns:
        As :func:`describe_teacher`, of the oracle. With a teacher also ``teacher``:
        :func:`describe_teacher` with the oracle's answers in place of the labels, and
        ``agreement_where_confirmed``, the share of samples on which the teacher gives the label, of
        those on which the oracle does (0 if it does nowhere).
    """
    labels, oracle = labels.cpu(), oracle.cpu()
    found: JsonObject = {**describe_teacher(oracle, labels)}
    if teacher is not None:
        answers, teacher = oracle.argmax(1), teacher.cpu()
        right = (teacher.argmax(1) == labels)[answers == labels]
        found["teacher"] = {
            **describe_teacher(teacher, answers),
            "agreement_where_confirmed": _mean(right),
        }
    return found


def _mean(values: Tensor) -> float:
    return values.to(torch.float32).mean().item() if len(values) else 0.0
