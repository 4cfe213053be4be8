"""`ExchangeEngine`: what engines share whose rows are on servers or in other ranks."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.cluster.exchange.key_folds import owners_of
from monolith.cluster.sharded_table import ShardedTable
from monolith.features.core import IdPlaces
from monolith.features.engine import (
    BagFeature,
    EngineBase,
    Gradients,
    check_dense,
    check_ids,
    new_matrix,
    refuse_weights,
)
from monolith.ops import Ragged
from monolith.table._checks import check_num_keys, default_threads
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.native import OpenCore, empty
from monolith.table.routing import FloorModRouting, PartitionRouting, Routing

if TYPE_CHECKING:
    import monolith._native as _native

_Piece = tuple["_native.ExchangeKeys", int, int, list[int]]


class Requests(NamedTuple):
    """The distinct keys of all tables, place by place.

    Attributes:
        core: which id is which key.
        keys: int64, those of each place after those of the last.
        splits: int64 (num_places, num_tables + 1), where the keys of each table begin and end.
    """

    core: "_native.ExchangeKeys"
    keys: torch.Tensor
    splits: torch.Tensor

    @classmethod
    def of(cls, core: "_native.ExchangeKeys", num_tables: int) -> "Requests":
        """Write the keys that the core has grouped."""
        starts = core.key_starts
        keys = empty(starts[-1], dtype=torch.int64)
        splits = empty(len(starts) - 1, num_tables + 1, dtype=torch.int64)
        core.write(keys.data_ptr(), splits.data_ptr(), default_threads(core.num_ids))
        return cls(core, keys, splits)

    def parts(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and row splits for each place."""
        ranges = itertools.pairwise(self.core.key_starts)
        return [
            (self.keys[i:j], splits) for (i, j), splits in zip(ranges, self.splits, strict=True)
        ]


class ExchangeLooked(NamedTuple):
    """What was asked for in one lookup, and the rows of features with combiner "rows"."""

    requests: Requests
    rows: Mapping[str, torch.Tensor]

    @property
    def num_keys(self) -> int:
        """Number of ids of all features, without those beyond a limit."""
        return self.requests.core.num_ids


class ExchangeSum(NamedTuple):
    """The gradient of each distinct key, as the places will get it.

    Attributes:
        requests: the keys.
        grads: float32, in the order of the keys.
        counts: int32 (num_keys,), occurrences of each key.
        norms: L2 norm of the gradient of each table, by name, in the order of the tables.
        items: what was summed; the core borrows its memory.
    """

    requests: Requests
    grads: torch.Tensor
    counts: torch.Tensor
    norms: Mapping[str, float]
    items: Sequence[tuple[ExchangeLooked, Gradients]]

    @property
    def norm(self) -> torch.Tensor:
        """L2 norm over all tables."""
        square = 0.0
        for norm in self.norms.values():
            square += norm * norm
        return torch.tensor(math.sqrt(square), dtype=torch.float64, device="cpu")

    def norm_of(self, table: str) -> float:
        """Return the L2 norm of the gradient of one table; 0 without keys."""
        return self.norms[table]


class ExchangeEngine(EngineBase, ABC):
    """Base of engines whose rows are in several places: it groups, pools and sums with the core.

    A place is a server or a rank. This process folds equal ids, pools the rows of the answers, and
    sums gradients by key; the places read and step the rows.

    Args:
        tables: with a shard at each place, all by `PartitionRouting` or all by `FloorModRouting`.
        features: of these tables, with different names.
        transfer: dtype of rows and gradients on their way; all sides compute in float32.
    """

    def __init__(
        self,
        tables: Iterable[BaseTable],
        features: Sequence[BagFeature],
        *,
        transfer: str = "float32",
    ) -> None:
        super().__init__(tables, features)
        self._transfer = transfer
        self._names = sorted(self.tables)  # the order of a group

    def _set_places(self, num_places: int) -> None:
        """Divide the keys among the places, once, at the end of the constructor."""
        names = self._names
        self._sharded = [sharded(type(self), self.tables[name], num_places) for name in names]
        self._routing = _common_routing(type(self), self._sharded)
        self._order = [list(self.tables).index(name) for name in names]
        numbers = {name: number for number, name in enumerate(names)}
        by_table = sorted(self.features, key=lambda feature: numbers[feature.table])
        self._apart = [f.name for f in by_table if f.combiner == "rows"]
        self._apart_dims = {
            f.name: self.tables[f.table].dim for f in self.features if f.combiner == "rows"
        }
        # Sizes of rows apart come from each `Ragged`, and must be those that the core reads.
        self._places = IdPlaces([f.name for f in by_table], is_joined=not self._apart)
        self._exchange = self._make_exchange(by_table, numbers)
        sizes = [len(segments_of(table.config)) for table in self.tables.values()]
        starts = itertools.accumulate(sizes, initial=0)
        segments = [slice(*pair) for pair in itertools.pairwise(starts)]
        self._segments = [segments[number] for number in self._order]

    def _make_exchange(
        self, features: Sequence[BagFeature], numbers: Mapping[str, int]
    ) -> "_native.Exchange":
        import monolith._native as native

        dims = [table.dim for table in self._sharded]
        starts = {name: columns.start for name, columns in self.columns.items()}
        tuples = [
            (f.name, numbers[f.table], f.combiner, f.max_length, starts.get(f.name, 0))
            for f in features
        ]
        return native.Exchange(dims, tuples, owners_of(self._routing), self._routing.num_shards)

    @abstractmethod
    def _pull(self, requests: Requests, initial: bool) -> Sequence[torch.Tensor | None]:
        """Return the rows of the keys at each place, float32; None where there are no keys."""

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        weights: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor | None,
        missing: str,
    ) -> tuple[torch.Tensor, ExchangeLooked]:
        """Read the rows of all features."""
        if weights is not None:
            refuse_weights(weights)
        self.check_open("[Features.lookup]")
        with OpenCore(self._exchange, "lookup", owner="Features") as core:
            places = self._places.find(ids)
            if places is None:
                check_ids(self.features, ids)
            assert places is not None
            check_num_keys(self._sharded[0].config, "lookup_bags", places.num_ids)
            if dense is not None:
                check_dense(dense, places.batch)
            threads = default_threads(places.num_ids)
            keys = core.group(places.addresses, threads)
            requests = Requests.of(keys, len(self._sharded))
            initial = missing == "initial" and not self._sharded[0]._is_serving
            answers = self._pull(requests, initial)
            matrix = self._matrix(places.batch, dense)
            rows = {n: empty(ids[n].values.numel(), dim) for n, dim in self._apart_dims.items()}
            apart = [rows[name].data_ptr() for name in self._apart]
            addresses = [0 if answer is None else answer.data_ptr() for answer in answers]
            core.pool(keys, addresses, matrix.data_ptr(), matrix.stride(0), apart, threads)
        return matrix, ExchangeLooked(requests, rows)

    def _matrix(self, batch: int, dense: torch.Tensor | None) -> torch.Tensor:
        """Allocate the matrix, with the dense columns after those of the features."""
        matrix = new_matrix(batch, self.width, 0 if dense is None else dense.shape[1])
        if dense is not None:
            matrix[:, self.width :] = dense.detach()
        return matrix

    def sum(self, items: Sequence[tuple[ExchangeLooked, Gradients]]) -> ExchangeSum:
        """Add up the gradients of equal keys of each table."""
        self.check_open("[Features.backward]")
        num_keys = sum([looked.num_keys for looked, _ in items])
        check_num_keys(self._sharded[0].config, "sum_bag_gradients", num_keys)
        threads = default_threads(num_keys)
        with OpenCore(self._exchange, "backward", owner="Features") as core:
            pieces = [self._piece(looked, gradients) for looked, gradients in items]
            requests = items[0][0].requests if self._is_whole(items) else None
            if requests is None:
                requests = Requests.of(core.group_trained(pieces, threads), len(self._sharded))
            grads = empty(requests.core.float_starts[-1])
            counts = empty(len(requests.keys), dtype=torch.int32)
            addresses = grads.data_ptr(), counts.data_ptr()
            norms = core.sum(requests.core, pieces, *addresses, threads)
        by_name = dict(zip([table.name for table in self._sharded], norms, strict=True))
        norms_in_order = {name: by_name[name] for name in self.tables}
        return ExchangeSum(requests, grads, counts, norms_in_order, tuple(items))

    def _is_whole(self, items: Sequence[tuple[ExchangeLooked, Gradients]]) -> bool:
        """Whether the keys with gradients are those of one lookup."""
        if len(items) != 1:
            return False
        matrix, rows = items[0][1]
        return (matrix is not None or not self.columns) and len(rows) == len(self._apart)

    def _piece(self, looked: ExchangeLooked, gradients: Gradients) -> _Piece:
        matrix, rows = gradients
        apart = [rows[name].data_ptr() if name in rows else 0 for name in self._apart]
        if matrix is None:
            return looked.requests.core, 0, 0, apart
        return looked.requests.core, matrix.data_ptr(), matrix.stride(0), apart

    def _rates_in_order(self, rates: Sequence[float]) -> list[float]:
        """Return the rates of all segments in the order of a group."""
        return [float(rate) for segments in self._segments for rate in rates[segments]]

    def _occurrences(self, summed: ExchangeSum, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each id of a table that has a gradient, and the gradients of all occurrences."""
        pieces = [self._piece(looked, gradients) for looked, gradients in summed.items]
        keys = empty(self._exchange.num_ids(pieces, number), dtype=torch.int64)
        grads = empty(len(keys), self._sharded[number].dim)
        self._exchange.write_out(pieces, number, keys.data_ptr(), grads.data_ptr())
        return keys, grads


def sharded(owner: type, table: BaseTable, num_places: int) -> ShardedTable:
    """Refuse a table whose keys are not at the places that the core knows."""
    if not isinstance(table, ShardedTable):
        raise TypeError(
            f"[{owner.__name__}] expected tables as ShardedTable, got {type(table).__name__} "
            f"(table {table.name!r})"
        )
    routing = table.routing
    is_known = isinstance(routing, PartitionRouting | FloorModRouting)
    if not is_known or routing.num_shards != num_places:
        raise ValueError(
            f"[{owner.__name__}] expected tables with PartitionRouting or FloorModRouting over "
            f"{num_places} servers, got {type(routing).__name__} over {routing.num_shards} (table "
            f"{table.name!r})"
        )
    return table


def _common_routing(owner: type, tables: Sequence[ShardedTable]) -> Routing:
    """Return the routing of all tables, whose keys travel in one message."""
    first = tables[0]
    for table in tables:
        if type(table.routing) is not type(first.routing):
            raise ValueError(
                f"[{owner.__name__}] expected tables with one routing, got "
                f"{type(first.routing).__name__} (table {first.name!r}) and "
                f"{type(table.routing).__name__} (table {table.name!r}); open all with the same one"
            )
    return first.routing
