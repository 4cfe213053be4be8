"""What backward has queued for the tables of a `FeatureBags`, until a step applies it."""

import math
from collections.abc import Callable
from typing import Any

import torch

from monolith.embedding.anchor_queue import AnchorQueue, QueueHandles, new_anchor, refusal
from monolith.embedding.feature_tables import FeatureBatch, FeatureItem, FeatureSum, FeatureTables
from monolith.embedding.ownership import holders_alone
from monolith.embedding.table_content import copy_of_content, fill_table
from monolith.embedding.verbs import TableVerbs

__all__ = ["FeatureQueue", "feature_queue_at"]

_VERB = "apply_bag_gradients"
_HANDLES: "QueueHandles[FeatureQueue]" = QueueHandles("monolith::lookup_features")


class FeatureQueue(AnchorQueue[FeatureItem, FeatureSum]):
    """The gradients of all features between backward and step. One thread trains at a time.

    Args:
        engine: tables and features.

    Attributes:
        engine: tables and features.
        now: time of the next steps in seconds, as the request of the batch has it; None: that of
            the tables' clocks. Far ahead of a clock it is clamped and counted, as in every call.
        holders_alone: of gradients that a backward gets and nobody else has.
    """

    def __init__(self, engine: FeatureTables) -> None:
        self._connect(engine, new_anchor())

    def _connect(self, engine: FeatureTables, anchor: torch.nn.Parameter) -> None:
        self._connect_anchor(anchor)
        self.engine = engine
        self.handle = _HANDLES.new(self)
        self.num_traced = 0
        self.now: int | None = None
        self.holders_alone = holders_alone()

    @property
    def tables(self) -> list[TableVerbs]:
        """In the order given."""
        return self.engine.tables

    @property
    def which(self) -> str:
        """The end of messages."""
        first, *others = self.engine.tables
        return f"(table {first.name!r}{f' and {len(others)} more' if others else ''})"

    def push(self, batch: FeatureBatch, gradients: torch.Tensor) -> torch.Tensor:
        """Queue the gradients of one lookup; called by backward.

        Args:
            batch: what was looked up.
            gradients: float32 (batch, width) or wider, each row contiguous; nobody else writes
                them. What is behind the features counts for nothing.

        Returns:
            The share in the anchor's gradient, as of `GradientQueue.push`.
        """
        self._push(FeatureItem(batch, gradients))
        return gradients.new_zeros(1)

    def _keys_of(self, item: FeatureItem) -> int:
        return item.batch.num_keys

    def _scaled(self, item: FeatureItem, factor: float) -> FeatureItem:
        return FeatureItem(item.batch, item.gradients * factor)

    def _summed(self) -> FeatureSum:
        return self.engine.sum(self._items)

    def check(self, where: str, learning_rates: list[float]) -> int:
        """Refuse what a step would meet; the number of queued keys."""
        self._follow_anchor()
        if not self._num_keys:
            return 0
        self.engine.check_open(where)
        if learning_rates != self._checked_rates:
            self.engine.set_rates(learning_rates)
            self._checked_rates = learning_rates
        if not math.isfinite(self._norm):
            summed = self.summed()
            for number, table in enumerate(self.tables):
                norm = self.engine.norm_of(summed, number)
                if table.config.non_finite == "refuse" and not math.isfinite(norm):
                    raise refusal(where, norm, table)
        return self._num_keys

    def step(
        self, time_of: Callable[[TableVerbs], int], beside: Callable[[], object] | None = None
    ) -> None:
        """Apply the queue right after `check`; it is empty then.

        If memory runs out in a table, or `beside` raises, others may have made their step; the
        queue is dropped.

        Args:
            time_of: gives the time of a table's clock, for steps without `now`.
            beside: called once, here, while other threads begin.
        """
        now, clamped = self.now, set()

        def time_at(table: TableVerbs) -> int:
            if now is None:
                return time_of(table)
            time_now, is_clamped = table._resolve_time(_VERB, now)
            if is_clamped:
                clamped.add(id(table._clock))
            return time_now

        times = self.engine.times(time_at)
        items = self._items  # held, for the sum borrows them, and `beside` may drop the queue
        try:
            self.engine.step(self.summed(), times, self._num_keys, beside)
        finally:
            del items
            self.applied()
        for table in self.tables if clamped else ():
            if id(table._clock) in clamped:
                table._count_clamped()

    def apply(self, learning_rates: list[float] | None = None) -> None:
        """A step without an optimizer: the rates of all segments, or each segment's own."""
        self.engine.check_open("[FeatureQueue.apply]")
        rates = self.engine.own_rates() if learning_rates is None else learning_rates
        if self.check("[FeatureQueue.apply]", rates):
            self.step(lambda table: table._resolve_time(_VERB, None)[0])
        else:
            self.drop()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: a copy has tables of its own; nothing is queued there."""
        return {
            "tables": [copy_of_content(table) for table in self.tables],
            "features": self.engine.features,
            "anchor": self.anchor,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = [fill_table(content) for content in state["tables"]]
        self._connect(FeatureTables(tables, state["features"]), state["anchor"])


def feature_queue_at(handle: int) -> FeatureQueue:
    """The queue of a handle in a graph."""
    return _HANDLES.at(handle)
