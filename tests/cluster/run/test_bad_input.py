"""Whatever is wrong with what a user gives: one line, at once, and nothing written."""

import struct
import time
import zlib
from math import inf
from pathlib import Path
from types import GenericAlias

import numpy as np
import pytest

from cluster.run.command_line import parse, setting_types
from cluster.run.options import LaunchOptions
from cluster.run.prepare import prepare
from cluster.run.run_dir import check_place
from fl.bounds import Within, bounds_in
from fl.errors import UserError
from fl.methods.registry import METHODS, get_method

AT_ONCE_S = 30.0
CHECKED_WITH_OTHERS = {"betas"}
"""A pair or a word, which its record checks itself."""


@pytest.mark.parametrize("method", METHODS)
def test_every_number_of_every_method_has_an_upper_bound(method: str) -> None:
    record = GenericAlias(LaunchOptions, (get_method(method).config,))
    for name, kind in setting_types(record):
        numeric = any(word in str(kind) for word in ("<class 'int'>", "<class 'float'>"))
        numeric |= str(kind).startswith(("int", "float", "typing.Optional[typing.Annotated[int"))
        if numeric and name not in CHECKED_WITH_OTHERS:
            finite = [b for b in bounds_in(kind) if isinstance(b, Within) and b.high < inf]
            assert finite, f"{name}: {kind}"


def ready(arguments: list[str]) -> None:
    launch = parse(arguments)
    check_place(launch)
    prepare(launch)


def refused(tmp_path: Path, *arguments: str) -> str:
    """The line by which the launch is refused; nothing is written, and it takes no time."""
    out = tmp_path / "out"
    began = time.process_time()  # others may be at work too
    with pytest.raises(UserError) as refusal:
        ready([f"--output-dir={out}", "--runtime=inprocess", *arguments])
    assert time.process_time() - began < AT_ONCE_S
    line = str(refusal.value)
    assert "\n" not in line
    assert len(line.partition("; valid: ")[0]) < 400  # what is valid is listed whole
    assert not out.exists()
    return line


NUMBERS = [
    ("--betas nan 1", "betas"),
    ("--method=dense --ce=nan", "ce must be"),
    ("--num-clients=1000000000", "num_clients must be at most"),
    ("--classifier.width=1e9", "classifier.width must be at most"),
    ("--num-classifiers=99999999999999999999", "num_classifiers must be at most"),
    ("--seed=999999999999999999999999", "seed must be"),
    ("--fusion.lr=1e300", "fusion.lr must be at most"),
    ("--num-clients=20000", "samples"),
    ("--classifier.width=1000 --classifier.model=vgg9", "of weights"),
    ("--generator.width=1000 --generator.latent=10000000", "of weights"),
]


@pytest.mark.parametrize(("arguments", "said"), NUMBERS)
def test_a_number_that_no_machine_could_use(tmp_path: Path, arguments: str, said: str) -> None:
    assert said in refused(tmp_path, *arguments.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- 1\n- 2", "must hold a mapping"),
        (b"\xff\xfe\x00", "cannot read"),
        (b"a: [1", "cannot read"),
        (b"1: 2", "unknown setting"),
        (b"alpha: {a: 1}", "unknown setting"),
        (b"overwrite: 'no'", "overwrite must be true or false"),
        (b"dataset: --overwrite", "dataset cannot be '--overwrite'"),
    ],
)
def test_a_configuration_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    assert said in refused(tmp_path, f"--config={tmp_path / 'c.yaml'}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--name=../../x", "name must be"),
        ("--config=", "cannot read ."),
        ("--config=folder", "Is a directory"),
        ("--preset=", "unknown preset ''"),
        ("--plugin=folder", "is no module with a file"),
        ("--output-dir=\udcff", "cannot be printed: it is not UTF-8"),
        ("--output-dir=a\nb", "cannot be printed"),
    ],
)
def test_what_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert said in refused(tmp_path, given)


def test_an_archive_that_claims_what_it_cannot_hold(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    np.savez_compressed(file, images=np.zeros(10**6, np.uint8), labels=np.arange(40) % 4)
    content = bytearray(file.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    file.write_bytes(content)
    assert "more than its size allows" in refused(tmp_path, f"--dataset={file}")


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims that size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def test_an_image_that_claims_an_enormous_size(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / "d" / label).mkdir(parents=True)
        (tmp_path / "d" / label / "1.png").write_bytes(png(40_000, 40_000))
    assert "cannot read image" in refused(tmp_path, f"--dataset={tmp_path}/d")
    domain = [f"--data.folder={tmp_path}", "--dataset=folder", "--partition.kind=domains"]
    assert "cannot read image" in refused(tmp_path, *domain, "--method=fedavg", "--num-clients=1")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(UserError, match=r"is a file|cannot write to"):
            check_place(parse([f"--output-dir={tmp_path / place}"]))
    (tmp_path / ".store").touch()
    with pytest.raises(UserError, match="must be the folder"):
        check_place(parse([f"--output-dir={tmp_path}"]))
