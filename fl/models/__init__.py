"""Classifiers and generators, built by name.

>>> model = build_classifier("cnn", (1, 28, 28), 10)
>>> sum(p.numel() for p in model.parameters())
8490
"""

from fl.models.architectures.cvaes import CVAE, Decoder, elbo_losses, one_hot, sample
from fl.models.registry import (
    CLASSIFIERS,
    GENERATORS,
    build_classifier,
    build_generator,
    build_shell,
    check_classifier,
    check_generator,
    classifier_bytes,
    copied,
    in_fast_layout,
)

__all__ = [
    "CLASSIFIERS",
    "CVAE",
    "GENERATORS",
    "Decoder",
    "build_classifier",
    "build_generator",
    "build_shell",
    "check_classifier",
    "check_generator",
    "classifier_bytes",
    "copied",
    "elbo_losses",
    "in_fast_layout",
    "one_hot",
    "sample",
]
