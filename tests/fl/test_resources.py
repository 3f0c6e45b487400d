"""Shares by role and by model."""

import pytest

from fl.errors import UserError
from fl.resources import ResourcesConfig, ShareConfig


def test_a_model_asks_for_what_its_role_says() -> None:
    config = ResourcesConfig(classifier=ShareConfig(cpus=2, gpus=0.3))
    assert config.share("classifier", "vgg9") == ShareConfig(cpus=2, gpus=0.3)
    assert config.share("generator", "cvae-small").shared


def test_a_model_set_by_hand_stands_above_its_role_and_leaves_others_alone() -> None:
    config = ResourcesConfig(
        classifier=ShareConfig(cpus=2, gpus=0.3),
        models=("vgg9.gpus=0.5", "vgg9.memory-bytes=1000", "cvae-small.cpus=1"),
    )
    assert config.share("classifier", "vgg9") == ShareConfig(cpus=2, gpus=0.5, memory_bytes=1000)
    assert config.share("classifier", "cnn") == ShareConfig(cpus=2, gpus=0.3)
    assert config.share("generator", "cvae-small") == ShareConfig(cpus=1, shared=True)


def test_any_role_has_a_share() -> None:
    config = ResourcesConfig(roles=("head.cpus=2", "head.shared=true"), models=("cnn.gpus=0.5",))
    assert config.share("head", "vgg9") == ShareConfig(cpus=2, shared=True)
    assert config.share("head", "cnn") == ShareConfig(cpus=2, gpus=0.5, shared=True)
    assert config.share("tail", "vgg9") == ShareConfig(cpus=1)
    with pytest.raises(UserError, match=r"use resources\.classifier"):
        ResourcesConfig(roles=("classifier.cpus=2",))
    with pytest.raises(UserError, match="'yes' is not true or false"):
        ResourcesConfig(roles=("head.shared=yes",))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("vgg.gpus=1", r"^models vgg\.gpus=1: unknown model 'vgg'; valid: .*vgg9"),
        ("vgg9.gpu=1", r"unknown quantity 'gpu'; valid: cpus, gpus, memory_bytes, shared"),
        ("vgg9.gpus", r"^models vgg9\.gpus: '' is not a number"),
        ("vgg9.gpus=half", r"'half' is not a number"),
        ("vgg9.gpus=nan", r"'nan' is not a number"),
        ("vgg9.memory-bytes=1.5", r"'1\.5' is not a number"),
        ("vgg9.gpus=1.5", r"vgg9\.gpus=1\.5: gpus must be in \[0, 1\], got 1\.5"),
        ("vgg9.cpus=0", r"must be a positive number"),
        ("vgg9.cpus=1.5", r"above 1 must be whole"),
        ("vgg9.memory_bytes=-1", r"must be at least 0"),
        ("=", r"unknown model"),
    ],
)
def test_an_entry_that_means_nothing_is_refused_in_one_line(entry: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ResourcesConfig(models=(entry,))
    assert "\n" not in str(caught.value)
