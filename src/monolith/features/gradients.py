"""Gradients between backward and step, and the anchor parameter that stands for them."""

import ctypes
import functools
import itertools
import math
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.autograd.function import once_differentiable

from monolith.errors import FailedPreconditionError
from monolith.features.core import CoreEngine, FeatureBatch, FeatureItem, FeatureSum
from monolith.table._checks import check_num_keys, check_rates, check_training, default_threads
from monolith.table.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.content import copy_of_content, fill_table
from monolith.table.precision import OneBit
from monolith.table.rows import Applied

# Stands for a norm of 0 in the anchor's gradient, so that a 0 there always means "emptied". Its
# square vanishes in a float32 sum, and a scaler's factor leaves it above 0.
_NO_NORM = 1e-25


class _HasNorm(Protocol):
    @property
    def norm(self) -> float: ...


Item = TypeVar("Item")
"""The gradients of one lookup."""

Summed = TypeVar("Summed", bound=_HasNorm)
"""The sum over the equal keys of all items."""


class PendingGradients(ABC, Generic[Item, Summed]):
    """What backward has queued for some tables. One thread trains them at a time.

    The anchor, a parameter of one element, stands for the tables in a model. Its gradient is the L2
    norm of the queue, where gradients of equal keys are summed. What is done to that gradient is
    done to the queue: a factor (clipping, a gradient scaler) scales it, None or 0 empties it. So
    torch's own tools, which know nothing of tables, do the right thing.
    """

    def _connect_anchor(self, anchor: torch.nn.Parameter) -> None:
        self.anchor = anchor
        self._items: list[Item] = []
        self._num_keys = 0  # of the items, each as often as it occurs
        # By backward: what reaches the anchor's gradient only when that backward has summed it.
        self._pending: dict[int, list[Item]] = {}
        self._sum: Summed | None = None  # of the items, if they are as the last backward left
        self._norm = 0.0
        self._was_applied = False
        self._checked_rates: list[float] | None = None  # which the tables take
        self._first_value: float | None = None  # of the anchor, at the first backward
        self._seen = 0.0  # the anchor's gradient as the last backward left it
        queue = weakref.ref(self)  # a hook that held the queue would never let it go

        def accumulated(anchor: torch.Tensor) -> None:
            found = queue()
            if found is not None:
                found._accumulate()

        anchor.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    @property
    @abstractmethod
    def tables(self) -> Sequence[BaseTable]:
        """What the queue trains."""

    @property
    @abstractmethod
    def which(self) -> str:
        """The end of messages: which tables."""

    @abstractmethod
    def _keys_of(self, item: Item) -> int:
        """Number of keys."""

    @abstractmethod
    def _scaled(self, item: Item, factor: float) -> Item:
        """The item with gradients times a factor."""

    @abstractmethod
    def _summed(self) -> Summed:
        """The sum of the items."""

    @abstractmethod
    def check(self, where: str, learning_rates: list[float]) -> int:
        """Refuse what a step (`queue_steps.py`) would meet, before anything has changed.

        Returns:
            The number of queued keys, each as often as it occurs.
        """

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

    def _push(self, item: Item) -> None:
        """Keep what a backward has found until it comes to the anchor."""
        backward = torch._C._current_graph_task_id()
        if backward not in self._pending:
            self._pending[backward] = []
            # What never comes to the anchor, as in `torch.autograd.grad`, goes with its backward.
            forget = functools.partial(self._forget, backward)
            torch.autograd.Variable._execution_engine.queue_callback(forget)
        self._pending[backward].append(item)

    def _forget(self, backward: int) -> None:
        self._pending.pop(backward, None)

    def _accumulate(self) -> None:
        """Take what this backward has pushed. A `torch.autograd.grad` never comes here."""
        pushed = self._pending.pop(torch._C._current_graph_task_id(), [])
        self._check_writable()
        if not self._was_applied:
            self._check_anchor()
        self._follow_anchor()
        self._items += pushed
        self._num_keys = sum([self._keys_of(item) for item in self._items])
        self._sum = self._summed()
        self._norm = self._sum.norm
        self._show(self._norm)

    def _check_writable(self) -> None:
        """Refuse an anchor whose gradient `_show` cannot write as a float in main memory."""
        gradient = self.anchor.grad
        assert gradient is not None
        if gradient.dtype is torch.float32 and gradient.is_cpu and gradient.numel() == 1:
            return
        anchor = self.anchor
        raise ValueError(
            f"[{type(self).__name__}] expected an anchor of one float32 on cpu, got "
            f"{anchor.numel()} of {str(anchor.dtype).removeprefix('torch.')} on {anchor.device} "
            f"{self.which}; leave the anchor out of casts and moves of the model"
        )

    def _show(self, value: float) -> None:
        """Write the anchor's gradient. In its memory, for an op takes longer than the norm."""
        assert self.anchor.grad is not None
        cell = ctypes.c_float.from_address(self.anchor.grad.data_ptr())
        cell.value = value
        if cell.value == 0:
            cell.value = _NO_NORM
        self._seen = cell.value

    def _check_anchor(self) -> None:
        """Warn if an optimizer steps the anchor, and nothing the tables."""
        value = self.anchor.item()
        if self._first_value is None:
            self._first_value = value
        elif value != self._first_value:
            self._was_applied = True  # said once
            warnings.warn(
                f"[{type(self).__name__}] expected a step of the table since the last backward, "
                f"got one of its anchor alone {self.which}: its rows are not trained; use "
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
        self._items = [self._scaled(item, factor) for item in self._items]
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

    def summed(self) -> Summed:
        """The sum of what is queued, as `check` saw it."""
        if self._sum is None:
            self._sum = self._summed()
        return self._sum

    def applied(self) -> None:
        """A step has applied the queue."""
        self._was_applied = True
        self.drop()


Queue = TypeVar("Queue", bound="PendingGradients[Any, Any]")


class QueueHandles(Generic[Queue]):
    """Numbers of queues, for a graph of torch.compile or torch.export holds no objects.

    A number is never used again, and a queue whose modules are gone goes with them.

    Args:
        op: whose argument the number is, for messages.
    """

    def __init__(self, op: str) -> None:
        self._op = op
        self._queues: weakref.WeakValueDictionary[int, Queue] = weakref.WeakValueDictionary()
        self._numbers = itertools.count(1)

    def new(self, queue: Queue) -> int:
        """The number of a queue that has none."""
        number = next(self._numbers)
        self._queues[number] = queue
        return number

    def at(self, number: int) -> Queue:
        """The queue of a number in a graph."""
        queue = self._queues.get(int(number))
        if queue is None:
            raise FailedPreconditionError(
                f"[{self._op}] expected the module of table handle {number} to be alive in this "
                "process, got none; compile or export the module again where it is"
            )
        return queue

    def alive(self) -> list[Queue]:
        """All queues."""
        return list(self._queues.values())


def new_anchor() -> torch.nn.Parameter:
    """A parameter of one element, whatever torch's default dtype and device are."""
    return torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))


def refusal(where: str, norm: float, table: BaseTable) -> ValueError:
    """Of gradients that are not finite, by a table that refuses them."""
    return ValueError(
        f"{where} expected finite gradients, got norm {norm} (table {table.name!r}); call "
        "zero_grad(), or choose non_finite='skip' or 'clip'"
    )


def queue_once(
    function: Callable[[Any, torch.Tensor], tuple[torch.Tensor | None, ...]],
    ctx: Any,
    gradients: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """Call the backward of a lookup so that torch refuses a second derivative of it.

    The refusal is slow, so it is made only where backward makes a graph of itself.
    """
    return (once_differentiable(function) if torch.is_grad_enabled() else function)(ctx, gradients)


def check_eager(queue: "PendingGradients[Item, Summed]", anchor: torch.Tensor) -> None:
    """Refuse what would lose gradients or rows of a lookup without a word.

    Args:
        queue: of the lookup.
        anchor: of the queue, as the module has it.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            f"[torch.jit.trace] expected no lookup in a traced function, got one: its rows would "
            f"become constants {queue.which}; use torch.export"
        )
    if anchor.requires_grad and anchor is not queue.anchor:
        raise ValueError(
            f"[lookup_bags] expected the anchor of the table, got another parameter in its place: "
            f"gradients would be lost {queue.which}; leave the anchor of the module "
            "as it is, and out of the parameters of functional_call"
        )
    if anchor.requires_grad:
        _check_not_averaged(queue)


def _check_not_averaged(queue: "PendingGradients[Item, Summed]") -> None:
    """Refuse DistributedDataParallel: it averages the anchor's gradient, a norm, over ranks."""
    running = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if running is not None and any(p is queue.anchor for p in running._module_parameters):
        raise RuntimeError(
            f"[DistributedDataParallel] expected no table in the wrapped model, got one "
            f"{queue.which}: the ranks would scale its gradients; wrap the dense part alone"
        )


Holders = tuple[int, int, int, int]
"""References to a tensor and to its storage: of Python to the object, and of C++, each."""


def holders_of(gradients: torch.Tensor) -> Holders:
    """Who holds gradients, running functions among them."""
    held: Any = gradients
    storage = held.untyped_storage()
    return (
        sys.getrefcount(gradients),
        held._use_count(),
        sys.getrefcount(storage),
        torch._C._storage_Use_Count(storage._cdata),
    )


def own(gradients: torch.Tensor, is_alone: bool) -> torch.Tensor:
    """The gradients in memory that nobody else writes before the step.

    Those that nobody else holds are taken as they are, as torch does with those of parameters.

    Args:
        gradients: as a backward got them.
        is_alone: whether torch's call of the backward is all that holds them.
    """
    held: Any = gradients
    is_ours = (
        is_alone
        and gradients.is_contiguous()
        and not held._is_view()
        and held.untyped_storage().resizable()  # the memory of others is not
    )
    return gradients if is_ours else gradients.clone(memory_format=torch.contiguous_format)


def holders_alone() -> Holders:
    """`holders_of` gradients that torch alone hands on, two calls below a backward.

    Versions of Python and torch differ in it, so it is counted.
    """
    found: list[Holders] = []
    with torch.inference_mode(False), torch.enable_grad():
        given = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
        (_Probe.apply(given, found) * 2).sum().backward()  # type: ignore[no-untyped-call]
    return found[0]


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, found: list[Holders]) -> torch.Tensor:
        ctx.found = found
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return queue_once(_note, ctx, gradients)


def _note(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    ctx.found.append(holders_of(gradients))
    return None, None


_HANDLES: "QueueHandles[GradientQueue]" = QueueHandles("monolith::lookup_bags")


class GradientQueue(PendingGradients[BagGradients, GradientSum]):
    """The gradients of one table between backward and step. One thread trains a table at a time.

    Args:
        table: any table; it may be replaced by one with the same columns.
        is_seed_drawn: nobody chose the table's seed; a state that is loaded brings its own.
    """

    def __init__(self, table: BaseTable, *, is_seed_drawn: bool = False) -> None:
        self._connect(table, new_anchor(), is_seed_drawn)

    def _connect(self, table: BaseTable, anchor: torch.nn.Parameter, is_seed_drawn: bool) -> None:
        self._connect_anchor(anchor)
        self.table = table
        self.is_seed_drawn = is_seed_drawn
        self.handle = _HANDLES.new(self)
        self.num_traced = 0
        # Only a OneBit view reads differently from step to step.
        self._has_steps = any(isinstance(s.view, OneBit) for s in segments_of(table.config))

    @property
    def tables(self) -> list[BaseTable]:
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


def queue_of(table: BaseTable) -> GradientQueue:
    """The queue of a table, shared by all modules that use the table; a new one for the first."""
    for queue in _HANDLES.alive():
        if queue.table is table:
            return queue
    return GradientQueue(table)


def queue_at(handle: int) -> GradientQueue:
    """The queue of a handle in a graph."""
    return _HANDLES.at(handle)


_VERB = "apply_bag_gradients"
_FEATURE_HANDLES: "QueueHandles[FeatureQueue]" = QueueHandles("monolith::lookup_features")


class FeatureQueue(PendingGradients[FeatureItem, FeatureSum]):
    """The gradients of all features between backward and step. One thread trains at a time.

    Args:
        engine: tables and features.

    Attributes:
        engine: tables and features.
        now: time of the next steps in seconds, as the request of the batch has it; None: that of
            the tables' clocks. Far ahead of a clock it is clamped and counted, as in every call.
        holders_alone: of gradients that a backward gets and nobody else has.
    """

    def __init__(self, engine: CoreEngine) -> None:
        self._connect(engine, new_anchor())

    def _connect(self, engine: CoreEngine, anchor: torch.nn.Parameter) -> None:
        self._connect_anchor(anchor)
        self.engine = engine
        self.handle = _FEATURE_HANDLES.new(self)
        self.num_traced = 0
        self.now: int | None = None
        self.holders_alone = holders_alone()

    @property
    def tables(self) -> list[BaseTable]:
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
        self, time_of: Callable[[BaseTable], int], beside: Callable[[], object] | None = None
    ) -> None:
        """Apply the queue right after `check`; it is empty then.

        If memory runs out in a table, or `beside` raises, others may have made their step; the
        queue is dropped.

        Args:
            time_of: gives the time of a table's clock, for steps without `now`.
            beside: called once, here, while other threads begin.
        """
        now, clamped = self.now, set()

        def time_at(table: BaseTable) -> int:
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
        self._connect(CoreEngine(tables, state["features"]), state["anchor"])


def feature_queue_at(handle: int) -> FeatureQueue:
    """The queue of a handle in a graph."""
    return _FEATURE_HANDLES.at(handle)
