"""Malformed files: data that is right, or one line that names the file, exit status 2, no more."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cluster.launch import main
from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from fl.data.catalogue import read_arrays, read_path
from fl.data.files import read_image
from fl.data.partition_file import read_lists
from fl.errors import UserError
from tests.cluster.run import corpus
from tests.cluster.run.corpus import IMAGES, LABELS

SMALL = ("--runtime=inprocess", "--method=fedavg", "--num-clients=2", "--num-large=2")


def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str, named: str = ""
) -> str:
    """The one line on stderr with which the command ends; nothing is written."""
    out = tmp_path / "out"
    assert main([f"--output-dir={out}", *SMALL, *arguments]) == 2
    line = capsys.readouterr().err
    assert line.startswith("onefold: ")
    assert line.count("\n") == 1
    assert len(line) < 500
    assert named in line
    assert not out.exists()
    return line


def line_of(read: Callable[..., object], *given: object) -> str | None:
    """The line by which it is refused; None where it is read."""
    try:
        read(*given)
    except UserError as error:
        return str(error)
    return None


def test_a_damaged_archive_is_read_or_named(tmp_path: Path) -> None:
    file, kept = tmp_path / "d.npz", 0
    for content in corpus.damaged_archives():
        file.write_bytes(content)
        line = line_of(read_arrays, file, ("images", "labels"))
        kept += line is None
        assert line is None or str(file) in line
        assert "allow_pickle=`" not in str(line)  # no advice to trust it
    assert kept > 50


@pytest.mark.parametrize("name", corpus.arrays())
def test_arrays_that_are_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    given, said = corpus.arrays()[name]
    np.savez(tmp_path / "d.npz", **({"images": IMAGES, "labels": LABELS} | given))
    if name in ("half", "deep", "signed", "bright", "no sides"):  # not for every model
        line = refused(tmp_path, capsys, f"--dataset={tmp_path}/d.npz")
    else:
        line = str(line_of(read_path, f"{tmp_path}/d.npz"))
        assert "d.npz" in line
    assert said in line


def test_an_archive_is_of_images_and_labels_that_are_there(tmp_path: Path) -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    other = corpus.archive({"a.npy": corpus.npy(IMAGES)})
    file = tmp_path / "d.npz"
    for content, said in ((corpus.headed(header), "cannot read"), (other, "has the arrays a")):
        file.write_bytes(content)
        assert said in str(line_of(read_arrays, file, ("images", "labels")))


def test_an_archive_that_is_larger_than_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "d.npz", images=np.zeros(10**6, np.uint8), labels=LABELS)
    sizes = {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr("fl.data.catalogue.os.sysconf", sizes.__getitem__)
    with pytest.raises(UserError, match="more than this machine's memory"):
        read_arrays(tmp_path / "d.npz", ("images", "labels"))


def test_a_damaged_image_is_read_or_named(tmp_path: Path) -> None:
    kept = 0
    for suffix, content in corpus.damaged_images():
        file = tmp_path / f"x{suffix}"
        file.write_bytes(content)
        line = line_of(read_image, file)
        kept += line is None
        assert line is None or str(file) in line
    assert kept > 5


def test_whatever_an_images_decoder_raises_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (IndexError("x"), TypeError("x"), MemoryError(), ZeroDivisionError("x")):

        def fails(*given: object, error: Exception = error, **named: object) -> None:
            raise error

        monkeypatch.setattr("PIL.Image.open", fails)
        with pytest.raises(UserError, match=r"cannot read image .*x\.png"):
            read_image(tmp_path / "x.png")


@pytest.mark.parametrize("name", corpus.partitions())
def test_a_partition_file_that_is_none(tmp_path: Path, name: str) -> None:
    content, said = corpus.partitions()[name]
    (tmp_path / name).write_bytes(content)
    line = str(line_of(read_lists, tmp_path / name, 2, len(LABELS)))
    assert said in line
    assert name in line
    assert "\n" not in line
    assert len(line) < 400


def test_the_command_refuses_such_a_partition_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "far.json").write_text("[[0, 1000000000], [2]]")
    given = ["--partition.kind=file", f"--partition.file={tmp_path}/far.json"]
    assert "sample 1000000000" in refused(tmp_path, capsys, *given, named="far.json")


@pytest.mark.parametrize(("said", "code"), corpus.PLUGINS.items(), ids=list(corpus.PLUGINS))
def test_a_plugin_that_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, code: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    line = refused(tmp_path, capsys, f"--plugin={tmp_path}/mine.py", named="mine.py")
    assert said in line
    assert "importlib" not in line


@pytest.mark.parametrize(("said", "code"), corpus.MODELS.items(), ids=list(corpus.MODELS))
def test_a_model_that_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, code: str
) -> None:
    text = f"import onefold\nfrom torch import nn\nclass Net(nn.Module):\n  {code}\n"
    (tmp_path / "mine.py").write_text(f"{text}onefold.register_model('net', Net)")
    given = [f"--plugin={tmp_path}/mine.py", "--classifier.model=net"]
    assert f"model net fails on images of shape (2, 1, 28, 28): {said}" in refused(
        tmp_path, capsys, *given
    )


def folder(path: Path, *classes: bytes) -> Path:
    """Two images for each class."""
    content = corpus.io.BytesIO()
    corpus.Image.fromarray(IMAGES[0]).save(content, "PNG")
    for name in classes:
        where = os.path.join(os.fsencode(path), name)
        os.makedirs(where)
        for file in (b"1.png", b"\xff.png"):
            with open(os.path.join(where, file), "wb") as stream:
                stream.write(content.getvalue())
    return path


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"a\nb", b"\x1b[31m", b"x" * 250, "\u202eabc".encode(), b" "]
)
def test_a_class_whose_name_no_report_could_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: bytes
) -> None:
    """At the door, and not after all training."""
    path = folder(tmp_path / "d", name, b"b")
    line = refused(tmp_path, capsys, f"--dataset={path}")
    assert "allowed: 1 to 100 characters of UTF-8 that can be printed" in line
    domain = [f"--data.folder={tmp_path}", "--dataset=folder", "--partition.kind=domains"]
    assert "allowed: 1 to 100 characters" in refused(tmp_path, capsys, *domain)


def test_images_below_a_classs_folder_are_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for nested in ("a", "a/b"):
        path = folder(tmp_path / nested.replace("/", "-"), b"cat", b"dog", b"cat/small")
        line = refused(tmp_path, capsys, f"--dataset={path}")
        assert "cat holds the folder small with images; expected" in line
    path = folder(tmp_path / "deep", b"train/cat", b"train/dog")
    assert "train holds the folder " in refused(tmp_path, capsys, f"--dataset={path}")
    path = folder(tmp_path / "loose", b"cat", b"dog")
    (path / "cat" / "1.png").rename(path / "1.png")
    with pytest.raises(UserError, match="samples"):
        prepare(parse([f"--dataset={path}", *SMALL]))
    assert "with images: 1.png" in caplog.text


def test_many_classes_are_cut_in_time_that_grows_with_their_number() -> None:
    """One label of 99,999 took minutes; it is refused, and as many classes take seconds."""
    from fl.data.partition import dirichlet_lists

    labels, rng = np.arange(4000), np.random.default_rng(0)
    lists = dirichlet_lists(labels, 4, 4000, alpha=0.5, min_samples=10, rng=rng)
    assert sorted(np.concatenate(lists)) == list(labels)
