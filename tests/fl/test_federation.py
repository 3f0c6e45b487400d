"""The records that clients, executors and methods share."""

from dataclasses import replace

import pytest
import torch

from fl.data.shard import Shard
from fl.federation import Request, RunSpec
from tests.fl.toy import CLASSIFIER, PROBLEM, shard, task_input

IMAGES = torch.zeros(4, 1, 28, 28)
LABELS = torch.tensor([0, 2, 1, 2])


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, 1), (1, 1), (1.5, 1), (2, 2), (8, 8)])
def test_threads_are_the_whole_cores_of_a_request_and_at_least_one(
    cpus: float, threads: int
) -> None:
    assert Request(cpus=cpus, gpus=0).threads == threads


def test_without_domains_answers_are_counted_by_class() -> None:
    assert PROBLEM.groups(Shard(IMAGES, LABELS, 3)).tolist() == LABELS.tolist()
    assert PROBLEM.num_groups == 3


def test_with_domains_each_pair_of_domain_and_class_has_a_group_of_its_own() -> None:
    spec = replace(PROBLEM, domains=("photo", "sketch"))
    pairs = [(domain, label) for domain in range(2) for label in range(3)]
    domains, labels = torch.tensor(pairs).T
    test = Shard(torch.zeros(6, 1, 28, 28), labels, 3, domains)
    groups = spec.groups(test).tolist()
    assert sorted(groups) == list(range(spec.num_groups))
    assert [divmod(group, 3) for group in groups] == pairs


def test_random_numbers_follow_from_seed_purpose_client_and_round() -> None:
    def drawn(purpose: str = "order", seed: int = 0, id: int = 0, round: int = 1) -> list[float]:
        spec = RunSpec.of_images((1, 28, 28), num_classes=3, seed=seed)
        given = task_input(CLASSIFIER, shard(1, 0, 0), id=id, run_spec=spec)
        stream = replace(given, round=round).stream(purpose)
        return torch.rand(4, generator=stream).tolist()

    first = drawn()
    torch.rand(3)  # the global stream decides nothing
    assert drawn() == first
    others = [drawn("noise"), drawn(seed=1), drawn(id=1), drawn(round=2)]
    assert len({tuple(numbers) for numbers in (first, *others)}) == 5
