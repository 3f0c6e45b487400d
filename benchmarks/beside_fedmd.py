"""FedMD's authors' code and ours on the clients of beside_pfllib.py.

    python benchmarks/beside_fedmd.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/diogenes0319/FedMD_clean, which needs tensorflow with tf-keras.
Both sides have the same public images in each round, the authors' Adam at 1e-3, and 25 epochs
before the first round. Theirs matches logits by their mean absolute error, ours by FedD2S's KL; so
``--matching kl`` gives theirs our loss.
"""

import importlib
import io
import os
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal
from unittest.mock import patch

import beside_pfllib
import numpy as np
import tyro
from beside_pfllib import CLASSES, PAIRS, Client, Clients, Pair, Run, net_of

from fl.data.datasets import load

BATCH = 32
"""The authors', of the epochs before the first round; here of all."""


@dataclass(frozen=True, kw_only=True)
class Options(beside_pfllib.Options):
    """Runs FedMD on both sides, and prints a table."""

    methods: tyro.conf.Suppress[tuple[str, ...]] = ("fedmd",)
    """This alone."""
    rounds: int = 5
    """Rounds after the epochs before them."""
    lr: tyro.conf.Suppress[float] = 1e-3
    """As released."""
    public: str = "fmnist"
    """Data set of the public images."""
    public_images: int = 1000
    """Public images."""
    public_epochs: int = 1
    """Epochs on them in a round."""
    matching: Literal["mae", "kl"] = "mae"
    """Their loss on them: as released, or ours."""


def pairs(options: Options) -> dict[str, Pair]:
    """What ours is told beside the frame's settings."""
    training = {"taught_epochs": options.public_epochs, "own_epochs": 25, "batch_size": BATCH}
    public = {"dataset": options.public, "max_images": options.public_images}
    told = {"auxiliary": public, "data_root": options.data_root}
    return {"fedmd": Pair("FedMD", {}, training, told, "own")}


def theirs(name: str, clients: Clients, seed: int, options: beside_pfllib.Options) -> Run:
    """The authors' class; it tests as often as ours, on the first client's samples."""
    assert isinstance(options, Options)
    keras = their_keras()
    split = load(options.public, options.data_root, max_train=options.public_images).train
    public = {"X": pixels(np.asarray(split.images)), "y": split.labels}
    privates = [samples(client, "train") for client in clients]
    keras.utils.set_random_seed(seed)
    with (
        patch.object(sys, "path", [str(options.checkout.resolve()), *sys.path]),
        redirect_stdout(io.StringIO()),
    ):
        code = importlib.import_module("FedMD")
        removed = importlib.import_module("Neural_Networks").remove_last_layer
        losses = {"mae": "mean_absolute_error", "kl": divergence}
        changed = {
            "EarlyStopping": lambda **_: keras.callbacks.Callback(),  # it looks at the test
            "remove_last_layer": lambda model, loss: removed(model, loss=losses[options.matching]),
        }
        with patch.multiple(code, **changed):
            begin = time.process_time()
            method = code.FedMD(
                Parties(network(keras, seed) for _ in clients),
                *(public, privates, None, samples(clients[0], "test"), "all", options.rounds),
                *(options.public_epochs, BATCH, options.epochs, BATCH),
            )
            method.collaborative_training()
            seconds = time.process_time() - begin
    models = [party["model_classifier"] for party in method.collaborative_parties]
    return Run(mean(map(accuracy, models, clients)), seconds)


class Parties(list[Any]):
    """Their clients' models; nothing where each is trained on all samples, for an upper bound."""

    def __iter__(self) -> Any:
        return iter(())


def their_keras() -> Any:
    """Keras as their code knows it, on one core."""
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    tensorflow = importlib.import_module("tensorflow")
    for threads in ("inter", "intra"):
        getattr(tensorflow.config.threading, f"set_{threads}_op_parallelism_threads")(1)
    return tensorflow.keras


def divergence(teacher: Any, student: Any) -> Any:
    """KL(teacher || student) of each row of logits."""
    tensorflow = sys.modules["tensorflow"]
    t, s = map(tensorflow.nn.log_softmax, (teacher, student))
    return tensorflow.reduce_sum(tensorflow.exp(t) * (t - s), axis=1)


def network(keras: Any, seed: int) -> Any:
    """The frame's network in Keras, with the same untrained weights."""
    layers, net = keras.layers, net_of("fedmd", seed)
    image = shown = layers.Input((28, 28))
    shown = layers.Reshape((28, 28, 1))(shown)
    for channels in (8, 16):
        shown = layers.Conv2D(channels, 5, activation="relu")(shown)
        shown = layers.MaxPooling2D(2)(shown)
    hidden = layers.Dense(64, activation="relu")(layers.Flatten()(shown))
    logits = layers.Dense(CLASSES)(hidden)
    model = keras.Model(image, layers.Activation("softmax")(logits))
    weights = [p.detach().numpy() for p in net.parameters()]
    for place in (0, 2):
        weights[place] = weights[place].transpose(2, 3, 1, 0)
    weights[4] = weights[4].reshape(64, 16, 4, 4).transpose(0, 2, 3, 1).reshape(64, -1).T
    weights[6] = weights[6].T
    model.set_weights(weights)
    return model


def pixels(images: np.ndarray) -> np.ndarray:
    """Images, uint8 (N, 1, 28, 28), as theirs takes them: (N, 28, 28) in [0, 1]."""
    return images[:, 0].astype(np.float32) / 255


def samples(client: Client, part: str) -> dict[str, np.ndarray]:
    """A client's samples as theirs takes them."""
    images, labels = client[part]
    return {"X": pixels(images), "y": labels}


def accuracy(model: Any, client: Client) -> float:
    """The share of a client's test samples that its model gets right."""
    test = samples(client, "test")
    return float((model.predict(test["X"], verbose=0).argmax(1) == test["y"]).mean())


if __name__ == "__main__":
    told = tyro.cli(Options)
    PAIRS.update(pairs(told))
    beside_pfllib.theirs = theirs
    sys.exit(beside_pfllib.main(told))
