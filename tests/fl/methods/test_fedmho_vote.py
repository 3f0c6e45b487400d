"""FedMHO-Vote: who votes on what, against plain loops; what it shares with FedMHO; its bytes."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl.fusion.warping import Warp
from fl.methods import fedmho, fedmho_vote
from fl.methods.fedmho import FedMHOConfig
from fl.methods.fedmho_vote import FedMHOVoteConfig, VoteLoss, Voter, label_trust
from fl.methods.uploads import load_classifier
from fl.server import Outcome
from tests.fl.methods.tiny import TINY, WatchedServer, tiny_data, tiny_federation, tiny_partition

CONFIG = FedMHOVoteConfig(**{f.name: getattr(TINY, f.name) for f in fields(FedMHOConfig)})


def play(config: FedMHOConfig = CONFIG, **how: Any) -> tuple[Outcome, WatchedServer, Any]:
    clients, server = tiny_federation(config, **how)
    return fedmho_vote.run(clients, server, config), server, clients


def test_the_answer_of_the_voters_is_that_of_plain_loops() -> None:
    outcome, server, clients = play()
    updates = clients.train()
    counts = [u.tensors.get("label_counts") for u in updates]
    own = [tiny_data().train.labels[i] for i in tiny_partition(tiny_data(), 6).train]
    held = [[int((labels == c).sum()) for c in range(10)] for labels in own]
    voters = [k for k, own in enumerate(counts) if own is None]
    images = server.fits["fusion"][1]["images"]
    expected = []
    for image in images[:20]:
        votes = [0.0] * 10
        for k in voters:  # Eqs. 1 and 2
            with torch.no_grad():
                said = load_classifier(updates[k], server)(image[None])[0].log_softmax(0)
            frequency = [(held[k][c] + 1) / (sum(held[k]) + 10) for c in range(10)]
            said = (said - 0.5 * torch.tensor(frequency).log()).softmax(0)
            for c in range(10):
                of_all = sum(held[j][c] for j in voters)
                votes[c] += held[k][c] / of_all * float(said[c]) if of_all else 0.0
        expected.append([v / sum(votes) for v in votes])
    found = outcome.synthetic["teacher_logits"][:20].softmax(1)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-4)
    drawn = [k for k in range(len(held)) if k not in voters]
    trust = [sum(held[k][c] for k in drawn) / sum(h[c] for h in held) for c in range(10)]
    assert outcome.figures["label_trust"] == pytest.approx(trust)


def test_a_label_counts_as_much_as_generators_hold_of_its_class() -> None:
    trust = label_trust(np.array([[3, 0, 5, 0]]), np.array([[1, 2, 0, 0], [0, 2, 0, 0]]))
    assert trust == (0.25, 1.0, 0.0, 0.0)


def test_the_loss_is_cross_entropy_where_labels_are_trusted_and_distillation_where_not() -> None:
    logits, wanted = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    batch = {"images": logits, "teacher_logits": wanted, "labels": torch.arange(6) % 4}
    model = nn.Identity()
    believed = VoteLoss((1.0,) * 4)(model, batch)
    torch.testing.assert_close(believed, F.cross_entropy(logits, batch["labels"]))
    voted = VoteLoss((0.0,) * 4)(model, batch)
    torch.testing.assert_close(voted, F.cross_entropy(logits, wanted.softmax(1)))
    half = VoteLoss((0.5,) * 4)(model, batch)
    torch.testing.assert_close(half, (believed + voted) / 2)


def test_who_holds_nothing_of_a_class_has_no_vote_on_it() -> None:
    voter = Voter(nn.Identity(), torch.tensor([4.0, 0.0]), torch.tensor([8.0, 3.0]), tau=0.5)
    votes = voter(torch.tensor([[0.0, 9.0]]))
    assert votes[0, 1] == 0
    assert 0 < votes[0, 0] < 0.5


def test_without_warp_and_vote_it_is_fedmho_to_the_bit() -> None:
    plain = replace(CONFIG, warp=0.0, voting=False, fusion=TINY.fusion)
    clients, server = tiny_federation(TINY)
    expected = fedmho.run(clients, server, TINY, teacher="none")
    found = play(plain)[0]
    assert same_epochs(found, expected)
    for name, tensor in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor, atol=1e-6, rtol=1e-4)


def same_epochs(a: Outcome, b: Outcome) -> bool:
    return [e.accuracy for e in a.epochs] == [e.accuracy for e in b.epochs]


def test_what_is_voted_on_and_fitted_is_warped() -> None:
    warped, still = (play(replace(CONFIG, warp=w))[1].fits["fusion"][1] for w in (1.0, 0.0))
    assert torch.equal(Warp(0)(still["images"]), warped["images"])
    assert torch.equal(still["labels"], warped["labels"])


def test_it_costs_fedmhos_bytes_and_eight_a_class_of_each_voter() -> None:
    clients, server = tiny_federation(TINY)
    fedmho.run(clients, server, TINY, teacher="none")
    plain = dict(clients.bytes_up)
    _, _, clients = play()
    for member in clients.members:
        more = clients.bytes_up[member.id] - plain[member.id]
        assert more == (80 if member.role == "classifier" else 0)
