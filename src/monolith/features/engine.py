"""Define the interface of an engine: it reads all features of a batch, and trains their tables."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from monolith.errors import FailedPreconditionError
from monolith.ops import Ragged
from monolith.ops.ragged import name_of
from monolith.table.arguments import as_integer, as_keys
from monolith.table.base import BaseTable
from monolith.table.content import copy_of_content, fill_table
from monolith.table.native import empty, empty_rows

COMBINERS = ("sum", "mean", "sqrtn", "first", "rows")
"""What becomes of a sample's rows: one row; the rows of the first ids; or the rows of all ids."""

_MAX_LENGTH = (1 << 31) - 1
_LINE = 16  # floats of a cache line
_WHERE = "[Features]"


@dataclass(frozen=True)
class BagFeature:
    """Describe a named list of ids in each sample, and how the rows of a table combine.

    ```
    ids of a sample    7 8 9        rows a b c
    sum, mean, sqrtn   a + b + c, times 1, 1 / 3, 1 / sqrt(3)   # (dim,)
    first, 2           a b                                      # (2, dim), zeros after the last id
    rows               a b c, outside of the matrix             # (num_ids of the batch, dim)
    ```

    Args:
        name: of the feature in a batch.
        table: name of the table; several features may share one.
        combiner: "sum", "mean", "sqrtn", "first" or "rows".
        max_length: number of first ids of a sample that are used and counted; 0 uses all ids.
            "first" needs a number, "rows" takes none.

    Example:
        >>> BagFeature("history", "item", "first", max_length=20).num_rows
        20
    """

    name: str
    table: str
    combiner: str = "sum"
    max_length: int = 0

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("table", self.table)):
            if not isinstance(value, str) or not value:
                raise TypeError(f"[BagFeature] expected {field} as a name, got {value!r}")
        which = f" (feature {self.name!r})"
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"[BagFeature] expected combiner in {', '.join(COMBINERS)}, "
                f"got {self.combiner!r}{which}"
            )
        length = as_integer("[BagFeature]", "max_length", self.max_length, which)
        least = 1 if self.combiner == "first" else 0
        most = 0 if self.combiner == "rows" else _MAX_LENGTH
        if not least <= length <= most:
            raise ValueError(
                f"[BagFeature] expected max_length in [{least}, {most}] with combiner "
                f"{self.combiner!r}, got {length}{which}"
            )
        object.__setattr__(self, "max_length", length)

    @property
    def num_rows(self) -> int:
        """Number of rows of a sample in the matrix."""
        return {"first": self.max_length, "rows": 0}.get(self.combiner, 1)


class Looked(Protocol):
    """Keep what `FeatureEngine.sum` needs of a lookup."""

    @property
    def rows(self) -> Mapping[str, torch.Tensor]:
        """Feature with combiner "rows" -> float32 (num_ids, dim), in the order of the ids."""

    @property
    def num_keys(self) -> int:
        """Number of ids that were used, each as often as it occurs."""


class Gradients(NamedTuple):
    """Hold the gradients of the outputs of one lookup. Nobody writes them until the step.

    An output without gradient trains nothing: its keys are neither updated nor inserted.

    Attributes:
        matrix: float32 (batch, width) or wider, where each row is contiguous; or None. Dense
            columns after the features count for nothing.
        rows: feature with combiner "rows" -> float32 (num_ids, dim), contiguous; only features
            that have gradients.
    """

    matrix: torch.Tensor | None
    rows: Mapping[str, torch.Tensor]

    def scaled(self, factor: float) -> "Gradients":
        """Return all gradients times a number."""
        rows = {name: gradients * factor for name, gradients in self.rows.items()}
        return Gradients(None if self.matrix is None else self.matrix * factor, rows)


class Summed(Protocol):
    """Hold the gradients of the distinct keys of each table."""

    @property
    def norm(self) -> torch.Tensor:
        """L2 norm over all tables, 0-d on the engine's device; not finite if one table's is not."""

    def norm_of(self, table: str) -> float:
        """Return the L2 norm of the gradient of one table; 0 without keys."""


class AppliedCounts(Protocol):
    """Count what a step did in all tables, as `monolith.table.Applied` does.

    An engine on a device or on servers may compute a count when it is read.
    """

    @property
    def num_applied(self) -> int:
        """Number of distinct keys that got an optimizer step."""

    @property
    def num_inserted(self) -> int:
        """Number of new keys among the keys that got a step."""

    @property
    def num_refused(self) -> int:
        """Number of distinct keys that admission refused."""

    @property
    def num_skipped(self) -> int:
        """Number of occurrences that were dropped for NaN or Inf."""


class FeatureEngine(Protocol):
    """Read the features of a batch as one matrix, and train the tables of the features.

    All engines give the same bits as `PlainEngine`. `lookup` may run concurrently with itself and
    with `step`; one thread calls `sum` and `step`. A copy or pickle of an engine has tables of its
    own; an engine that cannot be copied refuses. A graph of torch.compile holds the number of the
    `PendingGradients` of an engine, so an engine needs no handle.
    """

    @property
    def features(self) -> tuple[BagFeature, ...]:
        """The features in the order of the columns, and of sums of equal keys."""

    @property
    def tables(self) -> Mapping[str, BaseTable]:
        """The tables by name, all of one kind, in the order of `rates` and `times`."""

    @property
    def columns(self) -> Mapping[str, slice]:
        """Feature -> its columns in the matrix; features with combiner "rows" have none."""

    @property
    def width(self) -> int:
        """Number of columns of all features."""

    @property
    def steps_always(self) -> bool:
        """Whether a step without a queued key is made too: other processes may have some."""

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        weights: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor | None,
        missing: str,
    ) -> tuple[torch.Tensor, Any]:
        """Read the rows of all features. Stores nothing; copies the ids that `sum` needs.

        Args:
            ids: int64 or int32 of every feature, a row for each sample; others are left alone.
            weights: None. `Features` has no weights of ids yet, so every engine refuses others.
            dense: float32 (batch, n), copied into the matrix after the columns of the features.
            missing: what an id without a row reads as, "initial" or "zeros". A serving table reads
                zeros always.

        Returns:
            float32 (batch, width + n), whose rows may lie apart in memory; and a `Looked`.
        """

    def sum(self, items: Sequence[tuple[Any, Gradients]]) -> Any:
        """Add up the gradients of equal keys of each table. Changes no table.

        Args:
            items: a `Looked` of this engine and its gradients, lookup after lookup. Equal keys are
                added in the order of the items, then of the features, then of the ids. They stay
                unchanged while the sum is used.

        Returns:
            A `Summed`, for one `step`.
        """

    def step(self, summed: Any, rates: Sequence[float], times: Sequence[int]) -> AppliedCounts:
        """Make one optimizer step for each distinct key.

        The number of the step of a table, for its optimizer, is its `num_update_calls`. A table
        without keys makes no step.

        Args:
            summed: a `Summed` of this engine.
            rates: learning rates of all segments, table after table; checked by the caller.
            times: times of the tables in seconds; checked by the caller.
        """

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Return `BaseTable.stats` of each table, by name."""

    def memory_reports(self) -> Mapping[str, Mapping[str, int]]:
        """Return `BaseTable.memory_report` of each table, by name."""

    def check_open(self, where: str) -> None:
        """Refuse a call after a table or the engine was closed; `where` begins the message."""

    def close(self) -> None:
        """End threads and connections, and close the tables of this process.

        Tables on servers stay. Closing twice is fine.
        """


class EngineBase:
    """Hold the tables and features of an engine, and know when a table was closed.

    Args:
        tables: of one kind, with different names.
        features: of these tables, with different names.

    Attributes:
        takes_none: whether an engine of this class may have no tables and no features.
        steps_always: whether a step without a queued key is made too.
    """

    takes_none: ClassVar[bool] = False
    steps_always: bool = False

    def __init__(self, tables: Iterable[BaseTable], features: Sequence[BagFeature]) -> None:
        listed = list(tables)
        if listed or features or not self.takes_none:
            _check_tables(listed)
            _check_features(features, {table.name for table in listed})
        self.tables: Mapping[str, BaseTable] = MappingProxyType({t.name: t for t in listed})
        self.features = tuple(features)
        columns, self.width = columns_of(features, {table.name: table.dim for table in listed})
        self.columns: Mapping[str, slice] = MappingProxyType(columns)
        self._closed: str | None = None
        for table in listed:
            table._on_close(self._note_closed)

    def _note_closed(self, name: str) -> None:
        self._closed = name

    def check_open(self, where: str) -> None:
        """Refuse a call after a table was closed."""
        if self._closed is not None:
            raise FailedPreconditionError(
                f"{where} expected open tables, got a closed one (table {self._closed!r})"
            )

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Return `BaseTable.stats` of each table, by name."""
        return {name: table.stats() for name, table in self.tables.items()}

    def memory_reports(self) -> Mapping[str, Mapping[str, int]]:
        """Return `BaseTable.memory_report` of each table, by name."""
        return {name: table.memory_report() for name, table in self.tables.items()}

    def check_finite(self, summed: Summed) -> None:
        """Refuse gradients that a table refuses, before the first table changes."""
        for table in self.tables.values():
            norm = summed.norm_of(table.name)
            if table.config.non_finite == "refuse" and not math.isfinite(norm):
                raise ValueError(
                    f"[Features.step] expected finite gradients, got norm {norm} (table "
                    f"{table.name!r}); choose non_finite='skip' or 'clip'"
                )

    def close(self) -> None:
        """Close the tables. Closing twice is fine."""
        for table in self.tables.values():
            table.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows of all tables, for pickle and deepcopy."""
        contents = [copy_of_content(table) for table in self.tables.values()]
        return {"tables": contents, "features": self.features}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = [fill_table(content) for content in state["tables"]]
        type(self).__init__(self, tables, state["features"])


def _check_tables(tables: list[BaseTable]) -> None:
    """Refuse tables that cannot be called together."""
    if not tables:
        raise ValueError(f"{_WHERE} expected at least one table, got none")
    for table in tables:
        if not isinstance(table, BaseTable):
            raise TypeError(f"{_WHERE} expected tables as Table, got {type(table).__name__}")
        table._check_open("features")
        if table.config.kind != tables[0].config.kind:
            raise ValueError(
                f"{_WHERE} expected tables of one kind, got {tables[0].config.kind} (table "
                f"{tables[0].name!r}) and {table.config.kind} (table {table.name!r})"
            )
    _check_different("tables", [table.name for table in tables])


def _check_features(features: Sequence[BagFeature], tables: set[str]) -> None:
    """Refuse values that are no features, unknown tables, and equal names."""
    if not features:
        raise ValueError(f"{_WHERE} expected at least one feature, got none")
    for feature in features:
        if not isinstance(feature, BagFeature):
            raise TypeError(
                f"{_WHERE} expected features as BagFeature, got {type(feature).__name__}"
            )
        if feature.table not in tables:
            raise ValueError(
                f"{_WHERE} expected a table in {', '.join(sorted(tables))}, got {feature.table!r} "
                f"(feature {feature.name!r})"
            )
    _check_different("features", [feature.name for feature in features])


def _check_different(what: str, names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ValueError(
            f"{_WHERE} expected {what} with different names, got several of {', '.join(twice)}"
        )


def refuse_weights(weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights of ids, which no engine has yet."""
    raise NotImplementedError(
        f"[FeatureEngine.lookup] expected no weights of ids, got those of "
        f"{', '.join(weights) or 'no feature'}; use monolith.nn.EmbeddingBag with "
        "per_sample_weights"
    )


def columns_of(
    features: Iterable[BagFeature], dims: Mapping[str, int]
) -> tuple[dict[str, slice], int]:
    """Return the columns of each feature, side by side, and the number of all columns.

    Example:
        >>> columns_of([BagFeature("a", "t"), BagFeature("b", "t", "first", 2)], {"t": 3})
        ({'a': slice(0, 3, None), 'b': slice(3, 9, None)}, 9)
    """
    columns, width = {}, 0
    for feature in features:
        if feature.combiner == "rows":
            continue
        start, width = width, width + feature.num_rows * dims[feature.table]
        columns[feature.name] = slice(start, width)
    return columns, width


def new_matrix(batch: int, width: int, num_dense: int) -> torch.Tensor:
    """Allocate the matrix of a lookup, (batch, width + num_dense), for an engine to fill.

    With dense columns every row begins with a cache line: then the core need not fetch the lines
    that it writes. All engines share the layout, because a model may compute other bits from rows
    that lie otherwise in memory.
    """
    if not num_dense:
        return empty(batch, width)
    return empty_rows(batch, width + num_dense, -(-(width + num_dense) // _LINE) * _LINE)


def check_ids(features: Iterable[BagFeature], ids: Mapping[str, Ragged]) -> None:
    """Refuse a batch that lacks the ids of a feature, or whose features differ in samples."""
    where = "[Features.lookup]"
    if not isinstance(ids, Mapping):
        raise TypeError(
            f"{where} expected ids as a mapping from features to Ragged, got {type(ids).__name__}"
        )
    names = [feature.name for feature in features]
    missing = [name for name in names if name not in ids]
    if missing:
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise ValueError(f"{where} expected ids of every feature, got none of {shown}")
    for name in names:
        ragged = ids[name]
        if not isinstance(ragged, Ragged):
            raise TypeError(
                f"{where} expected ids of {name!r} as a Ragged, got {type(ragged).__name__}"
            )
        as_keys(where, f"ids of {name!r}", ragged.values)
        if ragged.values.dim() != 1:
            raise ValueError(
                f"{where} expected ids of {name!r} with 1 dimension, got shape "
                f"{tuple(ragged.values.shape)}"
            )
        if ragged.row_splits.dtype != torch.int64:
            raise TypeError(
                f"{where} expected row_splits of {name!r} of dtype int64, got "
                f"{name_of(ragged.row_splits.dtype)}"
            )
        if ragged.num_rows != ids[names[0]].num_rows:
            raise ValueError(
                f"{where} expected {ids[names[0]].num_rows} samples of every feature, as "
                f"{names[0]!r} has, got {ragged.num_rows} (feature {name!r})"
            )


def check_dense(dense: torch.Tensor, batch: int) -> None:
    """Refuse dense columns that do not fit next to those of the features."""
    where = "[Features.lookup]"
    if not isinstance(dense, torch.Tensor) or dense.dtype != torch.float32 or not dense.is_cpu:
        got = (
            f"{dense.dtype} on {dense.device}"
            if isinstance(dense, torch.Tensor)
            else type(dense).__name__
        )
        raise TypeError(f"{where} expected dense as a float32 tensor on the CPU, got {got}")
    if dense.dim() != 2 or len(dense) != batch:
        raise ValueError(
            f"{where} expected dense of shape ({batch}, columns), a row for each sample, got "
            f"{tuple(dense.shape)}"
        )
