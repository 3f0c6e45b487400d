"""A multilayer perceptron, for tables and whatever else is a vector of numbers."""

from math import prod

from torch import Tensor, nn

from fl.models.shapes import ModelInfo, scaled


class MLP(nn.Module):
    """Two hidden layers of 128 and 64 units with ReLU, of the samples' values in one row.

    Maps samples (B, ...) of floats to logits (B, num_classes).
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        first, second = scaled(128, width), scaled(64, width)
        self.features = nn.Sequential(
            *(nn.Linear(prod(shape), first), nn.ReLU()), *(nn.Linear(first, second), nn.ReLU())
        )
        self.classifier = nn.Linear(second, num_classes)

    def forward(self, samples: Tensor) -> Tensor:
        """Logits (B, num_classes) of samples (B, ...)."""
        return self.classifier(self.features(samples.flatten(1).float()))


MODEL = ModelInfo(
    "mlp", "classifier", MLP, lambda shape: len(shape) > 0, needs="numbers", images=False
)
