"""Makes tasks, which clients run, that work for one client or for many at once, also of recipes."""

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain

from fl.federation import RunSpec, Task, TaskInput, TaskOutput, Training
from fl.models.registry import MODELS
from fl.models.shapes import ModelInfo
from fl.training import dense_cvae, stacked
from fl.training.recipe import Recipe, one_by_one

RecipeFunction = Callable[[TaskInput], Recipe]
CohortTask = Callable[[Sequence[TaskInput]], list[TaskOutput]]


def task_of(recipe: RecipeFunction) -> Task:
    """Makes a task of a function that returns how a client trains."""

    @wraps(recipe)
    def run_cohort(clients: Sequence[TaskInput]) -> list[TaskOutput]:
        first = recipe(clients[0])
        # The others' one at a time, unless they train together.
        recipes = chain([first], (recipe(client) for client in clients[1:]))
        if first.gradient is not None:
            pairs = zip(recipes, clients, strict=True)
            return [dense_cvae.train(own, client.client.id) for own, client in pairs]
        if conflict(recipe, clients[0]) is not None:
            return [one_by_one(*pair) for pair in zip(clients, recipes, strict=True)]
        return stacked.train(list(recipes), [client.client.id for client in clients])

    task = task_for_many(run_cohort)
    task.recipe = recipe  # type: ignore[attr-defined]
    return task


def task_for_many(run_cohort: CohortTask) -> Task:
    """Makes a task of a function that runs it for several clients of one training record at once.

    A client's result must not depend, to the last bit, on which other clients run with it.
    """

    @wraps(run_cohort)
    def task(inputs: TaskInput) -> TaskOutput:
        return run_cohort([inputs])[0]

    task.run_cohort = run_cohort  # type: ignore[attr-defined]
    return task


def recipe_of(task: Task) -> RecipeFunction | None:
    """The function that the task was made of; None for a task that was written in another way."""
    return getattr(task, "recipe", None)


def trains_in_cohorts(task: Task) -> bool:
    """Whether the task can be run for several clients at once."""
    return hasattr(task, "run_cohort")


def train_many(task: Task, clients: Sequence[TaskInput]) -> list[TaskOutput]:
    """Runs the task for clients of one training record: as one computation where that is possible.

    A single client is run in the same way, so that its upload is the same to the last bit.
    """
    run_cohort: CohortTask | None = getattr(task, "run_cohort", None)
    return [task(client) for client in clients] if run_cohort is None else run_cohort(clients)


def conflict(recipe: RecipeFunction, client: TaskInput) -> str | None:
    """Why clients with this one's training record cannot train as one; None if they can."""
    training = client.client.training
    kind = (recipe, training, client.run_spec, MODELS.get(training.model))
    if kind not in _CONFLICTS:
        _CONFLICTS[kind] = stacked.conflict(recipe(client))
    return _CONFLICTS[kind]


_CONFLICTS: dict[tuple[RecipeFunction, Training, RunSpec, ModelInfo | None], str | None] = {}
"""Looked for once per process: the answer depends on these alone. The registry's record stands for
the model, since another may be registered by its name."""
