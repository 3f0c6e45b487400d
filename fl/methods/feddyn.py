"""FedDyn (Acar et al., ICLR 2021): FedAvg with a regulariser that each client corrects.

Client k minimises f_k(w) + alpha <w, g_k> + alpha/2 |w - s|^2 from the weights s that were sent,
and remembers g_k, the sum of its own drifts w_k - s. The server tests the mean of the weights, and
sends that mean plus the mean drift of all clients. Without a drift yet, the first round is
FedProx's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from torch import Tensor, nn

from fl.bounds import NotNegative
from fl.clients import Clients, trained
from fl.errors import UserError
from fl.federation import Client, RunSpec, Task, TaskInput, Training, Update
from fl.methods.method import Method
from fl.methods.participation import ParticipationConfig, participants
from fl.methods.prototypes import (
    LOCAL,
    PrototypesConfig,
    assign,
    average_each,
    by_prototype,
    untrained,
)
from fl.models.state import state_sent
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import (
    ClassifierConfig,
    classifier_recipe,
    plain,
    received_classifier,
    starting_classifier,
)
from fl.training.recipe import Recipe
from fl.training.task import task_of
from fl.wire import Tensors, checked, prefixed


@dataclass(frozen=True, kw_only=True)
class LocalFedDyn(ClassifierConfig):
    """Local training of a FedDyn client: a classifier's, regularised."""

    alpha: NotNegative = 0.01
    """Weight of the regulariser (FedAF's paper: 0.01), above 0."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedProx's record: no client has drifted yet."""
        return plain(self, proximal=self.alpha)

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_dynamically

    def check_further(self) -> None:
        """``alpha`` is above 0 and takes the place of ``proximal``."""
        if self.alpha == 0:
            raise UserError(
                "alpha must be above 0: clients gather drifts whatever it is, so FedDyn without it "
                "is not FedAvg; for that take method fedavg"
            )
        if self.proximal:
            raise UserError("proximal must be 0 in FedDyn: alpha takes its place")


@dataclass(frozen=True, kw_only=True)
class FedDynConfig(ParticipationConfig, PrototypesConfig):
    """FedDyn's settings, beside those of its clients."""

    classifier: LocalFedDyn = LocalFedDyn()
    adapted: bool = False
    """Whether a client's alpha is multiplied by the mean number of samples over its own, as in the
    authors' code. Else its first uploads are FedProx's with mu = alpha."""


def run(clients: Clients, server: Server, config: FedDynConfig, *, rounds: Rounds) -> Outcome:
    """Algorithm 1; the global model that is tested is the mean, without the mean drift."""
    ensemble, model = untrained(clients.members, server)
    drifts = {f"{i}.{n}": p.detach() * 0 for i, m in enumerate(model.values()) for n, p in named(m)}
    alphas = alpha_by_client(clients, config)

    def regularised(client: Client) -> Training:
        return LocalFedDyn(**{**asdict(client.training), "alpha": alphas[client.id]})

    def check_sent(update: Update, run_spec: RunSpec) -> None:
        trained(update, run_spec)
        check_drift(update, model[clients.members[update.client.id].training])

    for number in rounds.play(clients, server, ensemble, memory=drifts):
        chosen = participants(clients, config.participation, number)
        start = sent_weights(model, drifts)
        payloads = {k: start[clients.members[k].training] for k in chosen}
        updates = clients.train(
            only=chosen,
            payloads=clients.news(payloads),
            training=regularised,
            remember=True,
            private=is_drift,
            check=check_sent,
        )
        with server.events.phase("fusion"):
            updates = average_each(model, updates, clients, server, by_samples=False)
            add_drifts(drifts, model, start, updates, clients)
    return rounds.outcome(ensemble)


def check_drift(update: Update, model: nn.Module) -> None:
    """Raises `ValueError` unless a client that gathers drifts holds one of these weights' form."""
    if isinstance(update.client.training, LocalFedDyn):
        checked(dict(named(model)), update.tensors, "drift", f"client {update.client.id}")


def alpha_by_client(clients: Clients, config: FedDynConfig) -> dict[int, float]:
    """The weight of each client's regulariser, by id."""
    sizes = {client.id: client.num_samples for client in clients.members}
    mean = sum(sizes.values()) / len(sizes)
    alpha = config.classifier.alpha
    return {k: alpha * mean / size if config.adapted else alpha for k, size in sizes.items()}


@task_of
def train_dynamically(inputs: TaskInput) -> Recipe:
    """Trains near s - g_k, by which the regulariser is alpha/2 |w - (s - g_k)|^2 and a constant.

    It uploads ``classifier.*``, and ``drift.*`` for the client's own memory: g_k + w_k - s.
    """
    config = inputs.client.training
    assert isinstance(config, LocalFedDyn)
    model = received_classifier(inputs, config)
    start = {name: p.detach().clone() for name, p in named(model)}
    drift = remembered_drift(inputs, config, start)
    recipe = classifier_recipe(inputs, plain(config, proximal=config.alpha), model)

    def upload() -> Tensors:
        own = {f"drift.{n}": drift[n] + p.detach() - start[n] for n, p in named(model)}
        return {**prefixed("classifier", model), **own}

    return replace(recipe, anchor=[start[n] - drift[n] for n in start], upload=upload)


def remembered_drift(
    inputs: TaskInput, config: LocalFedDyn, like: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """g_k: what the client remembers; after the first round only its weights, from the run's start;
    zeros for a client that has not taken part yet.

    Raises:
        ValueError: the memory is of another model.
    """
    memory = inputs.remembered
    if not memory:
        return {name: t * 0 for name, t in like.items()}
    kind = "drift" if any(name.startswith("drift.") for name in memory) else "classifier"
    first = dict(named(starting_classifier(config, inputs.run_spec)))
    found = {}
    for name, tensor in like.items():
        own = memory.get(f"{kind}.{name}")
        if own is None or own.shape != tensor.shape:
            raise ValueError(f"the client's memory has no {name} of shape {tuple(tensor.shape)}")
        found[name] = (own if kind == "drift" else own - first[name].detach()).to(tensor.device)
    return found


def is_drift(client: Client, name: str) -> bool:
    """Whether the tensor stays with the client: the server adds up drifts by itself."""
    return name.startswith("drift.")


def sent_weights(
    model: Mapping[Training, nn.Module], drifts: Mapping[str, Tensor]
) -> dict[Training, Tensors]:
    """What each prototype's clients start from: its mean plus its clients' mean drift."""
    found = {}
    for i, (training, member) in enumerate(model.items()):
        state = {n: t.clone() for n, t in prefixed("classifier", member).items()}
        for name, _ in named(member):
            state[f"classifier.{name}"] += drifts[f"{i}.{name}"]
        found[training] = state
    return found


def add_drifts(
    drifts: Mapping[str, Tensor],
    model: Mapping[Training, nn.Module],
    start: Mapping[Training, Tensors],
    updates: Sequence[Update],
    clients: Clients,
) -> None:
    """Adds sum_k (w_k - s) / K to each prototype's mean drift, over all its K clients; those that
    did not take part have drifted no further. By the mean a of m weights: m (a - s) / K."""
    places = {training: i for i, training in enumerate(model)}
    for group in by_prototype(updates):
        training = group[0].client.training
        everyone = sum(client.training == training for client in clients.members)
        for name, mean in named(model[training]):
            drift = mean.detach() - start[training][f"classifier.{name}"]
            drifts[f"{places[training]}.{name}"].add_(drift, alpha=len(group) / everyone)


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The trained parameters by name: what drifts; BatchNorm's statistics do not."""
    sent = state_sent(model)
    return [(name, parameter) for name, parameter in model.named_parameters() if name in sent]


METHOD = Method(
    name="feddyn",
    config=FedDynConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(local={**LOCAL, "classifier.alpha": LogUniform(1e-3, 1.0)}),
)
