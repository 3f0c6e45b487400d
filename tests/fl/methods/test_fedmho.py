"""FedMHO against its naive twin, and the behaviour of each of its options."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl import executor
from fl.clients import Clients
from fl.data.datasets import Split
from fl.errors import ClientFailed, UserError
from fl.federation import Job, RunSpec, TaskInput, TaskOutput, Update
from fl.fusion.aggregation import aggregate_states
from fl.methods import fedmho
from fl.methods.fedmho import FedMHOConfig, Teacher, assign
from fl.methods.method import Assignment
from fl.methods.registry import get_method
from fl.methods.uploads import load_classifier, untrained_classifier
from fl.models.architectures.cvaes import Decoder
from fl.training.generator import GeneratorConfig
from tests.fl.methods.naive_fedmho import naive_fedmho
from tests.fl.methods.tiny import TINY, Assign, WatchedServer, changed, tiny_federation
from tests.fl.toy import same_bits

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
TEACHERS = ("none", "models", "start")


@cache
def tiny_updates() -> list[Update]:
    clients, _ = tiny_federation()
    return clients.train()


class Replay(Clients):
    """Clients that already trained."""

    def map(self, task, **kwargs):  # type: ignore[no-untyped-def]
        return tiny_updates()


@cache
def rerun(config: FedMHOConfig, teacher: str) -> tuple[fedmho.Outcome, WatchedServer]:
    clients, server = tiny_federation(config)
    clients.__class__ = Replay
    return fedmho.run(clients, server, config, teacher=teacher), server  # type: ignore[arg-type]


@pytest.mark.parametrize("teacher", TEACHERS)
def test_agrees_with_the_naive_twin_step_by_step(teacher: str) -> None:
    outcome, server = rerun(TINY, teacher)
    start, _, result = server.fits["fusion"]
    with torch.random.fork_rng():
        twin = naive_fedmho(tiny_updates(), server.run_spec, TINY, teacher, steps=6)

    for name, tensor in twin.start.items():
        torch.testing.assert_close(start[name], tensor)
    generators = [u for u in tiny_updates() if u.client.role == "generator"]
    assert fedmho.allocate(generators, server, TINY).tolist() == twin.counts
    torch.testing.assert_close(outcome.synthetic["images"], twin.images)
    assert outcome.synthetic["labels"].tolist() == twin.labels
    assert outcome.synthetic["kept"].tolist() == twin.kept
    assert result.step_losses[:6] == pytest.approx(twin.losses, rel=1e-4, abs=1e-5)
    asked = outcome.synthetic.get("teacher_logits", torch.empty(0))
    assert len(asked) == (0 if teacher == "none" else len(outcome.synthetic["kept"]))


def test_filter_options_keep_as_many_but_others() -> None:
    kept = {f: rerun(changed(filter=f), "none")[0].synthetic["kept"] for f in ("nearest", "random")}
    everything = rerun(changed(filter="none"), "none")[0].synthetic
    assert len(kept["nearest"]) == len(kept["random"]) < len(everything["kept"])
    assert kept["nearest"].tolist() != kept["random"].tolist()
    assert everything["kept"].tolist() == list(range(len(everything["labels"])))


def test_released_loss_weights_and_lambda_give_the_same_direction() -> None:
    """Equal betas are lambda = 1/2 scaled by two."""
    half = TINY.loss("start")
    released = changed(betas=(1.0, 1.0)).loss("start")
    assert (released.ce_weight, released.kd_weight) == (2 * half.ce_weight, 2 * half.kd_weight)
    assert changed(betas=(2.0, 1.0)).loss("models").kd_weight == 2.0
    assert changed(lam=0.3).loss("start").ce_weight == pytest.approx(0.3)
    assert TINY.loss("none").kd_weight == 0


@pytest.mark.parametrize("teacher", ["models", "start"])
def test_one_word_names_the_released_loss(teacher: Teacher) -> None:
    """Cross-entropy and torch's KLDivLoss() with its mean over all entries, both as they are."""
    logits, wanted = torch.randn(2, 6, 10, generator=torch.Generator().manual_seed(0))
    batch = {"images": logits, "teacher_logits": wanted, "labels": torch.arange(6)}
    loss = changed(betas="released").loss(teacher)(nn.Identity(), batch)
    kd = (wanted.softmax(1) * (wanted.log_softmax(1) - logits.log_softmax(1))).mean()
    expected = F.cross_entropy(logits, batch["labels"]) + kd
    torch.testing.assert_close(loss, expected)


def test_learned_weights_move_from_one_and_are_told() -> None:
    fixed, _ = rerun(changed(betas=(1.0, 1.0)), "models")
    learned, _ = rerun(changed(betas="learned"), "models")
    assert "betas" not in fixed.figures
    assert learned.figures["betas"] != (1.0, 1.0)
    assert learned.figures["betas"] == pytest.approx((1.0, 1.0), abs=0.5)
    ours, theirs = learned.model.state_dict(), fixed.model.state_dict()
    assert ours.keys() == theirs.keys()  # the weights are no part of the global model
    assert any(not torch.equal(ours[n], theirs[n]) for n in ours)
    assert "betas" not in rerun(changed(betas="learned"), "none")[0].figures


def test_random_start_ignores_what_the_classifiers_learned() -> None:
    _, averaged = rerun(TINY, "none")
    _, random = rerun(changed(start="random"), "none")
    average, untrained = averaged.fits["fusion"][0], random.fits["fusion"][0]
    assert any(not torch.equal(average[n], untrained[n]) for n in average)
    twice = rerun(changed(start="random"), "none")[1].fits["fusion"][0]
    assert all(torch.equal(untrained[n], twice[n]) for n in untrained)


def test_the_start_is_what_the_rule_makes_of_the_classifiers() -> None:
    config = changed(aggregate="median")
    _, server = rerun(config, "none")
    updates = [u for u in tiny_updates() if u.client.role == "classifier"]
    models = [load_classifier(u, server).state_dict() for u in updates]
    untrained = untrained_classifier(updates[0].client.training, server).state_dict()
    assert same_bits(server.fits["fusion"][0], aggregate_states(models, untrained, config))


def test_teachers_that_agree_weigh_more_if_asked() -> None:
    equal, agreed = (
        rerun(changed(teacher_weights=weights), "models")[1].fits["fusion"]
        for weights in ("equal", "agreement")
    )
    assert same_bits(equal[0], agreed[0])
    assert torch.equal(equal[1]["images"], agreed[1]["images"])
    assert not torch.equal(equal[1]["teacher_logits"], agreed[1]["teacher_logits"])


def test_uint8_pixels_are_multiples_of_one_255th() -> None:
    images = rerun(changed(pixels="uint8"), "none")[0].synthetic["images"]
    torch.testing.assert_close(images * 255, (images * 255).round(), atol=1e-4, rtol=0)


def test_label_share_gives_each_decoder_the_same_total() -> None:
    _, server = rerun(TINY, "none")
    generators = [u for u in tiny_updates() if u.client.role == "generator"]
    allocation = fedmho.allocate(generators, server, changed(allocation="label-share"))
    assert allocation.sum(axis=1).tolist() == [40, 40, 40]


def broken(inputs: TaskInput) -> TaskOutput:
    raise ZeroDivisionError


class Broken(GeneratorConfig):
    """Fails when it trains."""

    task = broken


def last_fails(config: FedMHOConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    *others, last = assign(config, num_clients, run_spec)
    return [*others, replace(last, training=Broken(epochs=1))]


class Late(WatchedServer):
    """Draws nothing early, and notes what it could have drawn."""

    def sample_early(self, decoders: Mapping[int, Decoder], *about: Any, **more: Any) -> None:
        self.early = [*getattr(self, "early", []), *decoders]


@pytest.mark.parametrize("assign_to", [assign, last_fails])
def test_samples_drawn_while_clients_train_are_those_drawn_afterwards(assign_to: Assign) -> None:
    """Also where a client is dropped and the others have to draw more than was thought."""
    config, made = changed(allocation="label-share"), []
    for late in (False, True):
        clients, server = tiny_federation(config, assign=assign_to, on_failure="drop")
        server.__class__ = Late if late else WatchedServer
        made.append(fedmho.run(clients, server, config, teacher="none").synthetic)
        assert list(clients.dropped) == ([] if assign_to is assign else [5])
    assert same_bits(*made)
    drawn = server.early  # type: ignore[attr-defined]
    assert drawn == ([3, 4, 5] if assign_to is assign else [3, 4])


def test_who_is_dropped_while_it_trains_its_decoder_is_left_out_with_its_classifier_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients, _ = tiny_federation(TINY, on_failure="drop")
    run_jobs = executor.run_jobs

    def failing(jobs: Sequence[Job], train: Split) -> list[bytes]:
        if (jobs[0].client.id, jobs[0].client.training) == (1, TINY.generator):
            raise ZeroDivisionError("no power")
        return run_jobs(jobs, train)

    monkeypatch.setattr(executor, "run_jobs", failing)
    classifiers, generators = fedmho.train_both(clients, replace(TINY, decoders="all"))
    assert [*clients.dropped] == [1]
    assert [update.client.id for update in classifiers] == [0, 2]
    assert [update.client.id for update in generators] == [0, 2, 3, 4, 5]


def test_by_squared_counts_no_decoder_draws_before_all_are_there() -> None:
    clients, server = tiny_federation(TINY)
    server.__class__ = Late
    fedmho.run(clients, server, TINY, teacher="none")
    assert not hasattr(server, "early")


def test_whole_cvae_upload_gives_the_same_model_for_more_bytes() -> None:
    results = {}
    for upload in ("decoder", "cvae"):
        config = changed(generator=replace(TINY.generator, upload=upload))
        clients, server = tiny_federation(config)
        model = fedmho.run(clients, server, config, teacher="none").model
        results[upload] = (model.state_dict(), sum(clients.bytes_up.values()))
    decoder, whole = results["decoder"], results["cvae"]
    assert all(torch.equal(decoder[0][n], whole[0][n]) for n in decoder[0])
    assert whole[1] > decoder[1]


def test_different_architectures_are_never_averaged_together() -> None:
    config = changed(prototypes=("cnn", "vgg9"))
    clients, server = tiny_federation(config)
    outcome = fedmho.run(clients, server, config, teacher="models")
    before, data, _ = server.fits["distil-init"]
    updates = [u for u in clients.train() if u.client.model == "cnn"]
    assert [u.client.id for u in updates] == [0, 2]
    cnns = [load_classifier(u, server).state_dict() for u in updates]
    for name, tensor in before.items():
        torch.testing.assert_close(tensor, (cnns[0][name] + cnns[1][name]) / 2)
    assert set(data) == {"images", "teacher_logits"}  # no labels: it distils
    assert outcome.model.state_dict().keys() == before.keys()


def test_the_model_is_that_of_the_first_clients_whoever_is_dropped() -> None:
    clients, server = tiny_federation(config := changed(prototypes=("cnn", "vgg9")))
    clients.dropped[0] = "out of memory"
    model = fedmho.run(clients, server, config, teacher="none").model
    cnn = untrained_classifier(clients.members[0].training, server)
    assert model is not None
    assert model.state_dict().keys() == cnn.state_dict().keys()
    clients.dropped[2] = "out of power"
    with pytest.raises(ClientFailed, match="out of power; no client with its model is left"):
        fedmho.run(clients, server, config, teacher="none")


def test_mixed_init_average_does_not_distil_first() -> None:
    config = changed(prototypes=("cnn", "vgg9"), mixed_init="average")
    clients, server = tiny_federation(config)
    fedmho.run(clients, server, config, teacher="start")
    assert set(server.fits) == {"fusion"}


def test_parts_are_dealt_half_and_half_by_default() -> None:
    roles = [p.role for p in assign(FedMHOConfig(), 10, PROBLEM)]
    assert roles == ["classifier"] * 5 + ["generator"] * 5
    assert [p.role for p in assign(FedMHOConfig(num_classifiers=8), 10, PROBLEM)].count(
        "generator"
    ) == 2


@pytest.mark.parametrize(
    ("config", "clients", "message"),
    [
        (FedMHOConfig(), 1, "at least one classifier client and one generator client"),
        (FedMHOConfig(num_classifiers=10), 10, "at least one classifier client"),
        (FedMHOConfig(num_classifiers=0), 10, "at least one classifier client"),
        (FedMHOConfig(prototypes=("cnn", "vgg9")), 2, "as many classifier clients"),
        (FedMHOConfig(aggregate="krum"), 8, "at least 5 clients of one architecture"),
        (FedMHOConfig(prototypes=("cnn", "vgg9"), aggregate="median"), 4, "got 1"),
        (FedMHOConfig(teacher_weights="agreement"), 4, "needs three classifier clients, got 2"),
        (FedMHOConfig(num_samples=9), 10, "num_samples must be at least the 10 classes"),
        (FedMHOConfig(generator=replace(TINY.generator, model="cvae-cifar")), 10, "cvae-cifar"),
    ],
)
def test_impossible_casts_are_refused(config: FedMHOConfig, clients: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        assign(config, clients, PROBLEM)


@pytest.mark.parametrize(
    "change",
    [
        {"betas": (0.0, 0.0)},
        {"betas": (-1.0, 2.0)},
        {"betas": (float("inf"), 1.0)},
        {"betas": "lerned"},
        {"aggregate": "median", "start": "random"},
    ],
)
def test_impossible_settings_are_refused_on_construction(change: dict) -> None:
    with pytest.raises(UserError):
        changed(**change)


def test_allocation_that_rounds_to_nothing_is_refused() -> None:
    _, server = rerun(TINY, "none")
    counts = torch.ones(10, dtype=torch.int64)
    generators = [
        replace(
            u,
            tensors={**u.tensors, "label_counts": counts},
            client=replace(u.client, num_samples=10),
        )
        for u in tiny_updates()
        if u.client.role == "generator"
    ]
    with pytest.raises(UserError, match="is too few"):
        fedmho.allocate(generators, server, changed(num_samples=10))
    assert np.all(fedmho.allocate(generators, server, changed(num_samples=30)) == 1)


@pytest.mark.parametrize("name", ["fedmho", "fedmho-sd", "fedmho-open"])
def test_strong_clients_may_train_a_decoder_too_and_it_is_counted(name: str) -> None:
    method = get_method(name)
    weak = method.config(
        **{f: getattr(TINY, f) for f in ("num_samples", "classifier", "generator")}
    )
    weak = replace(weak, fusion=TINY.fusion)
    if name == "fedmho-open":
        weak = replace(weak, open_samples=60, warmup=1, mixup=0.0)
    both = replace(weak, decoders="all")
    clients, server = tiny_federation(both)
    outcome = method.run(clients, server, both)
    plain, other = tiny_federation(weak)
    without = method.run(plain, other, weak)
    assert "extra_decoders" not in without.figures
    roles = {client.id: client.role for client in plain.members}
    decoder = min(plain.bytes_up[k] for k, role in roles.items() if role == "generator")
    strong = [k for k, role in roles.items() if role == "classifier"]
    extra = outcome.figures["extra_decoders"]
    assert (extra["clients"], extra["bytes_up"]) == (len(strong), decoder * len(strong))
    sent = {k: own + decoder * (k in strong) for k, own in plain.bytes_up.items()}
    assert clients.bytes_up == sent
    assert not same_bits(outcome.model.state_dict(), without.model.state_dict())
