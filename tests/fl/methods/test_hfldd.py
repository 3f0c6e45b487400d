"""HFLDD: its clusters, what heads are sent, and where it is FedAvg or central training."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, optim

from fl.condensation.kip import KipTraining
from fl.errors import ClientFailed, UserError
from fl.events import ClientEnd, Event
from fl.federation import Client, Request, Task, Update
from fl.methods import hfldd
from fl.methods.hfldd import (
    check_sent,
    divergence_matrix,
    group,
    heterogeneous_clusters,
    random_clusters,
    random_heads,
)
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.server import Outcome
from tests.fl.methods.personal_runs import (
    CLIENTS,
    LOCAL,
    SPEC,
    close,
    fedavg,
    federation,
    losing,
    model_of,
    play,
    samples,
    settings,
    sizes,
    start,
    store,
)
from tests.fl.toy import same_bits

PUBLIC = torch.rand(30, *SPEC.image_shape, generator=torch.Generator().manual_seed(1))
INPUTS = {"auxiliary": PUBLIC}
KIP = KipTraining(images=6, steps=3, targets=4, stop="never")


def config(**changes: object) -> hfldd.HFLDDConfig:
    return settings("hfldd", **{"groups": 2, "kip": KIP, **changes})  # type: ignore[no-any-return]


@cache
def one_round(**changes: object) -> Outcome:
    return play("hfldd", config(**changes), 1, inputs=INPUTS)[0]


STATS = {"steps": 3.0, "nearest": 0.1}
PIXELS = torch.zeros(1, *SPEC.image_shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("tensors", "stats", "said"),
    [
        (
            {"images.0": PIXELS.expand(8, -1, -1, -1)},
            STATS,
            r"sent \[8\] images by class, and has 7",
        ),
        ({"images.0": PIXELS[:0], "images.1": PIXELS}, STATS, r"sent \[0, 1\] images"),
        ({"images.0": PIXELS}, {}, "does not report both its steps"),
    ],
)
def test_a_member_sends_no_more_than_it_has_and_tells_of_it(
    tensors: dict[str, Tensor], stats: dict[str, float], said: str
) -> None:
    member = Client(
        id=1, role="classifier", training=KIP, num_samples=7, request=Request(cpus=1, gpus=0)
    )
    honest = Update(
        client=member, tensors={"images.0": PIXELS}, stats=STATS, seconds=1.0, reused=False
    )
    check_sent(honest, SPEC)
    with pytest.raises(ValueError, match=said):
        check_sent(replace(honest, tensors=tensors, stats=stats), SPEC)


@pytest.mark.parametrize("rule", [{}, {"aggregate": "median"}])
def test_one_group_makes_every_client_a_head_and_it_is_fedavg(rule: dict[str, str]) -> None:
    like = {"weighting": "uniform", **rule} if rule else {}
    expected, _ = fedavg(**like)
    ours, clients = play("hfldd", config(groups=1, **rule), inputs=INPUTS)
    assert same_bits(model_of(ours), model_of(expected))
    assert sorted(ours.figures["heads"]) == list(range(CLIENTS))
    assert not any(clients.bytes_peer.values())


def test_as_many_groups_as_clients_without_distillation_is_central_training() -> None:
    """One head with all images, in the order head, then members."""
    ours, clients = play("hfldd", config(groups=CLIENTS, distilled=False), 2, inputs=INPUTS)
    ((head,), (cluster,)) = ours.figures["heads"], ours.figures["clusters"]
    assert cluster == list(range(CLIENTS))
    others = [k for k in range(CLIENTS) if k != head]
    parts = [samples(head)]
    for k in others:
        images, labels = samples(k)
        by_class = torch.argsort(labels, stable=True)
        parts.append((images[by_class], labels[by_class]))
    images = torch.cat([images for images, _ in parts])
    labels = torch.cat([labels for _, labels in parts])
    model = deepcopy(start(config()))
    for number in (1, 2):
        sgd = optim.SGD(model.parameters(), lr=LOCAL["lr"], momentum=0.9)
        purpose = "local/order" if number == 1 else "local/order/round 2"
        order = torch.Generator().manual_seed(seed_for(0, purpose, head))
        for _ in range(LOCAL["epochs"]):
            for rows in torch.randperm(len(labels), generator=order).split(LOCAL["batch_size"]):
                sgd.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                sgd.step()
    assert close(model.state_dict(), model_of(ours), atol=1e-4)
    pixels = int(torch.Size(SPEC.image_shape).numel())
    assert clients.bytes_peer == {
        k: 0 if k == head else sizes()[k] * pixels for k in range(CLIENTS)
    }


def test_a_second_number_of_groups_distils_nobody_again(tmp_path: Path) -> None:
    """Soft labels and sets depend on neither K nor cluster."""
    play("hfldd", config(groups=CLIENTS), 1, inputs=INPUTS, store=store(tmp_path, "four"))
    heard: list[Event] = []
    play(
        *("hfldd", config(groups=2), 1),
        inputs=INPUTS,
        store=store(tmp_path, "two"),
        listener=heard.append,
    )
    ends = [e for e in heard if isinstance(e, ClientEnd)]
    assert [e.reused for e in ends[: 2 * CLIENTS]] == [True] * 2 * CLIENTS
    distilled = [e for e in ends if e.bytes_peer]
    assert sum(not e.reused for e in distilled) <= 1  # who was the head of all


def test_divergences_are_those_of_the_plain_formula() -> None:
    soft = torch.randn(4, 6, 3).softmax(2)
    found = divergence_matrix(list(soft))
    for i in range(4):
        for j in range(4):
            plain = (soft[i] * (soft[i] / soft[j]).log()).sum(1).mean()
            assert float(found[i, j]) == pytest.approx(float(plain), abs=1e-6)
    assert float(found.diagonal().abs().max()) < 1e-12


def test_clients_that_answer_alike_are_one_group() -> None:
    one, other = torch.tensor([5.0, 0, 0]), torch.tensor([0, 0, 5.0])
    soft = [
        (logits + 0.1 * torch.randn(20, 3)).softmax(1) for logits in (one, other, one, other, one)
    ]
    found = group(divergence_matrix(soft), 2, seed=0).tolist()
    assert found[0] == found[2] == found[4] != found[1] == found[3]


def test_the_groups_are_the_same_for_the_same_seed_also_of_fewer_than_groups(
    recwarn: pytest.WarningsRecorder,
) -> None:
    matrix = torch.rand(300, 12)[torch.arange(600) % 300]
    assert torch.equal(group(matrix, 10, seed=3), group(matrix, 10, seed=3))
    alike = group(torch.zeros(5, 5), 3, seed=0)
    assert alike.tolist() == [0] * 5
    fewer = group(torch.eye(3), 4, seed=0)  # as where a client was dropped
    assert sorted(fewer.tolist()) == [0, 1, 2]
    assert not recwarn.list


@pytest.mark.parametrize("task", [hfldd.keep_data, hfldd.train_head])
def test_a_lost_head_stops_the_run_with_its_name_also_where_failures_are_dropped(
    task: Task,
) -> None:
    head = one_round().figures["heads"][0]
    clients, server = federation("hfldd", config())
    losing(clients, task, head)
    with pytest.raises(ClientFailed, match=f"client {head} .*its node is gone; it is its cluster"):
        hfldd.run(clients, server, config(), auxiliary=PUBLIC, rounds=Rounds(2))


def test_what_was_sent_is_told_with_its_distance_to_real_images() -> None:
    told = one_round().figures["distilled"]
    assert told["steps"] == KIP.steps
    assert 0 < told["nearest_real"] < 0.1  # three steps from real images
    assert one_round(distilled=False).figures["distilled"]["nearest_real"] == 0


def test_the_first_image_of_a_class_from_two_members_is_an_example_after_a_restart_too(
    tmp_path: Path,
) -> None:
    plain, kept = config(distilled=False, groups=CLIENTS), store(tmp_path)
    for rounds in (1, 2):  # the second goes on after the first
        ours, _ = play("hfldd", plain, rounds, inputs=INPUTS, directory=tmp_path, store=kept)
    (head,), examples = ours.figures["heads"], ours.sent
    members = [k for k in range(CLIENTS) if k != head]
    expected = [(c, k) for c in range(10) for k in [k for k in members if has(k, c)][:2]]
    found = zip(examples["labels"].tolist(), examples["clients"].tolist(), strict=True)
    assert list(found) == expected
    for image, (c, k) in zip(examples["images"], expected, strict=True):
        images, labels = samples(k)
        assert torch.equal(image, (images[labels == c][0] * 255).round().to(torch.uint8))
    assert not one_round(groups=1).sent


def has(k: int, label: int) -> bool:
    """Whether a client has images of the class."""
    return label in samples(k)[1].tolist()


def test_more_groups_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="groups must be in 1 to 4"):
        get_method("hfldd").assign(config(groups=5), CLIENTS, SPEC)


def test_too_few_heads_for_a_rule_are_refused() -> None:
    with pytest.raises(UserError, match=r"aggregate median .* got 1"):
        play("hfldd", config(groups=CLIENTS, aggregate="median"), inputs=INPUTS)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_random_clusters_hold_every_client_once_in_about_equal_numbers(
    members: int, count: int, seed: int
) -> None:
    if count > members:
        with pytest.raises(UserError, match=f"clusters must be in 1 to {members}"):
            random_clusters(range(members), count, seed)
        return
    clusters = random_clusters(range(members), count, seed)
    assert sorted(k for cluster in clusters for k in cluster) == list(range(members))
    sizes = {len(cluster) for cluster in clusters}
    assert len(clusters) == count
    assert max(sizes) - min(sizes) <= 1
    assert clusters == random_clusters(range(members), count, seed)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 5))
def test_heterogeneous_clusters_have_at_most_one_client_of_a_group(
    groups: list[int], seed: int
) -> None:
    clusters = heterogeneous_clusters(groups, seed)
    assert sorted(k for cluster in clusters for k in cluster) == list(range(len(groups)))
    for cluster in clusters:
        assert len({groups[k] for k in cluster}) == len(cluster)
    assert len(clusters) == max(groups.count(g) for g in groups)  # H, the largest group
    heads = random_heads(clusters, seed)
    assert all(head in cluster for head, cluster in zip(heads, clusters, strict=True))


def test_other_seeds_draw_other_clusters() -> None:
    drawn = {str(random_clusters(range(12), 3, seed)) for seed in range(6)}
    assert len(drawn) > 1
    assert len({str(heterogeneous_clusters([0, 1] * 6, seed)) for seed in range(6)}) > 1
