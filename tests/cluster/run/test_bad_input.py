"""Whatever is wrong with what a user gives: one line, at once, and nothing written."""

import io
import json
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import GenericAlias

import numpy as np
import pytest

from cluster.run.command_line import parse, setting_types
from cluster.run.options import LaunchOptions
from cluster.run.prepare import prepare
from cluster.run.run_dir import check_place
from fl.bounds import AtMost, Within, bounds_in
from fl.errors import UserError
from fl.methods.registry import METHODS, get_method

AT_ONCE_S = 30.0
CHECKED_WITH_OTHERS = {"betas"}
"""A pair or a word, which its record checks itself."""
IMAGES = np.zeros((40, 8, 8), np.uint8)
LABELS = np.arange(40) % 4


@pytest.mark.parametrize("method", METHODS)
def test_every_number_of_every_method_has_an_upper_bound(method: str) -> None:
    record = GenericAlias(LaunchOptions, (get_method(method).config,))
    for name, kind in setting_types(record):
        numeric = any(word in str(kind) for word in ("<class 'int'>", "<class 'float'>"))
        numeric |= str(kind).startswith(("int", "float", "typing.Optional[typing.Annotated[int"))
        if numeric and name not in CHECKED_WITH_OTHERS:
            finite = [b for b in bounds_in(kind) if isinstance(b, AtMost | Within)]
            assert finite, f"{name}: {kind}"


def ready(arguments: list[str]) -> None:
    launch = parse(arguments)
    check_place(launch)
    prepare(launch)


def refused(tmp_path: Path, *arguments: str) -> str:
    """The line by which the launch is refused; nothing is written, and it takes no time."""
    out = tmp_path / "out"
    began = time.monotonic()
    with pytest.raises(UserError) as refusal:
        ready([f"--output-dir={out}", "--runtime=inprocess", *arguments])
    assert time.monotonic() - began < AT_ONCE_S
    line = str(refusal.value)
    assert "\n" not in line
    assert len(line.partition("; valid: ")[0]) < 400  # what is valid is listed whole
    assert not out.exists()
    return line


@pytest.mark.parametrize("name", ["", ".", "..", "../../x", "/x", "a/b", "a\nb", "[/x]", "x" * 300])
def test_a_name_that_is_no_folder_of_its_own(tmp_path: Path, name: str) -> None:
    assert "name must be" in refused(tmp_path, f"--name={name}", "--overwrite")


NUMBERS = [
    ("--betas nan 1", "betas"),
    ("--betas inf 1", "betas"),
    ("--method=dense --ce=nan", "ce must be"),
    ("--method=dense --bn=inf", "bn must be"),
    ("--method=dense --adv=nan", "adv must be"),
    ("--method=co-boosting --perturbation=inf", "perturbation must be"),
    ("--num-clients=1000000000", "num_clients must be at most"),
    ("--num-samples=1000000000000000", "num_samples must be at most"),
    ("--classifier.width=1e9", "classifier.width must be at most"),
    ("--classifier.epochs=1000000000000", "classifier.epochs must be at most"),
    ("--num-classifiers=99999999999999999999", "num_classifiers must be at most"),
    ("--seed=999999999999999999999999", "seed must be"),
    ("--fusion.lr=1e300", "fusion.lr must be at most"),
    ("--num-clients=200000", "samples"),
    ("--classifier.width=1000 --classifier.model=vgg9", "of weights"),
    ("--generator.width=1000 --generator.latent=10000000", "of weights"),
]


@pytest.mark.parametrize(("arguments", "said"), NUMBERS)
def test_a_number_that_no_machine_could_use(tmp_path: Path, arguments: str, said: str) -> None:
    assert said in refused(tmp_path, *arguments.split())


def bomb() -> str:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(["a0: &a0 [x]", *levels])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested more than"),
        (bomb().encode(), "aliases"),
        (b"- 1\n- 2", "must hold a mapping"),
        (b"#" * (5 * 2**20), "larger than"),
        (b"\xff\xfe\x00", "cannot read"),
        (b"a: [1", "cannot read"),
        (b"1: 2", "unknown setting"),
        (b"alpha: {a: 1}", "unknown setting"),
        (b"overwrite: []", "overwrite must be true or false"),
        (b"overwrite: 'no'", "overwrite must be true or false"),
        (b"dataset: --overwrite", "dataset cannot be '--overwrite'"),
    ],
    ids=[
        *("deep", "bomb", "list", "large", "binary", "broken", "number", "nested"),
        *("no flag", "word as flag", "another option"),
    ],
)
def test_a_configuration_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    assert said in refused(tmp_path, f"--config={tmp_path / 'c.yaml'}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--config=", "cannot read ."),
        ("--preset=", "unknown preset ''"),
        ("--plugin=folder", "has no code of a file"),
        ("--output-dir=\udcff", "cannot be printed"),
        ("--output-dir=a\nb", "cannot be printed"),
    ],
)
def test_what_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert said in refused(tmp_path, given)


def test_a_folder_as_configuration(tmp_path: Path) -> None:
    assert "Is a directory" in refused(tmp_path, f"--config={tmp_path}")


def claiming(shape: str) -> bytes:
    """An .npz whose arrays claim a shape and hold nothing."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (117 - len(head)) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in ("images", "labels"):
            file.writestr(f"{name}.npy", array)
    return out.getvalue()


def saved(**arrays: object) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)  # type: ignore[arg-type]


def written(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


ARRAYS = {
    "objects": (saved(images=IMAGES, labels=LABELS.astype(object)), "cannot read"),
    "million millions": (written(claiming("(1000000, 1000000)")), "more than there is"),
    "overflowing": (written(claiming("(4294967296, 4294967296)")), "more than there is"),
    "no archive": (written(b"PK\x03\x04 and no more"), "cannot read"),
    "one array": (written(b"\x93NUMPY"), "cannot read"),
    "nothing": (written(b""), "cannot read"),
    "other arrays": (saved(a=IMAGES), "has the arrays a"),
    "bright": (saved(images=IMAGES + 2.0, labels=LABELS), "pixels from 2"),
    "not numbers": (saved(images=IMAGES * np.nan, labels=LABELS), "pixels from nan"),
    "lengths": (saved(images=IMAGES, labels=LABELS[:7]), "40 images but 7 labels"),
    "negative": (saved(images=IMAGES, labels=LABELS - 1), "label -1"),
    "large": (saved(images=IMAGES, labels=LABELS + 10**15), "label 100000000000000"),
    "float labels": (saved(images=IMAGES, labels=LABELS / 0.5), "labels of type"),
    "no samples": (saved(images=IMAGES[:0], labels=LABELS[:0]), "no training samples"),
}


@pytest.mark.parametrize(("make", "said"), ARRAYS.values(), ids=list(ARRAYS))
def test_arrays_that_are_no_data(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "d.npz")
    assert said in refused(tmp_path, f"--dataset={tmp_path / 'd.npz'}")


def test_an_archive_that_claims_what_it_cannot_hold(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    np.savez_compressed(file, images=np.zeros(10**6, np.uint8), labels=LABELS)
    content = bytearray(file.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    file.write_bytes(content)
    assert "which it cannot hold" in refused(tmp_path, f"--dataset={file}")


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims that size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [png(40_000, 40_000), b"no image", b"", png(8, 8)[:40]],
    ids=["enormous", "text", "empty", "cut"],
)
def test_images_that_are_none(tmp_path: Path, content: bytes) -> None:
    for label in "ab":
        (tmp_path / "d" / label).mkdir(parents=True)
        (tmp_path / "d" / label / "1.png").write_bytes(content)
    assert "cannot read image" in refused(tmp_path, f"--dataset={tmp_path}/d")
    domain = [f"--data.folder={tmp_path}", "--dataset=folder", "--partition.kind=domains"]
    assert "cannot read image" in refused(tmp_path, *domain, "--method=fedavg", "--num-clients=1")


CUTS = [
    ([[0.5, 1.5], [2]], "whole numbers"),
    ([[0, -1], [2]], "sample -1"),
    ([[0, 10**9], [2]], "sample 1000000000"),
    ([[0, 10**30], [2]], "whole numbers"),
    ([[0, 0], [2]], "gives sample 0"),
    ([[0, 1], [1]], "gives sample 1"),
    ([[0, 1], []], "without a training sample"),
    ([[0, 1]], "has 1 clients"),
    ({"a": 1}, "a list of indices"),
    ([[[0]], [1]], "whole numbers"),
]


@pytest.mark.parametrize(("cut", "said"), CUTS)
def test_a_partition_that_is_none(tmp_path: Path, cut: object, said: str) -> None:
    (tmp_path / "p.json").write_text(json.dumps(cut))
    given = ["--partition.kind=file", f"--partition.file={tmp_path / 'p.json'}"]
    assert said in refused(tmp_path, *given, "--num-clients=2")


@pytest.mark.parametrize("name", ["p.json", "p.npz"])
def test_a_partition_file_that_is_no_partition(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"[" * 100_000)
    given = ["--partition.kind=file", f"--partition.file={tmp_path / name}"]
    assert "cannot read" in refused(tmp_path, *given)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def f(:", "SyntaxError"),
        ("raise ValueError('a\\nb' * 900)", "ValueError"),
    ],
)
def test_a_plugin_that_fails(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    assert said in refused(tmp_path, f"--plugin={tmp_path / 'mine.py'}")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(UserError, match=r"is a file|cannot write to"):
            check_place(parse([f"--output-dir={tmp_path / place}"]))
    (tmp_path / ".store").touch()
    with pytest.raises(UserError, match="must be a folder"):
        check_place(parse([f"--output-dir={tmp_path}"]))
