"""What clients uploaded, as models and counts: each message checked before it is believed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.condensation.task import LocalCondensation
from fl.events import Events
from fl.exchange import Tensors, prefixed
from fl.federation import Training, Update
from fl.fusion.aggregation import AggregationConfig, aggregate_states, average_states
from fl.fusion.server import SingleServer
from fl.methods.uploads import (
    aggregate_classifiers,
    decoders_of,
    load_classifier,
    load_decoder,
    untrained_classifier,
)
from fl.receiving import check_label_counts
from fl.training.classifier import starting_classifier
from fl.training.generator import starting_generator
from tests.fl.toy import CLASSIFIER, CPU, GENERATOR, PROBLEM, client, same_bits, shard

SERVER = SingleServer(PROBLEM, shard(1, 1, 1), Events(), CPU)
WHOLE = replace(GENERATOR, upload="cvae")


def update(training: Training, tensors: Tensors, id: int = 4) -> Update:
    own = client(id, training)
    return Update(client=own, tensors=tensors, stats={}, seconds=0, reused=False)


def classifier_sent() -> Tensors:
    model = starting_classifier(CLASSIFIER, PROBLEM)
    return {name: t + 1 for name, t in prefixed("classifier", model).items()}


def cvae_sent() -> Tensors:
    model = starting_generator(GENERATOR, PROBLEM)
    return {name: t + 1 for name, t in prefixed("cvae", model).items()}


def decoder_sent() -> Tensors:
    whole = cvae_sent()
    return {n.removeprefix("cvae."): t for n, t in whole.items() if n.startswith("cvae.decoder.")}


def test_a_classifier_is_the_one_that_was_sent_in_eval_mode() -> None:
    model = load_classifier(update(CLASSIFIER, classifier_sent()), SERVER)
    assert same_bits(prefixed("classifier", model), classifier_sent())
    assert not any(module.training for module in model.modules())


def test_untrained_is_what_every_client_of_that_record_starts_from() -> None:
    model = untrained_classifier(CLASSIFIER, SERVER)
    assert same_bits(model.state_dict(), starting_classifier(CLASSIFIER, PROBLEM).state_dict())
    assert not model.training


def test_a_decoder_is_the_same_sent_alone_or_within_its_cvae() -> None:
    alone = load_decoder(update(GENERATOR, decoder_sent()), SERVER)
    within = load_decoder(update(WHOLE, cvae_sent()), SERVER)
    assert same_bits(prefixed("decoder", alone), decoder_sent())
    assert same_bits(alone.state_dict(), within.state_dict())


@pytest.mark.parametrize(
    ("training", "sent"),
    [(CLASSIFIER, classifier_sent), (GENERATOR, decoder_sent), (WHOLE, cvae_sent)],
    ids=["classifier", "decoder", "cvae"],
)
@pytest.mark.parametrize("damage", ["missing", "shape", "NaN"])
def test_what_is_no_such_model_is_refused_with_the_clients_name(
    training: Training, sent: Callable[[], Tensors], damage: str
) -> None:
    tensors = sent()
    name = next(n for n in tensors if n.endswith("weight"))
    if damage == "missing":
        del tensors[name]
    elif damage == "shape":
        tensors[name] = tensors[name][None]
    else:
        tensors[name].flatten()[0] = torch.nan
    load = load_classifier if training is CLASSIFIER else load_decoder
    with pytest.raises(ValueError, match=r"^client 4 sent"):
        load(update(training, tensors), SERVER)


def test_who_plays_another_role_has_no_such_model() -> None:
    with pytest.raises(TypeError, match=r"^client 4 trains no generator$"):
        load_decoder(update(CLASSIFIER, classifier_sent()), SERVER)
    for training in (GENERATOR, LocalCondensation()):
        with pytest.raises(TypeError, match=f"^{training.model} is no classifier$"):
            load_classifier(update(training, {}), SERVER)


def test_decoders_are_known_by_their_clients_and_read_when_they_are_asked_for() -> None:
    good, bad = update(GENERATOR, decoder_sent(), id=7), update(GENERATOR, {}, id=3)
    decoders = decoders_of([good, bad], SERVER)
    assert (list(decoders), len(decoders)) == ([7, 3], 2)
    assert same_bits(prefixed("decoder", decoders[7]), decoder_sent())
    with pytest.raises(ValueError, match=r"^client 3 sent"):
        decoders[3]
    with pytest.raises(KeyError):
        decoders[4]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({}, "client 4 sent no label_counts"),
        ({"label_counts": torch.tensor([1, 2])}, "sent label_counts as"),
        ({"label_counts": torch.tensor([[1, 2, 3]])}, "sent label_counts as"),
        ({"label_counts": torch.tensor([1.0, 2.0, 3.0])}, "sent label_counts as"),
        ({"label_counts": torch.tensor([1, -1, 3])}, r"impossible label counts \[1, -1, 3\]"),
        ({"label_counts": torch.tensor([0, 0, 0])}, r"impossible label counts \[0, 0, 0\]"),
        ({"label_counts": torch.tensor([3, 3, 4])}, r"label counts \[3, 3, 4\]: it has 9"),
        ({"label_counts": torch.tensor([2**62] * 3)}, "impossible label counts"),
    ],
)
def test_impossible_label_counts_are_refused(sent: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_label_counts(update(GENERATOR, sent), PROBLEM)


def shifted(count: int) -> list[Update]:
    """Clients whose weights lie apart."""
    start = prefixed("classifier", starting_classifier(CLASSIFIER, PROBLEM))
    return [
        update(CLASSIFIER, {n: t + k * k for n, t in start.items()}, id=k) for k in range(count)
    ]


def test_the_mean_of_classifiers_is_the_average_to_the_bit() -> None:
    model = untrained_classifier(CLASSIFIER, SERVER)
    aggregate_classifiers(model, shifted(5), AggregationConfig(), [5, 4, 3, 2, 1])
    states = [load_classifier(u, SERVER).state_dict() for u in shifted(5)]
    assert same_bits(model.state_dict(), average_states(states, [5, 4, 3, 2, 1]))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "norm-clip"])
def test_a_rule_is_given_all_classifiers_and_their_start(rule: str) -> None:
    config = AggregationConfig(aggregate=rule)  # type: ignore[arg-type]
    model = untrained_classifier(CLASSIFIER, SERVER)
    start = {n: t.clone() for n, t in model.state_dict().items()}
    aggregate_classifiers(model, shifted(5), config)
    states = [load_classifier(u, SERVER).state_dict() for u in shifted(5)]
    assert same_bits(model.state_dict(), aggregate_states(states, start, config))
