"""pFedSD's authors' code and ours on the clients of beside_pfllib.py, with the same options.

    python benchmarks/beside_pfedsd.py --checkout DIR --data-root DIR

DIR holds a checkout of github.com/CGCL-codes/pFedSD. Its master and its workers are processes that
send each other tensors. Here one worker stands for all, in the master's process: it has its turn
when the master waits for that worker's model.
"""

import importlib
import io
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock, patch

import beside_pfllib
import numpy as np
import torch
import tyro
from beside_pfllib import BATCH, PAIRS, Clients, Pair, Run, accuracy, net_of
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

UNUSED = ("six", "six.moves", "lmdb", "cv2", "torchcontrib")
"""What their code imports and is not used here: other data sets, and other ways to average."""


@dataclass(frozen=True, kw_only=True)
class Options(beside_pfllib.Options):
    """Runs both sides on the same clients, and prints a table."""

    methods: tuple[str, ...] = ("pfedsd",)
    """Methods, by our names."""


class OneProcess:
    """torch.distributed's messages of a master, rank 0, and of workers who have their turns in its
    process."""

    def __init__(self) -> None:
        self.rank, self.worker, self.news = 0, MagicMock(), torch.empty(0)
        self.boxes = defaultdict[tuple[int, int], deque[Tensor]](deque)

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """The sender's news, which all workers find."""
        if self.rank == src:
            self.news = tensor.clone()
        tensor.copy_(self.news)

    def send(self, tensor: Tensor, dst: int) -> None:
        """Into a box."""
        self.boxes[self.rank, dst].append(tensor.clone())

    def recv(self, tensor: Tensor, src: int) -> None:
        """From the box."""
        tensor.copy_(self.boxes[src, self.rank].popleft())

    def irecv(self, tensor: Tensor, src: int) -> MagicMock:
        """From a worker, after its turn; there is nothing to wait for."""
        self.rank = self.worker.conf.graph.rank = src
        self.worker.run()
        self.rank = 0
        self.recv(tensor, src)
        return MagicMock()


def theirs(name: str, clients: Clients, seed: int, options: Options) -> Run:
    """The authors' master and worker; each round's test is ours."""
    line = {
        **{"arch": "beside", "complex_arch": "master=beside,worker=beside", "algo": "pFedSD"},
        **{"data": "beside", "prepare_data": "combine", "personal_test": True, "timestamp": "0"},
        **{"pin_memory": False, "num_workers": 0, "on_cuda": False, "world_conf": "0,0,1,1,100"},
        **{"fl_aggregate": "scheme=federated_average", "job_id": "jobs", "manual_seed": seed},
        **{"n_clients": len(clients), "participation_ratio": 1, "n_comm_rounds": options.rounds},
        **{"local_n_epochs": options.epochs, "batch_size": BATCH, "lr": options.lr},
        **{"momentum_factor": 0, "weight_decay": 0, "lr_warmup_epochs": 0},
    }
    argv = ["run_gloo.py", *(part for n, v in line.items() for part in (f"--{n}", str(v)))]
    with their_code(options.checkout, clients, name, seed) as (code, link):
        with patch.object(sys, "argv", argv):
            settings = code.get_args()
        settings.n_participated = len(clients)
        master, worker = deepcopy(settings), deepcopy(settings)
        for own in (master, worker):
            code.init_config(own)
        server, link.worker = code.MasterpFedSD(master), code.WorkerpFedSD(worker)
        link.worker._terminate_by_complete_training = lambda: True  # after each turn

        def tested(*_: object) -> float:
            models = list(server.local_models.values())
            return mean(map(accuracy, models, [[client] for client in clients]))

        server._update_client_performance = tested
        begin = time.process_time()
        server.run()
        seconds = time.process_time() - begin
        return Run(tested(), seconds)


@contextmanager
def their_code(
    checkout: Path, clients: Clients, name: str, seed: int
) -> Iterator[tuple[Any, OneProcess]]:
    """Their main program, with our samples and network, in this process, and its messages."""
    link = OneProcess()
    sets = [
        {
            part: TensorDataset(torch.from_numpy(x.astype(np.float32) / 255), torch.from_numpy(y))
            for part, (x, y) in client.items()
        }
        for client in clients
    ]

    def loads(samples: Any, *, multiprocessing_context: str, **how: Any) -> DataLoader[Any]:
        return DataLoader(samples, **how)

    sys.modules |= {module: MagicMock() for module in UNUSED}
    with (
        patch.object(sys, "path", [str(checkout.resolve()), *sys.path]),
        TemporaryDirectory() as place,
        chdir(place),
        redirect_stdout(io.StringIO()),
        patch.object(torch.utils.data, "DataLoader", loads),
        patch.multiple(
            torch.distributed,
            **{n: getattr(link, n) for n in ("broadcast", "send", "recv", "irecv")},
            get_rank=lambda: link.rank,
            barrier=lambda: None,
        ),
    ):
        code, data = map(importlib.import_module, ("run_gloo", "pcode.create_dataset"))
        importlib.import_module("pcode.models").beside = lambda conf: net_of(name, seed)
        with patch.multiple(
            data,
            define_dataset=lambda *_, **how: None,
            define_combine_dataset=lambda *_, **how: None,
            define_local_dataset=lambda conf, client, _: sets[client - 1],
        ):
            yield code, link


if __name__ == "__main__":
    PAIRS["pfedsd"] = Pair("pFedSD", {}, {"optimizer": "sgd"}, {}, "own")
    beside_pfllib.theirs = theirs
    sys.exit(beside_pfllib.main(tyro.cli(Options)))
