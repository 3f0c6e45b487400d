"""The inventory of a Ray cluster that a run joins: that of its strongest node."""

from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory, take_inventory
from cluster.hardware.private_ray import joined_ray
from fl.json_values import JsonObject


def joined_inventory(address: str) -> Inventory:
    """The strongest node of the cluster at ``HOST:PORT``; the placement later looks at all nodes.

    Raises:
        UserError: the cluster cannot be joined.
    """
    with joined_ray(address):
        import ray

        nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    best = max(nodes, key=_strength)
    return Inventory(
        node=f"the strongest of {len(nodes)} nodes",
        cpus=int(best.get("CPU", 0)),
        memory_bytes=int(best.get("memory", 0)),
        gpus=_gpus(best),
        source=f"Ray cluster {address}",
    )


def _strength(resources: JsonObject) -> tuple[float, ...]:
    return tuple(resources.get(kind, 0) for kind in ("GPU", "CPU", "memory"))


def _gpus(resources: JsonObject) -> tuple[Gpu, ...]:
    """This machine's GPUs if their number matches, since Ray does not report a GPU's memory."""
    count = int(resources.get("GPU", 0))
    here = take_inventory().gpus
    return here if len(here) == count else (Gpu(uuid="", name="GPU", memory_bytes=0),) * count
