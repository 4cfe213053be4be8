"""Filters of samples: functions of a block, for `Pipeline.filter`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.operations.comparison import (
    Comparison,
    Operand,
    covers,
    operands_of,
    read_operands,
)
from monolith.data.operations.label_columns import at_least
from monolith.data.operations.sample_rows import (
    Ids,
    Mask,
    Rows,
    as_tensor,
    column_of,
    positions_in,
    signed,
)
from monolith.ops.fids import decode_fid_v1, decode_fid_v2


@dataclass(frozen=True)
class FilterByFids:
    """Keeps samples by their ids. All conditions must hold.

    Args:
        features: columns whose ids are tested together.
        filter_fids: ids of which a sample must have none.
        has_fids: ids of which a sample must have at least one.
        select_fids: ids of which a sample must have every one.
        select_slots: slots of which a sample must have an id each.
        has_actions: actions of which a sample must have at least one.
        req_time_min: least request time.
        fid_version: version of the fids, 1 or 2, which tells how to read slots.
        actions: column of the actions.
        time: column of the request time.

    Raises:
        ValueError: `fid_version` is neither 1 nor 2.

    Example:
        >>> block = pa.record_batch({"user": pa.array([7, 8, 9])})
        >>> FilterByFids(["user"], has_fids=[7, 9], filter_fids=[9])(block).tolist()
        [True, False, False]
    """

    features: Sequence[str]
    filter_fids: Sequence[int] = ()
    has_fids: Sequence[int] = ()
    select_fids: Sequence[int] = ()
    select_slots: Sequence[int] = ()
    has_actions: Sequence[int] = ()
    req_time_min: int = 0
    fid_version: int = 2
    actions: str = "actions"
    time: str = "req_time"

    def __post_init__(self) -> None:
        if self.fid_version not in (1, 2):
            raise ValueError(f"[FilterByFids] expected fid_version 1 or 2, got {self.fid_version}")

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        names = {*self.features, *([self.actions] if self.has_actions else [])}
        return frozenset(names | {self.time} if self.req_time_min > 0 else names)

    def __call__(self, block: pa.RecordBatch) -> Mask:
        """Return whether to keep each sample."""
        where, count = "[FilterByFids]", block.num_rows
        rows = [Rows.of(where, block, name) for name in self.features]
        keep = np.ones(count, np.bool_)
        if self.filter_fids:
            keep &= ~_any(rows, signed(self.filter_fids), count)
        if self.has_fids:
            keep &= _any(rows, signed(self.has_fids), count)
        if self.select_fids:
            keep &= _all(rows, [ids.values for ids in rows], signed(self.select_fids), count)
        if self.select_slots:
            slots = [self._slots(ids.values) for ids in rows]
            keep &= _all(rows, slots, list(self.select_slots), count)
        if self.has_actions:
            keep &= _any([Rows.of(where, block, self.actions)], list(self.has_actions), count)
        if self.req_time_min > 0:
            keep &= Rows.of(where, block, self.time).first() >= self.req_time_min
        return keep

    def _slots(self, fids: Ids) -> Ids:
        decode = decode_fid_v1 if self.fid_version == 1 else decode_fid_v2
        slots: Ids = decode(as_tensor(fids))[0].numpy()
        return slots


def _any(rows: Sequence[Rows], known: Sequence[int], count: int) -> Mask:
    has = np.zeros(count, np.bool_)
    for ids in rows:
        has |= ids.any(positions_in(ids.values, known) >= 0)
    return has


def _all(rows: Sequence[Rows], values: Sequence[Ids], known: Sequence[int], count: int) -> Mask:
    known = sorted(set(known))
    places = np.concatenate([positions_in(column_ids, known) for column_ids in values])
    samples = np.concatenate([ids.samples for ids in rows])
    return covers(samples, places, len(known), count)


@dataclass(frozen=True)
class FilterByValue:
    """Keeps samples by the value of a column; see `Comparison` for the ops.

    Blocks contain hashes of strings: string operands of `eq`, `neq`, `in` and `not-in` on a column
    of ids are hashed too.

    Args:
        column: name of the column.
        op: name of the comparison.
        operand: operand, or sequence of operands.
        keep_empty: whether to keep samples without a value, or with several values for a
            single-value op.
        operand_filepath: file of operands for `in` and `not-in`, instead of `operand`: a JSON
            number or string on each line.

    Raises:
        ValueError: operand and file are both given, or neither; or the operands do not fit the op.

    Example:
        >>> block = pa.record_batch({"price": pa.array([0.5, 2.0], pa.float32())})
        >>> FilterByValue("price", "gt", 1)(block).tolist()
        [False, True]
    """

    column: str
    op: str
    operand: Operand | None = field(default=None, repr=False)
    keep_empty: bool = False
    operand_filepath: str | None = field(default=None, repr=False)
    comparison: Comparison = field(init=False)

    def __post_init__(self) -> None:
        where = "[FilterByValue]"
        if (self.operand is None) == (self.operand_filepath is None):
            raise ValueError(f"{where} expected one of operand and operand_filepath")
        if self.operand_filepath is not None and self.op not in ("in", "not-in"):
            raise ValueError(f"{where} expected op in or not-in with a file, got {self.op!r}")
        if self.operand_filepath is not None:
            operands = read_operands(self.operand_filepath)
        else:
            operands = operands_of(self.operand)
        object.__setattr__(self, "comparison", Comparison(where, self.op, operands))

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.column})

    def __call__(self, block: pa.RecordBatch) -> Mask:
        """Return whether to keep each sample."""
        array = column_of("[FilterByValue]", block, self.column)
        return self.comparison(array, keep_empty=self.keep_empty)


@dataclass(frozen=True)
class FilterByLabel:
    """Keeps samples with at least one label above its threshold.

    Args:
        thresholds: thresholds of the first labels.
        filter_equal: whether a label equal to its threshold does not count.
        label: column of the labels.

    Example:
        >>> block = pa.record_batch({"label": pa.array([0.0, 1.0], pa.float32())})
        >>> FilterByLabel([0.5])(block).tolist()
        [False, True]
    """

    thresholds: Sequence[float]
    filter_equal: bool = False
    label: str = "label"

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.label})

    def __call__(self, block: pa.RecordBatch) -> Mask:
        """Return whether to keep each sample.

        Raises:
            ValueError: there are fewer labels than thresholds.
        """
        count = len(self.thresholds)
        labels = at_least("[FilterByLabel]", block, self.label, count, "threshold")
        limits = np.array(self.thresholds, np.float32)
        labels = labels[:, :count]
        passes: Mask = (labels > limits) if self.filter_equal else (labels >= limits)
        return np.asarray(passes.any(axis=1))


@dataclass(frozen=True)
class _FilterGroup:
    """Several filters that are combined to one."""

    filters: tuple[Callable[[pa.RecordBatch], Any], ...]
    is_all: bool

    @property
    def reads(self) -> frozenset[str] | None:
        names: frozenset[str] = frozenset()
        for predicate in self.filters:
            reads = getattr(predicate, "reads", None)
            if reads is None:
                return None
            names |= reads
        return names

    def __call__(self, block: pa.RecordBatch) -> Mask:
        answers = np.full(block.num_rows, self.is_all)
        for predicate in self.filters:
            answer = predicate(block)
            if isinstance(answer, pa.Array | pa.ChunkedArray):
                answer = answer.to_numpy(zero_copy_only=False)
            answers = answers & answer if self.is_all else answers | answer
        return answers


def all_of(*filters: Callable[[pa.RecordBatch], Any]) -> _FilterGroup:
    """Return a filter that keeps the samples that all filters keep; without filters, every sample.

    Example:
        >>> block = pa.record_batch({"user": pa.array([7, 8, 9])})
        >>> all_of(FilterByValue("user", "gt", 7), FilterByValue("user", "lt", 9))(block).tolist()
        [False, True, False]
    """
    return _FilterGroup(filters, is_all=True)


def any_of(*filters: Callable[[pa.RecordBatch], Any]) -> _FilterGroup:
    """Return a filter that keeps samples that one of the filters keeps; without filters, none."""
    return _FilterGroup(filters, is_all=False)
