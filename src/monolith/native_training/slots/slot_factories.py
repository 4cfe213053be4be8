"""Make slots: one factory collects what a model declares, the others have rows for it."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch

from monolith.native_training.slots.combiners import Combiner
from monolith.native_training.slots.slot_tables import SliceConfig, SlotTable, merge_slices
from monolith.native_training.slots.slots import FeatureSlot, FeatureSlotConfig, SlotRows
from monolith.nn.features import Embedded
from monolith.ops import Ragged

_log = logging.getLogger(__name__)

GradsAndVars = Iterable[tuple[torch.Tensor | None, torch.Tensor]]
"""Gradients, and what they are gradients of."""


class FeatureFactory(Protocol):
    """Makes slots."""

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """A slot; nothing is computed."""

    def apply_gradients(
        self, grads_and_vars: GradsAndVars, scale: float = 1
    ) -> Callable[[], None] | None:
        """Take gradients of rows, multiplied by `scale`; an action that must be called, or None."""


class CollectingFactory:
    """Takes notice of slots, slices and columns; lookups give zeros of the right shapes.

    A model function that is called with it declares what it needs. Gradients of the zeros may be
    taken, and are zeros too.

    Args:
        batch_size: of the lookups.
        device: of the zeros; on "meta" they take no memory, and the model must be there too.

    Attributes:
        slot_to_occurrence_threshold: of slots that have a number.
        slot_to_expire_time: of slots that have a number.

    Example:
        >>> factory = CollectingFactory(8)
        >>> slot = factory.create_feature_slot(FeatureSlotConfig(slot_id=1))
        >>> from monolith.native_training.slots.slots import FeatureColumn
        >>> column = FeatureColumn(slot, "user")
        >>> column.embedding_lookup(slot.add_feature_slice(4)).shape
        torch.Size([8, 4])
        >>> factory.tables()["1"].feature_names
        ('user',)
    """

    def __init__(self, batch_size: int, *, device: torch.device | str = "meta") -> None:
        self._batch_size, self._device = batch_size, device
        self._slots: dict[str, tuple[FeatureSlotConfig, _CollectedRows]] = {}
        self.slot_to_occurrence_threshold: dict[int, int] = {}
        self.slot_to_expire_time: dict[int, int] = {}

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """A slot to be collected.

        Raises:
            NameError: there is one of this name.
        """
        name = config.table
        if name in self._slots:
            raise NameError(f"Duplicate names for the table. Name: {name}")
        if config.slot_id is None:
            _log.warning("slot %r has no slot_id: thresholds by number leave it out", name)
        else:
            self.slot_to_occurrence_threshold[config.slot_id] = config.occurrence_threshold
            self.slot_to_expire_time[config.slot_id] = config.expire_time
        rows = _CollectedRows(self._batch_size, self._device)
        self._slots[name] = config, rows
        return FeatureSlot(rows, config)

    def apply_gradients(
        self, grads_and_vars: GradsAndVars, scale: float = 1
    ) -> Callable[[], None] | None:
        """Do nothing: there is nothing to train."""
        return lambda: None

    def rows_of(self, feature: str) -> SlotRows:
        """Return the rows of the slot that has a feature as a column.

        Raises:
            KeyError: No slot has it.
        """
        for _, rows in self._slots.values():
            if feature in rows.combiners:
                return rows
        raise KeyError(f"[CollectingFactory] expected a feature with a column, got {feature!r}")

    def tables(self) -> dict[str, SlotTable]:
        """Return the collected slots by name.

        Raises:
            RuntimeError: a slot has no slice.
        """
        tables = {}
        for name, (config, rows) in self._slots.items():
            if not rows.slices:
                raise RuntimeError(f"{name} has no slice, pls. check!")
            tables[name] = SlotTable(
                tuple(merge_slices(rows.slices)),
                tuple(rows.combiners),
                tuple(part.segment.dim_size for part in rows.slices),
                config.hashtable_config,
                rows.combiners,
                config.occurrence_threshold,
                config.expire_time,
                rows.is_asked,
            )
        return tables


class _CollectedRows:
    """A slot that is collected."""

    def __init__(self, batch_size: int, device: torch.device | str) -> None:
        self.slices: list[SliceConfig] = []
        self.combiners: dict[str, Combiner] = {}
        self.is_asked = False
        self._batch_size, self._device = batch_size, device
        self._leaves: dict[str, torch.Tensor] = {}

    def add_slice(self, config: SliceConfig) -> None:
        self.slices.append(config)

    def add_column(self, name: str, combiner: Combiner) -> None:
        self.combiners[name] = combiner

    def lookup(self, name: str, start: int, end: int) -> torch.Tensor:
        length = self.combiners[name].max_seq_length
        shape = (self._batch_size, *([length] if length else []), end - start)
        # The leaf is of the width of the slot so far; the sum makes the zeros depend on it.
        return torch.zeros(shape, device=self._device) + 0 * self._leaf(name).sum()

    def rows(self, name: str) -> torch.Tensor:
        self.is_asked = True
        return self._leaf(name)

    def lengths(self, name: str) -> torch.Tensor | None:
        return torch.zeros(self._batch_size, dtype=torch.int64, device=self._device)

    def _leaf(self, name: str) -> torch.Tensor:
        if name not in self._leaves:
            dim = sum(part.segment.dim_size for part in self.slices)
            shape = (self._batch_size, dim)
            self._leaves[name] = torch.zeros(shape, device=self._device, requires_grad=True)
        return self._leaves[name]


def slice_key(name: str, start: int, end: int) -> str:
    """Name of a slice of the combined rows of a feature."""
    return f"{name}:{start}_{end}"


def combined_slices(
    name: str, ids: Ragged, rows: torch.Tensor, combiner: Combiner, dims: Sequence[int]
) -> dict[str, torch.Tensor]:
    """The slices of the combined rows of a feature, by `slice_key`.

    Args:
        name: of the feature.
        ids: of each sample.
        rows: of each id, (num_ids, dim).
        combiner: of the rows of a sample.
        dims: widths of the slices, in order.
    """
    combined, slices, start = combiner.combine(ids, rows), {}, 0
    for dim in dims:
        slices[slice_key(name, start, start + dim)] = combined[..., start : start + dim]
        start += dim
    return slices


class EmbeddingsFactory:
    """Has rows and slices that somebody else has looked up and combined.

    Args:
        name_to_embeddings: feature -> rows of its ids, (num_ids, dim).
        name_to_slices: `slice_key` -> slice, as `combined_slices` makes them.
    """

    def __init__(
        self,
        name_to_embeddings: Mapping[str, torch.Tensor],
        name_to_slices: Mapping[str, torch.Tensor],
    ) -> None:
        self._rows = _GivenRows(name_to_embeddings, name_to_slices)

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """A slot over the given rows."""
        return FeatureSlot(self._rows, config)

    def apply_gradients(
        self, grads_and_vars: GradsAndVars, scale: float = 1
    ) -> Callable[[], None] | None:
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("apply_gradients is not supported in this factory.")


class _GivenRows:
    """Rows that were given."""

    def __init__(
        self, rows: Mapping[str, torch.Tensor], slices: Mapping[str, torch.Tensor]
    ) -> None:
        self._rows, self._slices = rows, slices

    def add_slice(self, config: SliceConfig) -> None:
        """Slices are given."""

    def add_column(self, name: str, combiner: Combiner) -> None:
        """They are combined already."""

    def lookup(self, name: str, start: int, end: int) -> torch.Tensor:
        return self._slices[slice_key(name, start, end)]

    def rows(self, name: str) -> torch.Tensor:
        return self._rows[name]

    def lengths(self, name: str) -> torch.Tensor | None:
        return None


class FeaturesFactory:
    """Slots over the rows that `Features` looked up for a batch; they are trained.

    Args:
        tables: what `CollectingFactory` found.
        embedded: rows of the features that `features_of` made of these tables.
    """

    def __init__(self, tables: Mapping[str, SlotTable], embedded: Embedded) -> None:
        self._tables, self._embedded = tables, embedded

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """A slot that was collected.

        Raises:
            ValueError: it was not.
        """
        if config.table not in self._tables:
            raise ValueError(
                f"[FeaturesFactory] expected slots that were collected "
                f"({', '.join(self._tables)}), got {config.table!r}; a model function makes the "
                "same slots in every call"
            )
        return FeatureSlot(LookedUpRows(self._tables[config.table], self._embedded), config)

    def apply_gradients(
        self, grads_and_vars: GradsAndVars, scale: float = 1
    ) -> Callable[[], None] | None:
        """Queue gradients of rows on their tables; a step of the optimizer applies them."""
        pairs = [(g * scale, rows) for g, rows in grads_and_vars if g is not None]
        if pairs:
            gradients, rows = zip(*pairs, strict=True)
            torch.autograd.backward(rows, gradients)
        return None


class LookedUpRows:
    """A slot over looked up rows; checks that it is as it was collected."""

    def __init__(self, table: SlotTable, embedded: Embedded) -> None:
        self._table, self._embedded = table, embedded
        self._dims: list[int] = []
        self._combined: dict[str, torch.Tensor] = {}

    def add_slice(self, config: SliceConfig) -> None:
        self._dims.append(config.segment.dim_size)
        expected = list(self._table.unmerged_slice_dims)
        if self._dims != expected[: len(self._dims)]:
            raise ValueError(
                f"[FeatureSlot.add_feature_slice] expected slices of {expected} columns, as they "
                f"were collected, got {self._dims}; a model function makes the same slices in "
                "every call"
            )

    def add_column(self, name: str, combiner: Combiner) -> None:
        expected = self._table.feature_to_combiners
        if expected.get(name) != combiner:
            raise ValueError(
                f"[FeatureColumn] expected columns that were collected ({dict(expected)}), got "
                f"{name!r} with {combiner}; a model function makes the same columns in every call"
            )

    def lookup(self, name: str, start: int, end: int) -> torch.Tensor:
        return self._whole(name)[..., start:end]

    def _whole(self, name: str) -> torch.Tensor:
        if not self._table.with_rows:
            return self._embedded.whole(name)
        if name not in self._combined:
            combiner, ids = self._table.feature_to_combiners[name], self._embedded.ids[name]
            self._combined[name] = combiner.combine(ids, self._embedded.whole(name))
        return self._combined[name]

    def rows(self, name: str) -> torch.Tensor:
        if not self._table.with_rows:
            raise ValueError(
                "[FeatureColumn.get_all_embeddings_concat] expected it where the slots were "
                f"collected too, got it now only (feature {name!r}); call it in every call of the "
                "model function"
            )
        return self._embedded.whole(name)

    def lengths(self, name: str) -> torch.Tensor | None:
        return self._embedded.ids[name].lengths
