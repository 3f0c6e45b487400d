"""Tasks that run for one client or for many at once."""

from torch import nn

from fl.federation import TaskOutput
from fl.training.generator import train_generator
from fl.training.task import recipe_of, task_of
from tests.fl.toy import CLASSIFIER
from tests.fl.training.cohorts import Own, inputs, recipe_with


def test_a_task_knows_its_recipe_and_travels_by_name() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(train_generator)) is train_generator
    assert recipe_of(lambda own: TaskOutput(tensors={})) is None
    task = task_of(recipe_with(Own(nn.Identity())))  # type: ignore[arg-type]
    assert task(inputs(CLASSIFIER, 9, 0)).stats["train_loss"] > 0
