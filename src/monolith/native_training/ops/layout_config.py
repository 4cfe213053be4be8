"""Describe what a batch of features becomes: rows of each feature, and the outputs made of them.

    feature     one row of its table      slice_dims (1, 2)
                +---+---+---+
                | 0 | 1 | 2 |             columns
                +---+---+---+
    SliceConfig("a", 0, 1)  SliceConfig("a", 1, 3)

Features are numbered in the order of their names, tables and outputs too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from monolith.native_training.ops.layout_pass import LayoutPlan, OutputPart, TableOrder, plan_layout


class PoolingType(IntEnum):
    """Name the ways to combine the rows of a cell, that is of one feature in one example."""

    SUM = 0
    MEAN = 1
    FIRSTN = 3


class OutType(IntEnum):
    """Name the ways to join the slices of an output; NONE leaves each slice a tensor of its own."""

    CONCAT = 0
    STACK = 1
    ADDN = 2
    NONE = 3


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """The rows of a feature.

    Args:
        table: name of its table.
        slice_dims: widths of the slices of a row, in order.
        pooling_type: how the rows of a cell are combined.
        max_sequence_length: rows that FIRSTN keeps; SUM and MEAN take all, whatever it is.

    Raises:
        ValueError: a width or a length is not positive, or the pooling is unknown.

    Example:
        >>> FeatureConfig("t1", (1, 2)).dim
        3
    """

    table: str
    slice_dims: Sequence[int]
    pooling_type: PoolingType = PoolingType.SUM
    max_sequence_length: int = 0

    def __post_init__(self) -> None:
        where = "[FeatureConfig]"
        object.__setattr__(self, "slice_dims", tuple(int(dim) for dim in self.slice_dims))
        object.__setattr__(self, "pooling_type", _member(where, PoolingType, self.pooling_type))
        if not self.slice_dims or min(self.slice_dims) < 1:
            raise ValueError(
                f"{where} expected slice_dims of at least 1 each, got {self.slice_dims} "
                f"(table {self.table!r})"
            )
        if self.pooling_type is PoolingType.FIRSTN and self.max_sequence_length < 1:
            raise ValueError(
                f"{where} expected max_sequence_length of at least 1 with FIRSTN, got "
                f"{self.max_sequence_length} (table {self.table!r})"
            )

    @property
    def dim(self) -> int:
        """Width of a row."""
        return sum(self.slice_dims)


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """Columns [start, end) of the rows of a feature; pooling and length are the feature's."""

    feature_name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OutConfig:
    """One output.

    Args:
        slice_configs: what it is made of, in order.
        out_type: how.
        shape: of its tensors, -1 for the batch; only to be checked, and may be left out.

    Raises:
        ValueError: it has no slices, or the type is unknown.
    """

    slice_configs: Sequence[SliceConfig]
    out_type: OutType
    shape: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        where = "[OutConfig]"
        object.__setattr__(self, "slice_configs", tuple(self.slice_configs))
        object.__setattr__(self, "out_type", _member(where, OutType, self.out_type))
        object.__setattr__(self, "shape", tuple(tuple(dims) for dims in self.shape))
        if not self.slice_configs:
            raise ValueError(f"{where} expected at least 1 slice, got none")


@dataclass(frozen=True)
class FeatureConfigs:
    """All features of a model and all outputs made of them; checked here, and never changed.

    Args:
        feature_configs: by name of the feature.
        out_configs: by name of the output.

    Raises:
        ValueError: a slice is of an unknown feature or leaves its row; slices of STACK or ADDN
            differ in width; an output mixes FIRSTN with another pooling, or two lengths; ADDN has
            a FIRSTN slice; a shape is not the one that the slices make.

    Example:
        >>> slices = [SliceConfig("b", 1, 3), SliceConfig("a", 1, 3)]
        >>> configs = FeatureConfigs(
        ...     {"a": FeatureConfig("t1", (1, 2)), "b": FeatureConfig("t1", (1, 2))},
        ...     {"vec": OutConfig(slices, OutType.CONCAT)},
        ... )
        >>> configs.feature_names, configs.table_names, configs.output_shapes
        (('a', 'b'), ('t1',), {'vec': ((-1, 4),)})
    """

    feature_configs: Mapping[str, FeatureConfig]
    out_configs: Mapping[str, OutConfig] = field(default_factory=dict)
    feature_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    table_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    output_shapes: Mapping[str, tuple[tuple[int, ...], ...]] = field(
        init=False, repr=False, compare=False
    )
    plan: LayoutPlan = field(init=False, repr=False, compare=False)
    table_order: TableOrder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        features, outputs = dict(self.feature_configs), dict(self.out_configs)
        names = tuple(sorted(features))
        numbers = {name: number for number, name in enumerate(names)}
        parts = [part for name in sorted(outputs) for part in self._parts(name, numbers)]
        shapes = {name: _shapes(name, outputs[name], features) for name in sorted(outputs)}
        dims = [features[name].dim for name in names]
        tables = tuple(sorted({config.table for config in features.values()}))
        order = TableOrder([tables.index(features[name].table) for name in names], dims)
        for name, value in {
            "feature_configs": features,
            "out_configs": outputs,
            "feature_names": names,
            "table_names": tables,
            "output_shapes": shapes,
            "plan": plan_layout(dims, parts, shapes),
            "table_order": order,
        }.items():
            object.__setattr__(self, name, value)

    def _parts(self, name: str, numbers: Mapping[str, int]) -> list[OutputPart]:
        """The slices of an output for the plan."""
        output, parts = self.out_configs[name], []
        for piece in output.slice_configs:
            if piece.feature_name not in numbers:
                raise ValueError(
                    f"[FeatureConfigs] expected slices of known features, got "
                    f"{piece.feature_name!r} (output {name!r})"
                )
            config = self.feature_configs[piece.feature_name]
            if not 0 <= piece.start < piece.end <= config.dim:
                raise ValueError(
                    f"[FeatureConfigs] expected 0 <= start < end <= {config.dim}, got start "
                    f"{piece.start} and end {piece.end} (output {name!r}, feature "
                    f"{piece.feature_name!r})"
                )
            parts.append(
                OutputPart(
                    output=name,
                    out_type=output.out_type.name,
                    feature=numbers[piece.feature_name],
                    start=piece.start,
                    width=piece.end - piece.start,
                    pooling=int(config.pooling_type),
                    length=_length(config),
                )
            )
        return parts


@dataclass(frozen=True)
class ShardingSparseFidsOpParams:
    """Say how the ids of a batch are sharded, and what the tables of the shards can do.

    Args:
        num_ps: number of shards; 0 means one local shard.
        feature_configs: features and outputs.
        use_native_multi_hash_table: one native call for all tables of a shard.
        unique: equal ids of a feature travel once.
        transfer_float16: rows and gradients travel as float16.
        sub_table_name_to_config: the table behind each name of the feature configs.
        enable_gpu_emb: tables are on an accelerator.
        use_gpu: outputs are made on an accelerator.

    Raises:
        ValueError: num_ps is negative.

    Example:
        >>> ShardingSparseFidsOpParams(0, FeatureConfigs({})).num_shards
        1
    """

    num_ps: int
    feature_configs: FeatureConfigs
    use_native_multi_hash_table: bool = False
    unique: bool = True
    transfer_float16: bool = False
    sub_table_name_to_config: Mapping[str, Any] = field(default_factory=dict)
    enable_gpu_emb: bool = False
    use_gpu: bool = False

    def __post_init__(self) -> None:
        if self.num_ps < 0:
            raise ValueError(
                f"[ShardingSparseFidsOpParams] expected num_ps of at least 0, got {self.num_ps}"
            )

    @property
    def num_shards(self) -> int:
        """Number of shards, the local one too."""
        return max(1, self.num_ps)


@dataclass
class ParserContext:
    """Options that the parts of one pipeline share; two contexts know nothing of each other.

    Attributes:
        enable_fused_layout: features are sharded while they are parsed, and become layouts.
        sharding_sparse_fids_op_params: how they are sharded; None before the tables are known.
    """

    enable_fused_layout: bool = False
    sharding_sparse_fids_op_params: ShardingSparseFidsOpParams | None = None


def _member(where: str, kind: type[IntEnum], value: Any) -> IntEnum:
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(f"{member.name}={member.value}" for member in kind)
        raise ValueError(
            f"{where} expected {kind.__name__} as one of {names}, got {value!r}"
        ) from error


def _length(config: FeatureConfig) -> int:
    """Rows that the feature keeps of a cell; 0: one, pooled."""
    return config.max_sequence_length if config.pooling_type is PoolingType.FIRSTN else 0


def _shapes(
    name: str, output: OutConfig, features: Mapping[str, FeatureConfig]
) -> tuple[tuple[int, ...], ...]:
    """Shapes of the tensors of an output, -1 for the batch."""
    kind, pieces = output.out_type, output.slice_configs
    widths = [piece.end - piece.start for piece in pieces]
    lengths = [_length(features[piece.feature_name]) for piece in pieces]
    if kind is OutType.ADDN and any(lengths):
        raise ValueError(
            f"[FeatureConfigs] expected ADDN of SUM and MEAN slices, got FIRSTN (output {name!r})"
        )
    if kind in (OutType.CONCAT, OutType.STACK) and len(set(lengths)) > 1:
        texts = ", ".join(f"FIRSTN of {n}" if n else "SUM or MEAN" for n in sorted(set(lengths)))
        raise ValueError(
            f"[FeatureConfigs] expected all slices of {kind.name} as FIRSTN with one length, or "
            f"none of them, got {texts} (output {name!r})"
        )
    if kind in (OutType.STACK, OutType.ADDN) and len(set(widths)) > 1:
        raise ValueError(
            f"[FeatureConfigs] expected slices of {kind.name} of one width, got {widths} "
            f"(output {name!r})"
        )
    tail = (lengths[0],) if lengths[0] else ()
    shapes: tuple[tuple[int, ...], ...]
    if kind is OutType.CONCAT:
        shapes = ((-1, *tail, sum(widths)),)
    elif kind is OutType.STACK:
        shapes = ((-1, len(pieces), *tail, widths[0]),)
    elif kind is OutType.ADDN:
        shapes = ((-1, widths[0]),)
    else:
        shapes = tuple(
            (-1, length, width) if length else (-1, width)
            for length, width in zip(lengths, widths, strict=True)
        )
    if output.shape and tuple(output.shape) != shapes:
        raise ValueError(
            f"[FeatureConfigs] expected shape {shapes} of output {name!r}, got {output.shape}"
        )
    return shapes
