"""A real Slurm on this host for the tests: two nodes, gone afterwards.

munged, one slurmctld and two slurmd with ports of their own, everything in one directory. They
stay in the foreground as children of the tests, and are ended by process id.
"""

import getpass
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.waiting import wait_until

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
NODES = ("alpha", "beta")
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
READY_S = 240.0

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdSpoolDir={root}/spool-%n
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=10
InactiveLimit=0
MessageTimeout=20
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=alpha NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 \
RealMemory=4000 Gres=gpu:1 State=UNKNOWN
NodeName=beta NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 \
RealMemory=4000 Gres=gpu:1 State=UNKNOWN
PartitionName=tests Nodes=alpha,beta Default=YES MaxTime=120 State=UP
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    absent = [name for name in DAEMONS if not shutil.which(name, path=PATH)]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)} missing): see .ci/run"
    return None if os.geteuid() == 0 else "slurmd needs root"


@dataclass
class RealSlurm:
    """The running cluster."""

    root: Path
    environ: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def call(self, *arguments: str, check: bool = True) -> str:
        """Output of a Slurm command."""
        done = subprocess.run(
            arguments, env=self.environ, capture_output=True, text=True, check=check
        )
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """The job's state; empty once Slurm has forgotten it."""
        asked = ("--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        return self.call("squeue", *asked, check=False)

    def start(self, name: str, *command: str) -> None:
        """Starts a daemon in the foreground, its output beside its log."""
        with (self.root / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environ, stdout=output, stderr=output, start_new_session=True
            )

    def start_node(self, name: str) -> None:
        """Starts a node's slurmd."""
        self.start(name, "slurmd", "-D", "-N", name)

    def processes_of(self, node: str) -> list[psutil.Process]:
        """What runs on the node: told apart by what Slurm put into their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SLURMD_NODENAME") == node:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextmanager
def real_slurm(root: Path) -> Iterator[RealSlurm]:
    """Starts everything, waits until both nodes are idle, and ends everything."""
    ports = _free_ports(3)
    (root / "state").mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(host=host, user=getpass.getuser(), ports=ports, root=root)
    (root / "slurm.conf").write_text(text)
    lines = []
    for node in NODES:
        device = root / f"gpu-{node}0"
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        lines.append(f"NodeName={node} Name=gpu File={device}\n")
    (root / "gres.conf").write_text("".join(lines))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    environ |= {"SLURM_CONF": str(root / "slurm.conf"), "PATH": PATH}
    slurm = RealSlurm(root, environ)
    try:
        _start(slurm)
        yield slurm
    finally:
        _end(slurm)


def _start(slurm: RealSlurm) -> None:
    root = slurm.root
    key = root / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    socket_file = root / "munge.socket"
    slurm.start(
        "munged",
        *("munged", "--foreground", "--force", f"--socket={socket_file}", f"--key-file={key}"),
        *(f"--pid-file={root}/munged.pid", f"--log-file={root}/munged.log"),
        f"--seed-file={root}/munged.seed",
    )
    _await(slurm, socket_file.exists)
    slurm.start("slurmctld", "slurmctld", "-D", "-i")
    for node in NODES:
        slurm.start_node(node)
    _await(slurm, lambda: _idle(slurm) == len(NODES))


def _idle(slurm: RealSlurm) -> int:
    try:
        return slurm.call("sinfo", "--noheader", "--Node", "--format=%T").split().count("idle")
    except subprocess.CalledProcessError:
        return 0


def _await(slurm: RealSlurm, condition: Callable[[], object]) -> None:
    try:
        wait_until(condition, within=READY_S)
    except AssertionError as error:
        files = sorted([*slurm.root.glob("*.out"), *slurm.root.glob("*.log")])
        logs = [f"{file.name}: {file.read_text(errors='replace')[-2000:]}" for file in files]
        raise RuntimeError("\n".join(["Slurm did not start", *logs])) from error


def _end(slurm: RealSlurm) -> None:
    slurm.call("scancel", "--signal=KILL", f"--user={getpass.getuser()}", check=False)
    for name in ("alpha", "beta", "slurmctld", "munged"):
        daemon = slurm.daemons.get(name)
        if daemon is None or daemon.poll() is not None:
            continue
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
