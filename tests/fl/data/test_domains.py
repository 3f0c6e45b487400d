"""A folder of domains: read, split, dealt one domain a client, and refused in one line."""

from pathlib import Path

import numpy as np
import pytest

from fl.data.catalogue import load_domains
from fl.data.partition import PartitionConfig, make_partition
from fl.errors import UserError
from tests.fl.data.domain_folder import CLASSES, SHADES, tree


def test_every_image_is_in_one_split_with_its_class_and_domain(tmp_path: Path) -> None:
    data = load_domains(tree(tmp_path), side=8, seed=0)
    assert (data.domain_names, data.class_names) == (tuple(sorted(SHADES)), CLASSES)
    assert data.image_shape == (3, 8, 8)
    assert (len(data.train.labels), len(data.test.labels)) == (24, 6)
    seen = set()
    for split in (data.train, data.test):
        assert split.domains is not None
        rows = zip(split.images, split.labels, split.domains, strict=True)
        for image, label, domain in rows:
            shade = SHADES[data.domain_names[domain]] + 10 * label
            assert image.min() == image.max()
            assert shade <= image.max() < shade + 5
            seen.add(int(image.max()))
    assert len(seen) == 30
    assert np.bincount(data.test.domains).tolist() == [2, 2, 2]


def test_the_seed_draws_the_split(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    one, same, other = (load_domains(folder, 4, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.test.images, same.test.images)
    assert not np.array_equal(one.test.images, other.test.images)


def test_each_client_has_a_domain(tmp_path: Path) -> None:
    train = load_domains(tree(tmp_path), 4, 0).train
    config = PartitionConfig(kind="domains", min_samples=1)

    def deal(clients: int):  # type: ignore[no-untyped-def]
        return make_partition(
            train.labels, clients, 2, config, alpha=1.0, seed=0, domains=train.domains
        )

    for number, own in enumerate(deal(3).train):
        assert train.domains is not None
        assert set(train.domains[own]) == {number}
        assert len(own) == 8
    with pytest.raises(UserError, match="num_clients must be 3, got 2"):
        deal(2)


def test_a_domain_may_lack_a_class(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    for image in (folder / "real" / "axe").iterdir():
        image.unlink()
    (folder / "real" / "axe").rmdir()
    data = load_domains(folder, 4, 0)
    assert data.train.domains is not None
    assert set(data.train.labels[data.train.domains == 1]) == {1}


def broken(folder: Path, how: str) -> Path:
    if how == "missing":
        return folder / "nowhere"
    if how == "no domains":
        return folder / "clipart" / "axe"
    if how == "no classes":
        (folder / "real2").mkdir()
    if how == "damaged":
        (folder / "real" / "axe" / "0.png").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing", "nowhere: No such file"),
        ("no domains", "holds no folders of domains; expected FOLDER/domain/class/image"),
        ("no classes", "real2 holds no folders with images"),
        ("damaged", r"cannot read image .*real/axe/0.png"),
    ],
)
def test_a_malformed_folder_is_refused_in_one_line(tmp_path: Path, how: str, said: str) -> None:
    folder = broken(tree(tmp_path), how)
    with pytest.raises(UserError, match=said) as raised:
        load_domains(folder, 4, 0)
    assert "\n" not in str(raised.value)
