"""Classifiers and generators, built by name.

>>> model = build_classifier("cnn", (1, 28, 28), 10)
>>> sum(p.numel() for p in model.parameters())
8490
"""

from fl.models.copied import copied, shell
from fl.models.cvae import CVAE, Decoder, elbo_loss, elbo_losses, one_hot, sample
from fl.models.registry import (
    CLASSIFIERS,
    GENERATORS,
    ModelInfo,
    build_classifier,
    build_decoder,
    build_generator,
    check_classifier,
    check_generator,
)
from fl.models.shapes import ImageShape

__all__ = [
    "CLASSIFIERS",
    "CVAE",
    "GENERATORS",
    "Decoder",
    "ImageShape",
    "ModelInfo",
    "build_classifier",
    "build_decoder",
    "build_generator",
    "check_classifier",
    "check_generator",
    "copied",
    "elbo_loss",
    "elbo_losses",
    "one_hot",
    "sample",
    "shell",
]
