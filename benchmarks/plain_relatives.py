"""FedBN, MOON, FedDyn and FedGen as plain loops over rounds and clients, for plain_rounds.py.

As their authors' code has them: every term is computed in every step, by torch.optim on a loss.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

from cluster.run.prepare import Prepared
from fl.methods.fedgen import NOISE, FeatureGenerator
from fl.models.registry import build_classifier
from fl.training.features import features_and_logits, head_of

Data = tuple[Tensor, Tensor]
"""Images and labels."""
State = dict[str, Tensor]
Term = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor | float]
"""Of model, features, logits and labels: what a method adds to the cross-entropy."""


def fedbn(
    prepared: Prepared, config: Any, shards: list[Data], rounds: int, device: torch.device
) -> Iterator[nn.Module]:
    """Each client goes on with its own BatchNorm layers; yields the average of all layers."""
    model = start(prepared, config, device)
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    kept: list[State] = [{} for _ in shards]
    for _ in range(rounds):
        states = []
        for k, shard in enumerate(shards):
            local = copy.deepcopy(model)
            local.load_state_dict({**local.state_dict(), **kept[k]})
            states.append(trained(local, shard, config.classifier).state_dict())
            own = {n: t for n, t in states[k].items() if n.rpartition(".")[0] in norms}
            kept[k] = {n: t.clone() for n, t in own.items()}
        model.load_state_dict(mean(states, by_samples(shards)))
        yield model


def moon(
    prepared: Prepared, config: Any, shards: list[Data], rounds: int, device: torch.device
) -> Iterator[nn.Module]:
    """Three passes a step: by the model, the one that was sent, and the client's last one."""
    how, model = config.classifier, start(prepared, config, device)
    last: list[nn.Module | None] = [None for _ in shards]
    for _ in range(rounds):
        for k, shard in enumerate(shards):
            sent, previous = copy.deepcopy(model).eval(), last[k]

            def contrast(images: Tensor, z: Tensor) -> Tensor | float:
                if previous is None:  # noqa: B023
                    return 0.0
                with torch.no_grad():
                    others = [features_and_logits(m, images)[0] for m in (sent, previous)]  # noqa: B023
                cosines = torch.stack([F.cosine_similarity(z, other) for other in others], 1)
                zeros = torch.zeros(len(z), dtype=torch.int64, device=z.device)
                return how.mu * F.cross_entropy(cosines / how.temperature, zeros)

            last[k] = trained(copy.deepcopy(model), shard, how, of_images=contrast).eval()
        states = [own.state_dict() for own in last if own is not None]
        model.load_state_dict(mean(states, by_samples(shards)))
        yield model


def feddyn(
    prepared: Prepared, config: Any, shards: list[Data], rounds: int, device: torch.device
) -> Iterator[nn.Module]:
    """The regulariser as terms of the loss; yields the mean, and sends it with the mean drift."""
    how, sent = config.classifier, start(prepared, config, device)
    drifts = [{n: torch.zeros_like(p) for n, p in sent.named_parameters()} for _ in shards]
    for _ in range(rounds):
        states = []
        begin = {n: p.detach().clone() for n, p in sent.named_parameters()}
        for k, shard in enumerate(shards):

            def regulariser(model: nn.Module, *_: Tensor) -> Tensor:
                pairs = [(w, drifts[k][n], begin[n]) for n, w in model.named_parameters()]  # noqa: B023
                terms = [(w * g).sum() + (w - s).square().sum() / 2 for w, g, s in pairs]
                return how.alpha * torch.stack(terms).sum()

            local = trained(copy.deepcopy(sent), shard, how, term=regulariser)
            states.append(local.state_dict())
            for n, w in local.named_parameters():
                drifts[k][n] += w.detach() - begin[n]
        model = copy.deepcopy(sent)
        model.load_state_dict(mean(states, [1 / len(shards)] * len(shards)))
        sent = copy.deepcopy(model)
        with torch.no_grad():
            for n, p in sent.named_parameters():
                p += sum(own[n] for own in drifts) / len(shards)
        yield model


def fedgen(
    prepared: Prepared, config: Any, shards: list[Data], rounds: int, device: torch.device
) -> Iterator[nn.Module]:
    """Clients learn from the generator from the second round on."""
    how, model = config.classifier, start(prepared, config, device)
    classes = prepared.run_spec.num_classes
    features = head_of(model).weight.shape[1]
    generator = FeatureGenerator(features, classes).to(device)
    counts = torch.stack([labels.bincount(minlength=classes) for _, labels in shards])

    def asked(labels: Tensor) -> Tensor:
        noise = torch.rand(len(labels), NOISE, device=device)
        return torch.cat([noise, F.one_hot(labels, classes)], 1)

    for number in range(rounds):
        weight = how.decay**number if number else 0.0
        generator.eval()

        def taught(net: nn.Module, z: Tensor, logits: Tensor, labels: Tensor) -> Tensor | float:
            if not weight:  # noqa: B023
                return 0.0
            head, drawn = head_of(net), torch.randint(classes, labels.shape, device=device)
            with torch.no_grad():
                generated, of_label = generator(asked(drawn)), generator(asked(labels))
            recognised = F.cross_entropy(head(generated), drawn)
            answers = head(of_label).detach().softmax(1)
            apart = F.kl_div(logits.log_softmax(1), answers, reduction="batchmean")
            return weight * (how.recognition * recognised + how.imitation * apart)  # noqa: B023

        locals_ = [trained(copy.deepcopy(model), shard, how, term=taught) for shard in shards]
        model.load_state_dict(mean([own.state_dict() for own in locals_], by_samples(shards)))
        fit(
            generator,
            [head_of(own) for own in locals_],
            counts,
            config.generator,
            number,
            asked,
        )
        yield model


def fit(
    generator: nn.Module,
    heads: list[Any],
    counts: Tensor,
    how: Any,
    number: int,
    asked: Callable[[Tensor], Tensor],
) -> None:
    """Trains the generator for a round, head by head."""
    rate = how.lr * how.decay**number
    adam = optim.Adam(generator.parameters(), lr=rate, weight_decay=how.weight_decay)
    shares = counts / counts.sum(0).clamp(min=1)
    generator.train()
    for _ in range(how.steps):
        labels = torch.randint(counts.shape[1], (how.batch_size,), device=counts.device)
        x = asked(labels)
        z, loss = generator(x), torch.zeros((), device=counts.device)
        for head, share in zip(heads, shares, strict=True):
            entropy = F.cross_entropy(F.linear(z, head.weight, head.bias), labels, reduction="none")
            loss = loss + (share[labels] * entropy).mean()
        noise = (x[:, None, :NOISE] - x[None, :, :NOISE]).square().mean(2)
        apart = (z[:, None] - z[None]).abs().mean(2)
        adam.zero_grad()
        (loss + (-(noise * apart).mean()).exp()).backward()
        adam.step()


def trained(
    model: nn.Module,
    shard: Data,
    how: Any,
    *,
    term: Term = lambda *_: 0.0,
    of_images: Callable[[Tensor, Tensor], Tensor | float] = lambda *_: 0.0,
) -> nn.Module:
    """The model, trained by SGD on cross-entropy and what the method adds."""
    sgd = optim.SGD(model.train().parameters(), lr=how.lr, momentum=how.momentum)
    for _ in range(how.epochs):
        for x, y in batches(shard, how.batch_size):
            z, logits = features_and_logits(model, x)
            loss = F.cross_entropy(logits, y) + term(model, z, logits, y) + of_images(x, z)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    return model


def start(prepared: Prepared, config: Any, device: torch.device) -> nn.Module:
    """The untrained global model."""
    how = config.classifier
    return new_model(prepared, how.model, how.width).to(device)


def by_samples(shards: list[Data]) -> list[float]:
    """Each client's share of all samples."""
    total = sum(len(labels) for _, labels in shards)
    return [len(labels) / total for _, labels in shards]


def mean(states: list[State], shares: list[float]) -> State:
    """The weighted mean."""
    return {
        name: sum(
            (share * s[name] for share, s in zip(shares, states, strict=True)), torch.tensor(0)
        )
        for name in states[0]
    }


def batches(data: Data, size: int) -> DataLoader[Any]:
    """Shuffled batches."""
    return DataLoader(TensorDataset(*data), size, shuffle=True)


def new_model(prepared: Prepared, name: str, width: float) -> nn.Module:
    """An untrained model."""
    run_spec = prepared.run_spec
    return build_classifier(name, run_spec.image_shape, run_spec.num_classes, width=width)


def as_images(pixels: Any, device: torch.device) -> Tensor:
    """Bytes (N, C, H, W) as float32 in [0, 1]."""
    return torch.from_numpy(pixels).to(device).float() / 255
