"""FedMHO-Open against a naive twin, and what each of its parts does."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Update
from fl.methods import fedmho, fedmho_open
from fl.methods.fedmho_open import FedMHOOpenConfig, label_trust
from fl.methods.uploads import load_classifier, send_label_counts, untrained_classifier
from fl.seeding import seed_for
from fl.server import Outcome
from tests.fl.methods.naive_fedmho import decoder
from tests.fl.methods.tiny import TINY, WatchedServer, tiny_federation

OPEN = FedMHOOpenConfig(
    num_samples=120,
    open_samples=60,
    half_trust=3.0,
    warmup=2,
    mixup=0.0,
    classifier=TINY.classifier,
    generator=TINY.generator,
    fusion=replace(TINY.fusion, schedule="cosine"),
)
CLASSES = 10


@cache
def uploads() -> tuple[list[Update], dict[int, Update]]:
    """What the clients train, and what the classifier clients tell, by id."""
    clients, _ = tiny_federation(OPEN)
    return clients.train(), {u.client.id: u for u in clients.map(send_label_counts)}


class Replay(Clients):
    """Clients that already trained."""

    def map(self, task, **options):  # type: ignore[no-untyped-def]
        trained, told = uploads()
        return [told[k] for k in options["only"]] if task else trained


@cache
def rerun(**changes: object) -> tuple[Outcome, WatchedServer]:
    """The same run is made once."""
    config = replace(OPEN, **changes)  # type: ignore[arg-type]
    clients, server = tiny_federation(config)
    clients.__class__ = Replay
    return fedmho_open.run(clients, server, config), server


def counts(role: str) -> list[list[int]]:
    updates, told = uploads()
    chosen = [u for u in updates if u.client.role == role]
    sources = [told[u.client.id] if role == "classifier" else u for u in chosen]
    return [u.tensors["label_counts"].tolist() for u in sources]


@torch.no_grad()
def twins_votes(images: Tensor, server: WatchedServer) -> Tensor:
    """v of Eq. 1, sample by sample and class by class."""
    held, drawn = counts("classifier"), counts("generator")
    votes = torch.zeros(len(images), CLASSES)
    voters = [u for u in uploads()[0] if u.client.role == "classifier"]
    for update, mine in zip(voters, held, strict=True):
        model = load_classifier(update, server)
        for i, image in enumerate(images):
            p = model(image[None])[0].softmax(0)
            for c in range(CLASSES):
                strong, weak = sum(row[c] for row in held), sum(row[c] for row in drawn)
                against = min(strong, max(weak, OPEN.half_trust))
                believed = weak / (weak + against) if weak + against else 0.0
                votes[i, c] += (1 - believed) * mine[c] / max(strong, 1) * p[c]
    return votes


def test_targets_agree_with_the_naive_twin() -> None:
    """What the global model learns from, in both fits: Eqs. 1, 2 and 4."""
    outcome, server = rerun()
    before, lessons, _ = server.fits["warmup"]
    images, kept = lessons["images"], outcome.synthetic["kept"]
    labels = outcome.synthetic["labels"][kept].tolist()
    held, drawn = np.array(counts("classifier")), np.array(counts("generator"))
    trust = label_trust(held, drawn, OPEN.half_trust).tolist()

    answers = lessons["teacher_logits"].softmax(1)
    for answer, vote, label in zip(answers, twins_votes(images, server), labels, strict=True):
        expected = (1 - trust[label]) * vote / vote.sum()
        expected[label] += trust[label]
        torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-3)

    warmed, both, _ = server.fits["fusion"]
    assert any(not torch.equal(before[n], warmed[n]) for n in before)
    for name, column in lessons.items():
        assert torch.equal(both[name][: len(column)], column)
    further = both["images"][len(images) :]
    assert len(further) == outcome.figures["open_set"] > 0

    model = untrained_classifier(OPEN.classifier, server)
    model.load_state_dict(warmed)
    model.requires_grad_(False).eval()
    for i, (image, vote) in enumerate(zip(further, twins_votes(further, server), strict=True)):
        vote = vote + torch.tensor(trust) * model(image[None])[0].softmax(0)
        answer = both["teacher_logits"][len(images) + i].softmax(0)
        torch.testing.assert_close(answer, vote / vote.sum(), atol=1e-4, rtol=1e-2)


def test_unmoved_samples_are_the_decoders_own() -> None:
    outcome, server = rerun(warp=0.0)
    images, kept = server.fits["warmup"][1]["images"], outcome.synthetic["kept"]
    torch.testing.assert_close(images, outcome.synthetic["images"][kept])
    first = next(u for u in uploads()[0] if u.client.role == "generator")
    stream = torch.Generator().manual_seed(seed_for(0, "synthesis", first.client.id))
    code = torch.randn(rows_of(first, server), OPEN.generator.latent + 6, generator=stream)
    label = torch.eye(CLASSES)[outcome.synthetic["labels"][:1]]
    drawn = torch.sigmoid(decoder(first, server.run_spec)(code[:1, : OPEN.generator.latent], label))
    torch.testing.assert_close(outcome.synthetic["images"][:1], drawn, atol=1e-5, rtol=1e-4)


def rows_of(update: Update, server: WatchedServer) -> int:
    generators = [u for u in uploads()[0] if u.client.role == "generator"]
    allocation = fedmho.allocate(generators, server, OPEN)
    return int(allocation[generators.index(update)].sum())


def test_the_filter_sees_samples_before_they_move() -> None:
    still, moving = rerun(warp=0.0)[0], rerun(warp=1.0)[0]
    assert torch.equal(still.synthetic["kept"], moving.synthetic["kept"])
    assert torch.equal(still.synthetic["images"], moving.synthetic["images"])


def test_mixtures_are_learned_beside_the_samples_and_others_in_each_stage() -> None:
    plain, mixed = rerun()[1].fits["warmup"][1], rerun(mixup=0.5)[1].fits
    size = len(plain["images"])
    lessons = mixed["warmup"][1]
    assert len(lessons["images"]) == size + round(size / 2)
    assert torch.equal(lessons["images"][:size], plain["images"])
    later = mixed["fusion"][1]["images"]
    assert len(later) > len(lessons["images"])
    mixtures = lessons["images"][size:]
    again = [bool((later == mixture).flatten(1).all(1).any()) for mixture in mixtures]
    assert sum(again) < len(again) / 4  # a lesson mixed with itself is one of them


def test_without_open_samples_there_is_one_fit() -> None:
    outcome, server = rerun(open_samples=0)
    assert server.fits.keys() == {"fusion"}
    assert outcome.figures["open_set"] == 0


@pytest.mark.parametrize("setting", [{"lam": 0.3}, {"betas": (1.0, 1.0)}])
def test_settings_of_fedmhos_loss_are_refused(setting: dict[str, object]) -> None:
    name = next(iter(setting))
    with pytest.raises(UserError, match=f"^{name} is of fedmho-md"):
        replace(OPEN, **setting)  # type: ignore[arg-type]
