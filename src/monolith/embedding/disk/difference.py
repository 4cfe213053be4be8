"""What differs between the tables of two saves, row by row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.embedding.disk.contents import config_of, planned
from monolith.embedding.disk.plan import Save, TablePlan
from monolith.embedding.disk.reader import Buffers, FileReader

__all__ = ["TableDifference", "diff_saves"]


@dataclass(frozen=True)
class TableDifference:
    """Rows of a table in one save and in another.

    Args:
        name: of the table.
        num_added: rows that only the other save has.
        num_removed: rows that only the one has.
        num_changed: rows that both have, with another time, weight or state.
        num_same: rows that are the same in both, bit for bit.
    """

    name: str
    num_added: int
    num_removed: int
    num_changed: int
    num_same: int


def diff_saves(
    one: Save, other: Save, *, names: Sequence[str] | None = None
) -> list[TableDifference]:
    """Each table of one of two saves, or of both; one table of both is in memory at a time.

    Args:
        one: the save before.
        other: the save after.
        names: only these tables.

    Raises:
        NotFoundError: a save has no table of a name.
        DataLossError: a file is damaged.
    """
    with planned(one, names) as before, planned(other, names) as after:
        found = sorted({*before, *after})
        return [_difference(name, before.get(name), after.get(name)) for name in found]


def _difference(name: str, before: TablePlan | None, after: TablePlan | None) -> TableDifference:
    (keys, rows, columns), (new_keys, new_rows, new_columns) = _rows(before), _rows(after)
    _, places, new_places = np.intersect1d(keys, new_keys, assume_unique=True, return_indices=True)
    num_both = len(places)
    num_changed = num_both
    if columns == new_columns and rows.shape[1] == new_rows.shape[1]:
        num_changed = int((rows[places] != new_rows[new_places]).any(axis=1).sum())
    return TableDifference(
        name,
        num_added=len(new_keys) - num_both,
        num_removed=len(keys) - num_both,
        num_changed=num_changed,
        num_same=num_both - num_changed,
    )


def _rows(plan: TablePlan | None) -> tuple[NDArray[np.int64], NDArray[np.uint8], list[str]]:
    """Keys, the bytes of times and columns of each row, and the names of the columns."""
    found = [] if plan is None else list(_read(plan))
    if not found:
        return np.empty(0, np.int64), np.empty((0, 0), np.uint8), []
    keys, rows, names = zip(*found, strict=True)
    return np.concatenate(keys), np.concatenate(rows), names[0]


def _read(plan: TablePlan) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8], list[str]]]:
    reader = FileReader(plan, config_of(plan), Buffers())
    for source in plan.sources:
        if source.file.kind == "rows":
            for rows in reader.rows(source):
                parts = [_bytes(column) for column in (rows.times, *rows.columns.values())]
                yield rows.keys.numpy().copy(), np.concatenate(parts, axis=1), list(rows.columns)


def _bytes(column: torch.Tensor) -> NDArray[np.uint8]:
    flat: NDArray[np.uint8] = column.contiguous().view(torch.uint8).numpy()
    return flat.reshape(len(column), -1)
