"""A kind of layer has all of torch's public classes."""

from types import UnionType
from typing import get_args

import pytest
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

from fl.models.shapes import AnyBatchNorm, AnyDropout


@pytest.mark.parametrize(("kind", "base"), [(AnyDropout, _DropoutNd), (AnyBatchNorm, _BatchNorm)])
def test_no_public_class_is_missing(kind: UnionType, base: type) -> None:
    public = {c for c in vars(nn).values() if isinstance(c, type) and issubclass(c, base)}
    assert {c for c in public if not issubclass(c, LazyModuleMixin)} == set(get_args(kind))
