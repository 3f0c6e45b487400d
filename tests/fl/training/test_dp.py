"""The budget of differential privacy, against what Opacus' accountant says of it."""

import pytest

from fl.errors import UserError
from fl.training.private import DpConfig, Sampling, noise_for

pytest.importorskip("opacus")


def test_a_sampling_has_the_batches_that_training_would_have() -> None:
    assert Sampling.of(100, 16, 3) == Sampling(0.16, 21)
    assert Sampling.of(5, 16, 3) == Sampling(1.0, 3)


def test_the_budget_is_kept_and_nearly_spent() -> None:
    for epsilon in (0.5, 3.0):
        noise, spent = noise_for(epsilon, 1e-5, Sampling(0.1, 100))
        assert 0.95 * epsilon < spent <= epsilon
        assert noise > 0


def test_less_epsilon_and_more_steps_need_more_noise() -> None:
    few = noise_for(3.0, 1e-5, Sampling(0.1, 100))[0]
    assert noise_for(1.0, 1e-5, Sampling(0.1, 100))[0] > few
    assert noise_for(3.0, 1e-5, Sampling(0.1, 1000))[0] > few
    assert noise_for(3.0, 1e-5, Sampling(0.05, 100))[0] < few


def test_a_budget_that_nothing_keeps_is_one_line() -> None:
    with pytest.raises(UserError, match=r"dp\.epsilon 0\.0001 with delta 1e-05"):
        noise_for(1e-4, 1e-5, Sampling(1.0, 10_000))


def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fl.training.private.find_spec", lambda name: None)
    DpConfig()
    with pytest.raises(UserError, match=r"pip install 'onefold\[dp\]'"):
        DpConfig(epsilon=1.0)
