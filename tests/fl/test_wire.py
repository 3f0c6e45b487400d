"""Messages of tensors: packed, read back, and checked before they are believed."""

import pickle
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl.packed import Header, Packed
from fl.wire import (
    StoredTensors,
    Tensors,
    Visible,
    counts_in,
    load_prefixed,
    num_bytes,
    pack,
    prefixed,
    unpack,
)
from tests.fl.toy import same_bits

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(
    lambda shape, dtype: torch.arange(prod(shape)).view(shape).to(dtype),
    shapes,
    st.sampled_from(DTYPES),
)


def net(seed: int = 0) -> nn.Sequential:
    """BatchNorm brings integer buffers along."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


@settings(max_examples=50, deadline=None, derandomize=True)
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


def test_a_note_keeps_its_json_values() -> None:
    note = {"seconds": 0.25, "role": "générateur", "stats": {"train_loss": 1e-9}, "none": None}
    assert unpack(pack({}, note)) == ({}, note)


def test_the_ledger_counts_the_data_of_tensors() -> None:
    tensors = {
        "weights": torch.zeros(3, 5),
        "halves": torch.zeros(4, dtype=torch.float16),
        "counts": torch.zeros(2, dtype=torch.int64),
        "nothing": torch.zeros(0),
    }
    assert num_bytes(tensors) == 3 * 5 * 4 + 4 * 2 + 2 * 8
    assert num_bytes({}) == 0


def test_a_view_counts_as_what_it_shows() -> None:
    assert num_bytes({"wide": torch.zeros(1).expand(100)}) == 400
    assert num_bytes({"narrow": torch.zeros(100)[:1]}) == 4


def test_a_pickle_is_refused_unopened() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return pytest.fail, ("unpickled what a stranger sent",)

    with pytest.raises(ValueError, match="header is longer"):
        unpack(pickle.dumps(Bomb()))


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
    sizes = {name: form.num_bytes for name, form in Header.of(packed).forms.items()}
    assert sizes == {"w": 24, "n": 8}
    assert sum(sizes.values()) == num_bytes(message)


def test_of_visible_tensors_the_others_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    message = {"a": torch.ones(2), "secret": torch.ones(3), "b": torch.zeros(1)}
    (tmp_path / "update").write_bytes(pack(message, {}))
    for whole in (message, StoredTensors(tmp_path / "update")):
        seen = Visible(whole, lambda name: name != "secret")
        assert (set(seen), len(seen)) == ({"a", "b"}, 2)
        assert same_bits(dict(seen.items()), {n: message[n] for n in "ab"})
        assert torch.equal(seen["a"], message["a"])
        assert "secret" not in seen
        with pytest.raises(KeyError):
            seen["secret"]


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
    held = counts_in(Packed.in_memory(packed))
    assert held.keys() == {"label_counts"}
    path = tmp_path / "upload"
    path.write_bytes(packed)
    stored = StoredTensors(path, held)
    assert stored.keys() == sent.keys()
    path.unlink()
    stored["label_counts"].zero_()
    assert torch.equal(stored["label_counts"], counts)
    with pytest.raises(FileNotFoundError):
        stored["weights"]


def test_all_of_a_files_tensors_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "update").write_bytes(pack({"a": torch.ones(2), "b": torch.zeros(3)}, {}))
    read: list[Path] = []
    in_file = Packed.in_file

    def counted(path: Path) -> Packed:
        read.append(path)
        return in_file(path)

    monkeypatch.setattr(Packed, "in_file", counted)
    assert {n: len(t) for n, t in StoredTensors(tmp_path / "update").items()} == {"a": 2, "b": 3}
    assert len(read) == 1
