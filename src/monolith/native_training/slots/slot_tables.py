"""Turn collected slots into the tables and features that hold their rows."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from monolith.native_training.slots.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from monolith.native_training.tables.entry_config import (
    CuckooHashTableConfig,
    EntryConfig,
    EntrySegment,
    HashTableConfigInstance,
)
from monolith.native_training.tables.entry_parts import (
    Compressor,
    StochasticRoundingFloat16OptimizerWrapper,
)
from monolith.native_training.tables.table_merge import older_name
from monolith.nn.feature import Feature
from monolith.table import Expiry, MinCount
from monolith.table.config import segments_of
from monolith.table.initializers import Initializer
from monolith.table.optimizers import LearningRate, Optimizer

AnyOptimizer = Optimizer | StochasticRoundingFloat16OptimizerWrapper

_COMBINERS = MappingProxyType({ReduceSum: "sum", ReduceMean: "mean", FirstN: "first"})


@dataclass(frozen=True)
class SliceConfig:
    """Describe a slice of a row.

    Args:
        segment: its width, initializer, optimizer and compressor.
        learning_rate_fn: a number or a schedule; that of the optimizer if None.
    """

    segment: EntrySegment
    learning_rate_fn: LearningRate | None = None

    @property
    def learning_rate(self) -> LearningRate:
        """The rate that is used: with warm-up steps, a line from 0 to that of the optimizer."""
        if self.learning_rate_fn is not None:
            return self.learning_rate_fn
        optimizer = self.segment.opt_config
        if isinstance(optimizer, StochasticRoundingFloat16OptimizerWrapper):
            optimizer = optimizer.optimizer
        assert optimizer is not None  # a slot has one
        return optimizer.schedule


def merge_slices(slices: Iterable[SliceConfig]) -> list[SliceConfig]:
    """Neighbours that differ in nothing but their width become one slice.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Zeros
        >>> one = SliceConfig(EntrySegment(2, Zeros(), SGD()))
        >>> [part.segment.dim_size for part in merge_slices([one, one])]
        [4]
    """
    merged: list[SliceConfig] = []
    for config in slices:
        if merged and _kind(merged[-1]) == _kind(config):
            dim = merged[-1].segment.dim_size + config.segment.dim_size
            wider = dataclasses.replace(config.segment, dim_size=dim)
            merged[-1] = dataclasses.replace(config, segment=wider)
        else:
            merged.append(config)
    return merged


def _kind(
    config: SliceConfig,
) -> tuple[Initializer | None, AnyOptimizer | None, Compressor | None, str]:
    segment = config.segment
    rate = str(config.learning_rate_fn)
    return segment.init_config, segment.opt_config, segment.comp_config, rate


@dataclass(frozen=True)
class SlotTable:
    """Describe a slot with all its slices and columns.

    Args:
        slice_configs: after merging.
        feature_names: of its columns, in the order in which they were made.
        unmerged_slice_dims: widths of the slices as they were added.
        hashtable_config: kind of the table.
        feature_to_combiners: of each column.
        occurrence_threshold: occurrences before an id gets a row.
        expire_time: days that a row lives after its last update.
        with_rows: rows of a column are asked for one by one, so that all columns have them.
    """

    slice_configs: Sequence[SliceConfig]
    feature_names: Sequence[str]
    unmerged_slice_dims: Sequence[int]
    hashtable_config: CuckooHashTableConfig
    feature_to_combiners: Mapping[str, Combiner]
    occurrence_threshold: int = 0
    expire_time: int = 36_500
    with_rows: bool = False

    def instance(self) -> HashTableConfigInstance:
        """The table in the words of the reference system."""
        entry = EntryConfig([config.segment for config in self.slice_configs])
        rates = [config.learning_rate for config in self.slice_configs]
        return HashTableConfigInstance(self.hashtable_config.table_config(entry), rates)

    def features(self) -> list[Feature]:
        """Return the columns: the first has the table, the others share it.

        A checkpoint may have the table under the name of any column, and without the `fc_` of
        `fc_slot_<digits>`.
        """
        owner, features = None, []
        for name in self.feature_names:
            combiner = self.feature_to_combiners[name]
            if self.with_rows:
                how, length = "rows", 0
            else:
                how, length = _COMBINERS[type(combiner)], combiner.max_seq_length
            if owner is None:
                owner = name
                feature = Feature(
                    name,
                    slices=segments_of(self.instance().table(name)),
                    admission=MinCount(self.occurrence_threshold)
                    if self.occurrence_threshold
                    else None,
                    expiry=Expiry(self.expire_time),
                    combiner=how,
                    max_length=length,
                    restore_names=self._other_names(),
                )
            else:
                feature = Feature(name, shares=owner, combiner=how, max_length=length)
            features.append(feature)
        return features

    @property
    def evict_every_hours(self) -> dict[str, int]:
        """The name of the table, and how often expired rows are removed; empty if never."""
        hours = self.hashtable_config.feature_evict_every_n_hours
        return {self.feature_names[0]: hours} if hours and self.feature_names else {}

    def _other_names(self) -> list[str]:
        names = [*self.feature_names, *map(older_name, self.feature_names)]
        return [name for name in dict.fromkeys(names) if name != self.feature_names[0]]


def features_of(tables: Iterable[SlotTable]) -> list[Feature]:
    """The features of all columns; a slot without a column has none.

    Raises:
        AssertionError: one feature is a column of two slots.
    """
    features = [feature for table in tables for feature in table.features()]
    if len({feature.name for feature in features}) < len(features):
        raise AssertionError("Feature must only belongs to one table.")
    return features
