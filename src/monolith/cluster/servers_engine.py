"""`ServersEngine`: the features of tables on servers, one message for each server each way."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.cluster.group_storage import without_tables
from monolith.cluster.host_verbs import TRANSFERS
from monolith.cluster.key_folds import check_floats
from monolith.cluster.servers import Servers
from monolith.cluster.shard_hosts import narrowed
from monolith.cluster.sharded_reads import sum_reports
from monolith.cluster.sharded_table import ShardedTable
from monolith.cluster.timed_transport import timed
from monolith.cluster.transport import ShardClient, Transport
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
from monolith.observe.metrics import MetricsSink
from monolith.ops import Ragged
from monolith.table._checks import check_num_keys, default_threads
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.native import OpenCore, empty
from monolith.table.routing import PartitionRouting
from monolith.table.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native

_Piece = tuple["_native.ExchangeKeys", int, int, list[int]]


class Requests(NamedTuple):
    """The distinct keys of all tables, server by server.

    Attributes:
        core: which id is which key.
        keys: int64, those of each server after those of the last.
        splits: int64 (num_servers, num_tables + 1), where the keys of each table begin and end.
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
        """Return the keys and row splits for each server."""
        ranges = itertools.pairwise(self.core.key_starts)
        return [
            (self.keys[i:j], splits) for (i, j), splits in zip(ranges, self.splits, strict=True)
        ]


class ServersLooked(NamedTuple):
    """What was asked for in one lookup, and the rows of features with combiner "rows"."""

    requests: Requests
    rows: Mapping[str, torch.Tensor]

    @property
    def num_keys(self) -> int:
        """Number of ids of all features, without those beyond a limit."""
        return self.requests.core.num_ids


class ServersSum(NamedTuple):
    """The gradient of each distinct key, as the servers will get it.

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
    items: Sequence[tuple[ServersLooked, Gradients]]

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


class ServersEngine(EngineBase):
    """Read and step tables on servers: each call sends one message to each server.

    The client folds equal ids, pools the rows of the answers, and sums gradients by key; a server
    reads and steps the rows of all tables. The bits are those of `PlainEngine`.

    A step is checked as a whole before the first server changes. If memory then runs out on one
    server, or it is closed or cannot be reached, the others have done their part. Gradients that
    are not finite, where a table skips or clips them, go to its shards occurrence by occurrence, in
    a message for this table. A cut of a table has a step wholly or not at all.

    Args:
        tables: with a shard on each server, by `PartitionRouting`.
        features: of these tables, with different names.
        connect: names of tables -> a transport to each server, each to a `GroupHost` of the shards
            of these tables.
        worker: Number of this client, and the number of clients that push to the tables.
        transfer: Dtype of rows and gradients in messages; both sides compute in float32.
    """

    def __init__(
        self,
        tables: Iterable[BaseTable],
        features: Sequence[BagFeature],
        connect: Callable[[list[str]], Sequence[Transport]],
        *,
        worker: tuple[int, int] = (0, 1),
        transfer: str = "float32",
    ) -> None:
        super().__init__(tables, features)
        self._worker, self._transfer = worker, transfer
        names = sorted(self.tables)  # the order of a group
        transports = connect(names)
        self._sharded = [_sharded(self.tables[name], len(transports)) for name in names]
        self._order = [list(self.tables).index(name) for name in names]
        numbers = {name: number for number, name in enumerate(names)}
        by_table = sorted(self.features, key=lambda feature: numbers[feature.table])
        self._apart = [f.name for f in by_table if f.combiner == "rows"]
        self._apart_dims = {
            f.name: self.tables[f.table].dim for f in self.features if f.combiner == "rows"
        }
        # Sizes of rows apart come from each `Ragged`, and must be those that the core reads.
        self._places = IdPlaces([f.name for f in by_table], is_joined=not self._apart)
        self._exchange = self._make_exchange(by_table, numbers, len(transports))
        sizes = [len(segments_of(table.config)) for table in self.tables.values()]
        starts = itertools.accumulate(sizes, initial=0)
        segments = [slice(*pair) for pair in itertools.pairwise(starts)]
        self._segments = [segments[number] for number in self._order]
        first, *others = names
        owner = f"{first}{f' and {len(others)} more' if others else ''}"
        self._client = ShardClient(owner, transports, owner="ServersEngine")

    @property
    def clients(self) -> list[int]:
        """Numbers of the callers that write to the tables, by which servers know them."""
        return [self._client.number, *(table.client for table in self._sharded)]

    def close(self) -> None:
        """End the connections; the servers keep the rows. Closing twice is fine."""
        self._note_closed(next(iter(self.tables)))
        self._client.close()

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each table, with one message to each server."""
        return self._reports("stats")

    def memory_reports(self) -> Mapping[str, Mapping[str, int]]:
        """Return the bytes of each table, with one message to each server."""
        return self._reports("memory_report")

    def _reports(self, verb: str) -> dict[str, dict[str, int]]:
        self.check_open(f"[Features.{verb}]")
        answers = self._client.call(verb, [()] * len(self._client.transports))
        return {name: sum_reports([answer[name] for answer in answers]) for name in self.tables}

    def _make_exchange(
        self, features: Sequence[BagFeature], numbers: Mapping[str, int], num_servers: int
    ) -> "_native.Exchange":
        import monolith._native as native

        dims = [table.dim for table in self._sharded]
        starts = {name: columns.start for name, columns in self.columns.items()}
        tuples = [
            (f.name, numbers[f.table], f.combiner, f.max_length, starts.get(f.name, 0))
            for f in features
        ]
        owners = PartitionRouting(num_servers).owners
        return native.Exchange(dims, tuples, owners, num_servers)

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        weights: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor | None,
        missing: str,
    ) -> tuple[torch.Tensor, ServersLooked]:
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
        return matrix, ServersLooked(requests, rows)

    def _pull(self, requests: Requests, initial: bool) -> list[torch.Tensor | None]:
        """Ask each server for the rows of its keys; a server without keys is not asked."""
        calls = [
            (keys, splits, initial, self._transfer) if len(keys) else None
            for keys, splits in requests.parts()
        ]
        answers = iter(self._client.call("pull", calls))
        starts = itertools.pairwise(requests.core.float_starts)
        rows: list[torch.Tensor | None] = []
        for server, (call, (first, end)) in enumerate(zip(calls, starts, strict=True)):
            rows.append(None if call is None else next(answers))
            if rows[-1] is not None:
                where = f"[ServersEngine.pull] {self._client.label_of(server)}"
                check_floats(where, rows[-1], (end - first,), TRANSFERS[self._transfer])
                rows[-1] = rows[-1].float()
        return rows

    def _matrix(self, batch: int, dense: torch.Tensor | None) -> torch.Tensor:
        """Allocate the matrix, with the dense columns after those of the features."""
        matrix = new_matrix(batch, self.width, 0 if dense is None else dense.shape[1])
        if dense is not None:
            matrix[:, self.width :] = dense.detach()
        return matrix

    def sum(self, items: Sequence[tuple[ServersLooked, Gradients]]) -> ServersSum:
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
        return ServersSum(requests, grads, counts, norms_in_order, tuple(items))

    def _is_whole(self, items: Sequence[tuple[ServersLooked, Gradients]]) -> bool:
        """Whether the keys with gradients are those of one lookup."""
        if len(items) != 1:
            return False
        matrix, rows = items[0][1]
        return (matrix is not None or not self.columns) and len(rows) == len(self._apart)

    def _piece(self, looked: ServersLooked, gradients: Gradients) -> _Piece:
        matrix, rows = gradients
        apart = [rows[name].data_ptr() if name in rows else 0 for name in self._apart]
        if matrix is None:
            return looked.requests.core, 0, 0, apart
        return looked.requests.core, matrix.data_ptr(), matrix.stride(0), apart

    def step(self, summed: ServersSum, rates: Sequence[float], times: Sequence[int]) -> Applied:
        """Make one optimizer step for each distinct key."""
        self.check_open("[Features.step]")
        self.check_finite(summed)
        in_order = [rate for segments in self._segments for rate in rates[segments]]
        time_of = torch.tensor([times[i] for i in self._order], dtype=torch.int64, device="cpu")
        others = [i for i, t in enumerate(self._sharded) if not math.isfinite(summed.norms[t.name])]
        counts: list[tuple[int, ...]] = [(0, 0, 0, 0)]
        parts = _parts_of(summed)
        if others:
            dims = torch.tensor([table.dim for table in self._sharded], device="cpu")
            parts = [_without(part, others, dims) for part in parts]
        lengths = torch.stack([part[1] for part in parts]).diff()  # (num_servers, num_tables)
        is_stepped = lengths.sum(0) > 0
        if bool(is_stepped.any()):
            dtype = TRANSFERS[self._transfer]
            if dtype != torch.float32:
                parts = [_narrow(part, dtype) for part in parts]
            with self._gates():
                numbers = [table.next_call(self._worker) for table in self._sharded]
                calls = torch.tensor(numbers, dtype=torch.int64, device="cpu")
                arguments = (is_stepped, time_of, list(map(float, in_order)), calls)
                stepped = [
                    (self._sharded[i], numbers[i]) for i in is_stepped.nonzero().flatten().tolist()
                ]

                def note(server: int) -> None:
                    for table, number in stepped:
                        table.note_answer(server, number)

                try:
                    pushes = [(*part, *arguments) for part in parts]
                    counts += self._client.call("push", pushes, note)
                except BaseException:  # some servers may have done their part
                    for table in self._sharded:
                        table.note_push(None)
                    raise
                for table, number in stepped:
                    table.note_push(number)
        for number in others:
            counts.append(self._step_each(summed, number, rates, int(time_of[number])))
        return Applied(*map(sum, zip(*counts, strict=True)))

    def _step_each(
        self, summed: ServersSum, number: int, rates: Sequence[float], now: int
    ) -> tuple[int, ...]:
        """Step a table with the gradient of each occurrence, so that its policy sees them all."""
        table, core = self._sharded[number], self._exchange
        pieces = [self._piece(looked, gradients) for looked, gradients in summed.items]
        keys = empty(core.num_ids(pieces, number), dtype=torch.int64)
        grads = empty(len(keys), table.dim)
        core.write_out(pieces, number, keys.data_ptr(), grads.data_ptr())
        own_rates = list(rates[self._segments[number]])
        threads, step = default_threads(len(keys)), table._update_calls()
        return table._apply_gradients(keys, grads, own_rates, step, now, threads)

    @contextmanager
    def _gates(self) -> Iterator[None]:
        """Keep cuts of the tables out."""
        gates = {id(table._gate): table._gate for table in self._sharded}
        with ExitStack() as stack:
            for gate in gates.values():
                stack.enter_context(gate.shared())
            yield


def _sharded(table: BaseTable, num_servers: int) -> ShardedTable:
    """Refuse a table whose keys are not on the servers that their hash says."""
    if not isinstance(table, ShardedTable):
        raise TypeError(
            f"[ServersEngine] expected tables as ShardedTable, got {type(table).__name__} "
            f"(table {table.name!r})"
        )
    routing = table.routing
    if not isinstance(routing, PartitionRouting) or routing.num_shards != num_servers:
        raise ValueError(
            f"[ServersEngine] expected tables with PartitionRouting over {num_servers} servers, "
            f"got {type(routing).__name__} over {routing.num_shards} (table {table.name!r})"
        )
    return table


def _narrow(part: "_Part", dtype: torch.dtype) -> "_Part":
    keys, splits, grads, counts = part
    return keys, splits, narrowed("[ServersEngine.push]", "gradients", grads, dtype), counts


_Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _parts_of(summed: ServersSum) -> list[_Part]:
    """Return keys, row splits, gradients and counts for each server."""
    core = summed.requests.core
    grads = [summed.grads[i:j] for i, j in itertools.pairwise(core.float_starts)]
    counts = [summed.counts[i:j] for i, j in itertools.pairwise(core.key_starts)]
    keys = zip(summed.requests.parts(), grads, counts, strict=True)
    return [(*part, own_grads, own_counts) for part, own_grads, own_counts in keys]


def _without(part: _Part, tables: Sequence[int], dims: torch.Tensor) -> _Part:
    """Leave out the keys of some tables."""
    keys, splits, grads, counts = part
    kept, *others = without_tables(Ragged._unchecked(keys, splits), (grads, counts), tables, dims)
    return kept.values, kept.row_splits, others[0], others[1]


def servers_engine(
    servers: Servers, sink: MetricsSink | None = None, model_name: str = ""
) -> Callable[[list[BaseTable], list[BagFeature]], ServersEngine]:
    """Return what makes an engine of tables that have a shard on each of the servers.

    Args:
        servers: of the tables.
        sink: takes the time of each server's part of a lookup (`timed_transport.py`).
        model_name: a tag of these times.
    """

    def connect(names: list[str]) -> list[Transport]:
        return timed(servers.connect(names), sink, model_name)

    def make(tables: list[BaseTable], features: list[BagFeature]) -> ServersEngine:
        worker, transfer = servers.worker, servers.transfer
        return ServersEngine(tables, features, connect, worker=worker, transfer=transfer)

    return make
