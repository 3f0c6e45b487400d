"""The federations that placement is measured on: who is in them, and how long each takes."""

from dataclasses import replace

import numpy as np
import pytest
from federations import (
    CLASSES,
    CLIENT_NOISE,
    EPOCHS,
    LEAST_SAMPLES,
    MACHINES,
    MODEL_NOISE,
    SAMPLES_PER_CLASS,
    SHARES,
    Machine,
    federation,
    with_largest_request,
)

from cluster.scheduling.placement import lower_bound
from fl.federation import Request

every_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


@every_machine
@pytest.mark.parametrize("clients", [10, 50])
def test_a_federation_shares_all_samples_among_models_in_their_shares(
    machine: Machine, clients: int
) -> None:
    jobs = federation(machine, clients, seed=0)
    assert [job.client for job in jobs] == list(range(clients))
    models = [job.model for job in jobs]
    assert {name: models.count(name) for name in SHARES} == {
        name: share * clients for name, share in SHARES.items()
    }
    samples = [job.work // EPOCHS[job.model] for job in jobs]
    assert sum(samples) == CLASSES * SAMPLES_PER_CLASS
    assert min(samples) >= LEAST_SAMPLES
    assert all(job.request == machine.requests[job.model] for job in jobs)


@every_machine
def test_every_client_could_run_on_the_machine(machine: Machine) -> None:
    jobs = federation(machine, 10, seed=0)
    bound = lower_bound(machine.bundles, [(job.request, job.seconds) for job in jobs])
    assert bound >= max(job.seconds for job in jobs)


def test_times_differ_from_the_nominal_ones_by_model_and_by_client() -> None:
    """In logarithms: by an error that a model's clients share, and one of each client's own."""
    machine, shared, own = MACHINES[0], [], []
    for seed in range(30):
        errors: dict[str, list[float]] = {name: [] for name in SHARES}
        for job in federation(machine, 20, seed):
            errors[job.model].append(np.log(job.seconds / (job.work * machine.rates[job.model])))
        for of_model in errors.values():
            shared.append(np.mean(of_model))
            own += list(np.array(of_model) - np.mean(of_model))
    assert np.std(shared) == pytest.approx(MODEL_NOISE, rel=0.25)
    assert np.std(own) == pytest.approx(CLIENT_NOISE, rel=0.25)


def test_a_federation_follows_from_its_size_and_seed() -> None:
    machine = MACHINES[0]
    assert federation(machine, 10, 3) == federation(machine, 10, 3)
    assert federation(machine, 10, 3) != federation(machine, 10, 4)


def test_uniform_requests_do_for_the_largest_of_every_kind() -> None:
    first, second = federation(MACHINES[0], 10, seed=0)[:2]
    first = replace(first, request=Request(cpus=4, gpus=0.1, memory_bytes=10))
    second = replace(second, request=Request(cpus=0.5, gpus=0.7, memory_bytes=20))
    found = with_largest_request([first, second])
    assert {job.request for job in found} == {Request(cpus=4, gpus=0.7, memory_bytes=20)}
    assert [replace(job, request=first.request) for job in found] == [
        first,
        replace(second, request=first.request),
    ]
