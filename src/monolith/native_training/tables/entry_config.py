"""Table configuration in the words of the reference system: plain data, without protobuf.

`HashTableConfigInstance` refuses by name what our tables cannot do; its `table` makes the
`TableConfig` from the rest. The optimizers' names of the reference system are those of our classes.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

from monolith.native_training.tables.entry_parts import (
    Compressor,
    EntryType,
    Fp16Compressor,
    SlotExpireTimeConfig,
    StochasticRoundingFloat16OptimizerWrapper,
    StorageType,
)
from monolith.table.arguments import as_integer, as_list, check_kind
from monolith.table.config import Segment, TableConfig
from monolith.table.initializers import Initializer
from monolith.table.optimizers import LearningRate, MovingAverage, Optimizer
from monolith.table.precision import FixedR8, OneBit
from monolith.table.rules import Expiry


@dataclass(frozen=True)
class EntrySegment:
    """A run of columns of a row: `EntryConfig.Segment` of the reference system.

    Args:
        dim_size: number of weights.
        init_config: their values in a new row.
        opt_config: how gradients change them.
        comp_config: how they are stored for serving; 8-bit and 1-bit ones are seen in training.
    """

    dim_size: int
    init_config: Initializer | None = None
    opt_config: Optimizer | StochasticRoundingFloat16OptimizerWrapper | None = None
    comp_config: Compressor | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "opt_config": (Optimizer, StochasticRoundingFloat16OptimizerWrapper),
            "comp_config": get_args(Compressor),
        }
        for name, classes in kinds.items():
            if getattr(self, name) is not None:
                check_kind("[EntrySegment]", name, getattr(self, name), *classes)


def CombineAsSegment(  # noqa: N802 - a name of the reference system
    dim: int,
    initializer: Initializer,
    optimizer: Optimizer | StochasticRoundingFloat16OptimizerWrapper,
    compressor: Compressor,
) -> EntrySegment:
    """One segment of its parts.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Zeros
        >>> from monolith.native_training.tables.entry_parts import Fp32Compressor
        >>> CombineAsSegment(4, Zeros(), SGD(), Fp32Compressor()).dim_size
        4
    """
    return EntrySegment(dim, initializer, optimizer, compressor)


@dataclass(frozen=True)
class EntryConfig:
    """What a row is.

    Args:
        segments: in column order.
        entry_type: a TRAINING row needs initializer and optimizer in every segment.
    """

    Segment: ClassVar[type[EntrySegment]] = EntrySegment

    segments: Sequence[EntrySegment]
    entry_type: EntryType = EntryType.TRAINING

    def __post_init__(self) -> None:
        segments = as_list("[EntryConfig]", "segments", self.segments)
        for segment in segments:
            check_kind("[EntryConfig]", "each of segments", segment, EntrySegment)
        check_kind("[EntryConfig]", "entry_type", self.entry_type, EntryType)
        object.__setattr__(self, "segments", tuple(segments))
        if not self.segments:
            raise ValueError("[EntryConfig] expected at least one segment")
        needed = {
            EntryType.UNKNOWN: (),
            EntryType.TRAINING: ("init_config", "opt_config"),
            EntryType.SERVING: ("comp_config",),
        }[self.entry_type]
        for i, segment in enumerate(self.segments):
            for name in needed:
                if getattr(segment, name) is None:
                    raise ValueError(
                        f"[EntryConfig] expected {name} in segment {i} of a "
                        f"{self.entry_type.name} entry, got None"
                    )


@dataclass(frozen=True)
class EmbeddingHashTableConfig:
    """What a table is.

    Args:
        entry_config: what its rows are.
        initial_capacity: rows to expect; tables grow as they need to.
        slot_expire_time_config: days that rows live, by slot; 36,500 if None.
        cuckoo: the kind of table; the only one, and must be set.
        entry_type: how rows lie in memory.
        enable_feature_eviction: remove expired rows in the background; see
            `HashTableConfigInstance.evict_every_seconds`.
        feature_evict_every_n_hours: how often.
        skip_zero_embedding: keep no rows of zeros; SERVING only.
    """

    entry_config: EntryConfig
    initial_capacity: int = 1
    slot_expire_time_config: SlotExpireTimeConfig | None = None
    cuckoo: bool = False
    entry_type: StorageType = StorageType.PACKED
    enable_feature_eviction: bool = False
    feature_evict_every_n_hours: int = 240
    skip_zero_embedding: bool = False

    def __post_init__(self) -> None:
        where = "[EmbeddingHashTableConfig]"
        for name in ("initial_capacity", "feature_evict_every_n_hours"):
            if as_integer(where, name, getattr(self, name)) < 1:
                raise ValueError(f"{where} expected {name} >= 1, got {getattr(self, name)}")
        if self.skip_zero_embedding and self.entry_config.entry_type != EntryType.SERVING:
            raise ValueError(
                "[EmbeddingHashTableConfig] expected skip_zero_embedding only with a SERVING "
                f"entry, got {self.entry_config.entry_type.name}"
            )


@dataclass(frozen=True)
class CuckooHashTableConfig:
    """The kind of table, with what only it has.

    Args:
        initial_capacity: rows to expect.
        feature_evict_every_n_hours: how often expired rows are removed; 0 for never.

    Example:
        >>> CuckooHashTableConfig(feature_evict_every_n_hours=2).initial_capacity
        1
    """

    initial_capacity: int = 1
    feature_evict_every_n_hours: int = 0

    def __post_init__(self) -> None:
        for name in ("initial_capacity", "feature_evict_every_n_hours"):
            as_integer("[CuckooHashTableConfig]", name, getattr(self, name))
        if self.initial_capacity < 1 or self.feature_evict_every_n_hours < 0:
            raise ValueError(
                "[CuckooHashTableConfig] expected initial_capacity >= 1 and "
                f"feature_evict_every_n_hours >= 0, got {self.initial_capacity} and "
                f"{self.feature_evict_every_n_hours}"
            )

    def table_config(
        self,
        entry_config: EntryConfig,
        slot_expire_time_config: SlotExpireTimeConfig | None = None,
    ) -> EmbeddingHashTableConfig:
        """A table of this kind."""
        evicts = self.feature_evict_every_n_hours > 0
        return EmbeddingHashTableConfig(
            entry_config,
            self.initial_capacity,
            slot_expire_time_config,
            cuckoo=True,
            enable_feature_eviction=evicts,
            feature_evict_every_n_hours=self.feature_evict_every_n_hours if evicts else 240,
        )


@dataclass(frozen=True, eq=False)
class HashTableConfigInstance:
    """A table config with its learning rates; equal ones have equal strings.

    Args:
        table_config: what the table is.
        learning_rate_fns: a number or a schedule per segment.
        extra_restore_names: other names under which a checkpoint may hold the table.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Zeros
        >>> from monolith.native_training.tables.entry_parts import Fp32Compressor
        >>> segment = CombineAsSegment(4, Zeros(), SGD(), Fp32Compressor())
        >>> config = CuckooHashTableConfig().table_config(EntryConfig([segment]))
        >>> HashTableConfigInstance(config, [0.5]).table("user").segments[0].optimizer
        SGD(learning_rate=0.5, warmup_steps=0)
    """

    table_config: EmbeddingHashTableConfig
    learning_rate_fns: Sequence[LearningRate]
    extra_restore_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self.learning_rate_fns:
            raise ValueError("Learning_rate_fns must be not empty.")
        if len(self.learning_rate_fns) != len(self.table_config.entry_config.segments):
            raise ValueError("Size of learning_rate_fns and size of segments must be equal.")
        for name, got, expected in _capabilities(self.table_config):
            if got not in expected:
                raise ValueError(
                    f"[HashTableConfigInstance] expected {name} {' or '.join(map(str, expected))}, "
                    f"got {got}"
                )

    def __str__(self) -> str:
        rates = ", ".join(map(str, self.learning_rate_fns))
        return f"TableConfigPB: {self.table_config!r}, LearningRateFns: [{rates}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashTableConfigInstance) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def table(self, name: str) -> TableConfig:
        """The config of our tables, under a name."""
        config, entry = self.table_config, self.table_config.entry_config
        parts = zip(entry.segments, self.learning_rate_fns, strict=True)
        return TableConfig(
            name,
            [_segment(entry.entry_type, segment, rate) for segment, rate in parts],
            kind=entry.entry_type.name.lower(),
            skip_zero=config.skip_zero_embedding,
            expiry=_expiry(config),
        )

    @property
    def evict_every_seconds(self) -> int | None:
        """Seconds between two sweeps of the table; None if expired rows stay until `evict`."""
        config = self.table_config
        return config.feature_evict_every_n_hours * 3600 if config.enable_feature_eviction else None


def _capabilities(config: EmbeddingHashTableConfig) -> list[tuple[str, object, tuple[object, ...]]]:
    """(name, value, values that our tables can do) of every part of a config."""
    parts: list[tuple[str, object, tuple[object, ...]]] = [
        ("cuckoo", config.cuckoo, (True,)),
        (
            "entry_config.entry_type",
            config.entry_config.entry_type,
            (EntryType.TRAINING, EntryType.SERVING),
        ),
        ("entry_type", config.entry_type, (StorageType.PACKED,)),
    ]
    return parts


def _expiry(config: EmbeddingHashTableConfig) -> Expiry | None:
    """A table that neither names days nor evicts keeps every row."""
    days = config.slot_expire_time_config
    if days is None:
        return Expiry() if config.enable_feature_eviction else None
    slots = {each.slot: each.expire_time for each in days.slot_expire_times}
    return Expiry(days.default_expire_time, slots)


def _segment(entry_type: EntryType, segment: EntrySegment, rate: LearningRate) -> Segment:
    """Our segment, with a rate in place of the optimizer's own; a moving average has none."""
    compressor = segment.comp_config
    view = compressor if isinstance(compressor, FixedR8 | OneBit) else None
    if entry_type == EntryType.SERVING:
        precision = "fp16" if isinstance(compressor, Fp16Compressor) else "fp32"
        return Segment(segment.dim_size, precision=precision, view=view)
    optimizer, initializer, precision = segment.opt_config, segment.init_config, "fp32"
    if isinstance(optimizer, StochasticRoundingFloat16OptimizerWrapper):
        optimizer, precision = optimizer.optimizer, "fp16"
    assert optimizer is not None  # checked with the rest of the config
    assert initializer is not None
    if not isinstance(optimizer, MovingAverage):
        names = {option.name for option in dataclasses.fields(optimizer)}
        warmup = {"warmup_steps": 0} if "warmup_steps" in names else {}
        optimizer = dataclasses.replace(optimizer, learning_rate=rate, **warmup)
    return Segment(segment.dim_size, optimizer, initializer, precision=precision, view=view)
