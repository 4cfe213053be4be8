"""Name what a checkpoint holds, and cut all of it at one moment between two steps."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint.dense_tensors import check_tensors, join_tensors
from monolith.checkpoint.state_tree import STATES, Stateful, flatten_states
from monolith.table.base import BaseTable
from monolith.table.disk.call_arguments import checked_tables
from monolith.table.snapshot import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


Tensors = Mapping[str, torch.Tensor]

_WHERE = "[Contents.cut]"


@dataclass(frozen=True)
class CheckpointSnapshot:
    """Holds tables, tensors and documents as they were at `Contents.cut`. Close it.

    Args:
        tables: open snapshots of the tables.
        foreign: those of `tables` that the caller opened, and closes.
        dense: tensors by name, one mapping for each file or group of files.
        documents: JSON by its kind: "meta", "trainer".
        step: the global step.
        with_expired: whether rows that have expired are saved too.
    """

    tables: Sequence[Snapshot]
    foreign: Sequence[Snapshot]
    dense: Sequence[Tensors]
    documents: Mapping[str, bytes]
    step: int | None
    with_expired: bool = False
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)

    def close(self) -> None:
        """Close the snapshots of tables that `Contents.cut` opened. Closing twice is fine."""
        self._stack.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Names what a checkpoint holds; `cut` reads all of it at one moment.

    Args:
        tables: tables of different names, or open snapshots of tables, which stay open and whole.
        dense: tensors by name (parameters and buffers); several mappings, of different names, go to
            separate files.
        states: objects with `state_dict` by name, such as an optimizer of torch; see
            `flatten_state`.
        trainer: more of the trainer, for example the position in the data; what `json.dumps` takes.
        meta: description of the model; what `json.dumps` takes.
        step: the global step.
        with_expired: save rows that have expired and are not evicted, so that training goes on with
            these rows as it would have.

    Example:
        >>> with Contents(dense={"weight": torch.ones(2)}, step=7).cut() as snapshot:
        ...     print(snapshot.step, sorted(snapshot.dense[0]))
        7 ['weight']
    """

    tables: "BaseTable | Snapshot | Sequence[BaseTable | Snapshot]" = ()
    dense: "Tensors | Sequence[Tensors]" = ()
    states: Mapping[str, Stateful] = field(default_factory=dict)
    trainer: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    step: int | None = None
    with_expired: bool = False

    def cut(self, *, with_copies: bool = False, cursor: str | None = None) -> CheckpointSnapshot:
        """Take everything as it is. Call it between two steps.

        Args:
            with_copies: copy the dense tensors, so that steps may go on before the save is done;
                tables need no copy. Tensors on a device are always copied to main memory.
            cursor: cursor of the tables' touched logs whose read the cut is (`Table.cut`).

        Raises:
            TypeError: something is no table, tensor, state or JSON.
            ValueError: two tables or two tensors have one name.
        """
        one = self.tables
        tables = [one] if isinstance(one, BaseTable | Snapshot) else list(one)
        tables = checked_tables(_WHERE, tables, Snapshot) if tables else []
        trees, state_tensors = flatten_states(self.states)
        groups = self._groups(state_tensors)
        trainer = {**({STATES: trees} if trees else {}), **(self.trainer or {})}
        documents: dict[str, bytes] = {}
        if self.meta is not None:
            documents["meta"] = _json("meta", self.meta)
        if trainer or self.trainer is not None:
            documents["trainer"] = _json("trainer", trainer)
        groups = [
            {name: _host_tensor(tensor, with_copies) for name, tensor in group.items()}
            for group in groups
        ]
        foreign = [table for table in tables if isinstance(table, Snapshot)]
        with ExitStack() as stack:
            snapshots = [
                table
                if isinstance(table, Snapshot)
                else stack.enter_context(table.cut(cursor=cursor))
                for table in tables
            ]
            cuts = stack.pop_all()
        return CheckpointSnapshot(
            snapshots, foreign, groups, documents, self.step, self.with_expired, cuts
        )

    def _groups(self, state_tensors: Tensors) -> list[dict[str, torch.Tensor]]:
        """Tensors by file; those of states go to the last group."""
        groups = [self.dense] if isinstance(self.dense, Mapping) else list(self.dense)
        for group in (*groups, state_tensors):
            check_tensors(_WHERE, group)
        join_tensors(_WHERE, *groups, state_tensors)
        last = groups.pop() if groups else {}
        return [*map(dict, groups), {**last, **state_tensors}]


def _host_tensor(tensor: torch.Tensor, with_copies: bool) -> torch.Tensor:
    """Return a tensor in main memory; the threads of a save know nothing of CUDA's streams."""
    if tensor.is_cuda:
        return tensor.detach().cpu()
    return tensor.detach().clone() if with_copies else tensor


def _json(name: str, value: Any) -> bytes:
    try:
        text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{_WHERE} expected {name} as JSON, got {error}") from error
    return text.encode() + b"\n"
