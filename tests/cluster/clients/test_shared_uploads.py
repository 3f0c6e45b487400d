"""Methods on one partition: each distinct client is trained once, by whoever comes first."""

from dataclasses import replace
from pathlib import Path

from fl.events import ClientEnd
from fl.methods.registry import METHODS
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.fl.methods.small import play, problem, small

OTHERS = {
    *("fedaf", "feddm", "centralised", "fedbn", "moon", "feddyn", "fedgen", "dynafed", "fedov"),
    *("local", "fedper", "fedper+", "fedrep", "fedrep+", "pfedsd", "fedict", "fedmd", "fedd2s"),
    *("fedlpa", "fedseq", "hfldd", "ditto", "fedproto", "scaffold", "fednova", "fedadagrad"),
    *("fedadam", "fedyogi", "fedmho-open"),
}
"""FedAF's and FedDM's clients upload images, made for one global model, central training's their
own, FedMHO-Open's label counts too, and FedOV's classifiers of a class more: nothing to share. What
FedLPA shares, and methods over rounds of their first one, is in the tests of each of them."""
RECORDS = {"classifier": ClassifierConfig, "generator": GeneratorConfig}


def trained(name: str, root: Path) -> tuple[list[str], int]:
    """Runs the method with a run directory of its own; who was trained, and how many reused."""
    config = METHODS[name].config()
    alike = {field: kind() for field, kind in RECORDS.items() if hasattr(config, field)}
    config = small(replace(config, **alike))
    run = play(name, config, problem(120, 20, 0.0), root, about=name)
    ends = [event for event in run.heard if isinstance(event, ClientEnd) and event.round == 1]
    new = [f"{end.client} {end.model}" for end in ends if not end.reused]
    return sorted(new), len(ends) - len(new)


def test_every_method_shares_its_uploads_with_all_others(tmp_path: Path) -> None:
    cnns = ["0 vgg9", "1 vgg9", "2 cnn", "3 cnn"]
    cvaes = ["0 cvae-large", "1 cvae-large", "2 cvae-small", "3 cvae-small"]
    missing = {"fedavg": cnns, "fedcvae-ens": cvaes}  # the first of their kind
    for name in (*missing, *(n for n in METHODS if n not in OTHERS and n not in missing)):
        expected = missing.get(name, [])
        assert trained(name, tmp_path) == (expected, 4 - len(expected)), name
