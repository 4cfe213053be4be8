"""Show a queue of gradients to torch, as a part of a model."""

from typing import TYPE_CHECKING, Any

import torch

from monolith.features.gradients import PendingGradients

if TYPE_CHECKING:
    from typing_extensions import Self


class QueueModule(torch.nn.Module):
    """Show a queue to the optimizer, and the anchor of the queue to torch.

    The anchor stays the same parameter, float32 on the CPU, whatever moves, casts or loads the
    model: the queue writes its gradient by address, and no other parameter empties the queue.

    Attributes:
        queue: gradients between backward and step.
        anchor: a parameter of one element that stands for the tables of the queue.
    """

    queue: PendingGradients[Any]
    anchor: torch.nn.Parameter

    def _hold(self, queue: PendingGradients[Any]) -> None:
        self.queue = queue
        self.anchor = queue.anchor

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what backward has queued."""
        self.queue.drop()  # the anchor is the only parameter

    def _apply(self, fn: Any, recurse: bool = True) -> "Self":
        # .to(device), .half() and the like: rows stay float32 in main memory, as docs say.
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._parameters["anchor"] = self.queue.anchor  # assign=True puts another in its place
