"""FedAvg (McMahan et al., AISTATS 2017), in one round (as in FedMHO's Section 5.1.2) or in many.

In each round some clients train the model that the server sent, and the server averages what they
upload. If there are several prototypes each is averaged by itself, and the averages form an
ensemble. Nothing is trained at the server.

FedProx (Li et al., MLSys 2020): a client minimises its loss plus mu/2 |w - w_global|^2
(``classifier.proximal``), which holds it near the model that was sent; all else is FedAvg.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from fl.federation import TaskInput
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import LogUniform
from fl.server import Evaluation
from fl.training.classifier import ClassifierConfig, classifier_recipe
from fl.training.personal import own_model
from fl.training.recipe import one_by_one


@dataclass(frozen=True, kw_only=True)
class FedAvgConfig(AveragingConfig):
    """FedAvg's settings: how the server averages, and which samples it is tested on."""

    tested: Literal["test", "clients", "tuned"] = "test"
    """test: the global model, on the test split. clients: on each client's own test samples, and
    the mean over clients. tuned: the same after each client has trained it once more."""


def run(frame: Averaging, config: FedAvgConfig) -> None:
    """w = sum_k n_k / n w_k, round by round; ``start`` is the ensemble of untrained prototypes."""
    evaluate = None if config.tested == "test" else partial(at_clients, frame, config)
    for _ in frame.play(evaluate=evaluate):
        pass  # the averages are all


def at_clients(frame: Averaging, config: FedAvgConfig) -> Evaluation:
    """Of the average as it is, or as each client tunes it, on the clients' own test samples."""
    weights = frame.sent()
    sent = {client.id: weights[client.training] for client in frame.clients.members}
    return frame.clients.score(
        tuned_model if config.tested == "tuned" else own_model, payloads=sent
    )


def tuned_model(inputs: TaskInput) -> nn.Module:
    """The global model, as the client received it, after a round's local training."""
    config, model = inputs.record(ClassifierConfig), own_model(inputs)
    one_by_one(inputs, classifier_recipe(inputs, config, model))
    return model


@dataclass(frozen=True, kw_only=True)
class FedProxConfig(FedAvgConfig):
    """FedProx's settings: FedAvg's, with a proximal term."""

    classifier: ClassifierConfig = ClassifierConfig(proximal=0.01)


METHODS = [
    averaging_method(
        name,
        config,
        run,
        local=local,
        any_targets=True,
        supports_dp=lambda settings: True,
        scores_clients=lambda settings: settings.tested != "test",
    )
    for name, config, local in (
        ("fedavg", FedAvgConfig, {}),  # the average has no settings to search
        ("fedprox", FedProxConfig, {"classifier.proximal": LogUniform(1e-3, 1.0)}),
    )
]
