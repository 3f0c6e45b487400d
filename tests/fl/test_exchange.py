"""What is sent: packed, read back and checked, whoever sent it; what is mapped is read lean."""

import json
import platform
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl import exchange
from fl.exchange import (
    DTYPES,
    ClientNote,
    Header,
    Message,
    StoredTensors,
    Tensors,
    Upload,
    load_prefixed,
    num_bytes,
    pack,
    prefixed,
    readable_notes,
    unpack,
    visible,
)
from tests.fl.toy import same_bits

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "c": torch.ones(0)}
NOTE = {"seconds": 1.5, "stats": {"loss": 2.0}}
WHOLE = ClientNote(
    client=3, role="classifier", model="cnn", seconds=1.0, span=(2.0, 3.0), losses=[0.7, 0.5]
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(
    lambda shape, dtype: torch.arange(prod(shape)).view(shape).to(dtype),
    shapes,
    st.sampled_from([*DTYPES.values()]),
)


def message() -> bytes:
    return pack(TENSORS, NOTE)


@pytest.mark.parametrize("mapped", [False, True])
def test_tensors_and_note_are_read_as_they_were_packed(tmp_path: Path, mapped: bool) -> None:
    (tmp_path / "m").write_bytes(message())
    upload = Upload.in_file(tmp_path / "m") if mapped else Upload(message())
    assert same_bits(dict(upload), TENSORS)
    assert upload.note == ClientNote(seconds=1.5, stats={"loss": 2.0})
    assert bytes(upload) == message()


@settings(max_examples=50, derandomize=True)
@given(sent=st.dictionaries(st.text("ab.", min_size=1, max_size=3), tensors, max_size=3))
def test_tensors_arrive_as_they_were_sent(sent: Tensors) -> None:
    received, note = unpack(pack(sent, {"client": 3}))
    assert note == {"client": 3}
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype
        assert received[name].shape == tensor.shape
        assert torch.equal(received[name], tensor)


def test_tensors_come_in_the_same_order_in_every_process(tmp_path: Path) -> None:
    sent = {
        name: torch.zeros(1) for name in ["zebra", "apple", "mango", "kiwi", "fig", "plum", "date"]
    }
    packed = pack(sent, {})
    (tmp_path / "update").write_bytes(packed)
    order = sorted(sent)  # in which safetensors writes what has one type
    assert list(unpack(packed)[0]) == list(StoredTensors(tmp_path / "update")) == order


def test_views_and_parameters_can_be_sent() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    sent = {"turned": matrix.T, "row": matrix[1], "parameter": nn.Parameter(torch.ones(2))}
    received, _ = unpack(pack(sent, {}))
    assert torch.equal(received["turned"], matrix.T)
    assert torch.equal(received["row"], matrix[1])
    assert not received["parameter"].requires_grad


def changed(change: Callable[[dict[str, Any]], None], *, more: bytes = b"") -> bytes:
    """The message with another header."""
    content = message()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :] + more


def put(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(values)


REFUSED = {
    "nothing": (b"", "header is longer"),
    "a long header": ((2**63).to_bytes(8, "little") + b"{}", "header is longer"),
    "no JSON": (b"\x04\0\0\0\0\0\0\0oops", "cannot be read"),
    "no text": (b"\x02\0\0\0\0\0\0\0\xff\xfe", "cannot be read"),
    "a list": (b"\x02\0\0\0\0\0\0\0[]", "holds no names"),
    "deep": ((400_000).to_bytes(8, "little") + b"[" * 400_000, "nested too deeply"),
    "a pickle": (b"\x80\x04K*." + bytes(20), "header is longer"),
    "no note": (changed(lambda h: h.pop("__metadata__")), "without a note"),
    "a note of NaN": (pack({}, {"seconds": float("nan")}), "the note holds NaN"),
    "another type": (changed(put("a", dtype="C64")), "type that nobody sends"),
    "a negative side": (changed(put("a", shape=[-2, -3])), "impossible shape"),
    "a huge side": (changed(put("a", shape=[2**62, 2])), "impossible shape"),
    "another size": (changed(put("a", shape=[2, 4])), "is said to be"),
    "a shape of words": (changed(put("a", shape=["2", "3"])), "impossible shape"),
    "no place": (changed(put("a", data_offsets=None)), "impossible shape or place"),
    "bytes left over": (changed(lambda h: None, more=b"x"), "bytes of"),
    "an overlap": (changed(put("b", data_offsets=[0, 2])), "overlap"),
    "a number": (changed(lambda h: h.update(d=3)), "is no tensor"),
    "a name of control characters": (changed(lambda h: h.update({"\x1b[2J": h["c"]})), "name has"),
    "a long name": (changed(lambda h: h.update({"n" * 300: h["c"]})), "name has 300"),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_packed_message_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dict(Upload(content))


@settings(max_examples=100)
@given(st.data())
def test_whatever_is_done_to_a_message_it_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(message())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    try:
        tensors = dict(Upload(bytes(content[:cut])))
    except ValueError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


def test_the_parts_of_a_tensor_are_its_values_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PIECE_BYTES", 16)
    tensors = Upload(message())
    parts = [part.tolist() for part in tensors.parts("a")]
    assert parts == [[0, 1, 2, 3], [4, 5]]
    assert [*tensors.parts("c")] == []


def test_an_empty_file_is_no_message(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        Upload.in_file(tmp_path / "empty")


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_of_a_message_in_a_file_a_piece_at_a_time_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PIECE_BYTES", 2 << 20)
    content = torch.arange(4 << 20).to(torch.uint8).numpy().tobytes() * 4
    (tmp_path / "large").write_bytes(content)
    upload, before = Upload.in_file(tmp_path / "large"), mapped_bytes()
    together = bytearray()
    for piece in upload.pieces():
        together += piece
        assert mapped_bytes() - before <= 3 << 20  # of 16
    assert together == content == bytes(upload)
    assert mapped_bytes() - before <= 1 << 20


def mapped_bytes() -> int:
    """Of this process's memory, what is mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))


def test_the_ledger_counts_the_data_of_tensors_and_of_a_view_what_it_shows() -> None:
    tensors = {
        "weights": torch.zeros(3, 5),
        "halves": torch.zeros(4, dtype=torch.float16),
        "counts": torch.zeros(2, dtype=torch.int64),
        "nothing": torch.zeros(0),
    }
    assert num_bytes(tensors) == 3 * 5 * 4 + 4 * 2 + 2 * 8
    assert num_bytes({}) == 0
    assert num_bytes({"wide": torch.zeros(1).expand(100)}) == 400
    assert num_bytes({"narrow": torch.zeros(100)[:1]}) == 4


def net(seed: int = 0) -> nn.Sequential:
    """BatchNorm brings integer buffers along."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_a_module_arrives_whole_beside_other_tensors() -> None:
    sender, receiver = net(0), net(1)
    sender(torch.randn(8, 3))  # moves BatchNorm's counter
    message = {**prefixed("net", sender), "label_counts": torch.ones(3), "net2.x": torch.ones(1)}
    load_prefixed(receiver, message, "net", sender="client 4")
    for name, tensor in sender.state_dict().items():
        assert torch.equal(receiver.state_dict()[name], tensor)


def test_what_was_loaded_shares_no_memory_with_the_message() -> None:
    message = {name: t.clone() for name, t in prefixed("net", net(0)).items()}
    receiver = net(1)
    load_prefixed(receiver, message, "net", sender="client 4")
    message["net.0.weight"].zero_()
    assert receiver.state_dict()["0.weight"].abs().sum() > 0


def _without(message: Tensors) -> None:
    del message["net.0.bias"]


def _with_more(message: Tensors) -> None:
    message["net.2.weight"] = torch.zeros(1)


def _put(tensor: Tensor) -> Callable[[Tensors], None]:
    def put(message: Tensors) -> None:
        message["net.0.bias"] = tensor

    return put


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_without, "other tensors than net has: 0.bias"),
        (_with_more, "other tensors than net has: 2.weight"),
        (
            _put(torch.zeros(1)),
            r"net.0.bias as torch.float32 \(1,\), expected torch.float32 \(2,\)",
        ),
        (_put(torch.zeros(2, 1)), r"net.0.bias as .* \(2, 1\), expected"),
        (_put(torch.zeros(2).half()), "net.0.bias as torch.float16"),
        (_put(torch.zeros(2).long()), "net.0.bias as torch.int64"),
        (_put(torch.tensor([0.0, torch.nan])), "net.0.bias with NaN or infinite values"),
        (_put(torch.tensor([-torch.inf, 0.0])), "net.0.bias with NaN or infinite values"),
    ],
)
def test_a_message_that_does_not_fit_is_refused_by_its_senders_name(
    spoil: Callable[[Tensors], None], complaint: str
) -> None:
    receiver = net(1)
    before = {name: t.clone() for name, t in receiver.state_dict().items()}
    message = prefixed("net", net(0))
    spoil(message)
    with pytest.raises(ValueError, match=f"^client 4 sent {complaint}"):
        load_prefixed(receiver, message, "net", sender="client 4")
    for name, tensor in receiver.state_dict().items():
        assert torch.equal(tensor, before[name]), "a refused message changed the module"


def test_the_floats_of_an_upload_that_was_received_are_not_looked_at_again(tmp_path: Path) -> None:
    sent = prefixed("net", net(0))
    sent["net.0.bias"] = torch.tensor([0.0, torch.nan])
    (tmp_path / "upload").write_bytes(pack(sent, {}))
    load_prefixed(net(1), StoredTensors(tmp_path / "upload", finite=True), "net", sender="client 4")
    with pytest.raises(ValueError, match=r"^client 4 sent net.0.bias with NaN"):
        load_prefixed(net(1), StoredTensors(tmp_path / "upload"), "net", sender="client 4")


def test_stored_tensors_are_those_of_the_file_and_of_no_other_name(tmp_path: Path) -> None:
    message = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3)}
    packed = pack(message, {"who": "me"})
    (tmp_path / "update").write_bytes(packed)
    stored = StoredTensors(tmp_path / "update")
    assert set(stored) == {"w", "n"}
    assert len(stored) == 2
    assert all(torch.equal(stored[name], t) for name, t in message.items())
    assert stored.get("other") is None
    assert {name: form.shape for name, form in stored.forms.items()} == {"w": (2, 3), "n": ()}
    sizes = {name: form.num_bytes for name, form in stored.forms.items()}
    assert sizes == {"w": 24, "n": 8}
    assert sum(sizes.values()) == num_bytes(message)


def test_of_visible_tensors_the_others_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    message = {"a": torch.ones(2), "secret": torch.ones(3), "b": torch.zeros(1)}
    (tmp_path / "update").write_bytes(pack(message, {}))
    whole = Upload(pack(message, {}))
    for source in (whole, tmp_path / "update"):
        forms = visible(whole.forms, lambda name: name != "secret")
        seen = StoredTensors(source, forms, whole.counts)
        assert (set(seen), len(seen)) == ({"a", "b"}, 2)
        assert same_bits(dict(seen.items()), {n: message[n] for n in "ab"})
        assert torch.equal(seen["a"], message["a"])
        assert "secret" not in seen
        with pytest.raises(KeyError):
            seen["secret"]


def test_clients_of_one_architecture_share_their_forms_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seen() -> exchange.Forms:
        return visible(Upload(message()).forms, lambda name: True)

    assert seen() is seen()
    monkeypatch.setattr(exchange, "MOST_SHARED", 2)  # of 3: what a liar may send is not held
    assert seen() is not seen()
    assert seen() == Upload(message()).forms


def test_a_small_tensor_that_is_kept_does_not_keep_its_file_mapped(tmp_path: Path) -> None:
    """Ten thousand label counts would hold ten thousand uploads."""
    path = tmp_path / "some update"
    path.write_bytes(pack({"small": torch.ones(2), "large": torch.zeros(300_000)}, {}))
    kept = [StoredTensors(path)["small"] for _ in range(3)]
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in kept)
    assert path.name not in Path("/proc/self/maps").read_text()


def test_counts_are_there_without_their_file(tmp_path: Path) -> None:
    """What a server asks thousands of clients for before it reads any weights."""
    counts, large = torch.arange(10), torch.arange(1000)
    sent = {"label_counts": counts, "weights": torch.rand(10), "large": large}
    packed = pack(sent, {})
    upload = Upload(packed)
    held = upload.counts
    assert held.keys() == {"label_counts"}
    path = tmp_path / "upload"
    path.write_bytes(packed)
    stored = StoredTensors(path, upload.forms, held)
    assert stored.keys() == sent.keys()
    path.unlink()
    stored["label_counts"].zero_()
    assert torch.equal(stored["label_counts"], counts)
    with pytest.raises(FileNotFoundError):
        stored["weights"]


def test_all_of_a_files_tensors_are_read_at_once_and_its_header_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sent = tmp_path / "update", prefixed("net", net(0))
    path.write_bytes(pack(sent, {}))
    stored = StoredTensors(path)
    opened: list[Path] = []
    in_file = Message.in_file

    def counted(path: Path) -> Message:
        opened.append(path)
        return in_file(path)

    def parsed(content: memoryview) -> Header:
        raise AssertionError("the header was parsed again")

    monkeypatch.setattr(Message, "in_file", counted)
    monkeypatch.setattr(Header, "of", parsed)
    assert same_bits(dict(stored.items()), sent)
    load_prefixed(net(1), stored, "net", sender="client 4")
    assert opened == [path] * 2


def test_a_file_that_has_changed_is_read_aright_or_refused(tmp_path: Path) -> None:
    """Another run may have put the same upload there, with a note of its own."""
    path = tmp_path / "update"
    path.write_bytes(message())
    stored = StoredTensors(path)
    path.write_bytes(pack(TENSORS, {"node": "a much longer name than before"}))
    assert same_bits(dict(stored.items()), TENSORS)
    path.write_bytes(message()[:-3])
    with pytest.raises(ValueError, match="has been cut"):
        dict(stored.items())


def told(**changes: Any) -> bytes:
    return pack({}, {"seconds": 1.0, "span": [2.0, 3.0], "stats": {}, **changes})


def test_a_note_is_read_as_it_was_written() -> None:
    assert Upload(WHOLE.pack({})).note == WHOLE
    assert Upload(told(peak_bytes=7)).note.peak_bytes == 7
    assert Upload(told(peak_bytes=None, node=None, assigned=None)).note.assigned is None


@pytest.mark.parametrize(
    "changes",
    [
        *({"seconds": value} for value in (None, -1, "1", True)),
        *({"span": value} for value in ([3.0, 2.0], [1.0], "ab", None, 0, False, [], {})),
        *({"peak_bytes": value} for value in (-5, 2**70)),
        *({"cohort": value} for value in (0, None)),
        {"client": None},
        {"role": None},
        *({"node": value} for value in ("a\x1b[2Jb", "n" * 201)),
        {"model": 7},
        *({"stats": value} for value in ([1], {"loss": "low"}, {"loss": 1e39}, {"x\n": 1.0})),
        *({"stats": value} for value in ({str(n): 0.0 for n in range(10_001)}, None, 0, [], "")),
        *({"assigned": value} for value in ({"GPU": None}, [])),
        *({"losses": value} for value in (0.5, [0.5, "low"], None, 0, False, {})),
    ],
)
def test_impossible_notes_are_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ValueError, match=rf"reports an impossible ({name}|figure): [ -~]*$"):
        ClientNote.of(Upload(told(**changes)).header.note)


def test_of_many_figures_the_impossible_one_is_shown() -> None:
    stats = {**{f"figure {k}": 0.0 for k in range(9)}, "loss": 1e39}
    with pytest.raises(ValueError, match=r"an impossible figure: 'loss' 1e\+39$"):
        ClientNote.of(Upload(told(stats=stats)).header.note)


def test_of_several_uploads_no_large_header_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = [Upload(WHOLE.pack({})), Upload(told(model="x" * 190))]
    monkeypatch.setattr(exchange, "MOST_HELD_BYTES", uploads[0].header_bytes)
    uploads.append(Upload(told(model="x" * 500)))  # refused
    assert [note.client for note in readable_notes(uploads)] == [3, -1]
    assert ["header" in vars(upload) for upload in uploads] == [True, False, False]


def test_notes_that_cannot_be_read_are_left_out() -> None:
    assert readable_notes(map(Upload, (b"", WHOLE.pack({}), told(seconds=-1)))) == [WHOLE]
