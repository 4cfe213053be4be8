"""What backward has queued for a table, until a step applies it; and handles of such queues."""

import ctypes
import functools
import itertools
import math
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

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
from monolith.errors import FailedPreconditionError

__all__ = ["GradientQueue", "queue_at", "queue_of"]

# A graph of torch.compile or torch.export holds numbers, not tables. A number is never used again,
# and a queue whose modules are gone goes with them.
_QUEUES: "weakref.WeakValueDictionary[int, GradientQueue]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count(1)

# Stands for a norm of 0 in the anchor's gradient, so that a 0 there always means "emptied". Its
# square vanishes in a float32 sum, and a scaler's factor leaves it above 0.
_NO_NORM = 1e-25


class GradientQueue:
    """The gradients of one table between backward and step. One thread trains a table at a time.

    The anchor, a parameter of one element, stands for the table in a model. Its gradient is the L2
    norm of the queue, where gradients of equal keys are summed. What is done to that gradient is
    done to the queue: a factor (clipping, a gradient scaler) scales it, None or 0 empties it. So
    torch's own tools, which know nothing of tables, do the right thing.

    Args:
        table: any table; it may be replaced by one with the same columns.
        is_seed_drawn: nobody chose the table's seed; a state that is loaded brings its own.
    """

    def __init__(self, table: TableVerbs, *, is_seed_drawn: bool = False) -> None:
        anchor = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))
        self._connect(table, anchor, is_seed_drawn)

    def _connect(self, table: TableVerbs, anchor: torch.nn.Parameter, is_seed_drawn: bool) -> None:
        self.table = table
        self.is_seed_drawn = is_seed_drawn
        self.anchor = anchor
        self.handle = next(_HANDLES)
        self.num_traced = 0
        self._items: list[BagGradients] = []
        self._num_keys = 0  # of the items, each as often as it occurs
        # By backward: what reaches the anchor's gradient only when that backward has summed it.
        self._pending: dict[int, list[BagGradients]] = {}
        self._sum: GradientSum | None = None  # of the items, if they are as the last backward left
        self._norm = 0.0
        self._was_applied = False
        self._checked_rates: list[float] | None = None  # which the table takes
        self._first_value: float | None = None  # of the anchor, at the first backward
        # Only a OneBit view reads differently from step to step.
        self._has_steps = any(isinstance(s.view, OneBit) for s in segments_of(table.config))
        self._seen = 0.0  # the anchor's gradient as the last backward left it
        _QUEUES[self.handle] = self
        queue = weakref.ref(self)  # a hook that held the queue would never let it go

        def accumulated(anchor: torch.Tensor) -> None:
            found = queue()
            if found is not None:
                found._accumulate()

        anchor.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    @property
    def num_lookups(self) -> int:
        """Lookups whose gradients are queued."""
        self._follow_anchor()
        return len(self._items)

    @property
    def norm(self) -> float:
        """L2 norm of the queued gradient; inf or nan if it is not finite."""
        self._follow_anchor()
        return self._norm

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
        backward = torch._C._current_graph_task_id()
        item = BagGradients.unchecked(bags.copy(), gradients, winners)
        if backward not in self._pending:
            self._pending[backward] = []
            # What never comes to the anchor, as in `torch.autograd.grad`, goes with its backward.
            forget = functools.partial(self._forget, backward)
            torch.autograd.Variable._execution_engine.queue_callback(forget)
        self._pending[backward].append(item)
        return gradients.new_zeros(1)

    def _forget(self, backward: int) -> None:
        self._pending.pop(backward, None)

    def _accumulate(self) -> None:
        """Take what this backward has pushed. A `torch.autograd.grad` never comes here."""
        pushed = self._pending.pop(torch._C._current_graph_task_id(), [])
        if not self._was_applied:
            self._check_anchor()
        self._follow_anchor()
        self._items += pushed
        self._num_keys = sum([item.bags.keys.numel() for item in self._items])
        self._sum = self._summed()
        self._norm = self._sum.norm
        self._show(self._norm)

    def _show(self, value: float) -> None:
        """Write the anchor's gradient. In its memory, for an op takes longer than the norm."""
        assert self.anchor.grad is not None
        cell = ctypes.c_float.from_address(self.anchor.grad.data_ptr())
        cell.value = value
        if cell.value == 0:
            cell.value = _NO_NORM
        self._seen = cell.value

    def _summed(self) -> GradientSum:
        """`Table.sum_bag_gradients` of the items, which are checked."""
        table = self.table
        table._check_open("sum_bag_gradients")
        check_num_keys(table.config, "sum_bag_gradients", self._num_keys)
        return table._sum_bag_gradients(self._items, default_threads(self._num_keys))

    def _check_anchor(self) -> None:
        """Warn if an optimizer steps the anchor, and nothing the table."""
        value = self.anchor.item()
        if self._first_value is None:
            self._first_value = value
        elif value != self._first_value:
            self._was_applied = True  # said once
            warnings.warn(
                f"[GradientQueue] expected a step of the table since the last backward, got one of "
                f"its anchor alone (table {self.table.name!r}): its rows are not trained; use "
                "monolith.optim.Optimizer(model, dense=...), or call step() of the module",
                RuntimeWarning,
                stacklevel=2,
            )

    def _follow_anchor(self) -> None:
        """Do to the queue what was done to the anchor's gradient since the last backward."""
        if not self._items:
            return
        gradient = self.anchor.grad
        value = 0.0 if gradient is None else gradient.item()
        if value == 0:
            self._empty()
        elif value != self._seen and self._seen != 0 and math.isfinite(self._seen):
            self.scale(value / self._seen)

    def scale(self, factor: float) -> None:
        """Multiply every queued gradient."""
        self._items = [
            BagGradients(item.bags, item.gradients * factor, item.winners) for item in self._items
        ]
        self._sum = None
        self._norm *= abs(factor)
        self._seen *= factor
        if self.anchor.grad is not None:
            self.anchor.grad.fill_(self._seen)

    def drop(self) -> None:
        """Empty the queue without applying it."""
        self._empty()
        self._pending.clear()
        self.anchor.grad = None

    def _empty(self) -> None:
        self._items, self._num_keys, self._sum = [], 0, None
        self._norm, self._seen = 0.0, 0.0

    def check(self, where: str, learning_rates: list[float]) -> int:
        """Refuse what a step (`queue_steps.py`) would meet, before anything has changed.

        Returns:
            The number of queued keys, each as often as it occurs.
        """
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
            raise ValueError(
                f"{where} expected finite gradients, got norm {self._norm} (table "
                f"{table.name!r}); call zero_grad(), or choose non_finite='skip' or 'clip'"
            )
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

    def summed(self) -> GradientSum:
        """The sum of what is queued, as `check` saw it."""
        return self._sum or self._summed()

    def applied(self) -> None:
        """A step has applied the queue."""
        self._was_applied = True
        self.drop()

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
    for queue in list(_QUEUES.values()):
        if queue.table is table:
            return queue
    return GradientQueue(table)


def queue_at(handle: int) -> GradientQueue:
    """The queue of a handle in a graph."""
    queue = _QUEUES.get(int(handle))
    if queue is None:
        raise FailedPreconditionError(
            f"[monolith::lookup_bags] expected the module of table handle {handle} to be alive in "
            "this process, got none; compile or export the module again where it is"
        )
    return queue
