"""The side of a shard that holds many tables: one checked call for all of them."""

import functools
from typing import Any

import torch

from monolith.embedding.call_host import Call, CallHost
from monolith.embedding.host_arguments import MAX_MESSAGE_BYTES, HostFacts
from monolith.embedding.host_verbs import GROUP_VERBS
from monolith.embedding.shard_split import is_finite
from monolith.embedding.table_group import TableGroup
from monolith.embedding.waits import WAIT_SECONDS
from monolith.ops import Ragged

__all__ = ["GroupHost", "narrowed", "short_name"]


class GroupHost(CallHost):
    """The tables of a shard, behind calls. Any thread may call at any time.

    Keys arrive as the values and row splits of a `Ragged` with a row per table. A writing call also
    names its idle tables: those without keys here that have some on other shards. Times are taken
    as they are: the caller's clock has clamped them.

    Args:
        group: the tables; whoever made them closes them.
        timeout_seconds: how long a write that comes again waits for the first one at most.
        max_message_bytes: most bytes of the keys and rows of one call.
    """

    def __init__(
        self,
        group: TableGroup,
        *,
        timeout_seconds: float = WAIT_SECONDS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        configs = [table.config for table in group.tables.values()]
        facts = HostFacts(short_name(list(group.tables)), configs, max_message_bytes)
        super().__init__(facts, GROUP_VERBS, timeout_seconds)
        self.group = group

    def _run(self, call: Call) -> Any:
        return getattr(self, f"_do_{call.verb}")(*call.arguments)

    def _do_lookup(
        self, keys: torch.Tensor, splits: torch.Tensor, step: int, as_float16: bool
    ) -> torch.Tensor:
        rows = self.group.lookup(Ragged._unchecked(keys, splits), step=step)
        return narrowed("[GroupHost.lookup]", "rows", rows) if as_float16 else rows

    def _do_write(
        self,
        verb: str,
        keys: torch.Tensor,
        splits: torch.Tensor,
        values: torch.Tensor,
        idle: list[str],
        now: int,
    ) -> None:
        self.group._write_at(verb, Ragged._unchecked(keys, splits), values, now)
        self._count_call(idle, now)

    _do_assign = functools.partialmethod(_do_write, "assign")
    _do_assign_add = functools.partialmethod(_do_write, "assign_add")

    def _do_apply_gradients(
        self,
        keys: torch.Tensor,
        splits: torch.Tensor,
        grads: torch.Tensor,
        idle: list[str],
        rates: list[float],
        step: int,
        now: int,
    ) -> tuple[int, ...]:
        applied = self.group._apply_at(
            Ragged._unchecked(keys, splits), grads.float(), rates, step, now
        )
        self._count_call(idle, now)
        return tuple(applied)

    def _do_reinitialize(self, name: str, keys: torch.Tensor, now: int) -> torch.Tensor:
        return self.group._reinitialize_at(name, keys, now)

    def _do_count_clamped(self, names: list[str]) -> None:
        for name in names:
            self.group.tables[name]._count_clamped()

    def _count_call(self, idle: list[str], now: int) -> None:
        """Let a table count a call of which it has no part, so that all shards count alike."""
        for name in idle:
            table = self.group.tables[name]
            nothing = torch.empty(0, dtype=torch.int64, device="cpu")
            table._assign_add(nothing, torch.empty(0, table.dim, device="cpu"), now, 1)


def short_name(names: list[str]) -> str:
    """Some tables, for messages: the first, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def narrowed(where: str, name: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float16; refuses numbers that float16 cannot hold."""
    narrow = values.half()
    if not is_finite(narrow):
        lost = torch.isfinite(values) & torch.isinf(narrow)
        if bool(lost.any()):
            raise ValueError(
                f"{where} expected {name} in the range of float16, got {values[lost][0].item():g}; "
                "transfer float32"
            )
    return narrow
