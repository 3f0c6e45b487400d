"""Checks of the server's ranks: a fit over all of them, and sums between all GPUs.

Ray is imported only where it is used: it reads the environment, which has to be prepared before.
"""

import time
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from cluster.checks.check import Check, CheckFailed, CheckSkipped
from cluster.checks.federation import SPEC, TRAINING, require_gpu, shard
from cluster.server.rank_placement import RankPlacement, place_ranks
from fl.arithmetic import arithmetic
from fl.events import Events
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.rank import Rank
from fl.fusion.ranked_server import RankedServer
from fl.fusion.single_server import SingleServer
from fl.report.words import duration, size
from fl.training.classifier import starting_classifier

if TYPE_CHECKING:
    from cluster.hardware.bundles import Bundles
    from cluster.server.rank_group import RankGroup

CONFIG = FitConfig(epochs=2, optimizer="sgd", lr=0.01, batch_size=16)
LOSS = FusionLoss(ce_weight=1.0, kd_weight=0.0)
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far weights may differ that were fitted in float32 by sums in another order."""
SILENT_S = 20.0
"""Seconds after which a rank gives up waiting for another."""
SUMMED = 1 << 24
"""Elements of the tensor that GPUs sum: 64 MiB."""


def fit_over_ranks(bundles: "Bundles") -> str:
    """A fit over a rank per GPU, or over two on cores, is that of one rank on the CPU."""
    from cluster.server.fusion_server import FusionServer

    server = FusionServer(
        SPEC,
        shard(),
        Events(),
        bundles,
        _placed(bundles),
        timeout_s=SILENT_S,
        attempts=1,  # a rank that dies is no reason to try again here, but what is looked for
    )
    with closing(server):
        return compare_fits(server)


def fit_here(device: torch.device) -> str:
    """A fit in this process is that of one rank on the CPU."""
    with arithmetic(device, tf32=False):
        return compare_fits(SingleServer(SPEC, shard(), Events(), device))


def compare_fits(server: RankedServer) -> str:
    """See :func:`fit_over_ranks`."""
    alone = SingleServer(SPEC, shard(), Events(), torch.device("cpu"))
    data = {"images": shard().images, "labels": shard().labels}
    weights = []
    for one in (server, alone):
        model = starting_classifier(TRAINING, SPEC)
        one.fit(model, data, loss=LOSS, config=CONFIG, stage="doctor")
        weights.append(torch.cat([tensor.cpu().flatten() for tensor in model.parameters()]))
    ours, expected = weights
    furthest = (ours - expected).abs().max().item()
    if not torch.allclose(ours, expected, rtol=RELATIVE, atol=ABSOLUTE):
        raise CheckFailed(f"weights differ by up to {furthest:.1g} from those of one rank")
    ranks = "1 rank" if server.size == 1 else f"{server.size} ranks"
    return f"the weights of {ranks} are those of one on the CPU (apart {furthest:.1g} at most)"


def sum_between_gpus(bundles: "Bundles") -> str:
    """All GPUs' ranks sum a tensor by NCCL."""
    gpus = _gpus(bundles)
    if gpus < 2:
        raise CheckSkipped("one GPU" if gpus else "no GPU")
    from cluster.server.rank_group import RankGroup

    group = RankGroup(bundles, _placed(bundles), SPEC, shard(), SILENT_S)
    try:
        return sum_over(group, on_gpus=True)
    finally:
        group.dismiss()


def sum_over(group: "RankGroup", *, on_gpus: bool) -> str:
    """See :func:`sum_between_gpus`; on cores the sum is gloo's."""
    answers = group.get([actor.call.remote(timed_sum, on_gpus) for actor in group.actors])
    seconds = max(took for took, *_ in answers)
    return f"{len(answers)} ranks sum {size(4 * SUMMED)} in {duration(seconds)}"


def timed_sum(rank: Rank, on_gpus: bool) -> float:
    """Sums a tensor over all ranks, twice; seconds of the second time, when all are connected."""
    if on_gpus:
        require_gpu(rank.device)
    group, took = rank.group, 0.0
    for _ in range(2):
        tensor = torch.full((SUMMED,), float(group.rank + 1), device=rank.device)
        _finish(rank.device)
        began = time.perf_counter()
        group.sum(tensor)
        _finish(rank.device)
        took = time.perf_counter() - began
        if not bool((tensor == group.size * (group.size + 1) / 2).all()):
            raise CheckFailed("the sum over all ranks is wrong")
    return took


def _placed(bundles: "Bundles") -> list[RankPlacement]:
    """A rank per GPU; without GPUs one per node, and two at least."""
    from cluster.hardware.bundles import gpu_names

    ranks = _gpus(bundles) or max(2, len(bundles.all))
    return place_ranks(bundles.all, ranks, gpu_names(bundles))


def _gpus(bundles: "Bundles") -> int:
    """GPUs of all nodes."""
    return sum(bundle.gpus for bundle in bundles.all)


def _finish(device: torch.device) -> None:
    """Waits for what was queued on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


FIT = "fit over ranks"
FIT_HERE = Check(
    name=FIT,
    run=fit_here,
    advice="PyTorch has to be a build for a CUDA that the driver supports",
    timeout_s=60.0,
)
CHECKS = (
    Check(
        name=FIT,
        run=fit_over_ranks,
        advice="until ranks agree, run with --fusion-ranks 1; where they do not reach each other, "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network to use",
        timeout_s=60.0,
    ),
    Check(
        name="NCCL",
        run=sum_between_gpus,
        advice="NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%p shows what NCCL tries; NCCL_P2P_DISABLE=1 "
        "or another NCCL_SOCKET_IFNAME often helps; until then run with --fusion-ranks 1",
        timeout_s=60.0,
    ),
)
