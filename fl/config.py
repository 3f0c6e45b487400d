"""The run's configuration: one tree of frozen records, validated as it is built."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from fl.bounds import Clients, Count, OneOf, Pixels, Positive, Seed, Settings, Within
from fl.data.catalogue import FOLDER, DatasetName, dataset_info, find_names
from fl.data.datasets import NAMES
from fl.data.partition import PartitionConfig
from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.fit import Inference
from fl.methods.registry import METHODS, OURS, get_method
from fl.resources import ResourcesConfig
from fl.training.private import DpConfig

Options = TypeVar("Options")
DATASET_HELP = (
    f"Data set: {', '.join(NAMES)}; one of your own, by the path of an .npz file or of a folder "
    "with a folder of images per class; or folder: images of several domains, for which see "
    "data.folder and partition.kind domains."
)
OVER_ROUNDS = [name for name, method in METHODS.items() if not method.one_shot]
METHOD_HELP = f"Method: {', '.join(METHODS)}."
ROUNDS_HELP = f"Communication rounds; one for all methods but {', '.join(OVER_ROUNDS)}."


@dataclass(frozen=True, kw_only=True)
class DataConfig(Settings):
    """How much of the data set to use."""

    max_train: Count | None = None
    """Use this many training images at most, a fixed random subset."""
    max_test: Count | None = None
    """Use this many test images at most, a fixed random subset."""
    folder: str | None = None
    """For data set folder: path with a folder per domain, in each a folder per class (DomainNet's
    layout). A fifth of each domain's images, drawn by the seed, is the test split."""
    side: Pixels = 64
    """For data set folder: images are scaled to this many pixels in height and width."""
    validation: Annotated[float, Within(0, 1, "[)")] = 0.0
    """Share of the training images that no client gets. Accuracy is measured on them instead of
    the test split, to choose settings. Where clients have their own test samples, each client holds
    out this share of its training samples. 0: accuracy is measured on the test split."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings, Generic[Options]):
    """Everything that determines a run's result."""

    method: Annotated[str, OneOf(METHODS), tyro.conf.arg(help=METHOD_HELP)] = "fedmho-sd"
    dataset: Annotated[str, DatasetName((FOLDER,)), tyro.conf.arg(help=DATASET_HELP)] = "digits"
    alpha: Positive = 0.5
    """Concentration of the Dirichlet label partition; smaller is more skewed."""
    num_clients: Clients = 10
    """Number of clients, K."""
    rounds: Annotated[Count, tyro.conf.arg(help=ROUNDS_HELP)] = 1
    stop_after: Count | None = None
    """Stop after this many rounds without higher accuracy. Measure it by data.validation, so that
    the test split chooses nothing."""
    seed: Seed = 0
    """Seed of all random numbers."""
    plugin: tuple[str, ...] = ()
    """Your own code, which registers models, data sets or methods: FILE.py, module or module:name.
    """
    per_client: tuple[str, ...] = ()
    """Training settings of single clients; they override classifier's. CLIENT.SETTING=VALUE, as in
    3.lr=0.01 3.epochs=5."""
    fid: bool = False
    """Also measure how far the synthetic images are from the real training images, by a network of
    our own (fl/sample_quality.py); and ask another, trained on the real ones, about the synthetic
    labels and the method's teacher (fl/sample_quality.py)."""
    tf32: bool = False
    """Round the factors of float32 convolutions and matrix products to TF32, on GPUs that can: in
    all passes of clients and server alike. Faster, and no longer equal to the CPU's to 1e-4."""
    inference: Inference = "fp32"
    """Arithmetic of the server's passes without training, which are tests and what teachers are
    asked: bf16 is faster on processors and GPUs that have it, and rounds."""
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    resources: ResourcesConfig = ResourcesConfig()
    dp: DpConfig = DpConfig()
    options: Annotated[Options, tyro.conf.arg(name="")]

    def check_further(self) -> None:
        """Refuses settings that do not go with the data set, the method or the number of rounds."""
        if (self.dataset == FOLDER) != (self.data.folder is not None):
            raise UserError("data set folder and data.folder need each other: set both or none")
        if self.partition.kind == "domains" and self.dataset != FOLDER:
            raise UserError(f"partition.kind domains needs data set folder, got {self.dataset}")
        if get_method(self.method).one_shot and self.rounds != 1:
            raise UserError(f"{self.method} is a one-shot method: rounds must be 1")
        if self.stop_after and self.rounds == 1:
            raise UserError("stop_after needs rounds above 1")
        if self.scores_clients and self.partition.test_fraction == 0:
            raise UserError(
                f"{self.method} scores each client on test samples of its own: "
                "partition.test_fraction must be above 0"
            )
        if self.dp.epsilon is not None:
            self._check_dp()

    def _check_dp(self) -> None:
        if not get_method(self.method).supports_dp(self.options):
            able = [name for name in OURS if METHODS[name].supports_dp(METHODS[name].config())]
            if self.method not in able:
                raise UserError(f"dp.epsilon works with {', '.join(able)}, not with {self.method}")
            raise UserError(
                f"dp.epsilon covers one training of a client in a round; with these settings "
                f"{self.method} has clients that train twice"
            )
        if self.scores_clients:
            raise UserError("dp.epsilon: scores on clients' own test samples would not be private")

    @property
    def scores_clients(self) -> bool:
        """Whether clients are scored on test samples of their own."""
        return get_method(self.method).scores_clients(self.options)

    @property
    def skew(self) -> float | None:
        """alpha, where the partition depends on it."""
        return self.alpha if self.partition.kind in ("dirichlet", "mixture") else None

    @property
    def run_spec(self) -> RunSpec:
        """Samples, classes, domains, seed and arithmetic, found without reading our own data."""
        common: dict[str, Any] = {"seed": self.seed, "tf32": self.tf32}
        if self.data.folder is not None:
            domains, classes = find_names(Path(self.data.folder))
            shape = (3, self.data.side, self.data.side)
            return RunSpec.of_images(shape, num_classes=len(classes), domains=domains, **common)
        info = dataset_info(self.dataset)
        return RunSpec(
            inputs=info.inputs, num_classes=info.num_classes, targets=info.targets, **common
        )
