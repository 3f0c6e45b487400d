"""Makes tasks, which clients run, that work for one client or for many at once, also of recipes."""

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain

from fl.federation import Task, TaskInput, TaskOutput
from fl.models.registry import MODELS
from fl.training import captured, dense_cvae, slots, stacked
from fl.training.recipe import Recipe

RecipeFunction = Callable[[TaskInput], Recipe]
CohortTask = Callable[[Sequence[TaskInput]], list[TaskOutput]]


MOST = 32
"""Clients that train as one outside of slots, at most: their activations are in memory together."""


def task_of(recipe: RecipeFunction) -> Task:
    """Makes a task of a function that returns how a client trains."""

    @wraps(recipe)
    def run_cohort(clients: Sequence[TaskInput]) -> list[TaskOutput]:
        first = recipe(clients[0])
        # The others' one at a time, unless they train together.
        recipes = chain([first], (recipe(client) for client in clients[1:]))
        if slots.suits(clients[0].device) and slot_conflict(recipe, clients[0]) is None:
            return slots.train(list(recipes), [client.client.id for client in clients])
        if first.gradient is not None:
            pairs = zip(recipes, clients, strict=True)
            return [dense_cvae.train(own, client.client.id) for own, client in pairs]
        if conflict(recipe, clients[0]) is not None:
            return [captured.train(*pair) for pair in zip(clients, recipes, strict=True)]
        ids, whole = [client.client.id for client in clients], list(recipes)
        parts = [slice(k, k + MOST) for k in range(0, len(whole), MOST)]
        return [o for part in parts for o in stacked.train(whole[part], ids[part])]

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
    return _looked_for(stacked.conflict, recipe, client)


def slot_conflict(recipe: RecipeFunction, client: TaskInput) -> str | None:
    """The same of clients who train in slots (:mod:`fl.training.slots`)."""
    return _looked_for(slots.conflict, recipe, client)


def _looked_for(
    look: Callable[[Recipe], str | None], recipe: RecipeFunction, client: TaskInput
) -> str | None:
    training = client.client.training
    kind = (look, recipe, training, client.run_spec, MODELS.get(training.model))
    if kind not in _CONFLICTS:
        _CONFLICTS[kind] = look(recipe(client))
    return _CONFLICTS[kind]


_CONFLICTS: dict[object, str | None] = {}
"""Looked for once per process: the answer depends on these alone. The registry's record stands for
the model, since another may be registered by its name."""
