"""Tasks, which clients run, that work for one client or for many at once, also by recipes."""

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain, islice

from fl.federation import RunSpec, Task, TaskInput, TaskOutput, Training
from fl.models.registry import MODELS
from fl.seeding import in_round, seeded
from fl.training import captured, dense_cvae, slots, stacked
from fl.training.recipe import EpochTraining, Recipe, one_by_one

RecipeFunction = Callable[[TaskInput], Recipe]
CohortTask = Callable[[Sequence[TaskInput]], list[TaskOutput]]
Way = Callable[[Sequence[TaskInput], Sequence[Recipe]], list[TaskOutput]]
"""Trains clients of one training record by their recipes, through one stage."""

MOST = 32
"""Clients that train as one outside of slots, at most: their activations are in memory together."""


def task_of(recipe: RecipeFunction) -> Task:
    """Makes a task of a function that returns how a client trains."""

    @wraps(recipe)
    def run_cohort(clients: Sequence[TaskInput]) -> list[TaskOutput]:
        first = recipe(clients[0])
        way, most = _way(recipe, clients[0], first)
        # Each is made when its turn comes, since its model takes memory.
        recipes = chain([first], map(recipe, clients[1:]))
        parts = [clients[k : k + most] for k in range(0, len(clients), most)]
        outputs = (_in_stages(way, part, list(islice(recipes, len(part)))) for part in parts)
        return list(chain.from_iterable(outputs))

    task = task_for_many(run_cohort)
    task.recipe = recipe  # type: ignore[attr-defined]
    return task


def _recipe_of(task: Task) -> RecipeFunction | None:
    """The function that the task was made of; None for a task that was written in another way."""
    return getattr(task, "recipe", None) if trains_in_cohorts(task) else None


def _way(recipe: RecipeFunction, client: TaskInput, first: Recipe) -> tuple[Way, int]:
    """How such clients train, and how many of them as one at most."""
    if _in_slots(recipe, client):
        return lambda clients, recipes: slots.train(recipes, slots.SLOTS), slots.SLOTS
    if first.gradient is not None:
        return lambda clients, recipes: [dense_cvae.train(own) for own in recipes], 1
    if captured.can_capture(client.device) and captured.planned(first) is not None:
        return captured.train, captured.side_by_side(first.model)
    if conflict(recipe, client) is not None:
        return lambda clients, recipes: list(map(one_by_one, clients, recipes)), 1
    return lambda clients, recipes: stacked.train(recipes), MOST


def _in_stages(
    way: Way, clients: Sequence[TaskInput], recipes: Sequence[Recipe]
) -> list[TaskOutput]:
    """Those with a further stage go through it together, when all have ended the one before."""
    outputs = way(clients, recipes)
    further = {k: recipe.then() for k, recipe in enumerate(recipes) if recipe.then is not None}
    if further:
        later = _in_stages(way, [clients[k] for k in further], list(further.values()))
        for k, output in zip(further, later, strict=True):
            outputs[k] = output
    return outputs


def task_for_many(run_cohort: CohortTask) -> Task:
    """Makes a task of a function that runs it for several clients of one training record at once.

    A client's result must not depend, to the last bit, on which other clients run with it.
    """

    @wraps(run_cohort)
    def task(inputs: TaskInput) -> TaskOutput:
        return run_cohort([inputs])[0]

    task.run_cohort = run_cohort  # type: ignore[attr-defined]
    task.made_here = task  # type: ignore[attr-defined]
    return task


class RecipeTraining(EpochTraining):
    """Trainings that say by a recipe how their clients train."""

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_by_recipe

    def recipe(self, inputs: TaskInput) -> Recipe:
        """The training of a client with this record."""
        raise NotImplementedError


@task_of
def train_by_recipe(inputs: TaskInput) -> Recipe:
    """Trains as the client's record says; Algorithm 1, lines 3 to 7."""
    training = inputs.client.training
    assert isinstance(training, RecipeTraining)
    return training.recipe(inputs)


def trains_in_cohorts(task: Task) -> bool:
    """Whether the task can be run for several clients at once. A user's function around such a
    task, which `functools.wraps` gives its attributes, cannot."""
    return getattr(task, "made_here", None) is task


def train_many(task: Task, clients: Sequence[TaskInput]) -> list[TaskOutput]:
    """Runs the task for clients of one training record: as one computation where that is possible.

    A single client is run in the same way, so that its upload is the same to the last bit.
    """
    if trains_in_cohorts(task):
        trained: list[TaskOutput] = task.run_cohort(clients)  # type: ignore[attr-defined]
        return trained
    outputs = []
    for client in clients:  # a task of the user's may draw from the global streams
        with seeded(client.run_spec.seed, in_round("task", client.round), client.client.id):
            outputs.append(task(client))
    return outputs


def trains_in_slots(task: Task, client: TaskInput) -> bool:
    """Whether clients with this one's training record train in slots, where this one is."""
    recipe = _recipe_of(task)
    return recipe is not None and _in_slots(recipe, client)


def _in_slots(recipe: RecipeFunction, client: TaskInput) -> bool:
    return slots.suits(client.device) and conflict(recipe, client, slots.conflict) is None


def has_fitted_slots(task: Task, training: Training, run_spec: RunSpec) -> bool:
    """Whether this process has seen that clients with that training record fit into slots."""
    kind = _kind(slots.conflict, _recipe_of(task), training, run_spec)
    return kind in _CONFLICTS and _CONFLICTS[kind] is None


def conflict(
    recipe: RecipeFunction,
    client: TaskInput,
    look: Callable[[Recipe], str | None] = stacked.conflict,
) -> str | None:
    """Why clients with this one's training record cannot train as one; None if they can. In slots:
    ``look`` is :func:`fl.training.slots.conflict`."""
    kind = _kind(look, recipe, client.client.training, client.run_spec)
    if kind not in _CONFLICTS:
        _CONFLICTS[kind] = look(recipe(client))
    return _CONFLICTS[kind]


def _kind(look: object, recipe: object, training: Training, run_spec: RunSpec) -> object:
    return look, recipe, training, run_spec, MODELS.get(training.model)


_CONFLICTS: dict[object, str | None] = {}
"""Looked for once per process: the answer depends on these alone. The registry's record stands for
the model, since another may be registered by its name."""
