"""The suite command's options: which table or figure, at which scale, where."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from cluster.run.command_line import parse_record, with_slurm
from cluster.run.options import SlurmOptions
from cluster.studies.cells import TABLES
from cluster.studies.comparison import Scale
from fl.bounds import OneOf, Settings
from fl.data.datasets import NAMES
from fl.errors import UserError

BYTES_TABLE = "fedaf-table7"
"""The one table that is computed without a run."""
EXHIBITS = (*TABLES, BYTES_TABLE)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions(Settings):
    """Regenerate a table or figure of the papers of FedMHO, FedAF, FedD2S or HFLDD, or of ours."""

    name: Annotated[str, OneOf(EXHIBITS), tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Table: table3, table4, table5, table6, table8, table9 or loss-weights. Figure: fig5, fig6,
    fig7, fig8 or fid, with a picture. Of FedAF's paper: fedaf (accuracy over rounds, Tables 1 and 4
    and Figure 3), fedaf-table2 (domains), fedaf-table6 (ResNet-18) or fedaf-table7 (bytes). Of
    FedD2S's: fedd2s-table2 (all methods), fedd2s-table3 (head models), fedd2s-fig5 (epochs),
    fedd2s-fig6 (dropping sets) or fedd2s-fig7 (dropping rates). Of HFLDD's: hfldd (Figures 3 to 6
    and Tables II to IV), hfldd-table5 (models), hfldd-table6 (number of groups, Table VI and
    Figure 8) or hfldd-fig7 (size of the distilled sets). Ours: open (FedMHO-Open, and
    decoders of all clients) or open-clients (the same with 50 and 100 clients)."""
    scale: Scale = "small"
    """small, or just --small: a sixth of the images and narrow models, for two cores. paper: for
    GPUs."""
    seeds: str = "0,1,2"
    """Seeds of a cell's runs, with commas between."""
    only: tuple[str, ...] = ()
    """Patterns of the cells to run, as in 'mnist-alpha0.5-*'. Default: all."""
    dataset: Annotated[str, OneOf(NAMES)] | None = None
    """Data set in place of the paper's; then there is no number to compare with."""
    data_folder: Path | None = None
    """For fedaf-table2: path with a folder per domain, in each a folder per class, as the paper has
    DomainNet's ten most frequent classes."""
    output_dir: Path = Path("runs")
    """Directory of the runs and of the table."""
    data_root: Path = Path("data")
    """Where the data sets lie, in torchvision's layout."""
    runtime: Literal["ray", "inprocess"] = "ray"
    """As for the launch command."""
    dry_run: bool = False
    """Name the runs and whether each is finished; start none. At scale paper a run of each kind is
    tried by --smoke, to estimate the whole table."""
    slurm: SlurmOptions = SlurmOptions()
    """Send what is not finished to Slurm as one job array. Once all is finished, the same command
    makes the table."""

    def check_further(self) -> None:
        """Refuses seeds that are no numbers."""
        _ = self.seed_numbers

    @property
    def seed_numbers(self) -> list[int]:
        """The seeds, each once."""
        return numbers("seeds", self.seeds)


def numbers(name: str, text: str, *, least: int = 0) -> list[int]:
    """A setting's numbers, each once; raises `UserError` if one is no whole number, or too
    small."""
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < least:
            raise UserError(
                f"{name} must be whole numbers with commas, got {part!r}; none is below {least}"
            )
        found.append(int(part))
    return list(dict.fromkeys(found))


def parse_suite(argv: Sequence[str]) -> SuiteOptions:
    """Parses the command line; raises as :func:`cluster.run.command_line.parse`."""
    argv = ["--scale=small" if a == "--small" else a for a in with_slurm(argv)]
    options: SuiteOptions = parse_record(SuiteOptions, argv, "python -m cluster.suite")
    return options
