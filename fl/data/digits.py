"""The `digits` data set: 1,797 handwritten digits of 8x8 pixels, which need no download.

They are the test half of UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, 1998, CC BY 4.0), in scikit-learn's version, stored beside this file: importing
scikit-learn itself would cost every run more than two seconds.
"""

from importlib import resources

import numpy as np

SIDE = 28

Arrays = tuple[np.ndarray, np.ndarray]


def read_digits() -> tuple[Arrays, Arrays]:
    """Returns (images, labels) of the train split and of the test split.

    Images are uint8 (N, 1, 28, 28), labels int64 (N,). The 80/20 split is stratified and fixed.
    """
    with (resources.files(__package__) / "digits.npz").open("rb") as file, np.load(file) as raw:
        train, test = (
            (enlarge(raw[f"{split}_images"])[:, None], raw[f"{split}_labels"].astype(np.int64))
            for split in ("train", "test")
        )
    return train, test


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bilinear enlargement from (N, 8, 8), whole values 0..16, to uint8 (N, 28, 28), 0..255.

    Integer arithmetic throughout: half intensity is exactly 127.5, which floats would round
    differently on different machines, and the content key of every shard with it.
    """
    target = np.arange(SIDE)
    # Pixel centres at (target + 1/2) * 8/28 - 1/2, counted in 14ths of a source pixel.
    position = np.clip(4 * target - 5, 0, 14 * 7)
    low, part = np.divmod(position, 14)
    weights = np.zeros((SIDE, 8), dtype=np.int64)
    weights[target, low] += 14 - part
    weights[target, np.minimum(low + 1, 7)] += part
    scaled = weights @ images.astype(np.int64) @ weights.T * 255
    full = 14 * 14 * 16
    return ((scaled + full // 2) // full).astype(np.uint8)
