"""Define slots, slices and columns: the features of a model function.

A slot is a table, a slice a run of columns of its rows, a column a feature that is looked up in it.
A factory makes slots and decides where rows come from (`slot_factories.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from monolith.native_training.slots.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from monolith.native_training.slots.slot_tables import AnyOptimizer, SliceConfig
from monolith.native_training.tables.entry_config import CuckooHashTableConfig, EntrySegment
from monolith.native_training.tables.entry_parts import Compressor, Fp16Compressor, Fp32Compressor
from monolith.nn.features import size_mask
from monolith.table import Expiry, MinCount, Uniform, Zeros
from monolith.table.initializers import Initializer
from monolith.table.optimizers import FTRL, Adagrad, LearningRate

DEFAULT_EXPIRE_TIME = 36_500
"""Days."""

# A model function makes its slots in every step, and checks of new objects take time.
_BIAS_OPTIMIZER = FTRL(initial_accumulator_value=1e-6, beta=1.0)
_VEC_OPTIMIZER = Adagrad(initial_accumulator_value=1.0)
_INITIALIZER = Uniform()
_TABLE = CuckooHashTableConfig()


@dataclass(frozen=True)
class FeatureSlotConfig:
    """Describe a slot.

    Args:
        name: of the slot; that of its number if None.
        has_bias: rows begin with a slice of one weight.
        bias_initializer: first value of the bias.
        bias_optimizer: of the bias.
        bias_compressor: of the bias.
        bias_learning_rate_fn: of the bias; `default_vec_learning_rate_fn` if None.
        default_vec_initializer: of slices that name none.
        default_vec_optimizer: of slices that name none.
        default_vec_compressor: of slices that name none.
        default_vec_learning_rate_fn: of slices that name none; that of the optimizer if None.
        hashtable_config: kind of the table.
        slot_id: number of the slot.
        occurrence_threshold: occurrences before an id gets a row.
        expire_time: days that a row lives after its last update.

    Raises:
        ValueError: neither a name nor a number; a threshold or a time below 0.

    Example:
        >>> FeatureSlotConfig(slot_id=3).name
        '3'
    """

    name: str | None = None
    has_bias: bool = False
    bias_initializer: Initializer = field(default_factory=Zeros)
    bias_optimizer: AnyOptimizer = _BIAS_OPTIMIZER
    bias_compressor: Compressor = field(default_factory=Fp32Compressor)
    bias_learning_rate_fn: LearningRate | None = None
    default_vec_initializer: Initializer = _INITIALIZER
    default_vec_optimizer: AnyOptimizer = _VEC_OPTIMIZER
    default_vec_compressor: Compressor = field(default_factory=Fp16Compressor)
    default_vec_learning_rate_fn: LearningRate | None = None
    hashtable_config: CuckooHashTableConfig = _TABLE
    slot_id: int | None = None
    occurrence_threshold: int = 0
    expire_time: int = DEFAULT_EXPIRE_TIME

    def __post_init__(self) -> None:
        if self.name is None:
            if self.slot_id is None:
                raise ValueError("[FeatureSlotConfig] expected a name or a slot_id, got neither")
            object.__setattr__(self, "name", str(self.slot_id))
        if (self.occurrence_threshold, self.expire_time) != (0, DEFAULT_EXPIRE_TIME):
            MinCount(self.occurrence_threshold)  # refuses what is no threshold
            Expiry(self.expire_time)

    @property
    def table(self) -> str:
        """The name, which is set by now."""
        assert self.name is not None
        return self.name


class SlotRows(Protocol):
    """Provide the rows of a slot; a factory has one source for each slot."""

    def add_slice(self, config: SliceConfig) -> None:
        """Take notice of a slice, behind those before."""

    def add_column(self, name: str, combiner: Combiner) -> None:
        """Take notice of a column."""

    def lookup(self, name: str, start: int, end: int) -> torch.Tensor:
        """Columns of the combined rows of a feature: (batch, dim) or (batch, length, dim)."""

    def rows(self, name: str) -> torch.Tensor:
        """The rows of all ids of a feature, (num_ids, dim); the same object each time."""

    def lengths(self, name: str) -> torch.Tensor | None:
        """Number of ids of each sample; None if it is not known."""


class FeatureSlot:
    """A table of rows that are made of slices.

    Args:
        table: where its rows come from.
        config: what it is.
    """

    def __init__(self, table: SlotRows, config: FeatureSlotConfig) -> None:
        self.table, self.config = table, config
        self._columns: list[FeatureColumn] = []
        self._dim = 0
        self._bias: FeatureSlice | None = None
        if config.has_bias:
            self._bias = self.add_feature_slice(
                1,
                config.bias_initializer,
                config.bias_optimizer,
                config.bias_compressor,
                config.bias_learning_rate_fn,
            )

    @property
    def name(self) -> str:
        """Return the name of the slot."""
        return self.config.table

    def add_feature_slice(
        self,
        dim_size: int,
        initializer: Initializer | None = None,
        optimizer: AnyOptimizer | None = None,
        compressor: Compressor | None = None,
        learning_rate_fn: LearningRate | None = None,
    ) -> "FeatureSlice":
        """Add columns to the rows, behind those before; what is None is that of the slot."""
        config = self.config
        segment = EntrySegment(
            dim_size,
            config.default_vec_initializer if initializer is None else initializer,
            config.default_vec_optimizer if optimizer is None else optimizer,
            config.default_vec_compressor if compressor is None else compressor,
        )
        if learning_rate_fn is None:
            learning_rate_fn = config.default_vec_learning_rate_fn
        self.table.add_slice(SliceConfig(segment, learning_rate_fn))
        start, self._dim = self._dim, self._dim + dim_size
        return FeatureSlice(self, start, self._dim)

    def get_bias_slice(self) -> "FeatureSlice":
        """The slice of the bias.

        Raises:
            AssertionError: the slot has none.
        """
        if self._bias is None:
            raise AssertionError(
                f"[FeatureSlot.get_bias_slice] expected has_bias=True, got False (slot "
                f"{self.name!r})"
            )
        return self._bias

    def get_feature_columns(self) -> Sequence["FeatureColumn"]:
        """The columns that were made of it so far."""
        return tuple(self._columns)

    def _add_column(self, column: "FeatureColumn") -> None:
        self.table.add_column(column.feature_name, column.combiner)
        self._columns.append(column)


@dataclass(frozen=True, eq=False)
class FeatureSlice:
    """Columns `start` to `end` of the rows of a slot."""

    feature_slot: FeatureSlot
    start: int
    end: int

    @property
    def dim(self) -> int:
        """Return the number of columns."""
        return self.end - self.start


class FeatureColumn:
    """A feature whose ids are looked up in a slot; columns of one slot share its rows.

    Args:
        feature_slot: the slot.
        feature_name: of the ids in a batch.
        combiner: of the rows of a sample; their sum if None.
    """

    def __init__(
        self, feature_slot: FeatureSlot, feature_name: str, combiner: Combiner | None = None
    ) -> None:
        self.feature_slot, self.feature_name = feature_slot, feature_name
        self.combiner = ReduceSum() if combiner is None else combiner
        self._size: torch.Tensor | None = None
        feature_slot._add_column(self)

    @classmethod
    def reduce_sum(cls) -> Combiner:
        """Combine by the sum of the rows of a sample."""
        return ReduceSum()

    @classmethod
    def reduce_mean(cls) -> Combiner:
        """Combine by the mean of the rows; zeros without rows."""
        return ReduceMean()

    @classmethod
    def first_n(cls, seq_length: int) -> Combiner:
        """Keep the first rows, padded with zeros."""
        return FirstN(seq_length)

    def embedding_lookup(self, feature_slice: FeatureSlice) -> torch.Tensor:
        """Combined rows, of one slice: (batch, dim); (batch, length, dim) of `first_n`.

        Raises:
            AssertionError: the slice is of another slot.
        """
        if feature_slice.feature_slot is not self.feature_slot:
            raise AssertionError("Slice must come from the dedicated feature slot.")
        table = self.feature_slot.table
        return table.lookup(self.feature_name, feature_slice.start, feature_slice.end)

    def get_bias(self) -> torch.Tensor:
        """The bias, combined as the rows are."""
        return self.embedding_lookup(self.feature_slot.get_bias_slice())

    def get_all_embeddings_concat(self) -> torch.Tensor:
        """The rows of all ids, (num_ids, dim of the slot), of which gradients are taken."""
        return self.feature_slot.table.rows(self.feature_name)

    def set_size_tensor(self, row_lengths: torch.Tensor) -> None:
        """Tell how many ids each sample has, where the factory does not know.

        Raises:
            AssertionError: the combiner is not `first_n`.
        """
        self._check_sequence()
        self._size = size_mask(row_lengths, self.combiner.max_seq_length)

    def get_size_tensor(self) -> torch.Tensor:
        """Mark the rows that are of ids: int32 (batch, length), 1 for an id.

        Raises:
            AssertionError: the combiner is not `first_n`.
            ValueError: nobody knows.
        """
        self._check_sequence()
        if self._size is None:
            lengths = self.feature_slot.table.lengths(self.feature_name)
            if lengths is None:
                raise ValueError(
                    "[FeatureColumn.get_size_tensor] expected set_size_tensor before, got none "
                    f"(feature {self.feature_name!r})"
                )
            self.set_size_tensor(lengths)
        assert self._size is not None
        return self._size

    def _check_sequence(self) -> None:
        if not isinstance(self.combiner, FirstN):
            raise AssertionError("This function is only supported in a sequence feature.")
