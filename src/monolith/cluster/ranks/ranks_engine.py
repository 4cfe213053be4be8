"""`RanksEngine`: the features of tables in all ranks, exchanged by collectives."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from monolith.cluster.exchange.exchange_engine import ExchangeEngine, ExchangeSum, Requests
from monolith.cluster.group_storage import Push, without_tables
from monolith.cluster.host_verbs import TRANSFERS
from monolith.cluster.ranks.gradient_exchange import GradientExchange, KeptKeys, StepHeads
from monolith.cluster.ranks.key_exchange import KeyExchange, KeyMessages, LookupFacts
from monolith.cluster.ranks.rank_folds import OwnerSums, RankFolds, cut_by
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.servers_engine import servers_engine
from monolith.cluster.shard_hosts import narrowed
from monolith.cluster.shard_split import Split
from monolith.features.engine import BagFeature, Gradients
from monolith.ops import Ragged
from monolith.table._checks import default_threads
from monolith.table.base import BaseTable
from monolith.table.rows import Applied


class RanksLooked(NamedTuple):
    """What was asked for in one lookup of all ranks.

    Attributes:
        requests: keys of this rank.
        rows: rows of features with combiner "rows".
        number: number of the lookup, equal in all ranks.
    """

    requests: Requests
    rows: Mapping[str, torch.Tensor]
    number: int

    @property
    def num_keys(self) -> int:
        """Number of ids of all features, without those beyond a limit."""
        return self.requests.core.num_ids


class _Owned(NamedTuple):
    """The sums of all ranks at this owner.

    Attributes:
        heads: what all ranks say of the step.
        sums: sums of the keys that this rank owns.
        squares: square of the norm of each table over all ranks.
    """

    heads: StepHeads
    sums: OwnerSums


class RanksSum:
    """The gradients of a step, which are sent to the owners when somebody asks for more.

    Args:
        engine: of the sum.
        local: sums of this rank; None without gradients.
        names: names of the tables in the order of a group.

    Attributes:
        local: the same.
        factor: factor of the gradients that are sent.
        owned: sums of all ranks at this owner; None before they are sent.
    """

    def __init__(
        self, engine: "RanksEngine", local: ExchangeSum | None, names: Sequence[str]
    ) -> None:
        self._engine, self.local, self._names = engine, local, names
        self.factor = 1.0
        self.owned: _Owned | None = None
        self._norms: Mapping[str, float] | None = None

    @property
    def own_norm(self) -> float:
        """L2 norm of the gradients of this rank alone."""
        return 0.0 if self.local is None else abs(self.factor) * float(self.local.norm)

    def own_norm_of(self, table: str) -> float:
        """Return the L2 norm of the gradients of one table in this rank alone."""
        return 0.0 if self.local is None else abs(self.factor) * self.local.norm_of(table)

    @property
    def norms(self) -> Mapping[str, float]:
        """L2 norm of the gradient of each table over all ranks; a collective on its first use."""
        if self._norms is None:
            squares = self._engine.squares(self)
            self._norms = {
                name: math.sqrt(square) if square >= 0 else square
                for name, square in zip(self._names, squares, strict=True)
            }
        return self._norms

    @property
    def norm(self) -> torch.Tensor:
        """L2 norm over all tables and ranks; a collective on its first use."""
        total = sum(norm * norm for norm in self.norms.values())
        return torch.tensor(math.sqrt(total), dtype=torch.float64, device="cpu")

    def norm_of(self, table: str) -> float:
        """Return the L2 norm of the gradient of one table over all ranks."""
        return self.norms[table]

    def scaled(self, factor: float) -> "RanksSum":
        """Multiply the gradients. After they were sent, all ranks use the same factor."""
        self.factor *= factor
        if self.owned is not None:
            self.owned.sums.grads.mul_(factor)
            self.owned.sums.squares.mul_(factor * factor)
        if self._norms is not None:
            self._norms = {name: abs(factor) * norm for name, norm in self._norms.items()}
        return self


class RanksEngine(ExchangeEngine):
    """Reads and steps tables that are spread over ranks; all ranks make the same calls.

    ```
    lookup   keys of all tables to their owners | rows of all tables back
    step     gradients of these keys to their owners, which add equal keys in the order of the ranks
    ```

    A rank without data makes its lookups with empty batches, and its steps without gradients. With
    one rank the bits are those of `PlainEngine`; with several, gradients of equal keys are first
    summed in each rank.

    Lookups run on one thread, and sums and steps on one other, in all ranks in the same order.
    Everything but training, such as an evaluation, reads by calls (`reader`), so that a rank may do
    it alone.

    Args:
        tables: with a shard in each rank.
        features: of these tables, with different names.
        ranks: tables of all ranks.
        transfer: dtype of rows and gradients on their way; sums are computed in float32.

    Attributes:
        transfer: the same.
        keys: exchange of keys, with the numbers of sent bytes.
        reader: engine that reads the same tables by calls.
        facts: what the next lookup of this rank says to the others; None takes its batch.
        messages: keys that this rank has got in its last lookup.
    """

    steps_always = True

    def __init__(
        self,
        tables: Iterable[BaseTable],
        features: Sequence[BagFeature],
        ranks: RankTables,
        *,
        transfer: str = "float32",
    ) -> None:
        super().__init__(tables, features, transfer=transfer)
        self.transfer, group = transfer, ranks.group
        self._set_places(group.size)
        listed = list(self.tables.values())
        self.reader = servers_engine(ranks.servers)(listed, list(features))
        self._owned = ranks.own_shards(self._names).group
        dims = [table.dim for table in self._sharded]
        self._dims = torch.tensor(dims, dtype=torch.int64, device="cpu")
        self._folds = RankFolds(dims, group.size)
        self._channel, self._rank = group.lookups, group.rank
        self._gradient_channel = group.gradients
        self.keys = KeyExchange(group.lookups, len(dims))
        with_counts = any(table.config.admission is not None for table in self._sharded)
        self._gradients = GradientExchange(
            group.gradients, dims, transfer, self.keys.counts, with_counts=with_counts
        )
        self._lock = threading.Lock()
        self._kept: dict[int, KeptKeys] = {}  # lookups that are not yet stepped
        self._covered: tuple[int, ...] = ()
        self.facts: LookupFacts | None = None
        self.messages: KeyMessages | None = None

    # Lookups

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        weights: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor | None,
        missing: str,
    ) -> tuple[torch.Tensor, Any]:
        """Read the rows of all features, together with all other ranks."""
        with self._lock:
            matrix, looked = super().lookup(ids, weights, dense, missing)
            assert self.messages is not None
            return matrix, RanksLooked(looked.requests, looked.rows, self.messages.number)

    def _pull(self, requests: Requests, initial: bool) -> Sequence[torch.Tensor | None]:
        parts = requests.parts()
        facts, self.facts = self.facts, None
        if facts is None:
            facts = LookupFacts(requests.core.num_ids)
        self.messages = messages = self.keys.exchange(parts, facts)
        self._kept[messages.number] = KeptKeys(messages.keys, requests.splits)
        if messages.has_ended:
            return [None] * len(parts)
        rows = [
            self._owned._pull(Ragged._unchecked(*keys), initial)
            if len(keys[0])
            else torch.empty(0, device="cpu")
            for keys in messages.keys
        ]
        return self._exchange_rows(rows, requests.core.float_starts)

    def _exchange_rows(
        self, rows: list[torch.Tensor], starts: Sequence[int]
    ) -> Sequence[torch.Tensor | None]:
        """Send the rows that other ranks have asked for; return those of this rank's keys."""
        rank, dtype = self._rank, TRANSFERS[self._transfer]
        mine, rows[rank] = rows[rank], rows[rank][:0]
        if len(rows) == 1:
            return [mine]
        sent = narrowed("[RanksEngine.lookup]", "rows", torch.cat(rows), dtype)
        sizes = (torch.tensor(starts[1:]) - torch.tensor(starts[:-1])).tolist()
        sizes[rank] = 0
        received = torch.empty(sum(sizes), dtype=dtype, device="cpu")
        self.keys.counts.row_bytes += sent.numel() * sent.element_size()
        self._channel.all_to_all(received, sent, sizes, list(map(len, rows)))
        answers = cut_by(sizes, received.float())
        answers[rank] = mine
        return answers

    # Steps

    def cover(self, lookups: Sequence[int]) -> None:
        """Set the lookups of the next step, in all ranks the same; else those with gradients.

        Args:
            lookups: numbers of the lookups.
        """
        self._covered = tuple(lookups)

    def forget(self) -> None:
        """Forget the keys of lookups that no step will have."""
        self._kept.clear()
        self._covered = ()

    def sum(self, items: Sequence[tuple[RanksLooked, Gradients]]) -> RanksSum:  # type: ignore[override]
        """Add up the gradients of this rank; they are sent when they are stepped."""
        self.check_open("[Features.backward]")
        looked: Any = items
        local = super().sum(looked) if items else None
        return RanksSum(self, local, self._names)

    def _send(self, summed: RanksSum) -> _Owned:
        """Send the sums to the owners, once."""
        if summed.owned is not None:
            return summed.owned
        local = summed.local
        if local is not None and summed.factor != 1.0:
            local.grads.mul_(summed.factor)
        items: Sequence[tuple[RanksLooked, Gradients]] = () if local is None else local.items  # type: ignore[assignment]
        covered = self._covered or tuple(looked.number for looked, _ in items)
        norms = [0.0 if local is None else local.norms[name] for name in self._names]
        kept = self._kept.get(covered[0]) if len(covered) == 1 else None
        heads, parts = self._gradients.send_sums(local, kept, max(covered, default=-1), norms)
        lost = heads.not_finite.any(0)
        summed.owned = _Owned(heads, self._folds.fold(parts))
        summed.owned.sums.squares[lost] = math.nan
        for number in list(self._kept):  # a copy: a lookup may add to them meanwhile
            if number <= max(covered, default=-1):
                del self._kept[number]
        self._covered = ()
        return summed.owned

    def squares(self, summed: RanksSum) -> list[float]:
        """Return the square of the norm of each table over all ranks; a collective."""
        squares = self._send(summed).sums.squares.clone()
        self._gradient_channel.begin_all_reduce(squares)()
        numbers: list[float] = squares.tolist()
        return numbers

    def step(self, summed: RanksSum, rates: Sequence[float], times: Sequence[int]) -> Applied:
        """Make one optimizer step for each distinct key; counts are those of this rank's rows."""
        self.check_open("[Features.step]")
        heads, sums = self._send(summed)
        self._refuse_not_finite(heads)
        time_of = torch.tensor([times[i] for i in self._order], dtype=torch.int64, device="cpu")
        lost, is_stepped = heads.not_finite.any(0), heads.with_keys.any(0)
        others = lost.nonzero().flatten().tolist()
        keys, grads, counts = sums.keys, sums.grads, sums.counts
        if others:
            keys, grads, counts = without_tables(keys, (grads, counts), others, self._dims)
            is_stepped = is_stepped & ~lost
        total = [(0, 0, 0, 0)]
        if bool(is_stepped.any()):
            push = Push(keys, grads, counts, is_stepped, time_of, self._rates_in_order(rates))
            numbers = [table._update_calls() for table in self._owned.tables.values()]
            total.append(self._owned._push(push))
            for number in is_stepped.nonzero().flatten().tolist():
                self._sharded[number].note_push(numbers[number])
        for number in others:
            own_rates = list(rates[self._segments[number]])
            total.append(self._step_each(summed, number, own_rates, int(time_of[number])))
        return Applied(*map(sum, zip(*total, strict=True)))

    def _refuse_not_finite(self, heads: StepHeads) -> None:
        """Refuse gradients that a table refuses in all ranks, before the first table changes."""
        for number, table in enumerate(self._sharded):
            if table.config.non_finite == "refuse" and bool(heads.not_finite[:, number].any()):
                rank = int(heads.not_finite[:, number].int().argmax())
                raise ValueError(
                    f"[Features.step] expected finite gradients, got others in rank {rank} (table "
                    f"{table.name!r}); choose non_finite='skip' or 'clip'"
                )

    def _step_each(
        self, summed: RanksSum, number: int, rates: list[float], now: int
    ) -> tuple[int, int, int, int]:
        """Step a table with the gradient of each occurrence, so that its policy sees them all."""
        table = self._sharded[number]
        keys, grads = torch.empty(0, dtype=torch.int64), torch.empty(0, table.dim)
        if summed.local is not None:
            keys, grads = self._occurrences(summed.local, number)
            grads = grads * summed.factor
        split = Split(self._routing, keys)
        own_keys, own_grads = self._gradients.send_occurrences(
            split.parts(keys), split.parts(grads), table.dim
        )
        shard = self._owned.tables[table.name]
        call, threads = shard._update_calls(), default_threads(len(own_keys))
        applied = shard._apply_gradients(own_keys, own_grads, rates, call, now, threads)
        table.note_push(call)
        return applied

    # Facts

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each table over all ranks, by calls."""
        self.check_open("[Features.stats]")
        return self.reader.stats()

    def memory_reports(self) -> Mapping[str, Mapping[str, int]]:
        """Return the bytes of each table over all ranks, by calls."""
        self.check_open("[Features.memory_report]")
        return self.reader.memory_reports()

    def close(self) -> None:
        """End the connections; the ranks keep their rows. Closing twice is fine."""
        self._note_closed(next(iter(self.tables)))
        self.reader.close()


def ranks_engine(
    ranks: RankTables, transfer: str = "float32"
) -> Callable[[list[BaseTable], list[BagFeature]], RanksEngine]:
    """Return what makes an engine of tables that have a shard in each rank.

    Args:
        ranks: tables of all ranks.
        transfer: dtype of rows and gradients on their way.
    """

    def make(tables: list[BaseTable], features: list[BagFeature]) -> RanksEngine:
        return RanksEngine(tables, features, ranks, transfer=transfer)

    return make
