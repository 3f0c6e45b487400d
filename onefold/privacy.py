"""``onefold privacy RUN...``: attacks what a run's clients uploaded, and its global model."""

from pathlib import Path
from typing import Annotated

import tyro

from cluster.run.command_line import parse
from cluster.run.prepare import read_dataset
from cluster.run.run_dir import differences
from fl.command import run_command
from fl.data.partition_file import read_lists
from fl.errors import UserError, escaped
from fl.exchange import StoredTensors
from fl.json_files import JsonObject, write_json
from fl.methods.registry import get_method
from fl.own_process import run_as_command
from fl.plugins import load_plugin
from fl.privacy import Subject, lines, measure
from onefold.result import MODEL, load_model, load_result


def command(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    data_root: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("data"),
    plugin: str | None = None,
) -> None:
    """Measure what uploads reveal about the samples they were made of.

    Membership inference against each classifier that a client uploaded and against the global
    model, and how near synthetic and condensed images are to training images. Writes privacy.json,
    and the report anew.

    Args:
        runs: Run directories.
        data_root: Where the data sets lie.
        plugin: Your code that registers the model and data which runs were given from Python.
    """
    from fl.report.page import write_report  # late, as importing matplotlib is slow

    if not runs:
        raise UserError("name one run directory or more: onefold privacy RUN [RUN ...]")
    if plugin is not None:
        load_plugin(plugin)
    for run in runs:
        found = attack_run(run, data_root)
        write_json(run / "privacy.json", found)
        print(escaped("\n".join([str(run), *lines(found)])))
        print(escaped(str(write_report(run))))


def attack_run(run: Path, data_root: Path) -> JsonObject:
    """What was measured of a finished run, as it stands in privacy.json.

    Raises:
        UserError: it is no finished run, or its data or an upload is not what it was.
    """
    load_result(run)  # refuses what is no finished run
    launch = parse(["--config", str(run / "config.yaml"), "--data-root", str(data_root)])
    config, spec = launch.run, launch.run.run_spec
    if "dataset" in differences(run / "config.yaml", config):
        raise UserError(f"{run}: {config.dataset} is not the data that the run used")
    if spec.targets is not None:
        raise UserError(f"{run}: attacks need classes as targets, got {spec.targets.kind}")
    dataset = read_dataset(launch)
    train = dataset.train
    lists, _ = read_lists(run / "partition.npz", config.num_clients, len(train.labels), train.taken)
    assignments = get_method(config.method).assign(config.options, config.num_clients, spec)
    files = {k: run / "updates" / f"client-{k:05d}.safetensors" for k in range(len(lists))}
    try:
        return measure(
            Subject(
                dataset=dataset,
                lists=lists,
                trainings=[assignment.training for assignment in assignments],
                uploads={k: StoredTensors(f) for k, f in files.items() if f.is_file()},
                run_spec=spec,
                model=load_model(run) if (run / MODEL).is_file() else None,
            )
        )
    except (ValueError, OSError) as error:
        raise UserError(f"{run}: {error}") from None


if __name__ == "__main__":
    run_as_command(lambda: run_command(command, "onefold privacy"), goes_on=True)
