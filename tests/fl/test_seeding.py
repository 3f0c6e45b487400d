"""Random streams by seed, purpose and client."""

import hashlib
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.seeding import OwnStream, numpy_generator, seed_for, seeded, torch_generator
from tests.pretended_gpu import pretended_gpus

purposes = st.text("abc/01", max_size=6)
clients = st.none() | st.integers(0, 1000)
streams = st.tuples(st.integers(0, 2**32), purposes, clients)


def test_a_seed_is_the_hash_of_its_name() -> None:
    """Seeds are part of every published result: they must never change."""
    digest = hashlib.sha256(b"7/local/order/3").digest()
    assert seed_for(7, "local/order", 3) == int.from_bytes(digest[:8], "little") // 2
    assert seed_for(0, "start/cnn") == 6963330708940525184


@settings(max_examples=200, derandomize=True)
@given(one=streams, other=streams)
def test_seeds_fit_63_bits_and_differ_wherever_their_names_do(
    one: tuple[int, str, int | None], other: tuple[int, str, int | None]
) -> None:
    assert 0 <= seed_for(*one) < 2**63
    assert (seed_for(*one) == seed_for(*other)) == (one == other)


def test_a_client_is_not_confused_with_a_purpose() -> None:
    names = [(0, "a", None), (0, "a", 0), (0, "a", 1), (0, "a/0", None), (0, "a/", None)]
    assert len({seed_for(*name) for name in names}) == len(names)


def test_generators_draw_the_same_whatever_was_drawn_before() -> None:
    def draw() -> tuple[torch.Tensor, float]:
        on_torch = torch.rand(5, generator=torch_generator(1, "noise", 2))
        return on_torch, numpy_generator(1, "noise", 2).random()

    first_tensor, first_float = draw()
    torch.rand(3)
    torch_generator(1, "noise", 1).seed()
    second_tensor, second_float = draw()
    assert torch.equal(first_tensor, second_tensor)
    assert first_float == second_float


def test_the_seeded_block_draws_the_same_whatever_the_global_state() -> None:
    def draw() -> list[float]:
        return [torch.rand(()).item(), np.random.random(), random.random()]

    def set_all(state: int) -> None:
        torch.manual_seed(state)
        np.random.seed(state)
        random.seed(state)

    draws = []
    for state in (1, 2):
        set_all(state)
        after = draw()
        set_all(state)
        with seeded(0, "start"):
            draws.append(draw())
        assert draw() == after  # the users' own streams go on as they were
    assert draws[0] == draws[1]


def test_a_seeded_block_that_fails_leaves_the_global_state_as_it_was() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="size"), seeded(0, "start"):
        torch.rand(9) @ torch.rand(8)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_own_stream_goes_on_where_it_was_whoever_draws_in_between() -> None:
    with seeded(5, "weights", 2):
        expected = torch.rand(6)
    streams = OwnStream(5, "weights", 2), OwnStream(5, "weights", 3)
    torch.manual_seed(1)
    others = torch.rand(4)
    torch.manual_seed(1)
    drawn = []
    for _ in range(2):
        for stream in streams:
            with stream:
                drawn.append(torch.rand(3))
        torch.rand(2)
    assert torch.equal(torch.cat([drawn[0], drawn[2]]), expected)
    torch.manual_seed(1)
    with streams[0]:
        torch.rand(7)
    assert torch.equal(torch.rand(4), others)


def test_streams_of_gpus_that_are_not_in_use_are_left_alone() -> None:
    """Starting CUDA would take a GPU's memory in a process that only draws starting weights."""
    with pretended_gpus(2), warnings.catch_warnings():
        warnings.simplefilter("error")  # as torch warns of forking the streams of many GPUs
        with seeded(0, "start"):
            torch.rand(3)
        assert not torch.cuda.is_initialized()
        torch.zeros(1, device="cuda")
        expected = torch.cuda.get_rng_state()
        with seeded(0, "start"):
            torch.rand(3, device="cuda")
        assert torch.equal(torch.cuda.get_rng_state(), expected)
