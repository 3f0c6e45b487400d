"""Data sets by Hugging Face's names: from the local cache, and never from the network."""

from pathlib import Path

import numpy as np
import pytest

from fl.data.catalogue import load, short_name
from fl.data.own import read_hugging_face
from fl.errors import UserError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set that was loaded once, whose own files are gone."""
    read_hugging_face.cache_clear()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    images = np.arange(30 * 64).reshape(30, 8, 8).astype(np.uint8)
    columns = {"image": list(images), "label": [k % 3 for k in range(30)]}
    kinds = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
    }
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    (tmp_path / "own-digits").mkdir()
    for part in ("train", "test"):
        made.to_parquet(tmp_path / "own-digits" / f"{part}.parquet")
    datasets.load_dataset(str(tmp_path / "own-digits"))
    return "hf:own-digits"


def test_a_data_set_of_the_cache_is_loaded_by_its_name(cached: str) -> None:
    found = load(cached, Path("nowhere"), max_train=20)
    assert (len(found.train.labels), len(found.test.labels)) == (20, 30)
    assert found.class_names == ("a", "b", "c")
    assert found.test.images[3, 0, 0].tolist() == list(range(192, 200))
    assert short_name(cached) == "own-digits"


def test_what_the_cache_lacks_is_refused_in_a_line_that_says_how_to_fetch_it(cached: str) -> None:
    with pytest.raises(UserError, match=r"^hf:not-there is not in Hugging Face's cache") as refused:
        load("hf:not-there", Path("nowhere"))
    assert "load_dataset('not-there')" in str(refused.value)
    assert "\n" not in str(refused.value)
