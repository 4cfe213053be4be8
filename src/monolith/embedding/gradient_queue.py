"""What backward has queued for a table, until a step applies it; and handles of such queues."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from monolith.embedding.anchor_queue import AnchorQueue, QueueHandles, new_anchor, refusal
from monolith.embedding.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.embedding.checks import (
    check_num_keys,
    check_rates,
    check_training,
    default_threads,
)
from monolith.embedding.config import segments_of
from monolith.embedding.rows import Applied
from monolith.embedding.table_content import copy_of_content, fill_table
from monolith.embedding.verbs import TableVerbs
from monolith.embedding.views import OneBit

__all__ = ["GradientQueue", "queue_at", "queue_of"]

_HANDLES: "QueueHandles[GradientQueue]" = QueueHandles("monolith::lookup_bags")


class GradientQueue(AnchorQueue[BagGradients, GradientSum]):
    """The gradients of one table between backward and step. One thread trains a table at a time.

    Args:
        table: any table; it may be replaced by one with the same columns.
        is_seed_drawn: nobody chose the table's seed; a state that is loaded brings its own.
    """

    def __init__(self, table: TableVerbs, *, is_seed_drawn: bool = False) -> None:
        self._connect(table, new_anchor(), is_seed_drawn)

    def _connect(self, table: TableVerbs, anchor: torch.nn.Parameter, is_seed_drawn: bool) -> None:
        self._connect_anchor(anchor)
        self.table = table
        self.is_seed_drawn = is_seed_drawn
        self.handle = _HANDLES.new(self)
        self.num_traced = 0
        # Only a OneBit view reads differently from step to step.
        self._has_steps = any(isinstance(s.view, OneBit) for s in segments_of(table.config))

    @property
    def tables(self) -> list[TableVerbs]:
        """The table."""
        return [self.table]

    @property
    def which(self) -> str:
        """The end of messages."""
        return f"(table {self.table.name!r})"

    @property
    def step(self) -> int:
        """Training step of the table, for schedules and optimizers: updates so far."""
        return self.table._update_calls()

    def lookup(self, bags: Bags, missing: str) -> PooledRows:
        """`Table.lookup_bags` as of the table's step; the module has checked `missing`."""
        table, num_keys = self.table, bags.keys.numel()
        table._check_open("lookup_bags")
        check_num_keys(table.config, "lookup_bags", num_keys)
        initial = missing == "initial" and not table._is_serving
        step = self.step if self._has_steps else 0
        try:
            return table._lookup_bags(bags, initial, step, default_threads(num_keys))
        except ValueError:
            bags.checked()  # says more than the core about splits
            raise

    def push(
        self, bags: Bags, gradients: torch.Tensor, winners: torch.Tensor | None
    ) -> torch.Tensor:
        """Queue the gradients of one lookup; called by backward.

        Keys and weights are copied: the caller may use their memory again before the step.

        Returns:
            A zero: the share in the anchor's gradient, which is replaced by the norm of the queue
            when the backward that runs has come to the anchor.
        """
        self._push(BagGradients.unchecked(bags.copy(), gradients, winners))
        return gradients.new_zeros(1)

    def _keys_of(self, item: BagGradients) -> int:
        return item.bags.keys.numel()

    def _scaled(self, item: BagGradients, factor: float) -> BagGradients:
        return BagGradients.unchecked(item.bags, item.gradients * factor, item.winners)

    def _summed(self) -> GradientSum:
        """`Table.sum_bag_gradients` of the items, which are checked."""
        table = self.table
        table._check_open("sum_bag_gradients")
        check_num_keys(table.config, "sum_bag_gradients", self._num_keys)
        return table._sum_bag_gradients(self._items, default_threads(self._num_keys))

    def check(self, where: str, learning_rates: list[float]) -> int:
        """Refuse what a step would meet; the number of queued keys."""
        self._follow_anchor()
        if not self._num_keys:
            return 0
        table, verb = self.table, "apply_bag_gradients"
        table._check_open(verb)
        if learning_rates != self._checked_rates:
            check_training(table.config, verb)
            check_rates(table.config, verb, 0, learning_rates)  # they are given, whatever the step
            self._checked_rates = learning_rates
        if not math.isfinite(self._norm) and table.config.non_finite == "refuse":
            raise refusal(where, self._norm, table)
        return self._num_keys

    def apply(
        self, *, learning_rates: Sequence[float] | None = None, now: int | None = None
    ) -> Applied:
        """One optimizer step per distinct key of the whole queue, which is empty then.

        A step that the table refuses leaves the queue as it is. Without a key it is no update.
        """
        self._follow_anchor()
        if not self._num_keys:
            self.drop()
            return Applied(0, 0, 0, 0)
        applied = self.table.apply_bag_gradients(
            self._sum or self._items, step=self.step, learning_rates=learning_rates, now=now
        )
        self.applied()
        return applied

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: a copy has a table of its own; nothing is queued there."""
        return {
            "table": copy_of_content(self.table),
            "anchor": self.anchor,
            "is_seed_drawn": self.is_seed_drawn,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._connect(fill_table(state["table"]), state["anchor"], state["is_seed_drawn"])


def queue_of(table: TableVerbs) -> GradientQueue:
    """The queue of a table, shared by all modules that use the table; a new one for the first."""
    for queue in _HANDLES.alive():
        if queue.table is table:
            return queue
    return GradientQueue(table)


def queue_at(handle: int) -> GradientQueue:
    """The queue of a handle in a graph."""
    return _HANDLES.at(handle)
