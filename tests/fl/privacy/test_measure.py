"""A federation attacked: every upload by its kind, its own samples as members."""

from dataclasses import replace

import numpy as np

from fl.data.datasets import Dataset
from fl.data.shard import Shard
from fl.federation import Training
from fl.privacy.measure import DRAWN, Subject, lines, measure
from fl.training.classifier import starting_classifier
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, VGG, split, task_input

TRAIN, TEST = split(20, 20, 20), split(10, 10, 10, seed=1)
LISTS = [np.arange(0, 30), np.arange(30, 45), np.arange(45, 60)]


def subject(*trainings: Training, with_model: bool = True) -> Subject:
    uploads = {}
    for k, training in enumerate(trainings):
        own = Shard.from_split(TRAIN, LISTS[k], 3)
        uploads[k] = training.task(task_input(training, own, id=k)).tensors
    return Subject(
        dataset=Dataset("toy", TRAIN, TEST, 3),
        lists=LISTS,
        trainings=trainings,
        uploads=uploads,
        run_spec=PROBLEM,
        model=starting_classifier(CLASSIFIER, PROBLEM) if with_model else None,
    )


ONCE = replace(CLASSIFIER, epochs=1)


def test_classifiers_and_the_global_model_are_attacked_and_decoders_drawn_from() -> None:
    found = measure(subject(ONCE, replace(VGG, epochs=1), replace(GENERATOR, epochs=1)))
    assert [row["client"] for row in found["uploads"]] == [0, 1]
    assert found["global"]["attacks"].keys() == {"loss", "ratio"}
    (drawn,) = found["images"]
    assert (drawn["client"], drawn["kind"], drawn["images"]) == (2, "drawn", DRAWN)
    assert max(map(len, lines(found))) <= 80


def test_members_are_the_clients_own_and_as_many_of_each_class() -> None:
    found = measure(subject(ONCE, ONCE, ONCE))
    counts = [row["attacks"]["loss"]["members"] for row in found["uploads"]]
    assert counts == [20, 10 + 5, 10]  # of ten test samples a class: 10+10, 10+5, 10
    assert all(row["attacks"].keys() == {"loss", "ratio"} for row in found["uploads"])


def test_without_other_classifiers_there_is_no_ratio() -> None:
    generator = replace(GENERATOR, epochs=1)
    found = measure(subject(ONCE, generator, generator, with_model=False))
    assert found["uploads"][0]["attacks"].keys() == {"loss"}
    assert found["global"] is None


def test_a_run_without_a_model_or_images_says_so() -> None:
    empty = replace(subject(with_model=False), uploads={})
    assert [*lines(measure(empty))] == [
        "no upload here is a whole classifier, a decoder or condensed images"
    ]
