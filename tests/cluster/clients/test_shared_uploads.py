"""Methods on one partition: each distinct client is trained once, by whoever comes first."""

from pathlib import Path
from typing import Any

import torch

from cluster.clients.store import Store
from fl.data.datasets import Dataset
from fl.fusion.fit import FitConfig
from fl.fusion.inversion import DistillationConfig, InversionConfig
from fl.methods.fedcvae import RegressionConfig
from fl.methods.registry import METHODS
from fl.rounds import Rounds
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.fl.methods.tiny import tiny_data, tiny_federation
from tests.fl.toy import into

CLASSIFIER = ClassifierConfig(model="vgg9", width=0.02, epochs=1)
GENERATOR = GeneratorConfig(width=0.05, latent=2, epochs=1)
SHORT = FitConfig(epochs=1, batch_size=64)
DATA_FREE: dict[str, Any] = {
    "inversion": InversionConfig(batch_size=4, steps=1, width=0.02, latent=4),
    "kd": DistillationConfig(epochs=2),
}
VOTES: dict[str, Any] = {"classifier": CLASSIFIER, "small_width": 0.2}
CVAES: dict[str, Any] = {
    "generator": GENERATOR,
    "large_width": 0.02,
    "num_samples": 20,
    "global_width": 0.02,
    "classify": SHORT,
}
MHO = {"classifier": CLASSIFIER, "generator": GENERATOR, "num_samples": 30, "fusion": SHORT}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": VOTES,
    "fedprox": VOTES,
    "feddf": {**VOTES, "distil": SHORT},
    "fens": VOTES,
    "dense": {**VOTES, **DATA_FREE},
    "co-boosting": {**VOTES, **DATA_FREE},
    "fedcvae-ens": CVAES,
    "fedcvae-kd": {**CVAES, "decoder": RegressionConfig(num_samples=20, epochs=1)},
    "fedmho": MHO,
    "fedmho-md": MHO,
    "fedmho-sd": MHO,
    "fedmho-open": {**MHO, "open_samples": 20},
}


def trained(name: str, root: Path, data: Dataset) -> tuple[list[str], list[str]]:
    """Runs the method with a run directory of its own; who was trained, and who reused."""
    method, seen = METHODS[name], list[dict[str, Any]]()
    config = method.config(**OPTIONS[name])
    store = Store(root / ".store", root / name / "updates", data.train)
    clients, server = tiny_federation(
        config, assign=method.assign, num_clients=4, data=data, store=store, listener=into(seen)
    )
    more: dict[str, Any] = {"auxiliary": torch.rand(8, 1, 28, 28)} if method.auxiliary else {}
    if not method.one_shot:
        more["rounds"] = Rounds(1)
    method.run(clients, server, config, **more)
    ends = [e for e in seen if e["event"] == "client_end"]
    told = [(f"{e['client']} {e['model']}", e["reused"]) for e in ends]
    assert len(list((root / name / "updates").iterdir())) == 4
    return [who for who, reused in told if not reused], [who for who, reused in told if reused]


def test_every_method_shares_its_uploads_with_all_others(tmp_path: Path) -> None:
    # FedAF's and FedDM's clients upload images, made for one global model, central training's their
    # own, and FedOV's classifiers of a class more: nothing to share. What FedLPA shares, and
    # methods over rounds of their first one, is in the tests of each of them.
    others = {"fedaf", "feddm", "centralised", "fedbn", "moon", "feddyn", "fedgen", "dynafed"}
    others |= {"fedov", "fedlpa"}
    others |= {"local", "fedper", "fedper+", "fedrep", "fedrep+", "pfedsd", "fedict", "fedmd"}
    others |= {"fedd2s", "fedseq", "hfldd", "ditto", "fedproto"}
    others |= {"scaffold", "fednova", "fedadagrad", "fedadam", "fedyogi"}
    assert OPTIONS.keys() == METHODS.keys() - others
    data = tiny_data(train=120, test=20)
    large, small = ["0 vgg9", "1 vgg9"], ["2 cnn", "3 cnn"]
    big_cvae, cvae = ["0 cvae-large", "1 cvae-large"], ["2 cvae-small", "3 cvae-small"]
    expected = {  # in the order of the runs: who is still missing
        "fedavg": large + small,
        "fedprox": [],
        "feddf": [],
        "fens": [],
        "dense": [],
        "co-boosting": [],
        "fedcvae-ens": big_cvae + cvae,
        "fedcvae-kd": [],
        "fedmho": [],
        "fedmho-md": [],
        "fedmho-sd": [],
    }
    for name, missing in expected.items():
        new, reused = trained(name, tmp_path, data)
        assert sorted(new) == sorted(missing), name
        assert len(new) + len(reused) == 4
    assert len(list((tmp_path / ".store").glob("*.safetensors"))) == 8
