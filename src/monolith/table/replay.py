"""Replay of the calls of a table, in the order in which they changed each row."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from monolith.table.bags import expand
from monolith.table.rows import Rows

if TYPE_CHECKING:
    import monolith._native as _native
    from monolith.table.calls import TableStorage


_RECORDED = (
    "_lookup_or_insert",
    "_assign",
    "_assign_add",
    "_apply_gradients",
    "_apply_bag_gradients",
    "_reinitialize",
    "_erase",
    "_import_rows",
    "_fill_rows",
    "_evict",
    "_evict_slice",
    "_clear",
)
_REMOVED = 1


def int64_rows(data: bytearray, width: int) -> torch.Tensor:
    """Return numbers of the core as a tensor (n, width) on their memory."""
    if not data:
        return torch.empty((0, width), dtype=torch.int64)
    return torch.frombuffer(data, dtype=torch.int64).reshape(-1, width)


@dataclass(frozen=True)
class _Call:
    """A writing call, with copies of its tensors."""

    method: str
    arguments: tuple[Any, ...]

    @functools.cached_property
    def positions(self) -> dict[int, list[int]]:
        """Positions of each key in the call."""
        positions: dict[int, list[int]] = {}
        first = self.arguments[0]
        for i, key in enumerate((first.keys if isinstance(first, Rows) else first).tolist()):
            positions.setdefault(key, []).append(i)
        return positions

    def arguments_of_key(self, key: int) -> tuple[Any, ...]:
        """Return the arguments of the call for one of its keys."""
        at = torch.tensor(self.positions[key])
        return tuple(
            a.take(at) if isinstance(a, Rows) else a[at] if isinstance(a, torch.Tensor) else a
            for a in self.arguments
        )


class Record:
    """Records the changes of a table, to be replayed into another table, such as a reference table.

    The order of (call, key) is recorded under the lock of the row: the changes of a row are
    replayed in the order in which they happened, and give equal bits. Not for tables that are
    cleared.

    Example:
        >>> from monolith.table.reference import ReferenceTable
        >>> from monolith.table import Segment, Table, TableConfig
        >>> config, record = TableConfig("user", Segment(1)), Record()
        >>> table = Table(config, record=record)
        >>> table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
        >>> reference = ReferenceTable(config)
        >>> record.replay(reference)
        >>> reference.lookup(torch.tensor([7]))
        tensor([[1.]])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._core: _native.Table | None = None
        self._set_call: Callable[[int], None] = lambda call: None

    def attach(self, table: "TableStorage", core: "_native.Table") -> None:
        """Record every writing call of the table from now on."""
        import monolith._native as native

        if self._core is not None:
            raise ValueError("[Record] expected a record of its own for each table, got a used one")
        self._core, self._set_call = core, native.set_recorded_call
        for method in _RECORDED:
            setattr(table, method, functools.partial(self._run, method, getattr(table, method)))

    def _run(self, method: str, run: Callable[..., Any], *arguments: Any) -> Any:
        recorded = arguments
        if method == "_fill_rows":
            method, recorded = "_import_rows", (*arguments, None, 1)
        if method == "_apply_bag_gradients":  # recorded as the equal call by keys
            method, queue = "_apply_gradients", arguments[0].queue
            dim = queue[0].gradients.shape[1] if queue else 0
            recorded = *expand(queue, dim), *arguments[1:]
        copies = tuple(_copy(argument) for argument in recorded)
        with self._lock:
            number = len(self._calls)
            self._calls[number] = _Call(method, copies)
        self._set_call(number)
        return run(*arguments)

    def __len__(self) -> int:
        return len(self._events())

    def _events(self) -> torch.Tensor:
        return int64_rows(bytearray() if self._core is None else self._core.recorded(), 4)

    def replay(self, into: "TableStorage", first: int = 0, last: int | None = None) -> None:
        """Repeat the changes [first, last) on another table, key by key.

        Args:
            into: table of the same config, without admission, budget and expiry.
            first: number of the first change.
            last: number after the last change; None means all. `Snapshot.num_recorded` is the
                number at a cut.
        """
        for number, key, kind, update_call in self._events()[first:last].tolist():
            if kind == _REMOVED:  # the budget may have removed the row, without a call
                into._erase(torch.tensor([key]))
                continue
            call = self._calls[number]
            if update_call > 0:
                into._set_update_calls(update_call - 1)
            getattr(into, call.method)(*call.arguments_of_key(key))


def _copy(argument: Any) -> Any:
    if isinstance(argument, Rows):
        columns = {name: column.clone() for name, column in argument.columns.items()}
        return Rows(argument.keys.clone(), argument.times.clone(), columns)
    return argument.clone() if isinstance(argument, torch.Tensor) else argument
