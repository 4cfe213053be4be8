"""The collectives of `hvd_lib` over torch.distributed: one `RankGroup` for this process.

Every function but `init` and `shutdown` is called by the training thread of all ranks, in the same
order. A rank that dies ends the calls of the others with an `UnavailableError` that names it.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from monolith.cluster.ranks.rank_group import (
    RankGroup,
    RankOptions,
    group_of_torchrun,
)
from monolith.environment import torchrun_variables, variables
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.native_training.saver.saveables import collect_items
from monolith.train.driver import Coordinator, Hook, Run

_MPI_SIZE = "OMPI_COMM_WORLD_SIZE"


class _Ranks:
    """The group of this process, between `init` and `shutdown`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.group: RankGroup | None = None


_RANKS = _Ranks()


def init(options: RankOptions | None = None) -> None:
    """Join the ranks that torchrun has started; without a launcher, this process is the only rank.

    A second call does nothing, so its options do not count.

    Args:
        options: How long the ranks wait for each other at the start and in a collective.

    Raises:
        InvalidArgumentError: MPI has started several processes without the variables of torchrun.
        UnavailableError: Not all ranks came in time.
    """
    with _RANKS.lock:
        if _RANKS.group is None:
            _RANKS.group = _joined(options)


def _joined(options: RankOptions | None) -> RankGroup:
    if "WORLD_SIZE" in torchrun_variables():
        return group_of_torchrun(options)
    number = variables(_MPI_SIZE).get(_MPI_SIZE, "1")
    if number != "1":
        raise InvalidArgumentError(
            f"[hvd_lib.init] expected RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for the "
            f"{number} processes of MPI, got none; start them with torchrun, or set these variables"
        )
    return RankGroup(dist.HashStore(), 0, 1)  # type: ignore[attr-defined]


def shutdown() -> None:
    """Leave the ranks. Without `init` before, this does nothing."""
    with _RANKS.lock:
        left, _RANKS.group = _RANKS.group, None
    if left is not None:
        left.close()


def group() -> RankGroup:
    """Return the ranks, for trainers.

    Raises:
        FailedPreconditionError: `init` was not called.
    """
    return _group("group")


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not since."""
    return _RANKS.group is not None


def _group(verb: str) -> RankGroup:
    joined = _RANKS.group
    if joined is None:
        raise FailedPreconditionError(
            f"[hvd_lib.{verb}] expected a call of hvd_lib.init() before, got none"
        )
    return joined


def rank() -> int:
    """Return the number of this rank."""
    return _group("rank").rank


def size() -> int:
    """Return the number of ranks."""
    return _group("size").size


def allgather(tensor: Any, name: str | None = None) -> torch.Tensor:
    """Return the tensors of all ranks, one after another along dimension 0 in rank order.

    Args:
        tensor: Tensor, or numbers; a scalar counts as one element. Sizes of dimension 0 may differ.
        name: Label for messages.

    Raises:
        InvalidArgumentError: Ranks have other dtypes or widths.
    """
    values = _tensor(tensor)
    values = values.reshape(1) if values.dim() == 0 else values
    joined = _group("allgather")
    parts = joined.control.gather(values.detach().cpu())
    forms = [(str(part.dtype), list(part.shape[1:])) for part in parts]
    _check_equal("allgather", name, forms)
    return torch.cat(parts).to(values.device)


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None) -> torch.Tensor:
    """Return the tensor of one rank, as a copy; those of the other ranks say dtype and shape.

    Args:
        tensor: Tensor, or numbers, of the same form in all ranks.
        root_rank: Number of the rank.
        name: Label for messages.

    Raises:
        InvalidArgumentError: The rank is none of them, or the tensors of ranks differ in form.
    """
    copied = _tensor(tensor).detach().clone()
    _broadcast("broadcast", [copied], root_rank, name)
    return copied


def broadcast_parameters(
    parameters: Mapping[str, torch.Tensor] | Sequence[torch.Tensor], root_rank: int = 0
) -> None:
    """Give all ranks the values of one rank, in place.

    Args:
        parameters: Tensors, in the same order in all ranks.
        root_rank: Number of the rank whose values count.

    Raises:
        InvalidArgumentError: The rank is none of them, or the tensors of ranks differ in form.
    """
    tensors = list(parameters.values() if isinstance(parameters, Mapping) else parameters)
    _broadcast("broadcast_parameters", tensors, root_rank, None)


@torch.no_grad()
def _broadcast(verb: str, tensors: Sequence[torch.Tensor], root: int, name: str | None) -> None:
    joined = _group(verb)
    if not 0 <= root < joined.size:
        raise InvalidArgumentError(
            f"[hvd_lib.{verb}] expected root_rank in [0, {joined.size}), got {root}"
        )
    form = [[str(tensor.dtype), *map(str, tensor.shape)] for tensor in tensors]
    _check_equal(verb, name, joined.control.gather([root, form]))
    for tensor in tensors:
        # The bytes, so that every dtype travels.
        sent = tensor.detach().cpu().contiguous().reshape(-1)
        sent = sent.clone() if sent.data_ptr() == tensor.data_ptr() else sent
        if sent.numel():
            joined.control.broadcast(sent.view(torch.uint8), root)
            tensor.copy_(sent.view(tensor.shape))


def _check_equal(verb: str, name: str | None, forms: Sequence[Any]) -> None:
    for number, form in enumerate(forms):
        if form != forms[0]:
            which = "" if name is None else f" ({name!r})"
            raise InvalidArgumentError(
                f"[hvd_lib.{verb}] expected tensors of one form in all ranks, got {forms[0]} in "
                f"rank 0 and {form} in rank {number}{which}"
            )


def _tensor(values: Any) -> torch.Tensor:
    return values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")


class BroadcastGlobalVariablesHook(Hook):
    """Gives all ranks the parameters of one rank when a run begins, and after each recovery.

    Args:
        root_rank: Number of the rank whose values count.
        parameters: Modules, or tensors by name, as savers take them; None takes what the collection
            "variables" of the run holds.
    """

    def __init__(self, root_rank: int = 0, parameters: Any = None) -> None:
        self._root_rank, self._parameters = root_rank, parameters

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Send the values, or receive them."""
        items = collect_items("[BroadcastGlobalVariablesHook]", self._parameters)
        tensors = {item.name: item.value for item in items if isinstance(item.value, torch.Tensor)}
        broadcast_parameters(tensors, self._root_rank)
