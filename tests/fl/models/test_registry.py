"""Building by name: shapes, widths, outputs, and what is refused."""

import pytest
import torch
from table2 import parameters

from fl.errors import UserError
from fl.models.common import paper_form, scaled, state_sent
from fl.models.registry import (
    CLASSIFIERS,
    GENERATORS,
    build_classifier,
    build_generator,
    classifier_bytes,
)

GRAY, COLOR = (1, 28, 28), (3, 32, 32)
PLAIN = ("vgg9", "cnn")  # the deep ones take seconds to build: see architectures/test_deep.py
IMAGES = [(GRAY, 10), (GRAY, 47), (COLOR, 10), (COLOR, 100)]
GENERATOR_IMAGES = [
    (name, shape, classes)
    for name in GENERATORS
    for shape, classes in IMAGES
    if not (name == "cvae-cifar" and shape == GRAY)
]


def test_names():
    assert {"vgg9", "cnn", "convnet", "resnet18", "resnet50"} < set(CLASSIFIERS)
    assert {"efficientnet-v2", "mobilenet-v2"} < set(CLASSIFIERS)
    assert set(GENERATORS) == {"cvae-small", "cvae-large", "cvae-cifar"}


@pytest.mark.parametrize(
    ("shape", "classes", "form"),
    [
        (GRAY, 10, "mnist"),
        (GRAY, 11, "mnist"),
        (GRAY, 12, "emnist"),
        (GRAY, 47, "emnist"),
        ((1, 32, 32), 10, "emnist"),
        (COLOR, 10, "svhn"),
        (COLOR, 100, "svhn"),
    ],
)
def test_paper_form(shape, classes, form):
    assert paper_form(shape, classes) == form


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [(name, *images) for name in PLAIN for images in IMAGES] + GENERATOR_IMAGES,
)
def test_width_is_monotone(name, shape, classes):
    build = build_classifier if name in PLAIN else build_generator
    with torch.device("meta"):
        sizes = [
            parameters(build(name, shape, classes, width=width))
            for width in (0.001, 0.1, 0.25, 0.5, 1.0, 1.5)
        ]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_bytes_of_a_classifier_are_those_of_its_weights_and_no_weight_is_drawn(name):
    before = torch.get_rng_state()
    told = classifier_bytes(name, (3, 32, 32), 7, width=0.1)
    assert torch.equal(before, torch.get_rng_state())
    state = state_sent(build_classifier(name, (3, 32, 32), 7, width=0.1))
    assert told == sum(t.numel() * t.element_size() for t in state.values())


def test_scaled_rounds_and_stays_positive():
    assert [scaled(10, width) for width in (1.0, 0.25, 0.16, 0.001)] == [10, 2, 2, 1]


@pytest.mark.parametrize(
    ("build", "name", "shape", "message"),
    [
        (build_classifier, "vgg", GRAY, "unknown classifier 'vgg'; valid: cnn, con"),
        (build_classifier, "cvae-small", GRAY, "unknown classifier 'cvae-small'"),
        (build_generator, "cnn", GRAY, "unknown generator 'cnn'; valid: cvae-cifar, cvae-large, c"),
        (build_classifier, "vgg9", (1, 7, 28), "vgg9 does not take images of shape"),
        (build_classifier, "resnet50", (1, 16, 28), "1 or 3 channels and sides above 16"),
        (build_classifier, "cnn", (2, 28, 28), "images of 1 or 3 channels and sides of"),
        (build_generator, "cvae-cifar", GRAY, "color images with sides divisible by 8"),
        (build_generator, "cvae-small", (3, 28, 28), "divisible by 4 (gray) or 8"),
        (build_generator, "cvae-large", (1, 30, 28), "sides divisible by 4"),
        (build_generator, "cvae-large", (1, 0, 0), "sides divisible by 4"),
    ],
)
def test_refusals_are_one_line(build, name, shape, message):
    with pytest.raises(UserError) as error:
        build(name, shape, 10)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
