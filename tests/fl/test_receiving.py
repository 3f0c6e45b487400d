"""What hostile clients send is refused with the client's name and one reason, and is never kept."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cluster.clients.store import Store
from fl.clients import Clients
from fl.condensation.kip import KipTraining
from fl.condensation.task import LocalCondensation
from fl.errors import ClientFailed, ServerFailed
from fl.events import Events
from fl.exchange import Header, Tensors, Upload, load_prefixed, pack
from fl.executor import InProcess
from fl.federation import Job, Training, Update
from fl.receiving import check_probabilities, check_values, receive
from fl.training.classifier import ClassifierConfig, starting_classifier
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, VGG, client, split

TRAIN = split(3, 3, 3)
CVAE = replace(GENERATOR, upload="cvae")
CONDENSER = LocalCondensation(model="convnet", width=0.03, images_per_class=2, steps=1)
KIP = KipTraining(images=3, targets=3, steps=1)
NORMED = ClassifierConfig(model="resnet18", width=0.03, epochs=1, batch_size=9)
Change = Callable[[Tensors], None]


@cache
def uploaded(training: Training) -> Upload:
    ((_, packed),) = InProcess(TRAIN).run([job(training)], Events())
    assert isinstance(packed, Upload)
    return packed


def honest(training: Training) -> Tensors:
    """What client 0 uploads, to change as one likes."""
    return {name: tensor.clone() for name, tensor in uploaded(training).items()}


def job(training: Training) -> Job:
    return Job(
        task=training.task,
        client=client(0, training),
        run_spec=PROBLEM,
        indices=np.arange(9),
        broadcast=None,
        payload=None,
    )


class Answers:
    """An executor that answers with these bytes, or with a change of what is honest."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        for job in jobs:
            yield job, Upload(self.answers[job.client.id])


def trained(
    training: Training, folder: Path, *answers: bytes, drop: bool = False, **options: Any
) -> tuple[Clients, list[Update]]:
    store = Store(folder / "pool", folder / "updates", TRAIN)
    count = len(answers)
    clients = Clients(
        [client(k, training) for k in range(count)],
        [np.arange(9)] * count,
        PROBLEM,
        Answers(*answers),
        store,
        Events(),
        on_failure="drop" if drop else "stop",
    )
    return clients, clients.train(**options)


def files(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.rglob("*") if f.is_file() and f.name != ".locks")


def sent(tensors: Tensors, **note: Any) -> bytes:
    return pack(tensors, {"seconds": 1.0, "span": [0.0, 1.0], "stats": {}, **note})


@pytest.mark.parametrize("training", [CLASSIFIER, NORMED, GENERATOR, CVAE, CONDENSER, KIP])
def test_what_is_honest_is_received(training: Training, tmp_path: Path) -> None:
    upload = honest(training)
    _, (update,) = trained(training, tmp_path, sent(upload))
    assert set(update.tensors) == set(upload)
    assert files(tmp_path)


def everywhere(value: float) -> Change:
    def change(upload: Tensors) -> None:
        for tensor in upload.values():
            if tensor.is_floating_point():
                tensor.fill_(value)

    return change


def once(value: float) -> Change:
    def change(upload: Tensors) -> None:
        floats = next(t for t in upload.values() if t.is_floating_point())
        floats.view(-1)[-1] = value

    return change


def ending(end: str, value: float) -> Change:
    def change(upload: Tensors) -> None:
        next(t for name, t in upload.items() if name.endswith(end)).fill_(value)

    return change


def put(name: str, tensor: Tensor) -> Change:
    return lambda upload: upload.update({name: tensor})


def lacks(upload: Tensors) -> None:
    del upload[next(name for name, tensor in upload.items() if tensor.is_floating_point())]


COUNTS = "label_counts"
HOSTILE: dict[str, tuple[Training, Change, str]] = {
    "weights of 1e20": (
        CLASSIFIER,
        everywhere(1e20),
        "values up to 1e.20, above 1e.09: its training diverged",
    ),
    "weights of -1e5": (CLASSIFIER, once(-1e5), "values up to 1e.05"),
    "NaN": (CLASSIFIER, once(float("nan")), "with NaN or infinite values"),
    "a weight too many": (
        CLASSIFIER,
        put("classifier.more", torch.ones(1)),
        "classifier has: more",
    ),
    "what nobody asked for": (
        CLASSIFIER,
        put("payload", torch.zeros(9)),
        "what nobody asked for: payload",
    ),
    "what the task before sent": (GENERATOR, put("logits", torch.zeros(9, 3)), "for: logits"),
    "a negative variance": (NORMED, ending("running_var", -1.0), "negative .*running_var"),
    "weights that overflow": (VGG, everywhere(90.0), "answers values up to 7.*e.24"),
    "weights that answer 1e6": (CLASSIFIER, everywhere(9.0), "answers values up to .*above 100000"),
    "a mean of 1e9": (NORMED, ending("running_mean", 1e9), "running_mean .* of features up to"),
    "a variance of 1e8": (NORMED, ending("running_var", 1e8), "running_var .* of features up to"),
    "a decoder of 50": (GENERATOR, everywhere(50.0), "values up to 50, above 0.4"),
    "weights of 9e3": (VGG, everywhere(9e3), "values up to 9e.03, above 101"),
    "a CVAE's decoder alone": (CVAE, lacks, "other tensors than cvae has"),
    "other samples": (GENERATOR, put(COUNTS, torch.tensor([9, 9, 9])), "it has 9"),
    "pixels of 1e6": (CONDENSER, everywhere(1e6), "pixels above 100"),
    "a class's images too many": (KIP, put("images.3", torch.zeros(1, 1, 28, 28).byte()), "image"),
    "images as floats": (KIP, put("images.0", torch.zeros(1, 1, 28, 28)), "images"),
}


@pytest.mark.parametrize(("training", "change", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_upload_is_its_clients_failure_and_is_not_kept(
    tmp_path: Path, training: Training, change: Change, reason: str
) -> None:
    upload = honest(training)
    change(upload)
    with pytest.raises(ClientFailed, match=rf"^client 0 \(.*\) failed: sent .*{reason}"):
        trained(training, tmp_path, sent(upload))
    assert files(tmp_path) == []


def test_values_far_beyond_the_others_are_their_clients_failure_and_are_not_kept(
    tmp_path: Path,
) -> None:
    good, bad = honest(CLASSIFIER), honest(CLASSIFIER)
    ending("bias", 80.0)(bad)
    with pytest.raises(ClientFailed, match=r"^client 1 .* up to 80, where half of the clients"):
        trained(CLASSIFIER, tmp_path, sent(good), sent(bad), sent(good))
    clients, updates = trained(CLASSIFIER, tmp_path, *[sent(good)] * 3, drop=True)
    assert [update.reused for update in updates] == [True, False, True]
    assert not clients.dropped


def test_nobody_is_sent_nan_nor_blamed_for_it(tmp_path: Path) -> None:
    weights = honest(CLASSIFIER)
    last = list(weights)[-1]
    weights[last] = torch.full_like(weights[last], torch.nan)
    with pytest.raises(
        ServerFailed, match=rf"^the server's {last} has NaN .* not sent to client 0"
    ):
        trained(CLASSIFIER, tmp_path, b"never asked", broadcast=weights)
    assert files(tmp_path) == []


def test_a_client_is_held_against_what_it_was_sent(tmp_path: Path) -> None:
    start = honest(CLASSIFIER)
    far, further = dict(start), dict(start)
    last = list(start)[-1]
    far[last], further[last] = (torch.full_like(start[last], value) for value in (900.0, 2100.0))
    trained(CLASSIFIER, tmp_path, sent(far), sent(far), broadcast=far)
    with pytest.raises(ClientFailed, match=r"client 1 .* up to 2.1e\+03, above 1.9e\+03"):
        trained(CLASSIFIER, tmp_path, sent(far), sent(further), payloads={0: far, 1: far})


def test_what_stays_with_its_client_is_checked_before_it_is_kept_too(tmp_path: Path) -> None:
    memory = honest(CLASSIFIER)
    keep: dict[str, Any] = {"remember": True, "goes_to": "client"}
    _, (update,) = trained(CLASSIFIER, tmp_path / "honest", sent(memory), **keep)
    assert not update.tensors
    lacks(memory)
    with pytest.raises(ClientFailed, match=r"client 0 .* other tensors than classifier has"):
        trained(CLASSIFIER, tmp_path / "lying", sent(memory), **keep)
    assert files(tmp_path / "lying") == []


def test_a_refused_client_is_dropped_where_that_is_allowed_and_asked_again_on_resume(
    tmp_path: Path,
) -> None:
    good, bad = honest(CLASSIFIER), honest(CLASSIFIER)
    everywhere(1e30)(bad)
    clients, (update,) = trained(CLASSIFIER, tmp_path, sent(good), sent(bad), drop=True)
    assert update.client.id == 0
    assert list(clients.dropped) == [1]
    assert "values up to" in clients.dropped[1]
    again, (first, second) = trained(CLASSIFIER, tmp_path, b"not asked again", sent(good))
    assert (first.reused, second.reused) == (True, False)
    assert not again.dropped


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"a pickle, perhaps", b"\xff" * 64])
def test_what_is_no_message_is_its_clients_failure(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ClientFailed, match=r"^client 0 .* failed: (no packed|the header)"):
        trained(CLASSIFIER, tmp_path, content)
    assert files(tmp_path) == []


def test_an_impossible_note_is_its_clients_failure(tmp_path: Path) -> None:
    with pytest.raises(ClientFailed, match=r"^client 0 .* failed: the note holds NaN"):
        trained(CLASSIFIER, tmp_path, sent(honest(CLASSIFIER), stats={"loss": float("nan")}))


def test_what_the_store_has_and_would_be_refused_is_asked_for_again(tmp_path: Path) -> None:
    """An older version kept uploads before it looked at them."""
    bad = honest(CLASSIFIER)
    everywhere(1e30)(bad)
    store = Store(tmp_path / "pool", tmp_path / "updates", TRAIN)
    own = replace(job(CLASSIFIER), client=client(0, CLASSIFIER))
    store.put(store.key(own), 0, Upload(sent(bad)))
    _, (update,) = trained(CLASSIFIER, tmp_path, sent(honest(CLASSIFIER)))
    assert not update.reused
    assert all(float(t.abs().max()) < 10 for t in update.tensors.values())


def test_a_check_that_looks_at_nothing_refuses_nothing() -> None:
    packed = Upload(sent({"a": torch.ones(2), "b": torch.ones(3)}))
    asked = job(CLASSIFIER)
    receive(asked, packed, lambda update, run_spec: len(update.tensors))
    receive(asked, packed, lambda update, run_spec: [*update.tensors.values()])
    with pytest.raises(ValueError, match=r"^sent what nobody asked for: b$"):
        receive(asked, packed, lambda update, run_spec: update.tensors["a"])


def test_an_uploads_header_is_parsed_once_on_its_way_to_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, parsed, of = sent(honest(NORMED)), [], Header.of

    def counted(content: memoryview) -> Header:
        parsed.append(len(content))
        return of(content)

    monkeypatch.setattr(Header, "of", counted)
    _, (update,) = trained(NORMED, tmp_path, packed)
    model = starting_classifier(NORMED, PROBLEM)
    load_prefixed(model, update.tensors, "classifier", sender="client 0")
    assert parsed == [len(packed)]


@pytest.mark.parametrize("name", ["logits", "features", "deep", "soft_labels"])
def test_what_another_task_sends_is_refused_before_its_method_sees_it(name: str) -> None:
    """Methods look at forms alone."""
    asked = job(CLASSIFIER)
    with pytest.raises(ValueError, match=rf"^sent {name} with NaN"):
        receive(asked, Upload(sent({name: torch.tensor([0.0, torch.nan])})))


@pytest.mark.parametrize("rows", [[[1.5, -0.5]], [[0.5, 0.6]], [[0.0, 0.0]], [[1e9, 0.0]]])
def test_rows_that_are_no_probabilities_are_refused(rows: list[list[float]]) -> None:
    check_probabilities(torch.tensor([[0.25, 0.75], [0.0, 1.0]]), "soft_labels")
    with pytest.raises(ValueError, match="no probabilities"):
        check_probabilities(torch.tensor(rows), "soft_labels")


@pytest.mark.parametrize("name", ["logits", "mean_logits", "features"])
def test_answers_beyond_what_any_model_gives_are_refused(name: str) -> None:
    check_values(name, torch.tensor([-5e4, 5e4]))
    with pytest.raises(ValueError, match=r"values up to 1e\+06, above 100000"):
        check_values(name, torch.tensor([0.0, -1e6]))
