"""Values that tables take and return: row chunks, entries, counts of an update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from monolith.table.config import TableConfig, column_dtypes, column_sizes


class Applied(NamedTuple):
    """Result of `apply_gradients`.

    Attributes:
        num_applied: number of distinct keys with an optimizer step.
        num_inserted: number of new keys among these.
        num_refused: number of distinct keys that admission refused.
        num_skipped: number of occurrences that were dropped for NaN or Inf.
    """

    num_applied: int
    num_inserted: int
    num_refused: int
    num_skipped: int


class Touched(NamedTuple):
    """Changes since the last read of a cursor.

    Attributes:
        full: whether the cursor must re-read the whole table, because it is new or too old. The
            keys are empty then.
        keys: changed keys that have a row, int64 (n,), ascending by hash.
        tombstones: changed keys without a row, int64 (m,), ascending by hash.
    """

    full: bool
    keys: torch.Tensor
    tombstones: torch.Tensor


@dataclass(frozen=True)
class Rows:
    """A chunk of whole rows, by column.

    ```
    keys   times   columns["weight/0"]  columns["state/0/norm"]
    [ 7 ]  [100]   [[0.1, 0.2]]         [[0.3, 0.4]]
    ```

    Args:
        keys: keys, int64 (n,), distinct in an export.
        times: time of the last update in seconds, int64 (n,).
        columns: `weight/<segment>` and `state/<segment>/<name>`, each (n, size); weights as the
            table stores them (`precision.py`), state as float32, or int64 for counts of steps.

    Example:
        >>> import torch
        >>> one = torch.tensor([1])
        >>> len(Rows(one, one, {"weight/0": torch.zeros(1, 4)}))
        1
    """

    keys: torch.Tensor
    times: torch.Tensor
    columns: dict[str, torch.Tensor]

    def __post_init__(self) -> None:
        if not isinstance(self.columns, dict):
            raise TypeError(f"[Rows] expected columns as a dict, got {type(self.columns).__name__}")
        tensors = {"keys": self.keys, "times": self.times, **self.columns}
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"[Rows] expected {name} as a torch.Tensor, got {type(tensor).__name__}"
                )
            if tensor.dim() == 0:
                raise ValueError(f"[Rows] expected a row per key in {name!r}, got a scalar")
        n = len(self.keys)
        for name, column in tensors.items():
            if len(column) != n:
                raise ValueError(f"[Rows] expected {n} rows in {name!r}, got {len(column)}")

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: torch.Tensor) -> "Rows":
        """Return some of the rows, by a mask, bool (n,), or by places, int64."""
        columns = {name: column[places] for name, column in self.columns.items()}
        return Rows(self.keys[places], self.times[places], columns)

    def head(self, num_rows: int) -> "Rows":
        """Return the first rows, on the same memory."""
        columns = {name: column[:num_rows] for name, column in self.columns.items()}
        return Rows(self.keys[:num_rows], self.times[:num_rows], columns)

    def weights_only(self) -> "Rows":
        """Return the rows without optimizer state, as a serving table imports them."""
        columns = {name: c for name, c in self.columns.items() if name.startswith("weight/")}
        return Rows(self.keys, self.times, columns)


def join_rows(chunks: Sequence[Rows]) -> Rows:
    """Return the rows of one chunk or more in new memory; all chunks have the same columns."""
    return Rows(
        torch.cat([chunk.keys for chunk in chunks]),
        torch.cat([chunk.times for chunk in chunks]),
        {name: torch.cat([c.columns[name] for c in chunks]) for name in chunks[0].columns},
    )


def no_rows(config: TableConfig) -> Rows:
    """Return a chunk of no rows, with the columns of a table."""
    dtypes = column_dtypes(config)
    none = torch.empty(0, dtype=torch.int64, device="cpu")
    columns = {
        name: torch.empty((0, size), dtype=getattr(torch, dtypes[name]), device="cpu")
        for name, size in column_sizes(config).items()
    }
    return Rows(none, none, columns)


class RowMemory:
    """Reusable memory for chunks of one table: a new chunk overwrites the previous one."""

    def __init__(self) -> None:
        self._rows: Rows | None = None
        self._make: Callable[[int], Rows] | None = None

    def of(self, num_rows: int, make: Callable[[int], Rows]) -> Rows:
        """Return at least `num_rows` rows; allocates if the memory is too small."""
        if self._rows is None or len(self._rows) < num_rows or make != self._make:
            self._rows, self._make = make(num_rows), make
        return self._rows


@dataclass(frozen=True)
class Entries:
    """Rows of the keys of a call, in call order; rows of absent keys are zeros.

    Args:
        present: whether each key has a row, bool (n,).
        rows: one row per key of the call.
    """

    present: torch.Tensor
    rows: Rows
