"""Tables under the features of a batch: all features are read, summed and stepped together.

Native tables share one call of the core each way. Tables that are sharded, recorded, seen through a
view or written in Python go one by one through their pooled verbs, to the same bits.
"""

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.embedding.bag_feature import BagFeature, check_dense, check_ids, columns_of
from monolith.embedding.bags import Bags
from monolith.embedding.checks import check_num_keys, check_rates, check_training, default_threads
from monolith.embedding.config import segments_of
from monolith.embedding.initializers import MAX_FLOAT32
from monolith.embedding.native_core import OpenCore, empty, empty_rows
from monolith.embedding.plain_features import PlainFeatures, PlainSum
from monolith.embedding.verbs import TableVerbs
from monolith.errors import FailedPreconditionError
from monolith.ops import Ragged, RaggedColumns
from monolith.ops.ragged_columns import ColumnNames

if TYPE_CHECKING:
    import monolith._native as _native

__all__ = ["FeatureBatch", "FeatureItem", "FeatureSum", "FeatureTables"]

_ID_TYPES = frozenset((torch.int64, torch.int32))
_dtype_of = operator.attrgetter("dtype")
_VERB = "apply_bag_gradients"
_LINE = 16  # floats of a cache line
_MOST_COLUMNS = 2  # for each feature: of more, it is cheaper to copy those that are used


class FeatureBatch(NamedTuple):
    """The ids of one lookup, in memory of their own.

    Attributes:
        keys: int64 (num_keys,), of the features in the core, table by table; or all of the batch.
        splits: int64 (features, batch + 1), of the same; (batch + 1,) if all have the same.
        core: what the core made of both, and borrows; None: it has no features.
        bags: of the other features.
        num_keys: of all features, those beyond a limit left out.
    """

    keys: torch.Tensor
    splits: torch.Tensor
    core: "_native.FeatureKeys | None"
    bags: list[Bags]
    num_keys: int


class FeatureItem(NamedTuple):
    """The gradients of one lookup.

    Attributes:
        batch: what was looked up.
        gradients: float32 (batch, width); each row is contiguous.
    """

    batch: FeatureBatch
    gradients: torch.Tensor


class FeatureSum(NamedTuple):
    """The gradients of the distinct keys of each table.

    Attributes:
        norm: L2 norm over all tables; inf or nan if that of a table is not finite.
        core: of the tables in the core.
        plain: of the other tables, by number.
    """

    norm: float
    core: "_native.FeatureSum | None"
    plain: PlainSum


class _Plan(NamedTuple):
    """Which columns of a batch the features in the core are.

    Attributes:
        names: of the batch that it was made for.
        num_columns: of the batch, others included.
        columns: int32 (features,); None: they are the columns themselves, or no plan is made.
    """

    names: ColumnNames | None
    num_columns: int
    columns: torch.Tensor | None

    @classmethod
    def make(cls, features: Sequence[str], ids: RaggedColumns) -> "_Plan":
        """For features of a batch, unless one is missing or most columns are others."""
        places, num_columns = ids.names.places, len(ids.row_splits)
        if num_columns > _MOST_COLUMNS * len(features) or not places.keys() >= set(features):
            return cls(ids.names, num_columns, None)
        found = [places[name] for name in features]
        return cls(ids.names, num_columns, torch.tensor(found, dtype=torch.int32, device="cpu"))


def _matrix(
    batch: int, width: int, dense: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the features, and dense columns behind them, which are copied; and the former alone.

    Beside dense columns every row begins with a cache line: then the core need not fetch the lines
    that it writes.
    """
    if dense is None:
        out = empty(batch, width)
        return out, out
    whole = width + dense.shape[1]
    joined = empty_rows(batch, whole, -(-whole // _LINE) * _LINE)
    joined[:, width:] = dense.detach()
    return joined, joined[:, :width]


def _stacked(splits: list[torch.Tensor]) -> torch.Tensor:
    """A copy of row splits, (features, batch + 1); (batch + 1,) of one tensor that all share."""
    first = splits[0]
    return first.clone() if all(each is first for each in splits) else torch.stack(splits)


class FeatureTables:
    """Tables, and the features that are read from them.

    Args:
        tables: of one kind, with different names.
        features: of these tables.

    Attributes:
        tables: in the order given.
        features: in the order given.
        columns: of the output, by feature.
        width: of the output.
    """

    def __init__(self, tables: Sequence[TableVerbs], features: Sequence[BagFeature]) -> None:
        self.tables, self.features = list(tables), tuple(features)
        numbers = {table.name: number for number, table in enumerate(self.tables)}
        dims = {table.name: table.dim for table in self.tables}
        self.columns, self.width = columns_of(self.features, dims)
        cores = [table._step_core() for table in self.tables]
        by_table = sorted(self.features, key=lambda feature: numbers[feature.table])
        fused = [f for f in by_table if cores[numbers[f.table]] is not None]
        plain = [f for f in by_table if cores[numbers[f.table]] is None]
        self._names = names = [feature.name for feature in fused]
        self._own_plan = self._last_plan = _Plan(None, len(names), None)
        # In one call. The first one twice, for a single name would give no tuple.
        pick: Any = operator.itemgetter(*names[:1], *names) if names else tuple
        self._pick: Callable[[Mapping[str, Ragged]], tuple[Ragged, ...]] = pick
        self._fused_tables = [number for number, core in enumerate(cores) if core is not None]
        self._core = self._make_core([core for core in cores if core is not None], fused)
        self._plain = PlainFeatures(self.tables, plain, self.columns)
        sizes = [len(segments_of(table.config)) for table in self.tables]
        starts = itertools.accumulate(sizes, initial=0)
        self._segments = [slice(first, end) for first, end in itertools.pairwise(starts)]
        self._rates: list[float] = []
        self._fused_rates = empty(0)
        self._clocks = {id(table._clock): table for table in self.tables}
        self._closed: str | None = None
        for table in self.tables:
            table._on_close(self._note_closed)

    def _make_core(
        self, cores: "list[_native.Table]", features: list[BagFeature]
    ) -> "_native.FeatureTables | None":
        if not features:
            return None
        import monolith._native as native

        fused = {self.tables[number].name: i for i, number in enumerate(self._fused_tables)}
        tuples = [
            (f.name, fused[f.table], f.combiner, f.max_length, self.columns[f.name].start)
            for f in features
        ]
        return native.FeatureTables(cores, tuples)

    def _note_closed(self, name: str) -> None:
        self._closed = name
        self._core = None  # it would keep the closed table's memory

    def _open(self, verb: str) -> "OpenCore[_native.FeatureTables | None]":
        """The core for one call, also if a table is closed meanwhile; None: it has no features."""
        core = self._core
        self.check_open(f"[FeatureBags.{verb}]")
        return OpenCore(core, verb, owner="FeatureBags")

    def check_open(self, where: str) -> None:
        """Refuse a call after a table was closed."""
        if self._closed is not None:
            raise FailedPreconditionError(
                f"{where} expected open tables, got a closed one (table {self._closed!r})"
            )

    def lookup(
        self, ids: Mapping[str, Ragged], missing: str, dense: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, FeatureBatch]:
        """`FeatureBags.lookup`, and what backward needs of it."""
        opened = self._open("lookup")
        if self._plain.features:
            check_ids(self.features, ids)
        initial = missing == "initial" and not self.tables[0]._is_serving
        core = None
        with opened as tables:
            if tables is None:
                batch = ids[self.features[0].name].num_rows
                keys = splits = empty(0, dtype=torch.int64)
            else:
                keys, splits, plan = self._copied(ids)
                num_keys, batch = keys.numel(), splits.shape[-1] - 1
            check_dense(dense, batch)
            joined, out = _matrix(batch, self.width, dense)
            if tables is not None:
                given = (
                    keys.data_ptr(),
                    num_keys,
                    splits.data_ptr(),
                    0 if splits.dim() == 1 else batch + 1,
                    plan.num_columns,
                    0 if plan.columns is None else plan.columns.data_ptr(),
                    batch,
                )
                core = tables.lookup(
                    given, out.data_ptr(), out.stride(0), initial, default_threads(num_keys)
                )
        bags = self._plain.lookup(ids, out, initial)
        num_keys = sum([one.num_keys for one in bags]) + (0 if core is None else core.num_keys)
        return joined, FeatureBatch(keys, splits, core, bags, num_keys)

    def _copied(self, ids: Mapping[str, Ragged]) -> "tuple[torch.Tensor, torch.Tensor, _Plan]":
        """Copies of ids and row splits, and where the features in the core are in them."""
        if isinstance(ids, RaggedColumns) and ids.ids.is_cpu:
            plan = self._plan_of(ids)
            if plan.columns is not None:
                check_num_keys(self.tables[0].config, "lookup_bags", ids.ids.numel())
                splits = ids.row_splits
                splits = splits[0] if splits.stride(0) == 0 else splits
                return ids.ids.clone(), splits.clone(memory_format=torch.contiguous_format), plan
        return *self._joined(ids), self._own_plan

    def _plan_of(self, ids: RaggedColumns) -> "_Plan":
        """Where the features are; without columns if they are to be joined. Of a source once."""
        plan = self._last_plan
        if plan.names is not ids.names or plan.num_columns != len(ids.row_splits):
            plan = self._last_plan = _Plan.make(self._names, ids)
        return plan

    def _joined(self, ids: Mapping[str, Ragged]) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the ids and row splits of the features in the core, checked.

        With a thousand features every attribute counts: only if torch refuses them, or makes
        something else of them, they are looked at one by one.
        """
        try:
            given = self._pick(ids)[1:]
            values = [ragged.values for ragged in given]
            keys = torch.cat(values)
            splits = _stacked([ragged.row_splits for ragged in given])
            is_good = keys.dim() == 1 and keys.is_cpu and set(map(_dtype_of, values)) <= _ID_TYPES
        except (AttributeError, KeyError, RuntimeError, TypeError):
            is_good = False
        if not is_good:
            check_ids(self.features, ids)
        assert is_good
        check_num_keys(self.tables[0].config, "lookup_bags", keys.numel())
        return keys if keys.dtype == torch.int64 else keys.long(), splits

    def sum(self, items: Sequence[FeatureItem]) -> FeatureSum:
        """The gradients of equal keys added up, table by table, and their norm."""
        num_keys = sum([item.batch.num_keys for item in items])
        check_num_keys(self.tables[0].config, "sum_bag_gradients", num_keys)
        core = None
        with self._open("backward") as tables:
            if tables is not None:
                pieces: Any = [
                    (item.batch.core, item.gradients.data_ptr(), item.gradients.stride(0))
                    for item in items
                ]
                core = tables.sum(pieces, default_threads(num_keys))
        plain = self._plain.sum([(item.batch.bags, item.gradients) for item in items])
        if not plain:
            return FeatureSum(0.0 if core is None else core.norm, core, plain)
        squares = [summed.norm * summed.norm for summed in plain.values()]
        if core is not None:
            squares.append(core.norm * core.norm)
        return FeatureSum(math.sqrt(sum(squares)), core, plain)

    def norm_of(self, summed: FeatureSum, number: int) -> float:
        """L2 norm of the gradient of one table."""
        if number in summed.plain:
            return summed.plain[number].norm
        if summed.core is None or number not in self._fused_tables:
            return 0.0
        return summed.core.norm_of(self._fused_tables.index(number))

    def set_rates(self, rates: list[float]) -> None:
        """Take the learning rates of all segments, table after table, for the next steps."""
        for table in self.tables:
            check_training(table.config, _VERB)
        if not 0 <= min(rates) <= max(rates) <= MAX_FLOAT32 or math.isnan(sum(rates)):
            for table, segments in zip(self.tables, self._segments, strict=True):
                check_rates(table.config, _VERB, 0, rates[segments])
        self._rates = rates
        fused = [rate for number in self._fused_tables for rate in rates[self._segments[number]]]
        self._fused_rates = torch.tensor(fused, dtype=torch.float32, device="cpu")

    def own_rates(self) -> list[float]:
        """The learning rates that the segments have at the next update of their tables."""
        return [
            segment.optimizer.rate(table._update_calls())
            for table in self.tables
            for segment in segments_of(table.config)
        ]

    def times(self, time_of: Callable[[TableVerbs], int]) -> list[int]:
        """The time of each table; `time_of` is asked once for those that share a clock."""
        times = {clock: time_of(table) for clock, table in self._clocks.items()}
        if len(times) == 1:
            return list(times.values()) * len(self.tables)
        return [times[id(table._clock)] for table in self.tables]

    def step(self, summed: FeatureSum, times: list[int], num_keys: int) -> None:
        """One optimizer step per distinct key, with the rates of `set_rates`."""
        with self._open("step") as tables:
            if tables is not None and summed.core is not None:
                tables.step(
                    summed.core,
                    self._fused_rates.data_ptr(),
                    [times[number] for number in self._fused_tables],
                    default_threads(num_keys),
                )
        for number in summed.plain:
            rates = self._rates[self._segments[number]]
            self._plain.step(number, summed.plain, rates, times[number])
