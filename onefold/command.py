"""``onefold``: one command for what there is; each word stands for a module's own command."""

import difflib
import importlib
import runpy
import sys
from collections.abc import Sequence

from fl.own_process import run_as_command
from onefold import __version__

MODULES = {
    "run": "cluster.launch",
    "suite": "cluster.suite",
    "study": "cluster.study",
    "sweep": "tune.sweep",
    "report": "fl.report",
    "compare": "fl.report",
    "privacy": "onefold.privacy",
    "data": "fl.data",
    "status": "slurm.status",
    "doctor": "cluster.doctor",
    "ls": "onefold.runs",
    "export": "onefold.runs",
    "rm": "onefold.runs",
    "store": "onefold.store",
}
HELP = """usage: onefold COMMAND [...]      onefold COMMAND --help      onefold --version

One-shot federated learning: clients train once, upload once, a server fuses.

  run       train and fuse one federation; here, on GPUs, or with --slurm
  suite     a table or figure of a paper, run by run, beside the paper's
  sweep     search settings with Ray Tune; --grid: a table of all combinations
  study     how time, memory and bytes grow with the number of clients
  data      fetch data sets:  onefold data prepare mnist --data-root data
  doctor    is this machine fit?
  status    what Slurm does with the runs that were sent to it

  ls        the runs, sweeps, ... there are       onefold ls
  report    draw a run's report again             onefold report runs/NAME
  compare   several runs on one page              onefold compare A B -o c.html
  privacy   what uploads reveal of samples        onefold privacy runs/NAME
  export    figures of runs as a table            onefold export --csv all.csv
            or a run's model                      onefold export --onnx F NAME
  rm        delete runs, sweeps, ...              onefold rm NAME --yes
  store     how large clients' uploads are        onefold store
            delete what no run used for 30 days   onefold store --prune 30 --yes

examples:
  onefold run                                     digits, minutes, any machine
  onefold run --method fedavg --rounds 5 --num-large 10
  onefold run --dataset my.npz --plugin my.py --classifier.model mynet
  onefold sweep --grid method=fedavg,fedprox alpha=0.1,0.5 seed=0,1,2
  onefold run --preset mnist-small --data-root DIR --slurm --slurm.nodes 2

In Python: import onefold; onefold.run(data=..., model=..., method=...)
"""
SILENT = {"report", "compare", "privacy", "data", "doctor"}
"""Commands that load for seconds and do not say so; their first lines are longer than ours."""
OWN_PAGE = ("-o", "--output", "-h", "--help")
"""Arguments of ``compare`` with which it writes no page of the default name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; 2 for a word that is no command.

    ``argv``: without it the command has the process for its own, and ends it.
    """
    if argv is None:
        run_as_command(lambda: main(sys.argv[1:]))
    arguments = list(argv)
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if word in ("-V", "--version"):
        print(f"onefold {__version__}")
        return 0
    if word not in MODULES:
        near = difflib.get_close_matches(word, MODULES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(MODULES)
        print(f"onefold: no command {word!r}{hint or ';'} commands: {known}", file=sys.stderr)
        return 2
    if word == "compare" and not any(a.startswith(OWN_PAGE) for a in arguments):
        arguments += ["--output", "compare.html"]  # several runs on one page, wherever it goes
    importlib.import_module("onefold._packages")  # first, see there
    module = "cluster.grid" if word == "sweep" and "--grid" in arguments else MODULES[word]
    if word in SILENT and sys.stderr.isatty():
        print("loading ...", end="\r", file=sys.stderr, flush=True)
    sys.argv = [f"onefold {word}", *([word] if module == "onefold.runs" else []), *arguments[1:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
