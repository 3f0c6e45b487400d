"""Malformed files of the kinds that users bring, each made anew from one that is right."""

import io
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 256, (160, 8, 8), dtype=np.uint8)
LABELS = np.arange(160) % 4
FORMATS = {
    **{"PNG": ".png", "JPEG": ".jpg", "BMP": ".bmp", "WEBP": ".webp", "TIFF": ".tif"},
    **{"PPM": ".ppm", "GIF": ".png", "EPS": ".png", "PCX": ".png"},
}
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def archive(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of these."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return out.getvalue()


def npy(array: Any, **how: Any) -> bytes:
    """An array as NumPy saves one."""
    out = io.BytesIO()
    np.save(out, array, **how)
    return out.getvalue()


def headed(header: str) -> bytes:
    """An .npz whose images have that header and no content."""
    text = header.encode().ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    return archive({"images.npy": array, "labels.npy": npy(LABELS)})


def whole(compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An .npz that is right."""
    return archive({"images.npy": npy(IMAGES[:9]), "labels.npy": npy(LABELS[:9])}, compression)


def damaged_archives() -> Iterator[bytes]:
    """Archives cut short, with a byte of their structure turned over, or with wrong content."""
    for compression in COMPRESSIONS:
        good = whole(compression)
        yield from (good[:size] for size in (0, 1, 30, len(good) // 2, len(good) - 5))
        listed, ended = good.index(b"PK\x01\x02"), good.index(b"PK\x05\x06")
        for at in [*range(30), *range(listed, listed + 56), *range(ended, ended + 22)]:
            yield good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]
        for at in range(50, 500, 45):
            yield good[:at] + b"\xa5\x5a" * 5 + good[at + 10 :]
    deep = b"\x93NUMPY\x02\x00" + struct.pack("<I", 5000) + b"(" * 5000
    for content in (b"", b"hello", deep, npy(IMAGES)[:40], b"\x93NUMPY\x09\x00" + npy(IMAGES)[8:]):
        yield archive({"images.npy": content, "labels.npy": npy(LABELS)})
    for shape in ("('a',)", "(-40,)", "(0, 9223372036854775807, 9223372036854775807)", "3"):
        yield headed(f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}")
    yield headed("__import__('os').getcwd()")


def arrays() -> dict[str, tuple[dict[str, Any], str]]:
    """Arrays that are no data, and what is said of them."""
    some = np.arange(160) == 3
    return {
        "pickled": ({"labels": LABELS.astype(object)}, "Object arrays cannot be loaded"),
        "records": ({"labels": np.zeros(160, [("a", int)])}, "expected integers"),
        "words": ({"labels": LABELS.astype(str)}, "expected integers"),
        "spans of time": ({"labels": LABELS.astype("m8[s]")}, "expected integers"),
        "half": ({"labels": LABELS + 0.5}, "class label"),
        "one-hot": ({"labels": np.eye(4)[LABELS]}, "floats 0 or 1: give integers"),
        "unsigned": ({"labels": LABELS.astype(np.uint64) + np.uint64(2**63)}, "below 2**63"),
        "least": ({"labels": np.full(160, -(2**63))}, "label -9223372036854775808; allowed: 0"),
        "far": (
            {"labels": np.where(some, 99_999, LABELS)},
            "label 99999 is too large",
        ),
        "one number": ({"labels": np.int64(3)}, "an array is a single number"),
        "one image": ({"images": np.uint8(3)}, "an array is a single number"),
        "row": ({"labels": LABELS[None]}, "160 samples but 1 labels"),
        "flat": ({"images": IMAGES[:, 0, 0]}, "samples of type uint8 and shape (160,)"),
        "deep": ({"images": IMAGES[:, None, None]}, "does not take integers of shape (1, 1, 8, 8)"),
        "infinite": ({"images": np.full((160, 8, 8), np.inf)}, "NaN or infinite values"),
        "a hole": (
            {"images": np.where(some[:, None, None], np.nan, 0.5)},
            "NaN or infinite values",
        ),
        "complex": ({"images": IMAGES * 1j}, "samples of type complex128"),
        "signed": ({"images": IMAGES.astype(np.int8)}, "does not take integers of shape (8, 8)"),
        "no sides": ({"images": IMAGES[:, :0]}, "images of shape (1, 0, 8)"),
        "bright": ({"images": IMAGES + 2.0}, "does not take floats of shape (8, 8)"),
        "negative": ({"labels": LABELS - 1}, "label -1"),
        "lengths": ({"labels": LABELS[:7]}, "160 samples but 7 labels"),
        "one sample": ({"images": IMAGES[:1], "labels": LABELS[:1]}, "no test samples"),
    }


def damaged_images() -> Iterator[tuple[str, bytes]]:
    """Suffix and content of images cut short, changed at random, or of a kind that is not read."""
    colour = np.random.default_rng(1).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    for kind, suffix in FORMATS.items():
        out = io.BytesIO()
        Image.fromarray(colour).save(out, kind)
        good, rng = out.getvalue(), np.random.default_rng(2)
        yield from ((suffix, good[:size]) for size in (0, 1, 8, 20, 40, len(good) // 2))
        for _ in range(30):
            content = bytearray(good)
            near = rng.integers(0, 200, 6)  # where formats have their structure
            for at in [*near, *(len(good) - 1 - near)]:
                if 0 <= at < len(good):
                    content[at] = rng.integers(256)
            yield suffix, bytes(content)


def partitions() -> dict[str, tuple[bytes, str]]:
    """Partition files, for two clients of 128 samples, and what is said of them."""

    def npz(**given: Any) -> bytes:
        empty = {"test": np.zeros(0, np.int64), "test_counts": np.zeros(2, np.int64)}
        right = {"train": np.arange(4), "train_counts": np.array([2, 2]), **empty}
        right["samples"] = np.zeros(0, np.int64)  # not known
        return archive({f"{n}.npy": npy(a) for n, a in (right | given).items()})

    wrong_word = "must be a list of whole numbers"
    return {
        "latin.json": (b"[[0],[1]] \xff", "expected text in UTF-8"),
        "wide.json": ("[[0],[1]]".encode("utf-16"), "expected text in UTF-8"),
        "nothing.json": (b"", "cannot read"),
        "deep.json": (b"[" * 9999 + b"]" * 9999, "cannot read"),
        "digits.json": (b"[[0," + b"9" * 5000 + b"],[1]]", "cannot read"),
        "mapping.json": (b'{"train": [[0], [1]]}', "expected a list of indices"),
        "scalars.json": (b"[1, 2]", wrong_word),
        "words.json": (b'[["0"], ["1"]]', wrong_word),
        "null.json": (b"[[null], [1]]", wrong_word),
        "truth.json": (b"[[true], [1]]", wrong_word),
        "nan.json": (b"[[NaN], [1]]", wrong_word),
        "large.json": (b"[[9223372036854775808], [1]]", wrong_word),
        "ragged.json": (b"[[[0], [1, 2]], [1]]", "cannot read"),
        "negative.json": (b"[[0, -1], [2]]", "sample -1"),
        "far.json": (b"[[0, 1000000000], [2]]", "sample 1000000000"),
        "twice.json": (b"[[0, 0], [2]]", "gives sample 0"),
        "shared.json": (b"[[0, 1], [1]]", "gives sample 1"),
        "empty.json": (b"[[0, 1], []]", "no training sample"),
        "none.json": (b"[]", "has 0 clients, but num_clients is 2"),
        "spans.npz": (npz(train=np.arange(4).astype("m8[s]")), wrong_word),
        "halves.npz": (npz(train=np.arange(4) / 2), wrong_word),
        "unsigned.npz": (npz(train=np.array([0, 1, 2, 2**63 + 5], np.uint64)), wrong_word),
        "text.npz": (b"[" * 9999, "cannot read"),
        "single.npz": (npz(train=np.int64(3)), wrong_word),
        "wrapped.npz": (npz(train_counts=np.array([2**63 - 1, 2**63 - 1])), "must add up"),
        "three.npz": (npz(test_counts=np.zeros(3, np.int64)), "has 3 clients"),
        "lacking.npz": (archive({"train.npy": npy(LABELS)}), "has the arrays train; expected"),
    }


PLUGINS = {
    "BaseException": "raise BaseException('x')",
    "GeneratorExit": "raise GeneratorExit",
    "SystemExit: bye": "import sys\nsys.exit('bye')",
    "CancelledError": "import asyncio\nraise asyncio.CancelledError",
    "RecursionError": "def f(): f()\nf()",
    "line 2 of": "x = 1\ndef f(:",
    "null bytes": "x = '\0'",
    "it fails to say why": "class E(Exception):\n  def __str__(self): 1 / 0\nraise E",
    "ValueError": "raise ValueError('a\\nb' * 900)",
    "ZeroDivisionError": "import sys\ndel sys.modules[__name__]\n1 / 0",
    "data d: cannot be read as an array": (
        "import onefold\nonefold.register_dataset('d', [([[0.5]], [0] * k) for k in (1, 2, 3)])"
    ),
    "labels of type <U1": "import onefold\nonefold.register_dataset('d', [([[0.5]], 'a')] * 9)",
}
"""What is said of a plugin, by its code."""

MODELS = {
    "ZeroDivisionError": "def __init__(self): 1 / 0",
    "SystemExit": "def __init__(self): exit(0)",
    "SystemExit: 3": "def forward(self, x): exit(3)",
    "RecursionError": "def forward(self, x): return self.forward(x)",
    "E: it fails to say why": "def forward(self, x): raise type('E', (Exception,), {'__str__': 0})",
}
"""What is said of a model, by the body of its class."""
