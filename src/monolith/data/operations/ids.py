"""New ids from ids of a sample: for `Pipeline.map`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.hashing import pairs
from monolith.data.operations.sample_rows import Rows, as_tensor, positions_in, set_column, signed
from monolith.ops.fids import combine_fids_v2, switch_slot_v1, switch_slot_v2


@dataclass(frozen=True)
class SwitchSlot:
    """Creates features with the same signatures in other slots.

    Args:
        features: feature -> whether the feature is replaced, and the new slot. Otherwise the
            feature stays, and the new feature is named `{feature}_{suffix}`.
        suffix: suffix of the names of new features.
        fid_version: version of the fids, 1 or 2.

    Raises:
        ValueError: `fid_version` is neither 1 nor 2, or a slot is too large.

    Example:
        >>> block = pa.record_batch({"user": pa.array([(1 << 48) + 100])})
        >>> SwitchSlot({"user": (True, 2)})(block)["user"].to_pylist() == [(2 << 48) + 100]
        True
    """

    features: Mapping[str, tuple[bool, int]]
    suffix: str = "share"
    fid_version: int = 2

    def __post_init__(self) -> None:
        if self.fid_version not in (1, 2):
            raise ValueError(f"[SwitchSlot] expected fid_version 1 or 2, got {self.fid_version}")
        for _, slot in self.features.values():  # refuses too large slots
            self._switch(np.zeros(0, np.int64), slot)

    @property
    def adds(self) -> Columns:
        """New features."""
        return Columns([self._name(name) for name, (is_in_place, _) in self.features.items()])

    def _name(self, name: str) -> str:
        return name if self.features[name][0] else f"{name}_{self.suffix}"

    def _switch(self, fids: np.ndarray, slot: int) -> np.ndarray:
        switch = switch_slot_v1 if self.fid_version == 1 else switch_slot_v2
        return switch(as_tensor(fids), slot).numpy()

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset(self.features)

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with the new features."""
        for name, (_, slot) in self.features.items():
            rows = Rows.of("[SwitchSlot]", block, name)
            new = Rows(self._switch(rows.values, slot), rows.lengths)
            block = set_column(block, self._name(name), new.to_arrow())
        return block


@dataclass(frozen=True)
class FeatureCombine:
    """Creates a feature of all pairs of ids of two features; see `fids.combine_fids_v2`.

    Args:
        name: name of the new feature.
        first: first feature of a pair; it varies slowest.
        second: second feature of a pair.
        slot: slot of the new ids.

    Example:
        >>> block = pa.record_batch({"user": [7], "item": pa.array([[1, 2]])})
        >>> ids = FeatureCombine("both", "user", "item", 505)(block)["both"].to_pylist()
        >>> [[fid - (505 << 48) for fid in row] for row in ids]
        [[7, 14]]
    """

    name: str
    first: str
    second: str
    slot: int

    @property
    def adds(self) -> Columns:
        """The new feature."""
        return Columns([self.name])

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.first, self.second})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with the new feature."""
        left = Rows.of("[FeatureCombine]", block, self.first)
        right = Rows.of("[FeatureCombine]", block, self.second)
        ones = np.ones(len(left), np.int64)
        lengths = [ones if rows.lengths is None else rows.lengths for rows in (left, right)]
        left_at, right_at = pairs(*lengths)
        fids = combine_fids_v2(
            as_tensor(left.values[left_at]), as_tensor(right.values[right_at]), self.slot
        )
        new = Rows(fids.numpy(), lengths[0] * lengths[1])
        return set_column(block, self.name, new.to_arrow())


@dataclass(frozen=True)
class FidMask:
    """Creates a dense column: 1 for samples whose feature has an id, else 0.

    Args:
        name: name of the new column.
        feature: feature with the ids.
        fid: id to search for.

    Example:
        >>> block = pa.record_batch({"ids": pa.array([[1, 2, 3], [3], [], [4, 5, 6]])})
        >>> FidMask("has_3", "ids", 3)(block)["has_3"].to_pylist()
        [1.0, 1.0, 0.0, 0.0]
    """

    name: str
    feature: str
    fid: int

    @property
    def adds(self) -> Columns:
        """The new column."""
        return Columns(dense=[self.name])

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.feature})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with the new column."""
        rows = Rows.of("[FidMask]", block, self.feature)
        has = rows.any(rows.values == signed([self.fid])[0])
        return set_column(block, self.name, has.astype(np.float32))


@dataclass(frozen=True)
class MapId:
    """Replaces the ids of a feature by a dictionary.

    Args:
        feature: feature to change.
        table: id -> new id.
        default: new id of all other ids.

    Example:
        >>> block = pa.record_batch({"ids": pa.array([[123, 7], [456]])})
        >>> MapId("ids", {123: 0, 456: 1})(block)["ids"].to_pylist()
        [[0, -1], [1]]
    """

    feature: str
    table: Mapping[int, int]
    default: int = -1

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.feature})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with the new ids."""
        rows = Rows.of("[MapId]", block, self.feature)
        new = np.array([*self.table.values(), self.default], np.int64)
        values = new[positions_in(rows.values, list(self.table))]
        return set_column(block, self.feature, Rows(values, rows.lengths).to_arrow())
