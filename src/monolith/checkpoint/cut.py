"""What a checkpoint holds, all of one moment between two steps."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint.tensors import check_tensors
from monolith.table.base import BaseTable
from monolith.table.disk.call_arguments import checked_tables
from monolith.table.snapshot import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class CheckpointCut:
    """Tables, tensors and documents as they were when `take_cut` was called. Close it.

    Args:
        snapshots: open cuts of the tables.
        given: those of them that the caller made, and closes.
        dense: tensors by name, one mapping for each file or group of files.
        documents: JSON by what it holds: "meta", "trainer".
        step: the global step.
        with_expired: whether rows that have expired are saved too.
    """

    snapshots: Sequence[Snapshot]
    given: Sequence[Snapshot]
    dense: Sequence[Tensors]
    documents: Mapping[str, bytes]
    step: int | None
    with_expired: bool = False
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)

    def close(self) -> None:
        """End the cuts of tables that `take_cut` made. Closing twice is fine."""
        self._stack.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def take_cut(
    *,
    tables: "BaseTable | Snapshot | Iterable[BaseTable | Snapshot]" = (),
    dense: "Tensors | Sequence[Tensors]" = (),
    trainer: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    step: int | None = None,
    with_copies: bool = False,
    with_expired: bool = False,
) -> CheckpointCut:
    """Take everything that a checkpoint is to hold. Call it between two steps.

    Args:
        tables: tables of different names, or open cuts of them, which stay open and whole.
        dense: tensors by name (parameters, buffers, optimizer state); several mappings, of
            different names, go to separate files.
        trainer: state of the trainer, data position and random state; what `json.dumps` takes.
        meta: description of the model; what `json.dumps` takes.
        step: the global step.
        with_copies: copy the dense tensors, so that steps may go on before the save is done.
        with_expired: save rows that have expired and are not evicted, so that training goes on with
            them as it would have.

    Raises:
        TypeError: something is no table, tensor or JSON.
        ValueError: two tables or two tensors have one name.

    Example:
        >>> with take_cut(dense={"weight": torch.ones(2)}, step=7) as cut:
        ...     print(cut.step, sorted(cut.dense[0]))
        7 ['weight']
    """
    where = "[take_cut]"
    some = [tables] if isinstance(tables, BaseTable | Snapshot) else list(tables)
    chosen = checked_tables(where, some, Snapshot) if some else []
    groups = _groups(where, dense)
    documents = {
        name: _json(where, name, value)
        for name, value in (("meta", meta), ("trainer", trainer))
        if value is not None
    }
    if with_copies:
        groups = [{name: tensor.detach().clone() for name, tensor in g.items()} for g in groups]
    given = [each for each in chosen if isinstance(each, Snapshot)]
    with ExitStack() as stack:
        cuts = [each if each in given else stack.enter_context(each.cut()) for each in chosen]
        return CheckpointCut(cuts, given, groups, documents, step, with_expired, stack.pop_all())


def _groups(where: str, dense: Any) -> list[dict[str, torch.Tensor]]:
    groups = [dense] if isinstance(dense, Mapping) else list(dense)
    names: set[str] = set()
    for group in groups:
        check_tensors(where, group)
        if twice := names & set(group):
            raise ValueError(
                f"{where} expected each name of a tensor once, got {min(twice)!r} twice"
            )
        names |= set(group)
    return [dict(group) for group in groups]


def _json(where: str, name: str, value: Any) -> bytes:
    try:
        text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} expected {name} as JSON, got {error}") from error
    return text.encode() + b"\n"
