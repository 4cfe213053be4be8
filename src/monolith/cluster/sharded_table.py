"""`ShardedTable`: one table whose rows are spread over shards."""

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monolith.cluster.disk.client_jobs import Ask, ShardFiles, ShardLoader
from monolith.cluster.exchange.key_folds import key_folds
from monolith.cluster.gate import Gate
from monolith.cluster.host_verbs import MAX_MESSAGE_BYTES
from monolith.cluster.shard_hosts import ShardHost, plain_rows
from monolith.cluster.shard_split import Split, by_hash, is_finite
from monolith.cluster.sharded_reads import ShardedReads
from monolith.cluster.timed_transport import timed
from monolith.cluster.transport import LocalTransport, ShardClient, Transport
from monolith.errors import FailedPreconditionError
from monolith.observe.metrics import MetricsSink
from monolith.table.arguments import WAIT_SECONDS
from monolith.table.bags import BagGradients, Bags, BagVerbs, GradientSum, PooledRows
from monolith.table.base import BaseTable
from monolith.table.calls import DEFAULT_CHANGES_BYTES, Clock, check_options, wall_clock
from monolith.table.config import TableConfig
from monolith.table.disk.ranges import Run
from monolith.table.disk.remote.remote_save import Part
from monolith.table.key_sums import finite_gradients
from monolith.table.native import OpenCore, empty, piece_tuple, pool_rows
from monolith.table.routing import FloorModRouting, PartitionRouting, Placement, Routing
from monolith.table.rows import Applied, Entries, RowMemory, Rows
from monolith.table.rules import SlidingFilter
from monolith.table.snapshot import CutStorage

_log = logging.getLogger(__name__)


class ShardedCut(CutStorage):
    """The cuts of the shards as one.

    Args:
        facts: number and facts of each shard's cut, as `ShardHost` gives them.
        ask: calls the shards.
        chunk: rows in order over the shards: (verb, number of each cut, first, last, limit).
        entries: rows of keys over the shards: (verb, number of each cut, keys).
        weights: weights of keys over the shards: (number of each cut, keys, step).
        candidates: candidates in order over the shards: (verb, number of each cut, partitions).
        owned: partitions and label of each shard, if the shards write files; see `remote_files`.

    Attributes:
        shards_recorded: events of each shard's record at the cut.
    """

    def __init__(
        self,
        facts: list[tuple[int, int, int, int, int]],
        ask: Ask,
        chunk: Callable[[str, list[int], int, int, int], Rows],
        entries: Callable[[str, list[int], torch.Tensor], Entries],
        weights: Callable[[list[int], torch.Tensor, int], torch.Tensor],
        candidates: Callable[[str, list[int], list[int]], dict[str, torch.Tensor]],
        owned: Sequence[tuple[Run, str]] = (),
    ) -> None:
        numbers, num_rows, calls, times, recorded = (
            list(fact) for fact in zip(*facts, strict=True)
        )
        self.num_rows, self.num_recorded = sum(num_rows), sum(recorded)
        self.shards_recorded = recorded
        self.num_update_calls, self.latest_time = max(calls), max(times)
        self._numbers = numbers
        self._ask, self._chunk, self._entries = ask, chunk, entries
        self._weights, self._candidates = weights, candidates
        self._parts = [
            Part([run], number, label)
            for (run, label), number in zip(owned, num_rows, strict=bool(owned))
        ]

    def remote_files(self) -> ShardFiles | None:
        """Return the shards as writers of their own files.

        A file has all rows of its partitions: where several shards have rows of a partition, the
        caller reads the rows and writes the files.
        """
        return ShardFiles(self._parts, self._numbers, self._ask) if self._parts else None

    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Rows of the cut."""
        return self._chunk("cut_chunk", self._numbers, first, last, limit)

    def changes(self) -> tuple[bool, torch.Tensor, torch.Tensor]:
        """Changes up to the cut."""
        return _all_changes(self._ask("cut_changes", [(number,) for number in self._numbers]))

    def lookup_entry(self, keys: torch.Tensor, memory: RowMemory | None = None) -> Entries:
        """Rows of the cut."""
        return self._entries("cut_entries", self._numbers, keys)

    def lookup(self, keys: torch.Tensor, step: int) -> torch.Tensor:
        """Weights of the cut; they travel without optimizer state."""
        return self._weights(self._numbers, keys, step)

    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Candidates of the cut."""
        return self._candidates("cut_candidates", self._numbers, partitions)

    def release(self, partitions: list[int]) -> None:
        """Forget these partitions."""
        self._ask("release_cut", [(number, partitions) for number in self._numbers])

    def close(self, is_read: bool) -> None:
        """End the cuts; a server that came back empty has none, which is as good."""
        try:
            self._ask("close_cut", [(number, is_read) for number in self._numbers])
        except FailedPreconditionError as error:
            _log.info("a cut had ended before it was closed: %s", error)


def _all_changes(answers: list[Any]) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Changes of all shards in one order; full if those of a shard are."""
    if any(full for full, _, _ in answers):
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        return True, nothing, nothing
    changed, gone = (torch.cat([answer[i] for answer in answers]) for i in (1, 2))
    return False, changed[by_hash(changed)], gone[by_hash(gone)]


if TYPE_CHECKING:
    import monolith._native as _native
else:
    try:
        import monolith._native as _native
    except ImportError:
        _native = None


class ShardedBags(BagVerbs):
    """Pools what `_lookup` reads and spreads what `_apply_gradients` takes, with native loops.

    The shards see the gradient of every occurrence of a key: admission counts them. Without the
    compiled core the meaning in `BagVerbs` does the work.
    """

    def _lookup_bags(self, bags: Bags, initial: bool, step: int, threads: int) -> PooledRows:
        if _native is None:
            return super()._lookup_bags(bags, initial, step, threads)
        bags = bags.checked()
        return pool_rows(bags, self._lookup(bags.keys, initial, step, threads), threads, self.name)

    def _sum_bag_gradients(self, queue: list[BagGradients], threads: int) -> GradientSum:
        if _native is None:
            return super()._sum_bag_gradients(queue, threads)
        with OpenCore(_native, "sum_bag_gradients", self.name) as core:
            summed = core.GradientSum([piece_tuple(piece) for piece in queue], self.dim, threads)
        return GradientSum(queue, summed.norm, summed)

    def _apply_bag_gradients(
        self, summed: GradientSum, rates: list[float], step: int, now: int, threads: int
    ) -> Applied:
        if summed.core is None:
            return super()._apply_bag_gradients(summed, rates, step, now, threads)
        nothing = empty(0, dtype=torch.int64)
        keys = torch.cat([nothing, *(piece.bags.keys.reshape(-1) for piece in summed.queue)])
        grads = empty(len(keys), self.dim)
        summed.core.write_out(grads.data_ptr())
        return self._apply_gradients(keys, grads, rates, step, now, threads)


def shard_config(config: TableConfig, num_shards: int) -> TableConfig:
    """Return the config of a shard: that of the table, with an equal part of budget and filters.

    Example:
        >>> from monolith.table import Budget, Segment
        >>> shard_config(TableConfig("user", Segment(1), budget=Budget(1 << 20)), 4).budget
        Budget(max_bytes=262144, policy='refuse')
    """
    if isinstance(config.admission, SlidingFilter):
        config = dataclasses.replace(config, admission=config.admission.of_shard())
    if config.budget is None:
        return config
    budget = dataclasses.replace(config.budget, max_bytes=config.budget.max_bytes // num_shards)
    try:
        return dataclasses.replace(config, budget=budget)
    except ValueError as error:
        raise ValueError(
            f"[ShardedTable] expected a budget for {num_shards} shards, got "
            f"{config.budget.max_bytes} bytes; of each: {error}"
        ) from error


def spread_config(config: TableConfig, routing: Routing) -> TableConfig:
    """Return the config of a table with this routing.

    A filter belongs to a partition. Where every shard has keys of each partition, every shard has
    filters of its own.
    """
    rule = config.admission
    if not isinstance(rule, SlidingFilter) or config.kind == "serving":
        return config
    if not isinstance(routing, PartitionRouting | FloorModRouting):
        raise ValueError(
            f"[ShardedTable] expected PartitionRouting or FloorModRouting with a SlidingFilter, "
            f"got {type(routing).__name__} (table {config.name!r}); use MinCount"
        )
    num_filters = routing.num_shards if isinstance(routing, FloorModRouting) else 1
    if rule.num_shards not in (1, num_filters):
        raise ValueError(
            f"[ShardedTable] expected a SlidingFilter with num_shards={num_filters} for "
            f"{type(routing).__name__}({routing.num_shards}), got {rule.num_shards} (table "
            f"{config.name!r}); leave num_shards out"
        )
    return dataclasses.replace(config, admission=dataclasses.replace(rule, num_shards=num_filters))


def make_shard(
    config: TableConfig,
    placement: Placement,
    changes_bytes: int = DEFAULT_CHANGES_BYTES,
    device: str = "",
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> ShardHost:
    """One of the shards of a table, in this process, with its part of the bounds on memory."""
    from monolith.table import Table  # late: the package imports this module

    part = shard_config(config, placement.num_shards)
    table = Table(part, changes_bytes=changes_bytes // placement.num_shards)
    return ShardHost(table, device=device, placement=placement, max_message_bytes=max_message_bytes)


class ShardedTable(ShardedReads, ShardedBags, BaseTable):
    """A table whose rows are spread over shards; every verb gives the bits that one table gives.

    All shards have the same config and seed, and take part in every writing call, so that their
    numbers of update calls stay equal: rows do not depend on routing or on the number of shards.

    Different from one table:
        - The budget is divided among the shards. A key is refused, or makes another row go, when
          its own shard is full, and each shard has a fixed cost of its own.
        - A call is checked as a whole before the first shard changes. If memory then runs out in
          one shard, or a shard is closed or cannot be reached, the others have done their part.
        - A cut is one moment of the calls made through this object, not of those of other clients.
        - Two update calls that run at once may be numbered in another order by each shard.
        - `FloorModRouting`: the cap of `MinCount` counts for each shard. Each shard has the filters
          of a `SlidingFilter` for its part of the capacity, so which keys share a counter depends
          on the number of shards; a save of them restores into the same number of shards only.

    Args:
        config: what the table is.
        transports: one per shard, each to a `ShardHost` of `shard_config`.
        routing: which shard holds a key; `PartitionRouting` if None.
        clock: gives the time of a call that has no `now`.
        timeout_seconds: Maximum seconds that a call waits for calls that exclude it.

    Attributes:
        num_acknowledged: Number of update calls that the shards are known to have done.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Zeros
        >>> table = ShardedTable.local(TableConfig("user", Segment(1, SGD(0.5), Zeros())), 3)
        >>> table.apply_gradients(torch.tensor([7, -7, 7]), torch.ones(3, 1))
        Applied(num_applied=2, num_inserted=2, num_refused=0, num_skipped=0)
        >>> table.lookup(torch.tensor([7, -7, 8])).flatten().tolist()
        [-1.0, -0.5, 0.0]
    """

    _is_spread = True

    def __init__(
        self,
        config: TableConfig,
        transports: Sequence[Transport],
        *,
        routing: Routing | None = None,
        clock: Clock = wall_clock,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.routing = PartitionRouting(len(transports)) if routing is None else routing
        check_options(config, clock, DEFAULT_CHANGES_BYTES)
        config = spread_config(config, self.routing)
        super().__init__(config, clock=clock)
        if self.routing.num_shards != len(transports):
            raise ValueError(
                f"[ShardedTable] expected a transport for each of the {self.routing.num_shards} "
                f"shards, got {len(transports)} (table {self.name!r})"
            )
        self._client = ShardClient(self.name, transports)
        self._folds = key_folds(self.dim, self.routing)
        self._gate = Gate("ShardedTable", self.name, timeout_seconds)
        self._next_call: int | None = None  # number of the next push; None asks the shards
        self.num_acknowledged = 0
        self._answered: dict[int, int] = {}  # shard -> update calls that it alone has answered

    @property
    def client(self) -> int:
        """Number of the caller of the shards, by which their hosts know it."""
        return self._client.number

    def measure_lookups(self, sink: MetricsSink | None, model_name: str = "") -> None:
        """Write the time of each shard's part of a lookup to a sink, as `timed_transport.py` says.

        Args:
            sink: takes the times from now on; None measures nothing.
            model_name: a tag of the times.
        """
        self._client.transports = timed(self._client.transports, sink, model_name)

    @classmethod
    def local(
        cls,
        config: TableConfig,
        num_shards: int,
        *,
        routing: Routing | None = None,
        clock: Clock = wall_clock,
        changes_bytes: int = DEFAULT_CHANGES_BYTES,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> "ShardedTable":
        """A table in shards of this process.

        Args:
            config: what the table is.
            num_shards: number of shards.
            routing: which shard holds a key.
            clock: gives the time of a call that has no `now`.
            changes_bytes: bound of the touched log, divided among the shards.
            timeout_seconds: Maximum seconds that a call waits for calls that exclude it.
        """
        changes_bytes = check_options(config, clock, changes_bytes)
        routing = PartitionRouting(num_shards) if routing is None else routing
        config = spread_config(config, routing)
        places = [routing.placement_of(shard) for shard in range(num_shards)]
        hosts = [make_shard(config, place, changes_bytes) for place in places]
        return cls.over(
            config, hosts, routing=routing, clock=clock, timeout_seconds=timeout_seconds
        )

    @classmethod
    def over(
        cls,
        config: TableConfig,
        hosts: Sequence[ShardHost],
        *,
        routing: Routing | None = None,
        clock: Clock = wall_clock,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> "ShardedTable":
        """Make a table over existing shards of this process, such as those of `LocalServers`.

        Args:
            config: what the table is.
            hosts: the shards in the order of their numbers; `close` closes them.
            routing: which shard holds a key; hosts that were made for another one are refused.
            clock: gives the time of a call that has no `now`.
            timeout_seconds: Maximum seconds that a call waits for calls that exclude it.
        """
        routing = PartitionRouting(len(hosts)) if routing is None else routing
        ways = [LocalTransport(host) for host in hosts]
        table = cls(config, ways, routing=routing, clock=clock, timeout_seconds=timeout_seconds)
        for shard, host in enumerate(hosts):
            host.open_as(routing.placement_of(shard))
        return table

    @property
    def devices(self) -> list[str]:
        """Label of the server of each shard; empty where it is on none."""
        return [transport.device for transport in self._client.transports]

    def _shard(self, number: int) -> "ShardedTable":
        """One shard as a table, for a restore: the caller gives it its own keys only."""
        config = shard_config(self.config, self.routing.num_shards)
        return ShardedTable(config, [self._client.transports[number]], clock=self._clock)

    def shards(self) -> "Sequence[ShardedTable]":
        return [self._shard(number) for number in range(self.routing.num_shards)]

    def _write(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A writing call on every shard: an empty part counts as a call, and has a time, too."""
        with self._gate.shared():
            self._next_call = None
            return self._client.call(verb, arguments)

    def _next_update(self) -> int:
        return self.next_call((0, 1))

    def next_call(self, worker: tuple[int, int]) -> int:
        """Return the number of the next push: of n clients, client i has i, i + n, i + 2 n, ..."""
        index, num_workers = worker
        if self._next_call is None:
            self._next_call = self.num_acknowledged = self._update_calls()
        return self._next_call + (index - self._next_call) % num_workers

    def note_push(self, number: int | None) -> None:
        """Note that all shards have done the push of this number; None: some may have done one."""
        self._next_call = None if number is None else number + 1
        self.num_acknowledged = self._next_call or self.num_acknowledged

    def note_answer(self, shard: int, number: int) -> None:
        """Note that a shard has done the push of this number; others may not have."""
        self._answered[shard] = number + 1

    def acknowledged_by(self, shard: int) -> int:
        """Return the number of update calls that a shard is known to have done."""
        return max(self.num_acknowledged, self._answered.get(shard, 0))

    def _alone(self, verb: str, *arguments: Any) -> list[Any]:
        """The same call on every shard, while no writing call runs."""
        with self._gate.alone():
            return self._ask_all(verb, *arguments)

    # Writing

    def _lookup_or_insert(
        self, keys: torch.Tensor, step: int, now: int, threads: int
    ) -> torch.Tensor:
        split = Split(self.routing, keys)
        calls = [(part, step, now, threads) for part in split.parts(keys)]
        return split.merged(self._write("lookup_or_insert", calls))

    def _assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        absent: torch.Tensor | None,
        now: int,
        threads: int,
    ) -> None:
        split = Split(self.routing, keys)
        parts = zip(split.parts(keys), split.parts(values), _flags(split, absent), strict=True)
        self._write("assign", [(*part, now, threads) for part in parts])

    def _assign_add(self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int) -> None:
        split = Split(self.routing, keys)
        parts = zip(split.parts(keys), split.parts(values), strict=True)
        self._write("assign_add", [(*part, now, threads) for part in parts])

    def _apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """Send each key once; its shard counts the occurrences for admission."""
        if self._folds is not None and keys.numel():
            folded = self._folds.fold(keys, threads)
            sums, numbers, norm = folded.sums(grads.detach())
            if math.isfinite(norm):  # else the policy sees each occurrence
                shares = zip(folded.parts(), sums, numbers, strict=True)
                options = rates, step, now, threads
                return _total(self._write("apply_sums", [(*share, *options) for share in shares]))
        is_checked = self.config.non_finite != "refuse" or self.routing.num_shards == 1
        if not is_checked and not is_finite(grads):
            finite_gradients(self.config, keys.tolist(), grads.detach().numpy())  # raises
        split = Split(self.routing, keys)
        parts = zip(split.parts(keys), split.parts(grads), strict=True)
        calls = [(*part, rates, step, now, threads) for part in parts]
        return _total(self._write("apply_gradients", calls))

    def _reinitialize(self, keys: torch.Tensor, now: int) -> torch.Tensor:
        split = Split(self.routing, keys)
        return split.merged(self._write("reinitialize", [(p, now) for p in split.parts(keys)]))

    def _erase(self, keys: torch.Tensor) -> torch.Tensor:
        split = Split(self.routing, keys)
        return split.merged(self._write("erase", [(part,) for part in split.parts(keys)]))

    def _import_rows(self, rows: Rows, absent: torch.Tensor | None, threads: int) -> None:
        split = Split(self.routing, rows.keys)
        parts = zip(split.rows(rows), _flags(split, absent), strict=True)
        self._write("import_rows", [(plain_rows(part), flags, threads) for part, flags in parts])

    def _clear(self) -> None:
        with self._gate.alone():
            if self._has_cut():  # of any shard: before one of them is cleared
                raise self._cut_error()
            self._ask_all("clear")

    def _evict(self, reference: int) -> int:
        return sum(self._write("evict", [(reference,)] * self.routing.num_shards))

    def _evict_slice(self, first: int, reference: int) -> tuple[int, int | None]:
        """One shard after the other: the bits above the hash are the shard's number."""
        shard, start = first >> 64, first & ((1 << 64) - 1)
        with self._gate.shared():
            num_evicted, following = self._ask_one(shard, "evict_slice", start, reference)
        if following is not None:
            return num_evicted, shard << 64 | following
        is_last = shard + 1 == self.routing.num_shards
        return num_evicted, None if is_last else (shard + 1) << 64

    def _import_candidates(self, columns: dict[str, torch.Tensor]) -> None:
        if not columns:
            return
        if "key" in columns:
            split = Split(self.routing, columns["key"])
        elif isinstance(self.routing, PartitionRouting):  # filters, perhaps of one of the shards
            split = Split.of_partitions(self.routing, columns["partition"])
        else:
            shards = columns.get("shard", torch.zeros_like(columns["partition"]))
            split = Split.of_shards(shards, self.routing.num_shards)
        columns = {name: column for name, column in columns.items() if name != "shard"}
        parts = {name: split.parts(column) for name, column in columns.items()}
        calls = [
            ({name: of_shard[i].contiguous() for name, of_shard in parts.items()},)
            for i in range(self.routing.num_shards)
        ]
        self._write("import_candidates", calls)

    def _set_update_calls(self, number: int) -> None:
        self._alone("set_update_calls", number)
        self._next_call, self.num_acknowledged = None, number
        self._answered.clear()

    def _set_seen_time(self, time: int) -> None:
        self._alone("set_seen_time", time)

    def _count_clamped(self) -> None:
        self._ask_one(0, "count_clamped")

    def _close(self) -> None:
        self._ask_all("close")

    # Cuts and the touched log

    def _open_cut(self, cursor: str | None) -> ShardedCut | None:
        with self._gate.alone():
            facts = self._ask_all("open_cut", cursor)
        opened = [fact for fact in facts if fact is not None]
        if len(opened) == len(facts):
            reads = self._chunk, self._entries, self._cut_weights, self._candidates
            return ShardedCut(opened, self._client.call, *reads, self._owned())
        calls = [None if fact is None else (fact[0], False) for fact in facts]
        self._client.call("close_cut", calls)
        return None

    def _owned(self) -> list[tuple[Run, str]]:
        """Return the partitions and the label of each shard, if no two shards share partitions."""
        if not isinstance(self.routing, PartitionRouting):
            return []
        ranges = [self.routing.partitions_of(shard) for shard in range(self.routing.num_shards)]
        labels = [self._client.label_of(shard) for shard in range(self.routing.num_shards)]
        return [((r.start, r.stop - 1), label) for r, label in zip(ranges, labels, strict=True)]

    def _remote_loader(self) -> ShardLoader | None:
        if not isinstance(self.routing, PartitionRouting | FloorModRouting):
            return None
        labels = [self._client.label_of(shard) for shard in range(self.routing.num_shards)]
        return ShardLoader(self.config, self.routing, labels, self._client.call)

    def _changes(self, cursor: str) -> tuple[bool, torch.Tensor, torch.Tensor]:
        return _all_changes(self._alone("changes", cursor))

    def _drop_cursor(self, cursor: str) -> bool:
        return any(self._alone("drop_cursor", cursor))


def _total(counts: Sequence[tuple[int, int, int, int]]) -> Applied:
    return Applied(*map(sum, zip(*counts, strict=True)))


def _flags(split: Split, absent: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
    return [None] * len(split.sizes) if absent is None else split.parts(absent)
