"""Read, sum and step all features of a batch in one call of the C++ core each way."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.features.engine import (
    BagFeature,
    EngineBase,
    FeatureEngine,
    Gradients,
    check_dense,
    check_ids,
    new_matrix,
    refuse_weights,
)
from monolith.features.plain import PlainEngine
from monolith.ops import Ragged, RaggedColumns
from monolith.ops.ragged_columns import ColumnNames
from monolith.table._checks import check_num_keys, default_threads
from monolith.table.base import BaseTable
from monolith.table.native import OpenCore, empty
from monolith.table.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native


_ID_TYPES = frozenset((torch.int64, torch.int32))
_MOST_COLUMNS = 2  # per feature: of more, it is cheaper to take those that are used
_dtype_of, _is_cpu = operator.attrgetter("dtype"), operator.attrgetter("is_cpu")
_dim_of, _size_of = torch.Tensor.dim, torch.Tensor.numel
_is_contiguous, _address_of = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
_Out = tuple[int, int, int, int, int, int]


class IdAddresses(NamedTuple):
    """Say where the ids of a batch are, for the core.

    Attributes:
        addresses: addresses and sizes as the core takes them.
        num_ids: number of ids of all features, or more.
        batch: number of samples.
        tensors: the tensors at the addresses, which must outlive the call.
    """

    addresses: tuple[Any, ...]
    num_ids: int
    batch: int
    tensors: Sequence[torch.Tensor]


class _Plan(NamedTuple):
    """Say which columns of a batch the features are.

    Attributes:
        names: names of the columns of the batch.
        num_columns: number of columns of the batch, also those that are no features.
        columns: int32 (features,), the column of each feature; None reads features one by one.
    """

    names: ColumnNames | None
    num_columns: int
    columns: torch.Tensor | None

    @classmethod
    def make(cls, features: Sequence[str], ids: RaggedColumns) -> "_Plan":
        """Return the columns of features, unless one is missing or most columns are others."""
        places, num_columns = ids.names.places, len(ids.row_splits)
        if num_columns > _MOST_COLUMNS * len(features) or not places.keys() >= set(features):
            return cls(ids.names, num_columns, None)
        columns = [places[name] for name in features]
        return cls(ids.names, num_columns, torch.tensor(columns, dtype=torch.int32, device="cpu"))


class IdPlaces:
    """Find the ids of some features in batches.

    Args:
        names: of the features, in the order of the core.
        is_joined: whether ids in one memory may be handed on as they are.
    """

    def __init__(self, names: Sequence[str], *, is_joined: bool) -> None:
        self._names, self._is_joined = names, is_joined
        self._last_plan = _Plan(None, 0, None)
        # The first name stands twice, for `itemgetter` of a single name gives no tuple.
        pick: Any = operator.itemgetter(*names[:1], *names) if names else tuple
        self._pick: Callable[[Mapping[str, Ragged]], tuple[Ragged, ...]] = pick

    def find(self, ids: Mapping[str, Ragged]) -> IdAddresses | None:
        """Return where the ids are, or None for bad ids."""
        if self._is_joined and isinstance(ids, RaggedColumns) and _is_plain(ids):
            plan = self._plan_of(ids)
            if plan.columns is not None:
                return _joined(ids, plan.num_columns, plan.columns)
        try:
            return _one_by_one(self._pick(ids)[1:])
        except (AttributeError, KeyError, RuntimeError, TypeError):
            return None

    def _plan_of(self, ids: RaggedColumns) -> _Plan:
        """Return the plan of a batch; batches of one source share it."""
        plan = self._last_plan
        if plan.names is not ids.names or plan.num_columns != len(ids.row_splits):
            plan = self._last_plan = _Plan.make(self._names, ids)
        return plan


def _is_plain(ids: RaggedColumns) -> bool:
    """Whether the core can take both tensors, which `tree_map` may have replaced."""
    return ids.ids.is_cpu and ids.ids.dtype == ids.row_splits.dtype == torch.int64


def _joined(ids: RaggedColumns, num_columns: int, columns: torch.Tensor) -> IdAddresses:
    keys, splits = ids.ids.contiguous(), ids.row_splits
    splits = (splits[0] if splits.stride(0) == 0 else splits).contiguous()
    batch = splits.shape[-1] - 1
    stride = 0 if splits.dim() == 1 else batch + 1
    places = (keys.data_ptr(), keys.numel(), splits.data_ptr(), stride)
    addresses = (*places, num_columns, columns.data_ptr(), batch)
    return IdAddresses(addresses, keys.numel(), batch, [keys, splits, columns])


def _one_by_one(features: Sequence[Ragged]) -> IdAddresses | None:
    # With a thousand features every attribute counts: `map` asks each of all tensors at once.
    ids = [ragged.values for ragged in features]
    splits = [ragged.row_splits for ragged in features]
    first, dtypes = splits[0], set(map(_dtype_of, ids))
    if all(other is first for other in splits):
        splits = [first]
    tensors = [*ids, *splits]
    is_good = (
        dtypes <= _ID_TYPES
        and set(map(_dtype_of, splits)) == {torch.int64}
        and all(map(_is_cpu, tensors))
        and set(map(_dim_of, tensors)) == {1}
        and len(set(map(_size_of, splits))) == 1
    )
    if not is_good:
        return None
    if not all(map(_is_contiguous, tensors)):
        tensors = [tensor.contiguous() for tensor in tensors]
        ids, splits = tensors[: len(ids)], tensors[len(ids) :]
    sizes, batch = list(map(_size_of, ids)), first.numel() - 1
    are_narrow = [tensor.dtype == torch.int32 for tensor in ids] if torch.int32 in dtypes else []
    places = (list(map(_address_of, ids)), sizes, list(map(_address_of, splits)))
    return IdAddresses((*places, are_narrow, batch), sum(sizes), batch, tensors)


class CoreLooked(NamedTuple):
    """Keep the ids of one lookup in memory of the core, and the rows of features with "rows"."""

    keys: "_native.FeatureKeys"
    rows: Mapping[str, torch.Tensor]

    @property
    def num_keys(self) -> int:
        """Number of ids of all features, without those beyond a limit."""
        return self.keys.num_keys


class CoreSum(NamedTuple):
    """Hold the gradients of the distinct keys of each table, in the core.

    Attributes:
        core: the sums; they borrow the memory of `items`.
        items: what was summed.
        numbers: table -> its number in the core.
    """

    core: "_native.FeatureSum"
    items: Sequence[tuple[CoreLooked, Gradients]]
    numbers: Mapping[str, int]

    @property
    def norm(self) -> torch.Tensor:
        """L2 norm over all tables."""
        return torch.tensor(self.core.norm, dtype=torch.float64, device="cpu")

    def norm_of(self, table: str) -> float:
        """Return the L2 norm of the gradient of one table; 0 without keys."""
        return self.core.norm_of(self.numbers[table])


class CoreEngine(EngineBase):
    """Read and step native tables in one call of the C++ core each way.

    The arguments are those of `EngineBase`; the methods are those of `FeatureEngine`.
    """

    def __init__(self, tables: Iterable[BaseTable], features: Sequence[BagFeature]) -> None:
        super().__init__(tables, features)
        self._numbers = {name: number for number, name in enumerate(self.tables)}
        by_table = sorted(self.features, key=lambda feature: self._numbers[feature.table])
        self._apart = [
            (feature.name, self.tables[feature.table].dim)
            for feature in by_table
            if feature.combiner == "rows"
        ]
        # Sizes of rows apart come from each `Ragged`, and must be those that the core reads.
        names = [feature.name for feature in by_table]
        self._places = IdPlaces(names, is_joined=not self._apart)
        self._config = next(iter(self.tables.values())).config
        self._is_serving = self._config.kind == "serving"
        self._core: _native.FeatureTables | None = self._make_core(by_table)
        self._rates: Sequence[float] = ()
        self._rate_tensor = empty(0)

    def _make_core(self, features: Sequence[BagFeature]) -> "_native.FeatureTables":
        import monolith._native as native

        cores = [table._step_core() for table in self.tables.values()]
        other = next((t for t, core in zip(self.tables, cores, strict=True) if core is None), None)
        if other is not None:
            raise TypeError(
                f"[CoreEngine] expected native tables without record and views, got another "
                f"(table {other!r}); use engine_for"
            )
        starts = {name: columns.start for name, columns in self.columns.items()}
        tuples = [
            (f.name, self._numbers[f.table], f.combiner, f.max_length, starts.get(f.name, 0))
            for f in features
        ]
        return native.FeatureTables([core for core in cores if core is not None], tuples)

    def _note_closed(self, name: str) -> None:
        super()._note_closed(name)
        self._core = None  # it would keep the closed table's memory

    def _open(self, verb: str) -> "OpenCore[_native.FeatureTables]":
        """Return the core for one call, also if another thread closes a table meanwhile."""
        core = self._core
        if core is None:
            self.check_open(f"[Features.{verb}]")
        assert core is not None
        return OpenCore(core, verb, owner="Features")

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        weights: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor | None,
        missing: str,
    ) -> tuple[torch.Tensor, CoreLooked]:
        """Read the rows of all features."""
        if weights is not None:
            refuse_weights(weights)
        with self._open("lookup") as core:
            places = self._places.find(ids)
            if places is None:
                check_ids(self.features, ids)
            assert places is not None
            check_num_keys(self._config, "lookup_bags", places.num_ids)
            if dense is not None:
                check_dense(dense, places.batch)
                if dense.stride(1) != 1 or dense.is_neg():
                    dense = dense.resolve_neg().contiguous()
            matrix, out = self._out(places.batch, dense)
            rows = {name: empty(ids[name].values.numel(), dim) for name, dim in self._apart}
            keys = core.lookup(
                places.addresses,
                out,
                [tensor.data_ptr() for tensor in rows.values()],
                missing == "initial" and not self._is_serving,
                default_threads(places.num_ids),
            )
        return matrix, CoreLooked(keys, rows)

    def _out(self, batch: int, dense: torch.Tensor | None) -> tuple[torch.Tensor, _Out]:
        """Allocate the matrix; return also what the core takes of it and of dense columns."""
        if dense is None:
            matrix = new_matrix(batch, self.width, 0)
            return matrix, (matrix.data_ptr(), self.width, 0, 0, 0, 0)
        num_dense = dense.shape[1]
        matrix = new_matrix(batch, self.width, num_dense)
        columns = (dense.data_ptr(), dense.stride(0), num_dense, self.width)
        return matrix, (matrix.data_ptr(), matrix.stride(0), *columns)

    def sum(self, items: Sequence[tuple[CoreLooked, Gradients]]) -> CoreSum:
        """Add up the gradients of equal keys of each table."""
        num_keys = sum([looked.num_keys for looked, _ in items])
        check_num_keys(self._config, "sum_bag_gradients", num_keys)
        with self._open("backward") as core:
            pieces = [self._piece(looked, gradients) for looked, gradients in items]
            summed = core.sum(pieces, default_threads(num_keys))
        return CoreSum(summed, tuple(items), self._numbers)

    def _piece(
        self, looked: CoreLooked, gradients: Gradients
    ) -> "tuple[_native.FeatureKeys, int, int, list[int]]":
        matrix, rows = gradients
        apart = [rows[name].data_ptr() if name in rows else 0 for name, _ in self._apart]
        if matrix is None:
            return looked.keys, 0, 0, apart
        return looked.keys, matrix.data_ptr(), matrix.stride(0), apart

    def step(self, summed: CoreSum, rates: Sequence[float], times: Sequence[int]) -> Applied:
        """Make one optimizer step for each distinct key."""
        if not math.isfinite(summed.core.norm):
            self.check_finite(summed)
        rates = tuple(rates)  # of a tuple itself
        if rates is not self._rates:
            self._rates = rates
            self._rate_tensor = torch.tensor(rates, dtype=torch.float32, device="cpu")
        threads = default_threads(sum([looked.num_keys for looked, _ in summed.items]))
        with self._open("step") as core:
            address = self._rate_tensor.data_ptr()
            return Applied(*core.step(summed.core, address, list(times), threads))


def engine_for(tables: Iterable[BaseTable], features: Sequence[BagFeature]) -> FeatureEngine:
    """Return the engine in this process that suits the tables.

    Native tables without record and views share calls of the core; if one table is of another
    class, all tables go one by one, to the same bits. There may be no tables.

    Args:
        tables: of one kind, with different names.
        features: of these tables, with different names.
    """
    listed = list(tables)
    is_native = bool(listed) and all(
        isinstance(t, BaseTable) and t._step_core() is not None for t in listed
    )
    return (CoreEngine if is_native else PlainEngine)(listed, features)
