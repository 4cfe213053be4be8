"""`ShardedGroup`: tables over servers, one message for each server and call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from monolith.cluster.exchange.key_folds import GroupFolds
from monolith.cluster.servers import Servers
from monolith.cluster.shard_hosts import narrowed, short_name
from monolith.cluster.shard_split import is_finite
from monolith.cluster.sharded_table import ShardedTable
from monolith.cluster.slot_packing import SlotPacking
from monolith.cluster.table_group import GroupRates
from monolith.cluster.timed_transport import timed
from monolith.cluster.transport import ShardClient, Transport
from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.updates import AppliedUpdate, RunningUpdates
from monolith.observe.metrics import MetricsSink
from monolith.ops import Ragged
from monolith.table import _checks as checks
from monolith.table.calls import Clock, resolve_time, wall_clock
from monolith.table.config import TableConfig, segments_of
from monolith.table.key_sums import finite_gradients
from monolith.table.routing import FloorModRouting
from monolith.table.rules import Probabilistic

TableConfigs = Mapping[str, HashTableConfigInstance | TableConfig]
"""Configs of tables by name, in the reference system's words or in ours."""


class ShardedGroup:
    """Tables that are read and updated together, each in the same shards.

    The caller splits its keys: a call takes one `Ragged` for each shard, with a row per table, and
    flat rows in the same order, as `TableGroup` does. Learning rates travel with each update. A
    call is checked as a whole before the first shard changes. If memory then runs out in one shard,
    or a shard is closed or cannot be reached, the others have done their part.

    Any two calls may run at once from any two threads.

    Args:
        configs: of the tables; their learning rates are those of this object's updates.
        transports: one per shard, each to a `GroupHost` with these tables.
        tables: the same tables one by one, if they are asked for.
        owner: whose calls these are, for messages.
        transfer_float16: rows of lookups and gradients travel as float16.
        clock: gives the time of a call that has no `now`.

    Attributes:
        tables: the same rows as tables, by name.
        is_counting: whether a table asks for admission, which counts the occurrences of keys.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig],
        transports: Sequence[Transport],
        *,
        tables: Mapping[str, ShardedTable] | None = None,
        owner: str = "ShardedGroup",
        transfer_float16: bool = False,
        clock: Clock = wall_clock,
    ) -> None:
        ordered = sorted(configs, key=lambda config: config.name)
        self.configs = {config.name: config for config in ordered}
        self.order = SlotPacking({config.name: config.dim for config in ordered}, owner)
        self.num_shards = len(transports)
        self.routing = FloorModRouting(self.num_shards)
        self.name = short_name(list(self.configs))
        self.updates = RunningUpdates(self.name)
        self._owner, self._clock, self._as_float16 = owner, clock, transfer_float16
        self.tables = dict(tables or {})
        self._rates = GroupRates(ordered, owner)
        self._client = ShardClient(self.name, transports, owner=owner)
        self._counting = {i: c.name for i, c in enumerate(ordered) if _counts_calls(c)}
        self._folds = GroupFolds(self.order.widths)
        self._all_folds = GroupFolds(self.order.widths, self.num_shards)
        self.is_counting = any(config.admission is not None for config in ordered)
        self._is_refusing = any(config.non_finite == "refuse" for config in ordered)

    def num_floats(self, keys: Ragged) -> int:
        """Floats in the rows of the keys."""
        return int((keys.lengths * self.order.widths).sum())

    def _where(self, verb: str) -> tuple[str, str]:
        return f"[{self._owner}.{verb}]", f"(table {self.name!r})"

    @contextmanager
    def _time(self, verb: str, now: int | None, name: str | None = None) -> Iterator[int]:
        """Around an update, of all tables or of one: its time, counted once if it was clamped."""
        time_now, is_clamped = resolve_time(self._where(verb), self._clock, now)
        with self.updates.update():
            yield time_now
            names = [own for own in self.configs if name in (None, own)] if is_clamped else []
            if names:
                self._client.call("count_clamped", [(names,)] + [None] * (self.num_shards - 1))

    def lookup(
        self, parts: Sequence[Ragged], *, step: int = 0, is_distinct: bool = False
    ) -> list[torch.Tensor]:
        """Return the rows of the keys of each shard, flat; shards without keys are not asked.

        Args:
            parts: keys of each shard, with a row per table.
            step: training step, for a `OneBit` view.
            is_distinct: no key comes twice in a table; otherwise keys are folded.
        """
        step = checks.check_step_of(self._where("lookup"), step)
        folds = [None if is_distinct else self._folds.fold(part) for part in parts]
        asked = [
            part if fold is None else fold.parts[0] for part, fold in zip(parts, folds, strict=True)
        ]
        calls = [
            (part.values, part.row_splits, step, self._as_float16) if len(part.values) else None
            for part in asked
        ]
        answers = iter(self._client.call("lookup", calls))
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        rows = [nothing if call is None else next(answers).float() for call in calls]
        return [
            part if fold is None else fold.spread([part])
            for part, fold in zip(rows, folds, strict=True)
        ]

    def write(
        self, verb: str, parts: Sequence[Ragged], rows: Sequence[torch.Tensor], now: int | None
    ) -> None:
        """`TableGroup.assign` or `assign_add` on each shard, as the verb says."""
        with self._time(verb, now) as time_now:
            calls = self._calls(parts, [(part,) for part in rows], time_now)
            self._client.call(verb, calls)

    def apply_gradients(
        self,
        parts: Sequence[Ragged],
        grads: Sequence[torch.Tensor],
        *,
        counts: Sequence[torch.Tensor] | None = None,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
        is_distinct: bool = False,
    ) -> AppliedUpdate:
        """`TableGroup.apply_gradients` on each shard, which gets each key of a table once.

        A shard gets the sum of the gradients of a key in order, and for admission the number of
        its occurrences. If a sum is not finite, the shards get the gradients as they are, so that
        the policy of a table sees each of them.

        Args:
            parts: keys of each shard, with a row per table.
            grads: flat gradients of the keys.
            counts: int32, occurrences of each key of `parts`, where gradients are sums; 1 if None.
            step: training step.
            learning_rates: of some tables, by name, one per segment.
            now: time of the update in seconds.
            is_distinct: no key comes twice in a table.

        Returns:
            Counts over all shards.
        """
        folded = self._folded(parts, grads, counts, is_distinct)
        options = step, learning_rates, now
        if folded is None:
            return self._apply_each(parts, grads, *options)
        return self._apply(*folded, *options)

    def apply_all(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        split: Callable[[Ragged, torch.Tensor], tuple[Sequence[Ragged], Sequence[torch.Tensor]]],
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """`apply_gradients` of keys of all shards, which are split where they are folded.

        Args:
            keys: keys with a row per table.
            grads: flat gradients of the keys.
            split: gives keys and gradients of each shard as they are, if a sum is not finite.
            step: training step.
            learning_rates: of some tables, by name, one per segment.
            now: time of the update in seconds.
        """
        fold = self._all_folds.fold(keys)
        sums, numbers, has_finite_sums = fold.sums(grads)
        if not has_finite_sums:
            return self._apply_each(*split(keys, grads), step, learning_rates, now)
        repeats = [part if self.is_counting else None for part in numbers]
        return self._apply(fold.parts, sums, repeats, step, learning_rates, now)

    def _apply_each(
        self,
        parts: Sequence[Ragged],
        grads: Sequence[torch.Tensor],
        step: int,
        learning_rates: Mapping[str, Sequence[float]] | None,
        now: int | None,
    ) -> AppliedUpdate:
        """Send the gradient of each occurrence, so that the policies of the tables see them all."""
        if self._is_refusing and len(parts) > 1:
            self._check_finite(parts, grads)
        return self._apply(parts, grads, [None] * len(parts), step, learning_rates, now)

    def _apply(
        self,
        parts: Sequence[Ragged],
        grads: Sequence[torch.Tensor],
        repeats: Sequence[torch.Tensor | None],
        step: int,
        learning_rates: Mapping[str, Sequence[float]] | None,
        now: int | None,
    ) -> AppliedUpdate:
        step = checks.check_step_of(self._where("apply_gradients"), step)
        rates = self._rates.at(step, learning_rates)
        if self._as_float16:
            where = f"[{self._owner}.apply_gradients]"
            grads = [narrowed(where, "gradients", part) for part in grads]
        with self._time("apply_gradients", now) as time_now:
            rows = list(zip(grads, repeats, strict=True))
            answers = self._client.call(
                "apply_gradients", self._calls(parts, rows, rates, step, time_now)
            )
        return AppliedUpdate.of(answers, self.updates)

    def _folded(
        self,
        parts: Sequence[Ragged],
        grads: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor] | None,
        is_distinct: bool,
    ) -> tuple[list[Ragged], list[torch.Tensor], list[torch.Tensor | None]] | None:
        """Return the distinct keys, sums and occurrences of each shard, or None.

        Occurrences are None where no table asks for them. The result is None if a sum is not
        finite.
        """
        repeats: list[torch.Tensor | None] = [None] * len(parts)
        if is_distinct:
            repeats = repeats if counts is None else list(counts)
            return (list(parts), list(grads), repeats) if all(map(is_finite, grads)) else None
        keys, sums = [], []
        for i, (part, flat) in enumerate(zip(parts, grads, strict=True)):
            fold = self._folds.fold(part)
            part_sums, numbers, has_finite_sums = fold.sums(flat)
            if not has_finite_sums:
                return None
            if counts is not None:
                numbers = fold.add_counts(counts[i])
            keys += fold.parts
            sums += part_sums
            repeats[i] = numbers[0] if self.is_counting else None
        return keys, sums, repeats

    def _calls(
        self, parts: Sequence[Ragged], rows: Sequence[tuple[Any, ...]], *options: Any
    ) -> list[tuple[Any, ...] | None]:
        """Arguments of a writing call for each shard; one with nothing to do is not asked."""
        return [
            (keys.values, keys.row_splits, *values, idle, *options)
            if len(keys.values) or idle
            else None
            for keys, values, idle in zip(parts, rows, self._idle(parts), strict=True)
        ]

    def _idle(self, parts: Sequence[Ragged]) -> list[list[str]]:
        """For each shard, tables that must count this call although their keys are elsewhere."""
        if not self._counting or len(parts) == 1:
            return [[]] * len(parts)
        lengths = torch.stack([part.lengths[list(self._counting)] for part in parts])
        is_idle = (lengths == 0) & (lengths.sum(0) > 0)  # (num_shards, num_counting)
        names = list(self._counting.values())
        return [[names[i] for i in own.nonzero().flatten().tolist()] for own in is_idle]

    def _check_finite(self, parts: Sequence[Ragged], grads: Sequence[torch.Tensor]) -> None:
        """Raise what the shard would, before another shard changes."""
        for keys, flat in zip(parts, grads, strict=True):
            lengths = keys.lengths
            ids = torch.split_with_sizes(keys.values, lengths.tolist())
            rows = torch.split_with_sizes(flat, (lengths * self.order.widths).tolist())
            for config, own, part in zip(self.configs.values(), ids, rows, strict=True):
                if config.non_finite == "refuse":
                    finite_gradients(config, own.tolist(), part.view(-1, config.dim).numpy())

    def reinitialize(
        self, name: str, parts: Sequence[torch.Tensor], now: int | None
    ) -> list[torch.Tensor]:
        """`TableGroup.reinitialize` of the keys of each shard."""
        with self._time("reinitialize", now, name) as time_now:
            return self._client.call("reinitialize", [(name, part, time_now) for part in parts])


def connect(
    tables: TableConfigs,
    servers: Servers,
    *,
    owner: str,
    transfer_float16: bool = False,
    clock: Clock = wall_clock,
    sink: MetricsSink | None = None,
    model_name: str = "",
) -> ShardedGroup:
    """Open tables on servers, with a shard on each; a table that is missing is made.

    Args:
        tables: configs by name, in the reference system's words or in ours.
        servers: servers of the shards.
        owner: class whose tables these are, for messages.
        transfer_float16: rows of lookups and gradients travel as float16.
        clock: gives the time of a call that has no `now`.
        sink: takes the lookup times of each server.
        model_name: a tag of these times.
    """
    configs = table_configs(owner, tables)
    routing = FloorModRouting(len(servers))
    opened = {config.name: servers.table(config, routing, clock) for config in configs}
    for name, names in restore_names_of(tables).items():
        opened[name].restore_names = names
    for name, seconds in sweeps_of(tables).items():
        servers.sweep(name, seconds, clock)
    return ShardedGroup(
        configs,
        timed(servers.connect(list(opened)), sink, model_name),
        tables=opened,
        owner=owner,
        transfer_float16=transfer_float16,
        clock=clock,
    )


def restore_names_of(tables: TableConfigs) -> dict[str, Sequence[str]]:
    """Return the other names that configs give to their tables in saves."""
    return {
        name: config.extra_restore_names
        for name, config in tables.items()
        if isinstance(config, HashTableConfigInstance) and config.extra_restore_names
    }


def sweeps_of(tables: TableConfigs) -> dict[str, int]:
    """Return the seconds between two sweeps of the tables whose configs ask for eviction."""
    every = {
        name: config.evict_every_seconds
        for name, config in tables.items()
        if isinstance(config, HashTableConfigInstance)
    }
    return {name: seconds for name, seconds in every.items() if seconds is not None}


def table_configs(owner: str, given: TableConfigs) -> list[TableConfig]:
    """Return configs by name, in the reference system's words or in ours, as ours."""
    if not given:
        raise ValueError(f"[{owner}] expected the config of at least one table, got none")
    configs = []
    for name, config in given.items():
        if isinstance(config, HashTableConfigInstance):
            config = config.table(name)
        if not isinstance(config, TableConfig):
            raise TypeError(
                f"[{owner}] expected configs as HashTableConfigInstance or TableConfig, got "
                f"{type(config).__name__} (table {name!r})"
            )
        if config.name != name:
            raise ValueError(
                f"[{owner}] expected configs by the name of their table, got {config.name!r} "
                f"under {name!r}"
            )
        configs.append(config)
    return configs


def _counts_calls(config: TableConfig) -> bool:
    """Whether random numbers of a table depend on how many calls it has seen."""
    is_rounded = any(segment.precision != "fp32" for segment in segments_of(config))
    return config.kind != "serving" and (is_rounded or isinstance(config.admission, Probabilistic))
