"""A study small enough to run many times."""

import cluster.study
from cluster.studies.study_runs import StudyRun
from tests.undrawn import draw_nothing_here

SMALL = [
    *("--method=fedmho", "--runtime=inprocess", "--num-classifiers=1", "--data.max-test=60"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=1"),
    *("--generator.width=0.1", "--generator.epochs=2", "--allocation=label-share"),
    *("--num-samples=60", "--fusion.epochs=1"),
]


def run_undrawn(cell: StudyRun) -> None:
    """What a cell's own process does, but for the report."""
    draw_nothing_here()
    cluster.study._in_process(cell)
