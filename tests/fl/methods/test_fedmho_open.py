"""FedMHO-Open against a naive twin, and what each of its parts does."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Update
from fl.fusion.voting import energy_levels
from fl.methods import fedmho_open
from fl.methods.fedgen import tell_label_counts
from fl.methods.fedmho_open import FedMHOOpenConfig, levels_apart
from fl.methods.trust import label_trust
from fl.methods.uploads import load_classifier, untrained_classifier
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
    config = replace(OPEN, **changes)  # type: ignore[arg-type]
    clients, server = tiny_federation(config)
    clients.__class__ = Replay
    return fedmho_open.run(clients, server, config), server


def counts(role: str) -> list[list[int]]:
    updates, told = uploads()
    chosen = [u for u in updates if u.client.role == role]
    sources = [told[u.client.id] if role == "classifier" else u for u in chosen]
    return [u.tensors["label_counts"].tolist() for u in sources]


Told = tuple[list[float], list[tuple[list[int], list[float]]]]
"""Of one image: the votes, and of each expert its counts and its corrected logits."""


@torch.no_grad()
def twins_poll(
    images: Tensor, own: Tensor, labels: list[int], server: WatchedServer, moved: float
) -> list[Told]:
    """Eqs. 1 and 2, sample by sample and class by class, of levels moved so far."""
    held, drawn = counts("classifier"), counts("generator")
    polls: list[Told] = [([0.0] * CLASSES, []) for _ in images]
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
        up = moved * len(known) / 5
        high = inside[(len(inside) - 1) // 2] + moved + up
        low = outside[(len(outside) - 1) // 2] - moved + up
        prior = [(n + 1) / (sum(mine) + CLASSES) for n in mine]
        for (votes, experts), image in zip(polls, images, strict=True):
            logits = model(image[None])[0].tolist()
            corrected = [logits[c] - OPEN.correction * math.log(prior[c]) for c in range(CLASSES)]
            experts.append((mine, corrected))
            says = softmax(corrected)
            gate = 1.0
            if high - low >= 1:
                gate /= 1 + math.exp(-4 * (energy(image) - (high + low) / 2) / (high - low))
            for c in range(CLASSES):
                strong, weak = sum(row[c] for row in held), sum(row[c] for row in drawn)
                against = min(strong, OPEN.half_trust)
                believed = weak / (weak + against) if weak + against else 0.0
                votes[c] += gate * (1 - believed) * mine[c] / max(strong, 1) * says[c]
    return polls


def softmax(values: list[float]) -> list[float]:
    whole = sum(math.exp(v) for v in values)
    return [math.exp(v) / whole for v in values]


def twins_shares(told: Told) -> list[float]:
    """Eq. 3, pair by pair."""
    votes, experts = [v + 1e-9 for v in told[0]], told[1]
    products = [1.0] * CLASSES
    for c in range(CLASSES):
        for other in set(range(CLASSES)) - {c}:
            share = OPEN.half_pair * votes[c] / (votes[c] + votes[other])
            weight = OPEN.half_pair
            for mine, logits in experts:
                both = min(mine[c], mine[other])
                share += both / (1 + math.exp(logits[other] - logits[c]))
                weight += both
            products[c] *= max(share / weight, 1e-4)
    return [product / sum(products) for product in products]


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """So briefly trained, no classifier's energies are apart, nor does one say more than another:
    their levels are moved apart by 1 each, and up by a fifth for each class known."""

    def levels(logits: Tensor, labels: Tensor, known: Tensor) -> tuple[float, float]:
        low, high = energy_levels(logits, labels, known)
        up = float(known.sum()) / 5
        return low - 1 + up, high + 1 + up

    monkeypatch.setattr(fedmho_open, "energy_levels", levels)


def test_ungated_targets_agree_with_the_naive_twin() -> None:
    check_targets(moved=0.0)


@pytest.mark.usefixtures("gated")
def test_gated_targets_agree_with_the_naive_twin() -> None:
    check_targets(moved=1.0)


def check_targets(moved: float) -> None:
    """What the global model learns from, in the first fit and in the last."""
    outcome, server = rerun()
    before, lessons, _ = server.fits["warmup/1"]
    images, kept = lessons["images"], outcome.synthetic["kept"]
    labels = outcome.synthetic["labels"][kept].tolist()
    polls = twins_poll(images, images, labels, server, moved)
    check_own(lessons["teacher_logits"], polls, labels)

    again, (warmed, both, _) = server.fits["warmup/2"], server.fits["fusion"]
    for earlier, later in ((before, again[0]), (again[0], warmed)):
        assert any(not torch.equal(earlier[n], later[n]) for n in earlier)
    size = len(images)
    assert torch.equal(both["images"][:size], images)
    further = both["images"][size:]
    assert len(further) == outcome.figures["open_set"] > 0

    model = untrained_classifier(OPEN.classifier, server)
    model.load_state_dict(warmed)
    model.eval().requires_grad_(False)
    own = np.array([float(model(x[None])[0].logsumexp(0)) for x in images])
    low, apart = np.quantile(own, 0.1) + moved * CLASSES / 5, 2 * (own.std() + moved)
    drawn = [sum(column) for column in zip(*counts("generator"), strict=True)]
    polls += twins_poll(further, images, labels, server, moved)
    for (votes, experts), image in zip(polls, both["images"], strict=True):
        logits = model(image[None])[0]
        gate = 1.0
        if apart >= 1:
            gate /= 1 + math.exp(-4 * (float(logits.logsumexp(0)) - low) / apart)
        for c, says in enumerate(softmax(logits.tolist())):
            votes[c] += gate * twins_trust()[c] * says
        experts.append((drawn, logits.tolist()))
    check_own(both["teacher_logits"][:size], polls[:size], labels)
    for answer, told in zip(both["teacher_logits"][size:], polls[size:], strict=True):
        expected = torch.tensor(twins_shares(told))
        torch.testing.assert_close(answer.softmax(0), expected, atol=1e-4, rtol=1e-2)


def check_own(targets: Tensor, polls: list[Told], labels: list[int]) -> None:
    """Eq. 4."""
    for target, told, label in zip(targets, polls, labels, strict=True):
        trust = twins_trust()[label]
        expected = (1 - trust) * torch.tensor(twins_shares(told))
        expected[label] += trust
        torch.testing.assert_close(target.softmax(0), expected, atol=1e-4, rtol=1e-2)


def twins_trust() -> list[float]:
    held, drawn = np.array(counts("classifier")), np.array(counts("generator"))
    return label_trust(held, drawn, OPEN.half_trust).tolist()


def test_unmoved_samples_are_the_decoders_own() -> None:
    outcome, server = rerun(warp=0.0)
    images, kept = server.fits["warmup/1"][1]["images"], outcome.synthetic["kept"]
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
    plain, mixed = rerun()[1].fits["warmup/1"][1], rerun(mixup=0.5)[1].fits
    size = len(plain["images"])
    lessons = mixed["warmup/1"][1]
    assert len(lessons["images"]) == size + round(size / 2)
    assert torch.equal(lessons["images"][:size], plain["images"])
    later = mixed["fusion"][1]["images"]
    assert len(later) > len(lessons["images"])
    mixtures = lessons["images"][size:]
    again = [bool((later == mixture).flatten(1).all(1).any()) for mixture in mixtures]
    assert sum(again) < len(again) / 4  # a lesson mixed with itself is one of them


def test_without_open_samples_the_decoders_own_are_all_lessons() -> None:
    outcome, server = rerun(open_samples=0)
    assert len(server.fits["fusion"][1]["images"]) == len(outcome.synthetic["kept"])
    assert outcome.figures["open_set"] == 0


def test_the_model_votes_as_often_as_asked() -> None:
    for warmups in (1, 3):
        stages = {f"warmup/{turn + 1}" for turn in range(warmups)}
        assert rerun(warmups=warmups)[1].fits.keys() == {*stages, "fusion"}


@pytest.mark.usefixtures("gated")
def test_the_gate_and_the_correction_change_what_is_learned() -> None:
    usual = rerun()[1].fits["warmup/1"][1]["teacher_logits"]
    for changes in ({"gate": False}, {"correction": 0.0}):
        other = rerun(**changes)[1].fits["warmup/1"][1]["teacher_logits"]
        assert not torch.allclose(usual, other, atol=1e-3)


def test_energies_that_are_not_apart_are_no_levels() -> None:
    labels, known = torch.tensor([0, 0, 1, 1]), torch.tensor([True, False])
    for inside, levels in ((5.0, (4.0, 5.0)), (4.5, None), (3.0, None)):
        logits = torch.tensor([[inside, 9.0]] * 2 + [[4.0, 9.0]] * 2)
        assert levels_apart(logits, labels, known) == levels


def test_label_counts_of_classifier_clients_are_in_the_ledger() -> None:
    clients, server = tiny_federation(OPEN)
    fedmho_open.run(clients, server, OPEN)
    alone, _ = tiny_federation(OPEN)
    alone.train()
    for member in clients.members:
        told = 8 * CLASSES if member.role == "classifier" else 0
        assert clients.bytes_up[member.id] == alone.bytes_up[member.id] + told


@pytest.mark.parametrize("setting", [{"lam": 0.3}, {"betas": (1.0, 1.0)}])
def test_settings_of_fedmhos_loss_are_refused(setting: dict[str, object]) -> None:
    name = next(iter(setting))
    with pytest.raises(UserError, match=f"^{name} is of fedmho-md"):
        replace(OPEN, **setting)  # type: ignore[arg-type]
