"""``python -m cluster.launch``: the main command, which trains and fuses one federation."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from cluster.run.steps import Steps, ended, loading, print_text, stop_with
from fl.errors import UserError
from fl.json_files import JsonObject
from fl.own_process import run_as_command
from fl.whole_files import printable, refused_by_disk

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.

TESTED = {
    "clients": "its own test samples",
    "test": "all test samples",
    "validation": "held-out training samples",
}
"""The samples that an accuracy is of, by the result's ``scored_on``."""


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C.

    ``own_process``: whether the process is the command's own, and has computed nothing before.
    """
    console, arguments = Console(markup=False), sys.argv[1:] if argv is None else argv
    with loading(arguments):
        from cluster.run.command_line import parse
        from cluster.run.prepare import prepare
        from cluster.run.progress import print_dry_run
        from cluster.run.run_dir import check_place, claimed, versions
        from cluster.run.runner import execute
        from cluster.run.runtime import EarlyRay
        from cluster.run.smoke import print_estimate, smoke
    if "--version" in arguments:
        print(f"onefold {versions()['onefold']}")
        return 0
    with ExitStack() as held:
        try:
            with refused_by_disk():
                launch = parse(arguments)
                if launch.slurm.submit:
                    from slurm.submit import submit

                    return submit(launch, console)
                if not (launch.dry_run or launch.smoke):
                    check_place(launch)
                early = held.enter_context(EarlyRay(wanted=launch.starts_ray, fork=own_process))
                with Steps(console) as say:
                    prepared = prepare(launch, say=say, checked=early.begin)
                    if launch.smoke:
                        say("running one step of everything")
                        estimate = smoke(launch, prepared, early)
            if launch.smoke:
                print_estimate(estimate, console)
                return 0
            if launch.dry_run:
                print_dry_run(launch, prepared, console)
                return 0
            run_dir = held.enter_context(claimed(launch))
        except UserError as error:
            return stop_with(error)

        def run() -> None:
            result = execute(launch, prepared, run_dir, console, early=early)
            _print_summary(result, run_dir, console)

        return ended(run, f"--resume goes on in {printable(str(run_dir))}")


def _print_summary(result: JsonObject, run_dir: Path, console: Console) -> None:
    metric, gain = result["metric"], result["accuracy"] - result["start_accuracy"]
    lines = [
        f"\n{metric} {result['accuracy']:.4f} ({result['method']} on {result['dataset']}; "
        f"its start {result['start_accuracy']:.4f}, gain {gain:+.4f})"
    ]
    if "client_scores" in result:
        scored = len(result["client_accuracy"]) - len(result["untested"])
        worst = result["client_scores"]["worst_tenth"]
        lines.append(
            f"clients  mean of {scored}, each on {TESTED[result['scored_on']]}; "
            f"worst tenth {worst:.4f}, UA {result['ua']:.4f}"
        )
    lines += [f"without  client {k}: {reason}" for k, reason in result["dropped"].items()]
    lines += [f"time     {result['seconds']['total']:.1f} s", f"report   {run_dir / 'report.html'}"]
    print_text("\n".join(lines), console)


if __name__ == "__main__":
    run_as_command(lambda: main(own_process=True), goes_on=True)
