"""Settings of a table: name, segments and rules. Plain data, shared by every table."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from monolith.table.arguments import as_integer, as_list, check_kind, check_number
from monolith.table.initializers import MAX_FLOAT32, Constant, Initializer, Normal, Uniform, Zeros
from monolith.table.optimizers import OPTIMIZERS, SGD, Optimizer, StateColumn
from monolith.table.precision import PRECISIONS, Storage, View, code_dtype, code_size
from monolith.table.rules import (
    EMPTY_TABLE_BYTES,
    Admission,
    Budget,
    Expiry,
    MinCount,
    Probabilistic,
    SlidingFilter,
)

NUM_PARTITIONS = 4096
"""Number of partitions of the key space: the top 12 bits of a key's hash."""

_MAX_DIM = 1 << 16
_MAX_ROUNDED_DIM = 1 << 18  # column // 4 fits half a word of the rounding's counter


@dataclass(frozen=True)
class Segment:
    """Adjacent columns of a row that share initializer, optimizer and storage.

    Args:
        dim: number of weights.
        optimizer: update rule of the weights; a class of this package, not a subclass.
        initializer: initial values of the weights in a new row.
        name: name in exports and files; None means the segment's index.
        precision: storage of the weights of training rows: "fp32", or "fp16" and "bf16" with
            stochastic rounding. State stays float32.
        view: `FixedR8` or `OneBit`: transformation of the weights in training lookups, and storage
            in serving tables. None means the weights themselves, stored by `precision`.

    Example:
        >>> Segment(16).dim
        16
    """

    dim: int
    optimizer: Optimizer = field(default_factory=SGD)
    initializer: Initializer = field(default_factory=Uniform)
    name: str | None = None
    precision: str = "fp32"
    view: View | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", as_integer("[Segment]", "dim", self.dim))
        if not 1 <= self.dim <= _MAX_DIM:
            raise ValueError(f"[Segment] expected 1 <= dim <= {_MAX_DIM}, got {self.dim}")
        if not isinstance(self.optimizer, Optimizer):
            raise TypeError(f"[Segment] expected a sparse optimizer, got {self.optimizer!r}")
        if type(self.optimizer) not in OPTIMIZERS:
            raise TypeError(
                f"[Segment] expected a sparse optimizer of this package, got {self.optimizer!r}; "
                "a subclass has no update rule"
            )
        if type(self.initializer) not in (Zeros, Constant, Uniform, Normal):
            raise TypeError(
                f"[Segment] expected initializer as Zeros, Constant, Uniform or Normal, "
                f"got {self.initializer!r}"
            )
        self.optimizer.state(self.dim)  # refuses a dim that the optimizer does not support
        if not isinstance(self.name, str | None):
            raise TypeError(f"[Segment] expected name as a str or None, got {self.name!r}")
        if self.name is not None and (not self.name or "/" in self.name):
            raise ValueError(
                f"[Segment] expected a name without '/', got {self.name!r}; it names columns"
            )
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"[Segment] expected precision {', '.join(map(repr, PRECISIONS))}, "
                f"got {self.precision!r}"
            )
        if self.view is not None and not isinstance(self.view, View):
            raise TypeError(f"[Segment] expected view FixedR8, OneBit or None, got {self.view!r}")


@dataclass(frozen=True)
class TableConfig:
    """Everything that determines a table's content, except for the calls of its verbs.

    Args:
        name: name of the table, which determines the default seed.
        segments: one segment, or several in column order.
        seed: 64-bit seed of initial values; None takes the seed of the name.
        non_finite: effect of a gradient with NaN or Inf: "refuse" the whole call before any change,
            "skip" the occurrence, or "clip" (NaN -> 0, Inf -> `clip_value`).
        clip_value: number that replaces infinities with "clip".
        kind: "training", or "serving": rows hold encoded weights only, new rows start from zeros,
            missing keys read as zeros, and gradients are refused. `dataclasses.replace` creates the
            serving config of a training config.
        skip_zero: whether a serving table drops rows whose weights are all zero.
        admission: rule that decides which missing keys get a row; None, or a serving table, admits
            all.
        expiry: rule that decides how long rows live; None keeps rows for ever.
        budget: bound on the table's memory; None means no bound.

    Example:
        >>> TableConfig("user", Segment(16)).dim
        16
    """

    name: str
    segments: Sequence[Segment] | Segment
    seed: int | None = None
    non_finite: str = "refuse"
    clip_value: float | None = None
    kind: str = "training"
    skip_zero: bool = False
    admission: Admission | None = None
    expiry: Expiry | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"[TableConfig] expected name as a str, got {self.name!r}")
        segments = self._checked_segments()
        object.__setattr__(self, "segments", segments)
        seed = self.seed
        seed = name_seed(self.name) if seed is None else as_integer("[TableConfig]", "seed", seed)
        object.__setattr__(self, "seed", seed)
        if not segments:
            raise ValueError(f"[TableConfig] expected at least one segment (table {self.name!r})")
        names = [segment_name(self, i) for i in range(len(segments))]
        if len(set(names)) != len(names):
            raise ValueError(f"[TableConfig] expected distinct segment names, got {names}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"[TableConfig] expected 0 <= seed < 2**64, got {seed}")
        self._check_non_finite()
        self._check_storage()
        self._check_retention()

    def _check_storage(self) -> None:
        if self.kind not in ("training", "serving"):
            raise ValueError(
                f"[TableConfig] expected kind 'training' or 'serving', got {self.kind!r}"
            )
        check_kind("[TableConfig]", "skip_zero", self.skip_zero, bool)
        if self.skip_zero and self.kind != "serving":
            raise ValueError(
                f"[TableConfig] expected skip_zero with kind='serving' only, got {self.kind!r}"
            )
        is_rounded = any(segment.precision != "fp32" for segment in segments_of(self))
        if is_rounded and self.dim > _MAX_ROUNDED_DIM:
            raise ValueError(
                f"[TableConfig] expected dim <= {_MAX_ROUNDED_DIM} with a precision other than "
                f"'fp32', got {self.dim}"
            )

    def _checked_segments(self) -> tuple[Segment, ...]:
        if isinstance(self.segments, Segment):
            return (self.segments,)
        which = f" (table {self.name!r})"
        segments = as_list("[TableConfig]", "segments", self.segments, which)
        for segment in segments:
            if not isinstance(segment, Segment):
                raise TypeError(f"[TableConfig] expected a Segment, got {segment!r}{which}")
        return tuple(segments)

    def _check_non_finite(self) -> None:
        if self.non_finite not in ("refuse", "skip", "clip"):
            raise ValueError(
                f"[TableConfig] expected non_finite 'refuse', 'skip' or 'clip', "
                f"got {self.non_finite!r}"
            )
        is_clip = self.non_finite == "clip"
        if is_clip != (self.clip_value is not None):
            raise ValueError(
                f"[TableConfig] expected clip_value exactly with non_finite='clip', "
                f"got clip_value={self.clip_value} with {self.non_finite!r}"
            )
        if self.clip_value is not None:
            check_number("[TableConfig]", "clip_value", self.clip_value)
        if self.clip_value is not None and not 0 < self.clip_value <= MAX_FLOAT32:
            raise ValueError(
                f"[TableConfig] expected clip_value in (0, {MAX_FLOAT32:g}], got {self.clip_value}"
            )

    def _check_retention(self) -> None:
        kinds = {
            "admission": (MinCount, SlidingFilter, Probabilistic),
            "expiry": (Expiry,),
            "budget": (Budget,),
        }
        for name, classes in kinds.items():
            value = getattr(self, name)
            if value is not None:
                check_kind("[TableConfig]", name, value, *classes)
        least = EMPTY_TABLE_BYTES + row_bytes(self)
        if self.budget is not None and self.budget.max_bytes < least:
            raise ValueError(
                f"[TableConfig] expected a budget of at least {least} bytes, a table of one row, "
                f"got {self.budget.max_bytes} (table {self.name!r})"
            )

    @property
    def dim(self) -> int:
        """Number of weights of a row."""
        return sum(segment.dim for segment in segments_of(self))


def segments_of(config: TableConfig) -> tuple[Segment, ...]:
    """Return the segments as the tuple that the constructor created."""
    assert isinstance(config.segments, tuple)
    return config.segments


def segment_name(config: TableConfig, index: int) -> str:
    """Return the name of a segment in exports and files."""
    return segments_of(config)[index].name or str(index)


def storage_of(config: TableConfig, index: int) -> Storage:
    """Return the storage of a segment's weights."""
    segment = segments_of(config)[index]
    if config.kind == "serving" and segment.view is not None:
        return segment.view
    return segment.precision


def state_columns(config: TableConfig) -> list[tuple[str, StateColumn]]:
    """Return (column name, column) of all optimizer state in row order; serving rows have none."""
    if config.kind == "serving":
        return []
    return [
        (f"state/{segment_name(config, i)}/{column.name}", column)
        for i, segment in enumerate(segments_of(config))
        for column in segment.optimizer.state(segment.dim)
    ]


def column_sizes(config: TableConfig) -> dict[str, int]:
    """Return the width of every column of an export, in file order: weights, then state."""
    sizes = {
        f"weight/{segment_name(config, i)}": code_size(storage_of(config, i), segment.dim)
        for i, segment in enumerate(segments_of(config))
    }
    sizes.update({name: column.size for name, column in state_columns(config)})
    return sizes


def column_dtypes(config: TableConfig) -> dict[str, str]:
    """Return the dtype of every column of an export, by its name in torch."""
    dtypes = {
        f"weight/{segment_name(config, i)}": code_dtype(storage_of(config, i))
        for i in range(len(segments_of(config)))
    }
    dtypes.update({name: column.dtype for name, column in state_columns(config)})
    return dtypes


def row_bytes(config: TableConfig) -> int:
    """Return an upper bound of the bytes of a native row, with its share of the index."""
    state = sum(column.num_bytes for _, column in state_columns(config))
    return 4 * config.dim + state + 64


def name_seed(name: str) -> int:
    """Return the default seed: the low 64 bits of md5(name), read as one big-endian number."""
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "big")
