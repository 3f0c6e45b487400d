"""``python -m tune.sweep --slurm``: the sweep as one job, its trials all over the allocation."""

from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import as_arguments
from cluster.run.options import Launch
from fl.errors import UserError
from fl.spaces import Space
from slurm.node_task import NodeTask
from slurm.sbatch import Sbatch, refuse_path, require_sbatch
from slurm.submit import forwarded, print_text, write_submitted
from tune.folder import claim_sweep
from tune.options import SweepOptions


def submit(options: SweepOptions, launch: Launch, space: Space, console: Console) -> int:
    """Submits the sweep and returns the exit status.

    Raises:
        UserError: one line, for any error that can be found before the job starts.
    """
    if launch.wait:
        raise UserError("--wait is for a single run's job; a sweep's tells how it goes in its log")
    require_sbatch()
    refuse_path(launch.output_dir / str(launch.name) / "slurm")
    folder = claim_sweep(options, launch, space)
    (job,) = Sbatch(folder / "slurm", launch.slurm).send([job_of(options, launch, folder)])
    write_submitted(folder, job)
    print_text(
        f"job      {job}\n"
        f"results  {folder}\n"
        f"logs     {folder / 'slurm' / f'{job}_0_log.out'}\n"
        f"cancel   scancel {job}",
        console,
    )
    return 0


def job_of(options: SweepOptions, launch: Launch, folder: Path) -> NodeTask:
    """The sweep inside the allocation, where each start of the job resumes it."""
    own = asdict(options)
    if Path(options.space).suffix:
        own["space"] = str(Path(options.space).absolute())
    arguments = [a for n, value in own.items() if value is not None for a in as_arguments(n, value)]
    arguments += [f"--config={folder / 'default.yaml'}", *forwarded(launch, folder)]
    return NodeTask(arguments, folder, nodes=launch.slurm.nodes, ray=True, module="tune.sweep")
