"""Makes tables of docs/results anew and writes each into the page that has its place.

    python benchmarks/results.py NAME ... --data-root DIR

Each table names the command, the date, the commit and the machine that made it. So the code must be
committed. What each run of a paper's table found is a line of JSON in docs/results/runs/, written
when the run ends: the same command goes on where it was ended, on another machine too.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Literal

import numpy as np
import run_lines
import torch
import tyro
from machine import processor
from PIL import Image
from run_lines import Provenance

from cluster.studies import fedaf_table7, suite_runs
from cluster.studies.cells import (
    BYTES_TABLE,
    DOMAINS_TABLE,
    SuiteOptions,
    make,
    with_domains,
)
from cluster.studies.cells import TABLES as SUITE
from cluster.studies.comparison import Cell, table
from cluster.studies.exhibits import EXHIBITS
from cluster.studies.study_report import texts
from fl.errors import ClientFailed, UserError
from fl.json_files import JsonObject, read_json
from fl.report.words import duration
from fl.whole_files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
CODE = ("fl", "kernels", "cluster", "benchmarks")
"""Folders whose code decides the figures."""
DOMAINS = Path("runs/pacs32")
"""Where the images of ``DOMAINS_TABLE`` lie: each run's settings, and so its line, name it."""
STUDY_COLUMNS = {
    "clients": "Clients",
    "local": "Local",
    "server": "Server",
    "total": "Total",
    "clients/s": "Clients/s",
    "driver": "Driver, peak",
    "workers": "Workers, peak",
    "up": "Up",
    "accuracy": "Accuracy",
}
"""Of a study's table on its page, by the study's own columns."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Makes tables of docs/results anew and writes each into the page that has its place."""

    tables: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names of the tables, as the pages have them."""
    only: tuple[str, ...] = ()
    """Of a paper's table run these cells alone, by patterns: two processes may share a table."""
    seeds: str = "0,1,2"
    """Seeds of the runs, with commas between."""
    data_root: Path = Path("data")
    """Where the data sets lie."""
    output_dir: Path = Path("runs")
    """Folder of the runs."""
    runtime: Literal["ray", "inprocess"] = "ray"
    """As for the launch command."""
    since: str | None = None
    """A commit since which no change of the code changes these figures: its runs stand, and those
    of later commits. Default: runs of the same code alone stand."""
    recorded: bool = False
    """Run nothing: show of what is recorded the cells that are whole."""
    verify: bool = False
    """Run the first seed of each recorded cell again and print both accuracies; write nothing."""


@dataclass(frozen=True)
class Job:
    """What making a table needs to know."""

    options: Options
    made: Provenance
    docs: Path

    def asks(self, cell: Cell) -> bool:
        """Whether the options leave the cell in."""
        only = self.options.only
        return not only or any(fnmatch(cell.name, pattern) for pattern in only)

    def suite(self, name: str, *, output_dir: Path | None = None) -> SuiteOptions:
        """The suite's options for a table."""
        return SuiteOptions(
            name=name,
            seeds=self.options.seeds,
            data_root=self.options.data_root,
            output_dir=output_dir or self.options.output_dir,
            runtime=self.options.runtime,
        )


def of_runs(
    name: str, cells: Callable[[], Sequence[Cell]], job: Job, *, exhibit: bool = True
) -> str:
    """A table or figure of the suite: runs what has no line yet, and shows what is whole; with
    what the suite shows beside it, such as pictures, where ``exhibit`` is set."""
    suite, path = job.suite(name), job.docs / "runs" / f"{name}.jsonl"
    seeds = suite.seed_numbers
    runs = suite_runs.runs_of(suite, cells(), seeds)
    same_code = partial(of_same_code, since=job.options.since)
    lines = run_lines.standing(path, runs, same_code)
    if job.options.verify:
        return verified({key: runs[key] for key in lines if job.asks(key[0])}, lines)
    failed: dict[Cell, list[str]] = {}
    if not job.options.recorded:
        if name == DOMAINS_TABLE:
            write_domains(job.options.data_root / f"{DOMAINS.name}.npz", DOMAINS)
        left = {key: runs[key] for key in runs if job.asks(key[0]) and key not in lines}
        failed = run_missing(path, left, job)
        lines = run_lines.standing(path, runs, same_code)
    figures = run_lines.whole_figures(lines, runs, failed)
    if not any(figure.results for figure in figures):
        raise UserError(f"{path} has no cell of {name} with a run of each seed")
    made = suite_runs.Table(name, "small", seeds, figures, EXHIBITS.get(name) if exhibit else None)
    heading, _, text = made.text().partition("\n\n")
    pictures = made.pictures()
    for file, picture in pictures.items():
        write_atomically(job.docs / file, picture)
    shown = [f"![{Path(file).stem}]({file})" for file in pictures]
    link = f"Each run: [{name}.jsonl](runs/{name}.jsonl)."
    told = f"{heading.removeprefix('# ')}; {run_lines.origin(lines, len(runs))}."
    return "\n\n".join([told, text.strip(), *shown, link])


def run_missing(path: Path, runs: suite_runs.Runs, job: Job) -> dict[Cell, list[str]]:
    """Runs them and writes a line of each; returns, by cell, the seeds that failed and why."""
    suite_runs.refuse_any({cell.name: launch for (cell, _), launch in runs.items()})
    failed: dict[Cell, list[str]] = {}
    for number, ((cell, seed), launch) in enumerate(runs.items(), start=1):
        print(f"{path.stem}: {number} of {len(runs)} runs", flush=True)
        try:
            (figure,) = suite_runs.run_all({(cell, seed): launch})
        except ClientFailed as failure:
            failed.setdefault(cell, []).append(f"seed {seed}: {failure}")
        else:
            run_lines.write(path, figure, seed, launch.run, job.made)
    return failed


def verified(runs: suite_runs.Runs, lines: run_lines.Lines) -> str:
    """What the first seed of each cell comes to now, beside its line: a table."""
    first = dict(reversed(runs))  # by cell its first seed, which comes last here
    now = suite_runs.run_all({key: runs[key] for key in runs if first[key[0]] == key[1]})
    rows = []
    for figure in now:
        line = lines[figure.cell, first[figure.cell]]
        pairs = [100 * result["accuracy"] for result in (line["result"], *figure.results)]
        shown = dict(zip(("Recorded", "Now"), (f"{value:.2f}" for value in pairs), strict=False))
        commit = line["provenance"]["commit"]
        rows.append({"Cell": figure.cell.name, "Commit": commit, **shown})
    return "\n".join(table(rows))


def of_same_code(commit: str, since: str | None) -> bool:
    """Whether the code of a commit is today's, or is of ``since`` or later."""
    if since is None:
        return _git_says("diff", "--quiet", commit, "HEAD", "--", *CODE)
    return _git_says("merge-base", "--is-ancestor", since, commit)


def main_job(job: Job) -> str:
    """The run that the launch command makes by default: its accuracy and times."""
    cell = Cell("digits-alpha0.5", "fedmho-sd", ("--method=fedmho-sd", "--dataset=digits"))
    # With a store of its own: clients that an earlier run had trained would take no time.
    suite = job.suite("table3", output_dir=job.options.output_dir / "main-job")
    ((result,),) = [f.results for f in suite_runs.run_all(suite_runs.runs_of(suite, [cell], [0]))]
    where = "on Ray" if job.options.runtime == "ray" else "in one process"
    accuracies = (f"{result[name]:.4f}" for name in ("accuracy", "start_accuracy"))
    times = (duration(result["seconds"][name]) for name in ("total", "local", "fusion"))
    names = ["Method", "Accuracy", "Averaged start", f"Run, {where}", "Clients", "Fusion"]
    row = dict(zip(names, [result["method"], *accuracies, *times], strict=True))
    return "\n".join(table([row]))


def of_bytes(job: Job) -> str:
    """FedAF's Table 7, which needs no training."""
    seeds = job.suite(BYTES_TABLE).seed_numbers
    return fedaf_table7.as_markdown(fedaf_table7.measured(seeds), seeds).removeprefix("# ").strip()


def of_program(arguments: Sequence[str], picture: str | None, job: Job) -> str:
    """What a program of benchmarks/ prints, and its picture if it draws one by --output."""
    more = [f"--output={job.docs / picture}"] if picture else []
    printed = run([*arguments, *more], job.options)
    text = "\n".join(f"    {row}".rstrip() for row in printed.strip("\n").splitlines())
    shown = [f"![{Path(picture).stem}]({picture})"] if picture else []
    return "\n\n".join([*shown, f"    python {' '.join(arguments)}", text])


def of_study(name: str, arguments: Sequence[str], pictures: Sequence[str], job: Job) -> str:
    """What the scalability study finds: a row for each number of clients, and its pictures."""
    command = ["-m", "cluster.study", *arguments]
    where = job.options.output_dir.absolute() / name
    run([*command, f"--output-dir={where}"], job.options)
    files = {picture: f"{name}-{picture}.png" for picture in pictures}
    for picture, file in files.items():
        shutil.copyfile(where / f"{picture}.png", job.docs / file)
    shown = [f"![{picture}]({file})" for picture, file in files.items()]
    lines = wrap(f"python {' '.join(command)}", 108, break_on_hyphens=False)
    rows = study_table(read_json(where / "study.json")["cells"])
    return "\n\n".join(["    " + " \\\n        ".join(lines), *rows, *shown])


def study_table(cells: Sequence[JsonObject]) -> list[str]:
    """A study's table: time, memory, bytes and accuracy by number of clients."""
    rows = [{title: texts(cell)[name] for name, title in STUDY_COLUMNS.items()} for cell in cells]
    return ["\n".join(table(rows))]


def run(arguments: Sequence[str], options: Options) -> str:
    """What python prints with these arguments, in the repository's root.

    Raises:
        UserError: it failed.
    """
    data = str(options.data_root.absolute())
    filled = [argument.replace("{data}", data) for argument in arguments]
    print(f"running {' '.join(filled)}", flush=True)
    ran = subprocess.run(
        [sys.executable, *filled],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if ran.returncode:
        raise UserError(f"{' '.join(filled[:2])} ended with status {ran.returncode}")
    return ran.stdout


def mnist(alpha: str) -> list[Cell]:
    """A MNIST row of Table 3, with the released loss weights and our own method beside it."""
    row = make("table3", "small", (f"mnist-alpha{alpha}-*",))
    return [*row, *_beside(row[0])]


def recut() -> list[Cell]:
    """Table 3's row at alpha 0.3 with equal clients, as FedMHO's released code cuts them."""
    methods = ("fedavg", "fedmho", "fedmho-md-released", "fedmho-sd-released", "fedmho-open")
    return [
        replace(cell, row=f"{cell.row}-recut", arguments=(*cell.arguments, "--partition.recut"))
        for cell in mnist("0.3")
        if cell.method in methods
    ]


def digits() -> list[Cell]:
    """The same methods on the digits that come with Onefold, at alpha 0.5.

    Not FedDF: it needs images of another data set, and none but these come with Onefold.
    """
    row = make("table3", "small", ("digits-alpha0.5-*",), "digits")
    return [*(cell for cell in row if cell.method != "feddf"), *_beside(row[0])]


def fashion() -> list[Cell]:
    """FedAF's Table 1 on Fashion-MNIST: the paper's methods."""
    rows = make("fedaf", "small", (), "fmnist")
    return [cell for cell in rows if not cell.method.startswith("fedaf-")]


def domains() -> list[Cell]:
    """FedAF's Table 2 on the four domains of PACS, a client for each."""
    return [with_domains(cell, DOMAINS, clients=4) for cell in SUITE[DOMAINS_TABLE]("small")]


def write_domains(source: Path, folder: Path) -> None:
    """Writes a file's images as a folder per domain, each with a folder per class.

    Args:
        source: an npz of images (N, 3, H, W), uint8, with their numbers of domain and class and the
            names of both; ``train`` and ``test``, which each run splits anew, together.
        folder: stays as it is where it is there already.

    Raises:
        UserError: neither the folder nor the file is there.
    """
    if folder.exists():
        return
    if not source.exists():
        raise UserError(f"{DOMAINS_TABLE} needs {source}, or its images in {folder}")
    file = np.load(source)
    begun = folder.with_name(f"{folder.name}-part")
    shutil.rmtree(begun, ignore_errors=True)
    columns = [[*file[f"{n}_train"], *file[f"{n}_test"]] for n in ("x", "y", "domain")]
    for number, (pixels, label, domain) in enumerate(zip(*columns, strict=True)):
        where = begun / file["domain_names"][domain] / file["class_names"][label]
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(where / f"{number:05d}.png")
    begun.rename(folder)


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


def _program(*arguments: str, picture: str | None = None) -> Callable[[Job], str]:
    return partial(of_program, (f"benchmarks/{arguments[0]}.py", *arguments[1:]), picture)


def _suite(name: str) -> Callable[[Job], str]:
    return partial(of_runs, name, lambda: make(name, "small"))


STUDY = (
    *("--method=fedmho-sd", "--num-clients=10,100,1000,10000", "--samples-per-client=20"),
    *("--partition.min-samples=5", "--dataset=mnist", "--data-root={data}"),
    *("--classifier.model=cnn", "--classifier.width=1", "--classifier.epochs=5"),
    *("--num-classifiers=1", "--generator.epochs=40", "--generator.batch-size=16"),
    *("--num-samples=12000", "--allocation=label-share", "--fusion.epochs=5"),
)
MEMORIES = (
    *("--method=local", "--num-clients=8,16,32", "--rounds=2", "--partition.kind=iid"),
    *("--dataset=mnist", "--data-root={data}", "--data.max-train=960"),
    *("--classifier.model=vgg9", "--classifier.width=0.5", "--classifier.epochs=1"),
)
ROUNDS = (
    *("rounds", "--methods", "fedavg", "feddm", "fedaf", "feddyn", "moon", "fedbn", "fedgen"),
    *("--preset=fedaf-mnist-small", "--rounds=3", "--data-root={data}"),
)
TABLES: Mapping[str, Callable[[Job], str]] = {
    "main-job": main_job,
    BYTES_TABLE: of_bytes,
    "table3-digits": partial(of_runs, "table3", digits),
    # A table of its own for each alpha: one takes an hour and more on two cores.
    **{
        f"table3-alpha{a}": partial(of_runs, "table3", partial(mnist, a))
        for a in ("0.5", "0.3", "0.1")
    },
    "table3-recut": partial(of_runs, "table3", recut),
    "fedaf-fmnist": partial(of_runs, "fedaf", fashion, exhibit=False),
    DOMAINS_TABLE: partial(of_runs, DOMAINS_TABLE, domains),
    **{name: _suite(name) for name in ("fedaf", "fedd2s-table2", "hfldd", "open")},
    "robust": _program("robust", picture="robust.png"),
    "privacy": _program("privacy", picture="privacy.png"),
    "distance": _program("distance", "--seconds=1.5"),
    "fusion": _program("fusion", "--samples=6000", "--teachers=5"),
    "rounds": _program(*ROUNDS),
    "stacked": _program("stacked", "--clients=1000", "--rounds=3", "--data-root={data}"),
    "study": partial(of_study, "study", STUDY, ("seconds", "memory", "rate", "accuracy")),
    "memories": partial(of_study, "memories", MEMORIES, ("memory",)),
    "placement": _program("placement", "--live"),
}
"""By the names that the pages have; the last seven measure time and want an idle machine."""


def main(options: Options, folder: Path = PAGES) -> int:
    """Makes the tables, one after the other; returns the exit status."""
    try:
        pages = places(options.tables, folder)
        made = here_and_now()
        own = replace(options, output_dir=options.output_dir / f"results-{made.commit}")
        flags = [f"--since {options.since}"] if options.since else []
        flags += ["--recorded"] if options.recorded else []
        for name, page in pages.items():
            if options.verify and getattr(TABLES[name], "func", None) is not of_runs:
                raise UserError(f"--verify goes with tables of a suite's runs, not with {name}")
            text = TABLES[name](Job(own, made, folder))
            if options.verify:
                print(f"\n{text}", flush=True)
                continue
            command = " ".join(["python benchmarks/results.py", name, *flags])
            where = f"`{command}`,\n{made.date}, commit {made.commit}; "
            body = f"{where}{made.machine}.\n\n{text}\n"
            write_atomically(page, replaced(page.read_text(), name, body).encode())
            print(f"\n{body}\nwritten into {page}", flush=True)
    except (UserError, ClientFailed) as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    return 0


def places(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """The page that has a place for each table.

    Raises:
        UserError: an unknown table, or one without a place.
    """
    texts_of = {page: page.read_text() for page in sorted(folder.glob("*.md"))}
    found: dict[str, Path] = {}
    for name in names:
        if name not in TABLES:
            raise UserError(f"unknown table {name!r}; valid: {', '.join(TABLES)}")
        place = f"<!-- table: {name} -->\n"
        page = next((page for page, text in texts_of.items() if place in text), None)
        if page is None:
            raise UserError(f"no page of {folder} has {place.strip()} ... <!-- end -->")
        found[name] = page
    return found


def replaced(page: str, name: str, body: str) -> str:
    """The page with another table in that one's place."""
    place = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}{body}{found[2]}", page)


def here_and_now() -> Provenance:
    """Of what is measured now.

    Raises:
        UserError: code has changed since the commit, or there is no git.
    """
    if _git("status", "--porcelain", "--", *CODE):
        raise UserError("commit your changes first: a table names the commit that made it")
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    machine = f"{processor()}, {os.cpu_count()} cores{gpu}, torch {torch.__version__}"
    return Provenance(
        f"{datetime.now(UTC):%Y-%m-%d}", _git("rev-parse", "--short", "HEAD"), machine
    )


def _git_says(*arguments: str) -> bool:
    """The answer of a git command that gives it by its status; False for an unknown commit."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True).returncode == 0


def _git(*arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        raise UserError("git is missing: a table names the commit that made it") from None
    if ran.returncode:
        raise UserError(f"git: {ran.stderr.strip()}")
    return ran.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
