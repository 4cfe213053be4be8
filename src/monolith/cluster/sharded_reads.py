"""What a sharded table reads: rows by key, in order of their hash, candidates, and facts."""

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from monolith.cluster.exchange.key_folds import KeyFolds
from monolith.cluster.shard_split import Split, by_hash, concatenated
from monolith.cluster.transport import ShardClient
from monolith.table._checks import default_threads
from monolith.table.calls import TableCalls
from monolith.table.eviction import candidate_columns
from monolith.table.initializers import key_hash, partitions_of
from monolith.table.routing import PartitionRouting, Routing
from monolith.table.rows import Entries, Rows


class ShardedReads(TableCalls, ABC):
    """The part of `ShardedTable` that reads."""

    routing: Routing
    _client: ShardClient
    _folds: KeyFolds | None

    def _ask_all(self, verb: str, *arguments: Any) -> list[Any]:
        """The same call on every shard."""
        return self._client.call(verb, [arguments] * self.routing.num_shards)

    def _ask_one(self, shard: int, verb: str, *arguments: Any) -> Any:
        calls = [arguments if i == shard else None for i in range(self.routing.num_shards)]
        return self._client.call(verb, calls)[0]

    # Rows by key

    def _lookup(self, keys: torch.Tensor, initial: bool, step: int, threads: int) -> torch.Tensor:
        def ask(parts: Sequence[torch.Tensor]) -> list[Any]:
            return self._client.call("lookup", [(part, initial, step, threads) for part in parts])

        return self._rows_of(keys, threads, ask)

    def _cut_weights(self, cuts: list[int], keys: torch.Tensor, step: int) -> torch.Tensor:
        """Weights at the cuts with these numbers, one of each shard."""

        def ask(parts: Sequence[torch.Tensor]) -> list[Any]:
            calls = [(cut, part, step) for cut, part in zip(cuts, parts, strict=True)]
            return self._client.call("cut_lookup", calls)

        return self._rows_of(keys, default_threads(keys.numel()), ask)

    def _rows_of(
        self, keys: torch.Tensor, threads: int, ask: Callable[[Sequence[torch.Tensor]], list[Any]]
    ) -> torch.Tensor:
        """Rows of keys that are asked of each shard once."""
        if self._folds is not None and keys.numel():
            folded = self._folds.fold(keys, threads)
            return folded.spread(ask(folded.parts()))
        split = Split(self.routing, keys)
        return split.merged(ask(split.parts(keys)))

    def _contains(self, keys: torch.Tensor) -> torch.Tensor:
        split = Split(self.routing, keys)
        return split.merged(self._client.call("contains", [(p,) for p in split.parts(keys)]))

    def _lookup_entry(self, keys: torch.Tensor) -> Entries:
        return self._entries("lookup_entry", None, keys)

    def _entries(self, verb: str, cuts: list[int] | None, keys: torch.Tensor) -> Entries:
        """Rows of the keys; `cuts` as of `_chunk`."""
        split = Split(self.routing, keys)
        heads = [()] * self.routing.num_shards if cuts is None else [(cut,) for cut in cuts]
        parts = zip(heads, split.parts(keys), strict=True)
        answers = self._client.call(verb, [(*head, part) for head, part in parts])
        rows = split.merged_rows([Rows(*rows) for _, rows in answers])
        return Entries(split.merged([present for present, _ in answers]), rows)

    # In order

    def _export_chunk(self, first: int, last: int, limit: int) -> Rows:
        return self._chunk("export_chunk", None, first, last, limit)

    def _chunk(self, verb: str, cuts: list[int] | None, first: int, last: int, limit: int) -> Rows:
        """Rows in ascending order of their hash; `cuts` are numbers that go before the range."""
        is_ordered = isinstance(
            self.routing, PartitionRouting
        )  # rows of a shard come after those of the shard before
        parts: list[Rows] = []
        for shard in range(self.routing.num_shards):
            head = () if cuts is None else (cuts[shard],)
            owned = self.routing.partitions_of(shard)
            start, stop = max(first, owned.start << 52), min(last, (owned.stop << 52) - 1)
            left = limit - sum(map(len, parts)) if is_ordered else limit
            if left and start <= stop:
                parts.append(self._filled(shard, verb, head, (start, stop), left))
        rows = concatenated(parts)
        return rows if is_ordered else rows.take(by_hash(rows.keys)[:limit])

    def _filled(
        self, shard: int, verb: str, head: tuple[int, ...], range_: tuple[int, int], limit: int
    ) -> Rows:
        """Rows of one shard, fewer than `limit` only at the end: a chunk alone may be short."""
        start, stop = range_
        parts: list[Rows] = []
        while True:
            left = limit - sum(map(len, parts))
            parts.append(Rows(*self._ask_one(shard, verb, *head, start, stop, left)))
            if len(parts[-1]) in (0, left):
                return concatenated(parts)
            start = key_hash(int(parts[-1].keys[-1])) + 1
            if start > stop:
                return concatenated(parts)

    def _export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        return self._candidates("export_candidates", None, partitions)

    def _candidates(
        self, verb: str, cuts: list[int] | None, partitions: list[int]
    ) -> dict[str, torch.Tensor]:
        """Columns by partition; `cuts` as of `_chunk`."""
        heads = [()] * self.routing.num_shards if cuts is None else [(cut,) for cut in cuts]
        owned = [self.routing.partitions_of(shard) for shard in range(len(heads))]
        calls = [
            (*head, [p for p in partitions if p in own])
            for head, own in zip(heads, owned, strict=True)
        ]
        answers = self._client.call(verb, calls)
        columns = {name: torch.cat([a[name] for a in answers]) for name in answers[0]}
        if isinstance(self.routing, PartitionRouting) or not columns:
            return columns
        if "key" in columns:
            numbers = torch.from_numpy(partitions_of(columns["key"].numpy()))
        else:
            numbers = columns["partition"]
            if "shard" in candidate_columns(self.config):
                sizes = torch.tensor([len(a["partition"]) for a in answers], device="cpu")
                shards = torch.arange(len(sizes), device="cpu").repeat_interleave(sizes)
                columns = {"shard": shards, **columns}
        order = numbers.argsort(stable=True)
        return {name: column[order] for name, column in columns.items()}

    # Facts

    def _num_rows(self) -> int:
        return sum(self._ask_all("num_rows"))

    def _memory_report(self) -> dict[str, int]:
        return sum_reports(self._ask_all("memory_report"))

    def _stats(self) -> dict[str, int]:
        return sum_reports(self._ask_all("stats"))

    def _update_calls(self) -> int:
        return max(map(int, self._ask_all("update_calls")))

    def _seen_time(self) -> int:
        return max(map(int, self._ask_all("seen_time")))

    def _has_cut(self) -> bool:
        return any(self._ask_all("has_cut"))

    def _cursors(self) -> list[str]:
        return sorted(set().union(*self._ask_all("cursors")))


def sum_reports(reports: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums of the numbers of all shards; the largest where a number is a maximum."""
    total: dict[str, int] = {}
    for report in reports:
        for name, number in report.items():
            old = total.get(name, 0)
            total[name] = max(old, number) if "_max_" in name else old + number
    return total
