"""``onefold privacy RUN...``: attacks what a run's clients uploaded, and its global model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import nn

from cluster.run.command_line import parse
from cluster.run.prepare import changes_of, read_dataset
from cluster.run.run_dir import differences
from fl.command import run_command
from fl.config import RunConfig
from fl.data.partition_file import read_lists
from fl.errors import UserError, escaped
from fl.exchange import StoredTensors, num_bytes
from fl.federation import Training
from fl.json_files import JsonObject, write_json
from fl.methods.personal import PersonalConfig
from fl.methods.registry import get_method
from fl.own_process import run_as_command
from fl.plugins import load_plugin
from fl.privacy import Subject, lines, measure
from fl.report.read import client_ends, read_events
from fl.training.classifier import rows_held_out
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
    trainings = [assignment.training for assignment in assignments]
    for k, changes in changes_of(config, assignments).items():
        trainings[k] = replace(trainings[k], **dict(changes))
    for k, own in enumerate(trainings):  # what a client holds out it has not trained on
        if share := getattr(own, "validation", 0.0):
            lists[k] = lists[k][rows_held_out(len(lists[k]), share, spec.seed, k)[1].numpy()]
    try:
        uploads, model = _sent(run, trainings, config)
        return measure(Subject(dataset, lists, trainings, uploads, spec, model))
    except (ValueError, OSError) as error:
        raise UserError(f"{run}: {error}") from None


def _sent(
    run: Path, trainings: Sequence[Training], config: RunConfig[Any]
) -> tuple[dict[int, StoredTensors], nn.Module | None]:
    """What clients uploaded last, and the global model: neither where it is of models of the
    clients' own, of which some layers were not sent."""
    files = {k: run / "updates" / f"client-{k:05d}.safetensors" for k in range(len(trainings))}
    uploads = {k: StoredTensors(file) for k, file in files.items() if file.is_file()}
    model = load_model(run) if (run / MODEL).is_file() else None
    if isinstance(config.options, PersonalConfig):
        ends = client_ends(read_events(run / "metrics.jsonl"))
        sizes = {k: [end.bytes_up for end in own] for k, own in ends.items()}
        uploads = {k: u for k, u in uploads.items() if num_bytes(dict(u)) in sizes.get(k, [])[-1:]}
        if not any(trainings[k].upload_bytes(config.run_spec) in own for k, own in sizes.items()):
            model = None
    return uploads, model


if __name__ == "__main__":
    run_as_command(lambda: run_command(command, "onefold privacy"), goes_on=True)
