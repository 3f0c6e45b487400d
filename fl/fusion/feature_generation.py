"""The server's side of FedGen: its generator learns features that the clients' layers recognise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, Positive
from fl.federation import Batch, Update
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.models.generators import NOISE, FeatureGenerator, asked
from fl.seeding import in_round, torch_generator
from fl.training.features import head_of
from fl.training.optimizers import Adam


@dataclass(frozen=True, kw_only=True)
class GeneratorFitConfig(FitConfig):
    """Training of the generator in each round, by Adam; the authors' code has these values."""

    epochs: Count = 1
    """Epochs over the classes drawn."""
    steps: Count = 50
    """Batches of an epoch, of classes drawn anew in each round."""
    lr: Positive = 3e-4
    """Learning rate of the first round."""
    decay: Positive = 0.98
    """Factor on the learning rate from round to round."""
    weight_decay: NotNegative = 0.01
    """Weight decay of Adam."""
    batch_size: Count = 32
    """Features per step, over all ranks together."""

    def make_optimizer(self) -> Adam:
        """The optimiser that these settings name."""
        return Adam(self.lr, weight_decay=self.weight_decay)


class LastLayers(nn.Module):
    """A generator, and the clients' last layers that judge it, which do not learn."""

    weight: Tensor
    bias: Tensor
    shares: Tensor

    def __init__(
        self, generator: FeatureGenerator, weight: Tensor, bias: Tensor, shares: Tensor
    ) -> None:
        """``weight`` (K, classes, d) and ``bias`` (K, classes) of K clients; ``shares`` (K,
        classes): of the samples of a class, the part that the client holds."""
        super().__init__()
        self.generator = generator
        for name, tensor in (("weight", weight), ("bias", bias), ("shares", shares)):
            self.register_buffer(name, tensor)

    @classmethod
    def of(
        cls,
        generator: FeatureGenerator,
        updates: Sequence[Update],
        like: nn.Module,
        label_counts: Tensor,
    ) -> "LastLayers":
        """Those of uploads that have been checked to be classifiers ``like`` this one; their
        clients hold ``label_counts`` (K, classes)."""
        layer = head_of(like)
        (name,) = (name for name, module in like.named_modules() if module is layer)
        weight, bias = (
            torch.stack([update.tensors[f"classifier.{name}.{part}"] for update in updates])
            for part in ("weight", "bias")
        )
        shares = label_counts / label_counts.sum(0).clamp(min=1)
        return cls(generator, weight, bias, shares)

    def forward(self, x: Tensor) -> Tensor:
        """The generator's features."""
        features: Tensor = self.generator(x)
        return features


@dataclass(frozen=True, kw_only=True)
class GenerationLoss:
    """The generator's loss (Eq. 4 and the authors' code): how well each client's last layer
    recognises the ``labels`` of the features, weighted by its share of the class, and exp(-mean of
    the products of two features' distance and their ``noise``'s)."""

    whole_batch: ClassVar[bool] = True

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, LastLayers)
        features, labels, noise = model(batch["images"]), batch["labels"], batch["noise"]
        logits = torch.einsum("bd,kcd->bkc", features, model.weight) + model.bias
        entropies = -logits.log_softmax(2)[torch.arange(len(labels)), :, labels]  # (B, K)
        recognised = (entropies * model.shares[:, labels].T).sum(1).mean()
        noise_apart = (noise[:, None] - noise[None]).square().mean(2)
        apart = (features[:, None] - features[None]).abs().mean(2)
        return recognised + (-(noise_apart * apart).mean()).exp()


def fit_generator(layers: LastLayers, server: Server, config: GeneratorFitConfig) -> None:
    """Trains the generator in place, on classes drawn from those that the clients hold."""
    stream = torch_generator(server.run_spec.seed, in_round("fedgen/classes", server.round))
    held = (layers.shares.sum(0) > 0).nonzero().squeeze(1).cpu()
    rows = config.steps * config.batch_size
    labels = held[torch.randint(len(held), (rows,), generator=stream)]
    x = asked(labels, server.run_spec.num_classes, stream)
    data = {"images": x, "labels": labels, "noise": x[:, :NOISE]}
    config = replace(config, lr=config.lr * config.decay ** (server.round - 1))
    server.fit(
        layers.to(server.device),
        data,
        loss=GenerationLoss(),
        config=config,
        stage="generator",
        tested=False,
    )
