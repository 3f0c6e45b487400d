"""How samples are cut into batches, none of which is smaller than the model can be trained on.

In training BatchNorm needs two values per channel. A convolutional one has a value for each pixel
of its map; one behind a linear layer, or on a map of a single pixel as ResNet-18 has on images of
8 x 8, has a value for each sample. For a model with such a layer a last batch of one sample is
joined to the batch before. The batches of all other models are as they always were.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from fl.inputs import Inputs
from fl.models.registry import MODELS
from fl.models.shapes import AnyBatchNorm, Built, ModelInfo


def cut(order: Tensor, size: int, least: int = 1) -> Sequence[Tensor]:
    """The rows (N,) in batches of ``size``; a last one below ``least`` is joined to the one before.

    Raises:
        ValueError: there are fewer rows than ``least`` in all.
    """
    if len(order) < least:
        raise ValueError(
            f"has {len(order)} sample, but the model's BatchNorm needs {least} in a batch: leave "
            "such clients out of the partition, or take a model without it"
        )
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) < least:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def smallest_batch(model: nn.Module) -> int:
    """Samples that a batch needs so that the model, or each one of an ensemble, can be trained."""
    built = [vars(part).get("built_as") for part in model.modules()]
    return max((_smallest(MODELS[b.model], b) for b in built if isinstance(b, Built)), default=1)


def smallest_batch_of(name: str, inputs: Inputs, num_classes: int, width: float) -> int:
    """The same of a classifier by name, which is built for it once in a process."""
    return _smallest(MODELS[name], Built(name, inputs, num_classes, width))


@lru_cache(maxsize=64)
@torch.no_grad()
def _smallest(info: ModelInfo, built: Built) -> int:
    """2 if a batch of one sample fails for want of values, else 1.

    A model of the user's is built as it is, others without values for their weights. (A pass on the
    device "meta" would need no memory either, but torch imports its compiler for it: 2.6 seconds.)
    """
    with torch.random.fork_rng(devices=[]):
        with torch.device("cpu" if info.source else "meta"):
            model = info.made(built.inputs, built.num_classes, built.width).train()
        if not info.source:
            if not any(isinstance(m, AnyBatchNorm) for m in model.modules()):
                return 1
            model = model.to_empty(device="cpu")
        try:
            for count in (2, 1):  # lazy layers take their form from the first
                model(built.inputs.zeros(count))
        except (Exception, SystemExit) as error:  # training will report all else
            return 2 if "more than 1 value per channel" in str(error) else 1
    return 1
