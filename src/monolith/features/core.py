"""`CoreEngine`: all features of a batch are read, summed and stepped in one call of the C++ core.

Native tables share one call each way. Tables that are sharded, recorded, seen through a view or
written in Python go one by one through their pooled verbs, to the same bits.
"""

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.errors import FailedPreconditionError
from monolith.features.engine import BagFeature, check_dense, check_ids, columns_of
from monolith.features.plain import PlainEngine, PlainSum
from monolith.ops import Ragged, RaggedColumns
from monolith.ops.ragged_columns import ColumnNames
from monolith.table._checks import check_num_keys, check_rates, check_training, default_threads
from monolith.table.bags import Bags
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.native import OpenCore, empty, empty_rows

if TYPE_CHECKING:
    import monolith._native as _native


_ID_TYPES = frozenset((torch.int64, torch.int32))
_MOST_COLUMNS = 2  # for each feature: of more, it is cheaper to take those that are used
_dtype_of, _is_cpu = operator.attrgetter("dtype"), operator.attrgetter("is_cpu")
_dim_of, _size_of = torch.Tensor.dim, torch.Tensor.numel
_is_contiguous, _address_of = torch.Tensor.is_contiguous, torch.Tensor.data_ptr


class GivenIds(NamedTuple):
    """The ids of a batch, borrowed.

    Attributes:
        addresses: what the core takes, addresses and sizes.
        num_ids: of all features, or more.
        batch: number of samples.
        held: what lies at the addresses.
    """

    addresses: tuple[Any, ...]
    num_ids: int
    batch: int
    held: Sequence[torch.Tensor]


class _Plan(NamedTuple):
    """Which columns of a batch the features are.

    Attributes:
        names: of the batch that it was made for.
        num_columns: of the batch, others included.
        columns: int32 (features,); None: no plan is made.
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


class IdPlaces:
    """Finds the ids of some features in batches.

    Args:
        names: of the features, in the order of the core.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._last_plan = _Plan(None, 0, None)
        # In one call. The first one twice, for a single name would give no tuple.
        pick: Any = operator.itemgetter(*names[:1], *names) if names else tuple
        self._pick: Callable[[Mapping[str, Ragged]], tuple[Ragged, ...]] = pick

    def find(self, ids: Mapping[str, Ragged]) -> GivenIds | None:
        """None if something is wrong with them."""
        if isinstance(ids, RaggedColumns) and _is_plain(ids):
            plan = self._plan_of(ids)
            if plan.columns is not None:
                return _joined(ids, plan.num_columns, plan.columns)
        try:
            return _one_by_one(self._pick(ids)[1:])
        except (AttributeError, KeyError, RuntimeError, TypeError):
            return None

    def _plan_of(self, ids: RaggedColumns) -> _Plan:
        """Where the features are; no columns: they are taken one by one. Of a source once."""
        plan = self._last_plan
        if plan.names is not ids.names or plan.num_columns != len(ids.row_splits):
            plan = self._last_plan = _Plan.make(self._names, ids)
        return plan


def _is_plain(ids: RaggedColumns) -> bool:
    """Whether the core can take both tensors: mapped as a tree, they may be anything."""
    return ids.ids.is_cpu and ids.ids.dtype == ids.row_splits.dtype == torch.int64


def _joined(ids: RaggedColumns, num_columns: int, columns: torch.Tensor) -> GivenIds:
    """Of features whose ids lie together."""
    keys, splits = ids.ids.contiguous(), ids.row_splits
    splits = (splits[0] if splits.stride(0) == 0 else splits).contiguous()
    batch = splits.shape[-1] - 1
    stride = 0 if splits.dim() == 1 else batch + 1
    places = (keys.data_ptr(), keys.numel(), splits.data_ptr(), stride)
    addresses = (*places, num_columns, columns.data_ptr(), batch)
    return GivenIds(addresses, keys.numel(), batch, [keys, splits, columns])


def _one_by_one(features: Sequence[Ragged]) -> GivenIds | None:
    """With a thousand features every attribute counts: each is asked of all in one go."""
    ids = [ragged.values for ragged in features]
    splits = [ragged.row_splits for ragged in features]
    first, dtypes = splits[0], set(map(_dtype_of, ids))
    if all(each is first for each in splits):
        splits = [first]
    held = [*ids, *splits]
    is_good = (
        dtypes <= _ID_TYPES
        and set(map(_dtype_of, splits)) == {torch.int64}
        and all(map(_is_cpu, held))
        and set(map(_dim_of, held)) == {1}
        and len(set(map(_size_of, splits))) == 1
    )
    if not is_good:
        return None
    if not all(map(_is_contiguous, held)):
        held = [each.contiguous() for each in held]
        ids, splits = held[: len(ids)], held[len(ids) :]
    sizes, batch = list(map(_size_of, ids)), first.numel() - 1
    are_narrow = [each.dtype == torch.int32 for each in ids] if torch.int32 in dtypes else []
    places = (list(map(_address_of, ids)), sizes, list(map(_address_of, splits)))
    return GivenIds((*places, are_narrow, batch), sum(sizes), batch, held)


_VERB = "apply_bag_gradients"
_LINE = 16  # floats of a cache line
_Out = tuple[int, int, int, int, int, int]


class FeatureBatch(NamedTuple):
    """The ids of one lookup, in memory of their own.

    Attributes:
        core: of the features in the core; None: it has none.
        bags: of the other features.
        num_keys: of all features, those beyond a limit left out.
    """

    core: "_native.FeatureKeys | None"
    bags: list[Bags]
    num_keys: int


class FeatureItem(NamedTuple):
    """The gradients of one lookup.

    Attributes:
        batch: what was looked up.
        gradients: float32 (batch, width), or wider; each row is contiguous.
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


class CoreEngine:
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

    def __init__(self, tables: Sequence[BaseTable], features: Sequence[BagFeature]) -> None:
        self.tables, self.features = list(tables), tuple(features)
        numbers = {table.name: number for number, table in enumerate(self.tables)}
        dims = {table.name: table.dim for table in self.tables}
        self.columns, self.width = columns_of(self.features, dims)
        cores = [table._step_core() for table in self.tables]
        by_table = sorted(self.features, key=lambda feature: numbers[feature.table])
        fused = [f for f in by_table if cores[numbers[f.table]] is not None]
        plain = [f for f in by_table if cores[numbers[f.table]] is None]
        self._places = IdPlaces([feature.name for feature in fused])
        self._fused_tables = [number for number, core in enumerate(cores) if core is not None]
        self._core = self._make_core([core for core in cores if core is not None], fused)
        self._plain = PlainEngine(self.tables, plain, self.columns)
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
        core, bags = None, []
        with opened as tables:
            given = None if tables is None else self._given(ids)
            batch = ids[self.features[0].name].num_rows if given is None else given.batch
            check_dense(dense, batch)
            if dense is not None and (dense.stride(1) != 1 or dense.is_neg()):
                dense = dense.resolve_neg().contiguous()
            joined, out = self._out(batch, dense)
            if tables is not None and given is not None:
                threads = default_threads(given.num_ids)
                core = tables.lookup(given.addresses, out, initial, threads)
        if self._plain.features:
            bags = self._plain.lookup(ids, joined, initial)
            if core is None and dense is not None:
                joined[:, self.width :] = dense.detach()
        num_keys = sum([one.num_keys for one in bags]) + (0 if core is None else core.num_keys)
        return joined, FeatureBatch(core, bags, num_keys)

    def _out(self, batch: int, dense: torch.Tensor | None) -> tuple[torch.Tensor, _Out]:
        """Room for the features, and for dense columns behind them; what the core takes of both.

        Beside dense columns every row begins with a cache line: then the core need not fetch the
        lines that it writes.
        """
        if dense is None:
            joined = empty(batch, self.width)
            return joined, (joined.data_ptr(), self.width, 0, 0, 0, 0)
        num_dense = dense.shape[1]
        stride = -(-(self.width + num_dense) // _LINE) * _LINE
        joined = empty_rows(batch, self.width + num_dense, stride)
        given = (dense.data_ptr(), dense.stride(0), num_dense, self.width)
        return joined, (joined.data_ptr(), stride, *given)

    def _given(self, ids: Mapping[str, Ragged]) -> GivenIds:
        """The ids of the features in the core, checked."""
        given = self._places.find(ids)
        if given is None:
            check_ids(self.features, ids)
        assert given is not None
        check_num_keys(self.tables[0].config, "lookup_bags", given.num_ids)
        return given

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
        if not self._plain.features:
            return FeatureSum(0.0 if core is None else core.norm, core, {})
        plain = self._plain.sum([(item.batch.bags, item.gradients) for item in items])
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

    def times(self, time_of: Callable[[BaseTable], int]) -> list[int]:
        """The time of each table; `time_of` is asked once for those that share a clock."""
        times = {clock: time_of(table) for clock, table in self._clocks.items()}
        if len(times) == 1:
            return list(times.values()) * len(self.tables)
        return [times[id(table._clock)] for table in self.tables]

    def step(
        self,
        summed: FeatureSum,
        times: list[int],
        num_keys: int,
        beside: Callable[[], object] | None = None,
    ) -> None:
        """One optimizer step per distinct key, with the rates of `set_rates`.

        Args:
            summed: gradients.
            times: of each table.
            num_keys: which the gradients were of.
            beside: called once, here, while other threads begin.
        """
        rates = self._fused_rates  # held: Python may run inside of the call
        with self._open("step") as tables:
            if tables is not None and summed.core is not None:
                tables.step(
                    summed.core,
                    rates.data_ptr(),
                    [times[number] for number in self._fused_tables],
                    default_threads(num_keys),
                    beside,
                )
            elif beside is not None:
                beside()
        for number in summed.plain:
            own_rates = self._rates[self._segments[number]]
            self._plain.step(number, summed.plain, own_rates, times[number])
