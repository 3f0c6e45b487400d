"""Clusters at random, and heterogeneous ones of groups of clients that are alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl.errors import UserError
from fl.methods.hfldd import (
    check_clusters,
    heterogeneous_clusters,
    random_clusters,
    random_heads,
)


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


def test_one_group_gives_a_cluster_for_each_client_and_as_many_groups_one_for_all() -> None:
    assert sorted(heterogeneous_clusters([0, 0, 0], 0)) == [[0], [1], [2]]
    assert heterogeneous_clusters([2, 0, 1], 0) == [[0, 1, 2]]


def test_other_seeds_draw_other_clusters() -> None:
    drawn = {str(random_clusters(range(12), 3, seed)) for seed in range(6)}
    assert len(drawn) > 1
    assert len({str(heterogeneous_clusters([0, 1] * 6, seed)) for seed in range(6)}) > 1


def test_more_clusters_than_clients_are_refused_by_the_settings_name() -> None:
    with pytest.raises(UserError, match="groups must be in 1 to 3, the clients, got 4"):
        check_clusters(4, 3, "groups")
