"""What training cannot have made is refused with the liar's name; the honest are never refused."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import Tensors, Upload
from fl.executor import InProcess
from fl.federation import Job, Update
from fl.inputs import Inputs
from fl.methods.registry import get_method
from fl.receiving import (
    APART,
    LEAST_APART,
    Trial,
    askable,
    check_model,
    check_reach,
    extents,
    outliers,
    trial_codes,
    trial_inputs,
)
from fl.rounds import Rounds
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig
from fl.training.optimizers import SGD, Adam
from tests.fl.methods.tiny import tiny_data, tiny_federation
from tests.fl.toy import client

DATA = tiny_data(train=240, test=60)
CNN = ClassifierConfig(model="cnn", width=0.3, epochs=2, lr=0.05, batch_size=16)
Lie = Callable[[Tensors], Mapping[str, Tensor]]


class Liars(InProcess):
    """Trains, but some clients of a round send a lie."""

    def __init__(self, lies: Mapping[tuple[int, int], Lie]) -> None:
        """``lies``: by client and round."""
        super().__init__(DATA.train)
        self.lies = lies

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        for job, packed in super().run(jobs, events):
            lie = self.lies.get((job.client.id, job.round))
            if lie is not None and isinstance(packed, Upload):
                note, tensors = packed.note, dict(packed)
                packed = Upload(note.pack(dict(lie(tensors))))
            yield job, packed


def everywhere(value: float, among: str = "") -> Lie:
    return lambda tensors: {
        n: torch.full_like(t, value) if t.is_floating_point() and among in n else t
        for n, t in tensors.items()
    }


def play(
    name: str,
    lies: Mapping[tuple[int, int], Lie],
    *,
    rounds: int = 1,
    drop: bool = False,
    clients: int = 5,
    **settings: Any,
) -> tuple[Outcome, Clients]:
    """A run of a method, in which these clients lie in these rounds."""
    method = get_method(name)
    config = method.config(**settings)
    everyone, server = tiny_federation(
        config,
        assign=method.assign,
        data=DATA,
        num_clients=clients,
        alpha=0.05,
        on_failure="drop" if drop else "stop",
    )
    everyone._executor = Liars(lies)
    more = {} if method.one_shot else {"rounds": Rounds(rounds)}
    return method.run(everyone, server, config, **more), everyone


FEDAVG: dict[str, Any] = {"num_large": 5, "classifier": CNN}


@pytest.mark.parametrize(("number", "value"), [(1, 9999.0), (1, 20.0), (2, 102.5)])
def test_the_liar_is_named_and_not_who_was_sent_its_weights(number: int, value: float) -> None:
    lies = {(1, number): everywhere(value)}
    with pytest.raises(ClientFailed, match=r"^client 1 \(cnn\) failed: sent .*it lies$"):
        play("fedavg", lies, rounds=number + 1, **FEDAVG)
    outcome, clients = play("fedavg", lies, rounds=number + 1, drop=True, **FEDAVG)
    assert list(clients.dropped) == [1]
    assert all(float(t.abs().max()) < 10 for t in outcome.model.state_dict().values())  # type: ignore[union-attr]


@pytest.mark.parametrize(("method", "liar"), [("fedmho", 1), ("fedmho-md", 4)])
def test_fedmhos_liars_are_named(method: str, liar: int) -> None:
    lies = {(liar, 1): everywhere(9000.0)}
    with pytest.raises(ClientFailed, match=rf"^client {liar} .* failed: sent .*, above"):
        play(method, lies, clients=6, classifier=CNN)


def one_layer(place: int) -> Lie:
    """Harmless by itself: one layer has large weights, all others have none."""

    def lie(tensors: Tensors) -> Tensors:
        own = [n for i, n in enumerate(n for n in tensors if n.endswith("weight")) if i == place]
        return {n: torch.full_like(t, 9.5) if n in own else t * 0 for n, t in tensors.items()}

    return lie


def test_lies_that_are_harmful_only_together_are_found_before_anybody_is_sent_them() -> None:
    settings = {"num_large": 5, "classifier": replace(CNN, width=1.0)}
    lies = {(k, 1): one_layer(k) for k in range(4)}
    said = r"^client [0-3] \(cnn\) failed: sent the weights farthest .* answers values up to"
    with pytest.raises(ClientFailed, match=said):
        play("fedavg", lies, rounds=2, **settings)
    _, clients = play("fedavg", lies, rounds=2, drop=True, **settings)
    assert clients.dropped
    assert 4 not in clients.dropped


def test_an_honest_training_that_diverges_is_said_to() -> None:
    settings = {"num_large": 5, "classifier": replace(CNN, lr=50.0)}
    with pytest.raises(ClientFailed, match=r"^client \d \(cnn\) failed: .*its training diverged"):
        play("fedavg", {}, **settings)


LONG = replace(CNN, epochs=10)


@pytest.mark.parametrize(
    "training",
    [LONG, replace(LONG, optimizer="adam", lr=1e-2), replace(CNN, model="convnet", width=0.04)],
    ids=["sgd", "adam", "norm"],
)
def test_the_honest_pass_with_few_samples_of_one_class(training: ClassifierConfig) -> None:
    _, clients = play("fedavg", {}, rounds=2, clients=16, num_large=16, classifier=training)
    assert not clients.dropped


def update(largest: dict[str, float], began: dict[str, float]) -> Update:
    return Update(
        client=client(0),
        tensors={},
        stats={},
        seconds=0,
        reused=False,
        largest=largest,
        began=began,
    )


@pytest.mark.parametrize(
    ("sent", "began", "reach", "passes"),
    [
        (100.5, None, torch.inf, True),
        (103.0, None, torch.inf, False),
        (1.2, None, 0.1, False),
        (1.05, None, 0.1, True),
        (9000.0, 9000.0, torch.inf, True),
        (18101.0, 9000.0, torch.inf, False),
        (9000.2, 9000.0, 0.1, False),
    ],
)
def test_a_weight_is_measured_by_what_it_began_with(
    sent: float, began: float | None, reach: float, passes: bool
) -> None:
    own = update({"c.w": sent}, {} if began is None else {"c.w": began})
    if passes:
        check_reach(own, "c", {"w": 1.0}, reach)
    else:
        with pytest.raises(ValueError, match=r"^sent c\.w with values up to .*its training div"):
            check_reach(own, "c", {"w": 1.0}, reach)


def test_adam_moves_no_weight_further_than_it_can_reach() -> None:
    assert SGD(0.1).reach(3) == torch.inf
    for gradients in ([1.0] * 40, [1e-3] * 30 + [1e3] * 10, [0.0] * 39 + [5.0]):
        weight = torch.zeros(1)
        adam = Adam(0.1).for_cohort([[weight]])
        for gradient in gradients:
            weight.grad = torch.tensor([gradient])
            adam.step((0,))
        assert float(weight.abs()) <= Adam(0.1).reach(40)
        assert Adam(0.1).reach(40) < 20


def test_trial_inputs_are_black_white_and_what_nobody_can_foresee() -> None:
    black, white, *drawn = trial_inputs(Inputs((3, 9, 12)))
    assert not black.any()
    assert (white == 1).all()
    assert all(0 <= float(i.min()) < float(i.max()) <= 1 for i in drawn)
    assert trial_codes(7).shape == (4, 7)
    before = torch.get_rng_state()
    assert not torch.equal(trial_inputs(Inputs((3, 9, 12)))[2], drawn[0])
    assert torch.equal(torch.get_rng_state(), before)


class Hidden(nn.Module):
    """Answers NaN for one picture alone."""

    def __init__(self, wanted: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.wanted = wanted

    def forward(self, x: Tensor) -> Tensor:
        same = (x == self.wanted).flatten(1).all(1, keepdim=True)
        return torch.where(same, torch.nan, self.weight.expand(len(x), 3))


@pytest.mark.parametrize("place", range(4))
def test_each_trial_image_is_asked(place: int) -> None:
    asked = trial_inputs(Inputs((1, 5, 5)))
    model = Hidden(asked[place])
    with pytest.raises(ValueError, match="answers NaN"):
        check_model(model, asked)
    sent = replace(update({}, {}), tensors={"c.weight": torch.ones(1)})
    with pytest.raises(ValueError, match="answers NaN"):
        Trial(model).check(sent, "c", asked)
    check_model(Hidden(torch.full((1, 5, 5), 7.0)), asked)


def test_what_a_model_does_not_answer_before_it_is_trained_is_not_asked() -> None:
    class OfItsDeviation(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1) / x.flatten(1).std(1, keepdim=True))

    class OfPairs(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert x.any(1).all(), "no sample may be empty"
            return super().forward(x.float())

    noise = askable(OfItsDeviation(25, 3), Inputs((1, 5, 5)))
    assert noise.shape == (2, 1, 5, 5)
    tokens = Inputs((2,), "integers", 0, 1)  # a fourth of them are empty
    assert sum(len(askable(OfPairs(2, 3), tokens)) == 4 for _ in range(20)) >= 15
    broken = OfItsDeviation(25, 3)
    nn.init.constant_(broken.bias, torch.nan)
    assert len(askable(broken, Inputs((1, 5, 5)))) == 4


def test_a_model_with_weights_of_nan_is_sent_to_nobody() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    asked = trial_inputs(Inputs((1, 2, 2)))
    check_model(model, asked)
    with torch.no_grad():
        model[1].bias[0] = torch.nan  # type: ignore[index]
    with pytest.raises(ValueError, match="NaN or infinite weights"):
        check_model(model, asked)


def test_extents_are_of_weights_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight[1, 1] = -7
    found = extents(model)
    assert set(found) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert found["0.weight"] == 7


def test_an_outlier_is_far_beyond_half_of_the_others_and_large_by_itself() -> None:
    few = LEAST_APART - 1
    assert outliers([{"w": 0.01}, {"w": 0.02}, {"w": few}]) == {}
    assert list(outliers([{"w": 0.01}, {"w": 0.02}, {"w": LEAST_APART + 1}])) == [2]
    assert outliers([{"w": 1.0}, {"w": 2.0}, {"w": 0.9 * APART}]) == {}
    assert list(outliers([{"w": 60.0}, {"w": 0.1}])) == [0]
    assert outliers([{"w": 60.0}]) == {}
    # Variances are squares, and a model that has hardly trained answers next to nothing.
    assert outliers([{"a.running_var": 0.01}, {"a.running_var": 2000.0}]) == {}
    assert outliers([{"logits": 7.4}, {"logits": 12.0}, {"logits": 3330.0}]) == {}  # one class
    assert list(outliers([{"logits": 0.01}, {"logits": 2.1e4}])) == [1]
