"""FedMHO-Open against a naive twin, and each of its parts: trust, votes, mixup, longer codes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, Update
from fl.methods import fedmho, fedmho_open
from fl.methods.fedmho_open import (
    MOTION,
    FedMHOOpenConfig,
    VariedDecoder,
    best_of_each_class,
    elected,
    label_trust,
    moved,
    open_quotas,
    trusted_labels,
    voting_shares,
    with_mixup,
)
from fl.methods.uploads import load_classifier, send_label_counts, untrained_classifier
from fl.models.architectures.cvaes import Decoder
from fl.seeding import seed_for
from fl.server import Outcome
from tests.fl.methods.naive_fedmho import decoder
from tests.fl.methods.tiny import TINY, WatchedServer, tiny_federation
from tests.fl.toy import CPU

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
    with pytest.raises(UserError, match=f"^fedmho-open does not use {name}; fedmho-md"):
        replace(OPEN, **setting)  # type: ignore[arg-type]


# Its parts.


def test_labels_are_trusted_by_what_generator_clients_hold() -> None:
    held, drawn = np.array([[6, 0, 4, 0], [3, 0, 0, 0]]), np.array([[1, 5, 4, 0]])
    assert label_trust(held, drawn, 100).tolist() == pytest.approx([0.1, 1, 0.5, 0])


def test_that_others_hold_many_more_of_a_class_does_not_make_its_labels_doubtful() -> None:
    """From 30 samples on they count half, and below by their share of 30."""
    for held in (90, 300, 3000):
        trust = label_trust(np.array([[held, held]]), np.array([[90, 1]]), 30)
        assert trust.tolist() == pytest.approx([0.5, 1 / 31])


def test_where_decoders_clients_hold_more_votes_count_by_their_share_of_a_class() -> None:
    trust = label_trust(np.array([[40, 300]]), np.array([[120, 300]]), 30)
    assert trust.tolist() == pytest.approx([0.75, 0.5])


def test_open_samples_go_to_classes_that_decoders_lack() -> None:
    held, drawn = np.array([[9, 0, 5, 0]]), np.array([[0, 5, 5, 0]])
    assert open_quotas(held, label_trust(held, drawn, 100), 30.0) == [20, 0, 10, 0]
    assert open_quotas(held * [[0, 1, 0, 1]], torch.ones(4), 30.0) == [0, 0, 0, 0]


def test_a_vote_counts_by_the_share_of_the_class_that_decoders_do_not_know() -> None:
    held, trust = np.array([[6, 0, 1], [3, 0, 3]]), torch.tensor([0.5, 0.0, 0.0])
    shares = voting_shares(held, trust)
    assert shares.tolist() == [pytest.approx([1 / 3, 0, 0.25]), pytest.approx([1 / 6, 0, 0.75])]


def test_a_label_counts_as_far_as_it_is_trusted_and_the_votes_for_the_rest() -> None:
    shares = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    target = trusted_labels(torch.tensor([0, 1]), shares, torch.tensor([0.5, 1.0]))
    assert target.tolist() == [pytest.approx([0.6, 0.4]), pytest.approx([0, 1])]


def test_shares_sum_to_one_also_where_nobody_votes() -> None:
    shares, evidence = elected(torch.tensor([[0.3, 0.1, 0.0], [0.0, 0.0, 0.0]]))
    assert shares[0].tolist() == pytest.approx([0.75, 0.25, 0], abs=1e-6)
    assert shares[1].tolist() == pytest.approx([1 / 3] * 3)
    assert evidence.tolist() == pytest.approx([0.4, 0], abs=1e-6)


def test_the_best_of_each_class_are_those_with_the_most_and_clearest_votes() -> None:
    shares, evidence = elected(torch.rand(40, 3, generator=torch.Generator().manual_seed(0)))
    quotas = [4, 0, 7]
    expected = set()
    for c, quota in enumerate(quotas):
        worth = [float(e * q**2) for e, q in zip(evidence, shares[:, c], strict=True)]
        expected |= set(sorted(range(40), key=lambda i: -worth[i])[:quota])
    assert best_of_each_class(shares, evidence, quotas).tolist() == sorted(expected)


Z, LABELLED, SIDE = 2, 3, 12


def small_decoder() -> Decoder:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(Z + LABELLED, SIDE**2), nn.Unflatten(1, (1, SIDE, SIDE)))
    return Decoder(layers, latent=Z, num_classes=LABELLED)


def code(latent: int, count: int = 5) -> Tensor:
    return torch.randn(count, latent, generator=torch.Generator(CPU).manual_seed(1))


LABELS = torch.eye(LABELLED)[[0, 1, 2, 0, 1]]


def test_unmoved_it_draws_what_the_plain_decoder_draws() -> None:
    varied = VariedDecoder(small_decoder(), warp=0.0)
    z = code(varied.latent)
    assert z.shape[1] == Z + MOTION
    torch.testing.assert_close(varied(z, LABELS), small_decoder()(z[:, :Z], LABELS))


def test_another_strength_moves_the_same_images() -> None:
    still, moving = (VariedDecoder(small_decoder(), warp=w) for w in (0.0, 1.0))
    z = code(still.latent)
    expected = moved(still(z, LABELS).sigmoid(), z[:, Z:], 1.0)
    torch.testing.assert_close(moving(z, LABELS).sigmoid(), expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(expected, still(z, LABELS).sigmoid(), atol=1e-2)


def test_a_mixed_label_takes_the_place_of_the_label() -> None:
    varied = VariedDecoder(small_decoder(), warp=0.0, spread=1.5, mixing=2.0)
    z = code(varied.latent)
    assert z.shape[1] == Z + LABELLED + MOTION
    mixture = (2.0 * z[:, Z : Z + LABELLED]).softmax(1)
    torch.testing.assert_close(varied(z, LABELS), small_decoder()(1.5 * z[:, :Z], mixture))
    assert torch.equal(varied(z, LABELS), varied(z, LABELS.flip(0)))


def test_a_sample_does_not_depend_on_the_others() -> None:
    varied = VariedDecoder(small_decoder(), warp=1.0, mixing=2.0)
    z = code(varied.latent)
    alone = torch.cat([varied(z[[i]], LABELS[[i]]) for i in range(len(z))])
    torch.testing.assert_close(varied(z, LABELS), alone)


@pytest.mark.parametrize(("number", "axis"), [(4, 3), (5, 2)])
def test_shifts_are_a_twentieth_of_a_side_at_most(number: int, axis: int) -> None:
    image = torch.zeros(1, 1, 40, 40)
    image[..., 18:22, 18:22] = 1
    motion = torch.zeros(1, MOTION)
    motion[0, number] = 9.0
    place = torch.arange(40.0)

    def middle(x: Tensor) -> float:
        along = x.sum((0, 1, 5 - axis))
        return float((along * place).sum() / along.sum())

    assert middle(moved(image, motion, 1.0)) - middle(image) == pytest.approx(-2, abs=0.01)
    assert middle(moved(image, motion, 0.5)) - middle(image) == pytest.approx(-1, abs=0.01)


def test_no_motion_and_no_strength_leave_images_as_they_are() -> None:
    images = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(moved(images, torch.zeros(3, MOTION), 1.0), images)
    torch.testing.assert_close(moved(images, code(MOTION, 3), 0.0), images)


def test_what_comes_in_is_the_borders_pixel() -> None:
    white = torch.ones(4, 1, 8, 8)
    torch.testing.assert_close(moved(white, code(MOTION, 4), 2.0), white)


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
