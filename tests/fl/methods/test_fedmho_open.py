"""FedMHO-Open against a naive twin, and what each of its parts does; mixup."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, Update
from fl.fusion.voting import energy_levels
from fl.methods import fedmho_open
from fl.methods.fedmho_open import (
    FedMHOOpenConfig,
    label_trust,
    levels_apart,
    open_quotas,
    with_mixup,
)
from fl.methods.uploads import load_classifier, tell_label_counts, untrained_classifier
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
    return clients.train(), {u.client.id: u for u in clients.map(tell_label_counts)}


class Replay(Clients):
    """Clients that already trained."""

    def map(self, task, **options):  # type: ignore[no-untyped-def]
        trained, told = uploads()
        return [told[k] for k in options["only"]] if task else trained


def rerun(**changes: object) -> tuple[Outcome, WatchedServer]:
    """The same run is made once, as long as energies have the same levels."""
    return run_with(fedmho_open.energy_levels, **changes)


@cache
def run_with(levels: object, **changes: object) -> tuple[Outcome, WatchedServer]:
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
def twins_votes(
    images: Tensor, own: Tensor, labels: list[int], server: WatchedServer, moved: float
) -> Tensor:
    """Eqs. 1 to 3, sample by sample and class by class, of levels that were moved apart so far."""
    held, drawn = counts("classifier"), counts("generator")
    votes = torch.zeros(len(images), CLASSES)
    voters = [u for u in uploads()[0] if u.client.role == "classifier"]
    for update, mine in zip(voters, held, strict=True):
        model = load_classifier(update, server)
        known = [c for c in range(CLASSES) if mine[c] >= OPEN.known]
        if not known:
            continue

        def energy(image: Tensor, model: nn.Module = model, known: list[int] = known) -> float:
            logits = model(image[None])[0]
            return math.log(sum(math.exp(logits[c]) for c in known))

        inside = sorted(energy(x) for x, y in zip(own, labels, strict=True) if y in known)
        outside = sorted(energy(x) for x, y in zip(own, labels, strict=True) if y not in known)
        high = inside[(len(inside) - 1) // 2] + moved
        low = outside[(len(outside) - 1) // 2] - moved
        for i, image in enumerate(images):
            p = model(image[None])[0].softmax(0)
            prior = [(n + 1) / (sum(mine) + CLASSES) for n in mine]
            says = [float(p[c]) / prior[c] ** OPEN.correction for c in range(CLASSES)]
            gate = 1.0
            if high - low >= 1:
                gate /= 1 + math.exp(-4 * (energy(image) - (high + low) / 2) / (high - low))
            for c in range(CLASSES):
                strong, weak = sum(row[c] for row in held), sum(row[c] for row in drawn)
                against = min(strong, OPEN.half_trust)
                believed = weak / (weak + against) if weak + against else 0.0
                share = (1 - believed) * mine[c] / max(strong, 1)
                votes[i, c] += gate * share * says[c] / sum(says)
    return votes


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """So briefly trained, no classifier has energies that are apart: each level is moved by 1."""

    def levels(*args: Tensor) -> tuple[float, float]:
        low, high = energy_levels(*args)
        return low - 1, high + 1

    monkeypatch.setattr(fedmho_open, "energy_levels", levels)


def test_ungated_targets_agree_with_the_naive_twin() -> None:
    check_targets(moved=0.0)


@pytest.mark.usefixtures("gated")
def test_gated_targets_agree_with_the_naive_twin() -> None:
    check_targets(moved=1.0)


def check_targets(moved: float) -> None:
    """What the global model learns from, in both fits."""
    outcome, server = rerun()
    before, lessons, _ = server.fits["warmup"]
    images, kept = lessons["images"], outcome.synthetic["kept"]
    labels = outcome.synthetic["labels"][kept].tolist()
    held, drawn = np.array(counts("classifier")), np.array(counts("generator"))
    trust = label_trust(held, drawn, OPEN.half_trust).tolist()

    votes = twins_votes(images, images, labels, server, moved)
    answers = lessons["teacher_logits"].softmax(1)
    for answer, vote, label in zip(answers, votes, labels, strict=True):
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
    model.requires_grad_(False)
    own = np.array([float(model(x[None])[0].logsumexp(0)) for x in images])
    low, apart = np.quantile(own, 0.1), 2 * (own.std() + moved)
    votes = twins_votes(further, images, labels, server, moved)
    for i, image in enumerate(further):
        logits = model.eval()(image[None])[0]
        gate = 1.0
        if apart >= 1:
            gate /= 1 + math.exp(-4 * (float(logits.logsumexp(0)) - low) / apart)
        vote = votes[i] + gate * torch.tensor(trust) * logits.softmax(0)
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
    allocation = fedmho_open.allocate(generators, server, OPEN)
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


@pytest.mark.usefixtures("gated")
def test_the_gate_and_the_correction_change_what_is_learned() -> None:
    usual = rerun()[1].fits["warmup"][1]["teacher_logits"]
    for changes in ({"gate": False}, {"correction": 0.0}):
        other = rerun(**changes)[1].fits["warmup"][1]["teacher_logits"]
        assert not torch.allclose(usual, other, atol=1e-3)


def test_energies_that_are_not_apart_are_no_levels() -> None:
    labels, known = torch.tensor([0, 0, 1, 1]), torch.tensor([True, False])
    for inside, levels in ((5.0, (4.0, 5.0)), (4.5, None), (3.0, None)):
        logits = torch.tensor([[inside, 9.0]] * 2 + [[4.0, 9.0]] * 2)
        assert levels_apart(logits, labels, known) == levels


def test_labels_are_trusted_by_what_generator_clients_hold() -> None:
    held, drawn = np.array([[6, 0, 4, 0], [3, 0, 0, 0]]), np.array([[1, 5, 4, 0]])
    assert label_trust(held, drawn, 100).tolist() == pytest.approx([0.1, 1, 0.5, 0])


def test_that_others_hold_many_more_of_a_class_does_not_make_its_labels_doubtful() -> None:
    for held in (30, 300, 3000):
        trust = label_trust(np.array([[held, held]]), np.array([[90, 1]]), 30)
        assert trust.tolist() == pytest.approx([0.75, 1 / 31])


def test_open_samples_go_to_classes_that_decoders_lack() -> None:
    held, drawn = np.array([[9, 0, 5, 0]]), np.array([[0, 5, 5, 0]])
    assert open_quotas(held, label_trust(held, drawn, 100), 30.0) == [20, 0, 10, 0]
    assert open_quotas(held * [[0, 1, 0, 1]], torch.ones(4), 30.0) == [0, 0, 0, 0]


@pytest.mark.parametrize("setting", [{"lam": 0.3}, {"betas": (1.0, 1.0)}])
def test_settings_of_fedmhos_loss_are_refused(setting: dict[str, object]) -> None:
    name = next(iter(setting))
    with pytest.raises(UserError, match=f"^{name} is of fedmho-md"):
        replace(OPEN, **setting)  # type: ignore[arg-type]


def lessons(size: int = 5) -> Batch:
    """Image i is all i, and its target is all on class i."""
    images = torch.arange(size).float().view(-1, 1, 1, 1).expand(size, 1, 2, 3)
    return {"images": images, "teacher_logits": torch.eye(size).clamp(min=1e-9).log()}


def mixed(share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    batch = with_mixup(lessons(), share, torch.Generator().manual_seed(seed))
    return batch["images"], batch["teacher_logits"]


def test_a_mixture_lies_between_two_lessons_in_image_and_target_alike() -> None:
    images, answers = mixed(40.0)
    assert len(images) == len(answers) == 5 + 200
    seen = set()
    for image, answer in zip(images[5:], answers[5:].exp(), strict=True):
        torch.testing.assert_close(answer.sum(), torch.tensor(1.0))
        told = (answer > 1e-6).nonzero().flatten().tolist()
        assert 1 <= len(told) <= 2
        expected = sum(c * float(answer[c]) for c in told)
        torch.testing.assert_close(image, torch.full_like(image, expected), atol=1e-4, rtol=1e-4)
        seen.update(told)
    assert seen == set(range(5))
    assert images[5:].std() > 0.5


def test_the_lessons_themselves_come_first_and_are_kept() -> None:
    for share, count in ((0.0, 5), (0.5, 7), (1.0, 10)):
        images, answers = mixed(share)
        assert len(images) == count
        assert torch.equal(images[:5], lessons()["images"])
        assert torch.equal(answers[:5], lessons()["teacher_logits"])


def test_the_generator_decides() -> None:
    assert torch.equal(mixed(1.0)[0], mixed(1.0)[0])
    assert not torch.equal(mixed(1.0)[0], mixed(1.0, seed=1)[0])
