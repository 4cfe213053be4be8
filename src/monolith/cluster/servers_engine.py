"""`ServersEngine`: the features of tables on servers, one message for each server each way."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from monolith.cluster.exchange.exchange_engine import ExchangeEngine, ExchangeSum, Requests
from monolith.cluster.exchange.key_folds import check_floats
from monolith.cluster.group_storage import without_tables
from monolith.cluster.host_verbs import TRANSFERS
from monolith.cluster.servers import Servers
from monolith.cluster.shard_hosts import narrowed
from monolith.cluster.sharded_reads import sum_reports
from monolith.cluster.timed_transport import timed
from monolith.cluster.transport import ShardClient, Transport
from monolith.features.engine import BagFeature
from monolith.observe.metrics import MetricsSink
from monolith.ops import Ragged
from monolith.table._checks import default_threads
from monolith.table.base import BaseTable
from monolith.table.rows import Applied


class ServersEngine(ExchangeEngine):
    """Read and step tables on servers: each call sends one message to each server.

    The client folds equal ids, pools the rows of the answers, and sums gradients by key; a server
    reads and steps the rows of all tables. The bits are those of `PlainEngine`.

    A step is checked as a whole before the first server changes. If memory then runs out on one
    server, or it is closed or cannot be reached, the others have done their part. Gradients that
    are not finite, where a table skips or clips them, go to its shards occurrence by occurrence, in
    a message for this table. A cut of a table has a step wholly or not at all.

    Args:
        tables: with a shard on each server, all by `PartitionRouting` or all by `FloorModRouting`.
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
        super().__init__(tables, features, transfer=transfer)
        self._worker = worker
        transports = connect(self._names)
        self._set_places(len(transports))
        first, *others = self._names
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

    def step(self, summed: ExchangeSum, rates: Sequence[float], times: Sequence[int]) -> Applied:
        """Make one optimizer step for each distinct key."""
        self.check_open("[Features.step]")
        self.check_finite(summed)
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
                arguments = (is_stepped, time_of, self._rates_in_order(rates), calls)
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
        self, summed: ExchangeSum, number: int, rates: Sequence[float], now: int
    ) -> tuple[int, ...]:
        """Step a table with the gradient of each occurrence, so that its policy sees them all."""
        table = self._sharded[number]
        keys, grads = self._occurrences(summed, number)
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


def _narrow(part: "_Part", dtype: torch.dtype) -> "_Part":
    keys, splits, grads, counts = part
    return keys, splits, narrowed("[ServersEngine.push]", "gradients", grads, dtype), counts


_Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _parts_of(summed: ExchangeSum) -> list[_Part]:
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
