"""The small tables of docs/results.md: of which runs, or which program's output, each is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cluster.studies import fedaf_table7, suite_runs
from cluster.studies.cell import Cell
from cluster.studies.cells import ALPHAS, make
from cluster.studies.digests import (
    OF_TIME,
    RUNS,
    digest_of,
    digest_of_cell,
    digest_of_cells,
    digest_of_files,
    method_files,
)
from cluster.studies.measured_runs import figures_of
from cluster.studies.program_tables import OfProgram, OfStudy
from cluster.studies.suite_options import BYTES_TABLE, SuiteOptions
from cluster.studies.suite_tables import line
from fl.report.words import duration
from fl.whole_files import write_atomically


@dataclass(frozen=True)
class OfRuns:
    """A table or figure of the suite."""

    name: str
    """The suite's."""
    cells: Callable[[], Sequence[Cell]]

    def digest(self) -> str:
        """Of the code and the settings that its runs rest on."""
        return digest_of_cells(self.cells())

    def make(self, options: SuiteOptions, docs: Path) -> str:
        """Runs what no run of the same code has done, draws the pictures; returns the table.

        What each run found stands in ``docs/runs/`` as soon as it has.
        """
        of_runs = docs / "runs" / f"{self.name}.jsonl"
        runs = _runs(self.cells(), replace(options, name=self.name), options.seed_numbers)
        figures, places = figures_of(runs, of_runs)
        text = suite_runs.text_of(self.name, options.scale, options.seed_numbers, figures)
        heading, _, table = text.partition("\n\n")
        pictures = suite_runs.pictures_of(self.name, options.scale, figures)
        for file, picture in pictures.items():
            write_atomically(docs / file, picture)
        shown = [f"![{Path(file).stem}]({file})" for file in pictures]
        beneath = "\n".join([f"Each run: [{of_runs.name}](runs/{of_runs.name}).", "", *places])
        return "\n\n".join([f"{heading.removeprefix('# ')}.", table.strip(), *shown, beneath])


@dataclass(frozen=True)
class MainJob:
    """The run that the launch command makes by default."""

    cell: Cell

    def digest(self) -> str:
        """Of the code and the settings that the run rests on."""
        return digest_of_cell(self.cell)

    def make(self, options: SuiteOptions, docs: Path) -> str:
        """Runs it; returns its accuracy and times."""
        # With a store of its own: clients that an earlier run had trained would take no time.
        own = options.output_dir / f"main-job-{self.digest()}"
        runs = _runs([self.cell], replace(options, output_dir=own), [0])
        ((result,),) = [figure.results for figure in suite_runs.run_all(runs)]
        seconds = result["seconds"]
        where = "on Ray" if options.runtime == "ray" else "in one process"
        rows = [
            ["Method", "Accuracy", "Averaged start", f"Run, {where}", "Clients", "Fusion"],
            ["---"] * 6,
            [
                result["method"],
                f"{result['accuracy']:.4f}",
                f"{result['start_accuracy']:.4f}",
                *(duration(seconds[name]) for name in ("total", "local", "fusion")),
            ],
        ]
        return "\n".join(map(line, rows))


@dataclass(frozen=True)
class OfBytes:
    """FedAF's Table 7, which needs no training."""

    def digest(self) -> str:
        """Of the code that counts, and of FedAF."""
        own = Path(fedaf_table7.__file__)
        return digest_of([digest_of_files(RUNS), digest_of_files((*method_files("fedaf"), own))])

    def make(self, options: SuiteOptions, docs: Path) -> str:
        """Counts, and returns the table."""
        seeds = options.seed_numbers
        text = fedaf_table7.as_markdown(fedaf_table7.measured(seeds), seeds)
        return text.removeprefix("# ").strip()


Table = OfRuns | MainJob | OfBytes | OfProgram | OfStudy


def _runs(
    cells: Sequence[Cell], options: SuiteOptions, seeds: Sequence[int]
) -> dict[tuple[Cell, int], list[str]]:
    """The runs' arguments. They are named by their code too, so that none of older code counts."""
    return suite_runs.arguments_of(options, cells, seeds, lambda cell: f"-{digest_of_cell(cell)}")


def mnist(alpha: str) -> list[Cell]:
    """A MNIST row of Table 3, with the released loss weights and our own method beside it."""
    row = make("table3", "small", (f"mnist-alpha{alpha}-*",))
    return [*row, *_beside(row[0])]


def digits() -> list[Cell]:
    """The same methods on the digits that come with Onefold, at alpha 0.5.

    Not FedDF: it needs images of another data set, and none but these come with Onefold.
    """
    row = make("table3", "small", ("digits-alpha0.5-*",), "digits")
    return [*(cell for cell in row if cell.method != "feddf"), *_beside(row[0])]


def _beside(cell: Cell) -> list[Cell]:
    """What our table has beside the paper's methods, in the cell's row."""
    more = {
        "fedmho-md-released": ("--method=fedmho-md", "--betas=released"),
        "fedmho-sd-released": ("--method=fedmho-sd", "--betas=released"),
        "fedmho-open": ("--method=fedmho-open",),
    }
    shared = [a for a in cell.arguments if not a.startswith("--method=")]
    return [
        replace(cell, method=name, arguments=(*shared, *own), paper=None)
        for name, own in more.items()
    ]


def _benchmarks(*names: str) -> tuple[str, ...]:
    return tuple(f"benchmarks/{name}.py" for name in names)


FEDAVG_AND_FEDMHO = ("fl", *(f"fl/methods/{n}.py" for n in ("fedavg", "prototypes", "fedmho")))
OF_LAUNCHES = (
    *("fl", "cluster/clients", "cluster/run"),
    *(f"fl/{name}.py" for name in OF_TIME),
)
MAIN = Cell("digits-alpha0.5", "fedmho-sd", ("--method=fedmho-sd", "--dataset=digits"))

TABLES: Mapping[str, Table] = {
    "main-job": MainJob(MAIN),
    BYTES_TABLE: OfBytes(),
    "table3-digits": OfRuns("table3", digits),
    # A table of its own for each alpha: one takes an hour and more on two cores.
    **{f"table3-alpha{alpha}": OfRuns("table3", partial(mnist, alpha)) for alpha in ALPHAS},
    "fedaf": OfRuns("fedaf", lambda: make("fedaf", "small")),
    "fedd2s-table2": OfRuns("fedd2s-table2", lambda: make("fedd2s-table2", "small")),
    "hfldd": OfRuns("hfldd", lambda: make("hfldd", "small")),
    "robust": OfProgram(
        ("benchmarks/robust.py",),
        (*FEDAVG_AND_FEDMHO, *_benchmarks("robust", "attacks")),
        picture="robust.png",
    ),
    "privacy": OfProgram(
        ("benchmarks/privacy.py",),
        (*FEDAVG_AND_FEDMHO, "fl/privacy", *_benchmarks("privacy")),
        picture="privacy.png",
    ),
    "distance": OfProgram(
        ("benchmarks/distance.py", "--seconds=1.5"),
        ("kernels", "fl/fusion", *_benchmarks("distance", "distance_peers", "machine", "servers")),
    ),
    "fusion": OfProgram(
        ("benchmarks/fusion.py", "--samples=6000", "--teachers=5"),
        (
            "fl/fusion",
            "fl/training",
            "cluster/server",
            *_benchmarks("fusion", "machine", "servers"),
        ),
    ),
    "rounds": OfProgram(
        (
            *("benchmarks/rounds.py", "--methods", "fedavg", "feddm", "fedaf", "feddyn", "moon"),
            *("fedbn", "fedgen", "--preset=fedaf-mnist-small", "--rounds=3", "--data-root={data}"),
        ),
        (
            *(*OF_LAUNCHES, "fl/methods"),
            *_benchmarks("rounds", "plain_rounds", "plain_relatives", "plain_data"),
        ),
    ),
    "stacked": OfProgram(
        ("benchmarks/stacked.py", "--clients=1000", "--rounds=3", "--data-root={data}"),
        (
            *("fl/training", "fl/models", "cluster/clients", "cluster/scheduling"),
            *_benchmarks("stacked", "stacked_way"),
        ),
    ),
    "study": OfStudy(
        "study",
        "fedmho-sd",
        (
            *("--num-clients=10,100,1000,10000", "--samples-per-client=20"),
            *("--partition.min-samples=5", "--dataset=mnist", "--data-root={data}"),
            *("--classifier.model=cnn", "--classifier.width=1", "--classifier.epochs=5"),
            *("--num-classifiers=1", "--generator.epochs=40", "--generator.batch-size=16"),
            *("--num-samples=12000", "--allocation=label-share", "--fusion.epochs=5"),
        ),
        (*OF_LAUNCHES, "cluster/scheduling"),
        pictures=("seconds", "memory", "rate", "accuracy"),
    ),
    "memories": OfStudy(
        "memories",
        "local",
        (
            *("--num-clients=8,16,32", "--rounds=2", "--partition.kind=iid", "--dataset=mnist"),
            *("--data-root={data}", "--data.max-train=960", "--classifier.model=vgg9"),
            *("--classifier.width=0.5", "--classifier.epochs=1"),
        ),
        (*OF_LAUNCHES, "cluster/scheduling"),
        pictures=("memory",),
    ),
    "placement": OfProgram(
        ("benchmarks/placement.py", "--live"),
        (
            "cluster/scheduling",
            *_benchmarks("placement", "schedulers", "federations", "live_placement"),
        ),
    ),
}
"""By the names that the page has; cheapest first, and last those that measure time."""
