"""Give the reshape of many tensors in one call."""

from collections.abc import Iterable

import torch

from monolith.native_training.ops import reshape as _reshape
from monolith.native_training.ops.reshape import Shape, StaticReshapeNBuilder

__all__ = ["StaticReshapeNBuilder", "static_reshape"]


def static_reshape(
    inputs: Iterable[torch.Tensor], shapes: Iterable[Shape], enable_parallelism: bool = True
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Reshape tensors; views take no time, so `enable_parallelism` changes nothing."""
    return _reshape.static_reshape(inputs, shapes)
