"""The `digits` data set: scikit-learn's 1,797 handwritten digits, which need no download."""

import numpy as np

SIDE = 28
TEST_SHARE = 0.2

Arrays = tuple[np.ndarray, np.ndarray]


def read_digits() -> tuple[Arrays, Arrays]:
    """Returns (images, labels) of the train split and of the test split.

    Images are uint8 (N, 1, 28, 28), labels int64 (N,). The 80/20 split is stratified and fixed.
    """
    # Imported here: it costs most of a second, which every client process would pay.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = enlarge(digits.images)[:, None]
    labels = digits.target.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_SHARE, random_state=0, stratify=labels
    )
    return (images[train], labels[train]), (images[test], labels[test])


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bilinear enlargement from (N, 8, 8), whole values 0..16, to uint8 (N, 28, 28), 0..255.

    Integer arithmetic throughout: half intensity is exactly 127.5, and with floats the machine
    would decide which way it rounds, and with it the content key of every shard.
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
