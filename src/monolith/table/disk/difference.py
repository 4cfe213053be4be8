"""Differences between the tables of two saves, row by row and candidate by candidate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table.disk.block_reader import FileReader
from monolith.table.disk.buffers import Buffers
from monolith.table.disk.contents import config_of, open_plans
from monolith.table.disk.layers import Layers
from monolith.table.disk.plan import Save, TablePlan


@dataclass(frozen=True)
class TableDifference:
    """Differences of the rows and candidates of a table between two saves.

    A candidate is a key that admission has counted and that has no row yet (`MinCount`), or a used
    cell of a filter (`SlidingFilter`).

    Args:
        name: name of the table.
        num_added: number of rows that only the second save has.
        num_removed: number of rows that only the first save has.
        num_changed: number of rows in both saves with another time, weight or state.
        num_same: number of rows that are equal in both, bit for bit.
        num_candidates: number of candidates of the first save.
        num_other_candidates: number of candidates of the second save.
        num_added_candidates: number of candidates that only the second save has.
        num_removed_candidates: number of candidates that only the first save has.
        num_changed_candidates: number of candidates in both saves with another count, time or
            value.
    """

    name: str
    num_added: int
    num_removed: int
    num_changed: int
    num_same: int
    num_candidates: int
    num_other_candidates: int
    num_added_candidates: int
    num_removed_candidates: int
    num_changed_candidates: int


def diff_saves(
    one: Save, other: Save, *, names: Sequence[str] | None = None
) -> list[TableDifference]:
    """Compare each table of two saves; one table of both saves is in memory at a time.

    Args:
        one: first save.
        other: second save.
        names: names of the tables to compare; None means all.

    Raises:
        NotFoundError: a save has no table of a name.
        DataLossError: a file is damaged.
    """
    with open_plans(one, names) as before, open_plans(other, names) as after:
        table_names = sorted({*before, *after})
        return [_difference(name, before.get(name), after.get(name)) for name in table_names]


class _Entries(NamedTuple):
    """Rows or candidates: their keys, the bytes of their contents, and the names of these bytes."""

    keys: NDArray[np.int64]  # (n,)
    contents: NDArray[np.uint8]  # (n, num_bytes)
    columns: tuple[str, ...]


_NOTHING = _Entries(np.empty(0, np.int64), np.empty((0, 0), np.uint8), ())


def _difference(name: str, before: TablePlan | None, after: TablePlan | None) -> TableDifference:
    one, other = _rows(before), _rows(after)
    num_both, num_changed = _count_differences(one, other)
    ours, theirs = _candidates(before), _candidates(after)
    is_one_rule = ours.columns == theirs.columns
    num_kept, num_changed_candidates = _count_differences(ours, theirs) if is_one_rule else (0, 0)
    return TableDifference(
        name,
        num_added=len(other.keys) - num_both,
        num_removed=len(one.keys) - num_both,
        num_changed=num_changed,
        num_same=num_both - num_changed,
        num_candidates=len(ours.keys),
        num_other_candidates=len(theirs.keys),
        num_added_candidates=len(theirs.keys) - num_kept,
        num_removed_candidates=len(ours.keys) - num_kept,
        num_changed_candidates=num_changed_candidates,
    )


def _count_differences(one: _Entries, other: _Entries) -> tuple[int, int]:
    """Return the number of keys in both, and the number of these with different contents."""
    _, places, new_places = np.intersect1d(
        one.keys, other.keys, assume_unique=True, return_indices=True
    )
    if one.columns != other.columns or one.contents.shape[1] != other.contents.shape[1]:
        return len(places), len(places)
    is_other = (one.contents[places] != other.contents[new_places]).any(axis=1)
    return len(places), int(is_other.sum())


def _rows(plan: TablePlan | None) -> _Entries:
    batches = [] if plan is None else list(_read(plan))
    if not batches:
        return _NOTHING
    keys, contents, columns = zip(*batches, strict=True)
    return _Entries(np.concatenate(keys), np.concatenate(contents), columns[0])


def _read(plan: TablePlan) -> Iterator[_Entries]:
    layers = Layers(plan, FileReader(plan, config_of(plan), Buffers()))
    for source in layers.files:
        for rows in layers.rows(source):
            contents = _row_bytes([rows.times, *rows.columns.values()])
            yield _Entries(rows.keys.numpy().copy(), contents, tuple(rows.columns))


def _candidates(plan: TablePlan | None) -> _Entries:
    sources = [] if plan is None else plan.sources_of("candidates")
    if plan is None or not sources:
        return _NOTHING
    reader = FileReader(plan, config_of(plan), Buffers())
    parts = [reader.candidates(source) for source in sources]
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if "key" in columns:  # `MinCount`
        keys = columns.pop("key")
    else:  # cells of filters, without the heads of rings
        is_cell = columns["split"] >= 0
        columns = {name: column[is_cell] for name, column in columns.items()}
        shards = columns.pop("shard", torch.zeros_like(columns["cell"]))
        cells = columns.pop("split") << 31 | columns.pop("cell")
        keys = columns.pop("partition") << 52 | shards << 40 | cells
    return _Entries(keys.numpy(), _row_bytes(list(columns.values())), tuple(columns))


def _row_bytes(columns: Sequence[torch.Tensor]) -> NDArray[np.uint8]:
    """Return the bytes of all columns next to each other: (n, num_bytes)."""
    return np.concatenate([_bytes(column) for column in columns], axis=1)


def _bytes(column: torch.Tensor) -> NDArray[np.uint8]:
    flat: NDArray[np.uint8] = column.contiguous().view(torch.uint8).numpy()
    return flat.reshape(len(column), -1)
