"""Settings of FEDCVAE, small enough for a test: two small generators and two large ones."""

from fl.fusion.fit import FitConfig
from fl.training.generator import GeneratorConfig

SMALL = {
    "generator": GeneratorConfig(width=0.1, latent=4, epochs=2),
    "large_width": 0.02,
    "num_samples": 40,
    "global_model": "cnn",
    "global_width": 0.3,
    "classify": FitConfig(epochs=2, batch_size=16, lr=1e-3),
}
