"""Keep the gradients between backward and step, and the anchor parameter that stands for them."""

import ctypes
import functools
import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from monolith.errors import FailedPreconditionError
from monolith.features.engine import AppliedCounts, FeatureEngine
from monolith.features.plain import TableEngine
from monolith.table._checks import check_rates, check_time, check_training, default_threads
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.native import OpenCore
from monolith.table.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native


# Stands for a norm of 0 in the anchor's gradient, so that a 0 there always means "emptied". Its
# square vanishes in a float32 sum, and a scaler's factor leaves it above 0.
_NO_NORM = 1e-25
_VERB = "apply_bag_gradients"


Item = tuple[Any, Any]
"""What an engine keeps of a lookup, and the gradients of the lookup."""

Engine = TypeVar("Engine", bound=FeatureEngine | TableEngine)


class PendingGradients(Generic[Engine]):
    """Keep what backward has queued for the tables of an engine. One thread trains at a time.

    The anchor, a parameter of one element, stands for the tables in a model. Its gradient is the L2
    norm of the queue, where gradients of equal keys are summed. What is done to that gradient is
    done to the queue: a factor (clipping, a gradient scaler) scales the queue, None or 0 empties
    it. So torch's own tools, which know nothing of tables, do the right thing.

    Args:
        engine: reads, sums and steps.
        is_seed_drawn: whether the seed of the table was drawn, so that a state that is loaded
            brings its own.

    Attributes:
        anchor: the parameter.
        handle: number of the queue in graphs of torch.compile and torch.export.
        now: time of the next steps in seconds, as the request of the batch has it; None takes the
            tables' clocks. A time far ahead of a clock is clamped and counted, as in every call.
    """

    def __init__(self, engine: Engine, *, is_seed_drawn: bool = False) -> None:
        self._connect(engine, new_anchor(), is_seed_drawn)

    def _connect(self, engine: Engine, anchor: torch.nn.Parameter, is_seed_drawn: bool) -> None:
        self.anchor, self.is_seed_drawn = anchor, is_seed_drawn
        self._set_engine(engine)
        self.handle = next(_HANDLES)
        _QUEUES[self.handle] = self
        self.num_traced = 0
        self.now: int | None = None
        self._items: list[Item] = []
        self._num_keys = 0  # of the items, each as often as it occurs
        # By backward: what reaches the anchor's gradient only when that backward has summed it.
        self._pending: dict[int, list[Item]] = {}
        self._sum: Any = None  # of the items, if they are as the last backward left them
        self._norm = 0.0
        self._was_applied = False
        self._first_value: float | None = None  # of the anchor, at the first backward
        self._seen = 0.0  # the anchor's gradient as the last backward left it
        queue = weakref.ref(self)  # a hook that held the queue would never let it go

        def accumulated(anchor: torch.Tensor) -> None:
            alive = queue()
            if alive is not None:
                alive._accumulate()

        anchor.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    @property
    def tables(self) -> list[BaseTable]:
        """The tables of the engine, in its order."""
        return self._tables

    @property
    def which(self) -> str:
        """The end of messages, which names the tables."""
        first, *others = self.engine.tables
        return f"(table {first!r}{f' and {len(others)} more' if others else ''})"

    def replace_engine(self, engine: Engine) -> None:
        """Drop the queue, and train the tables of another engine from now on."""
        self.drop()
        self._set_engine(engine)

    def _set_engine(self, engine: Engine) -> None:
        self.engine = engine
        self._tables = list(engine.tables.values())
        self._clocks = {id(table._clock): table for table in self._tables}
        self._checked_rates: tuple[float, ...] = ()  # which the tables take

    @property
    def num_lookups(self) -> int:
        """Number of lookups whose gradients are queued."""
        self._follow_anchor()
        return len(self._items)

    @property
    def norm(self) -> float:
        """L2 norm of the queued gradient; inf or nan if it is not finite."""
        self._follow_anchor()
        return self._norm

    def push(self, looked: Any, gradients: Any) -> torch.Tensor:
        """Keep the gradients of one lookup until the running backward comes to the anchor.

        Args:
            looked: Result of the engine's lookup; its memory is not written until the step.
            gradients: Arguments of the engine's `sum`; their memory is not written until the step.

        Returns:
            A zero, the share in the anchor's gradient; the norm replaces the sum of all shares.
        """
        backward = torch._C._current_graph_task_id()
        if backward not in self._pending:
            self._pending[backward] = []
            # What never comes to the anchor, as in `torch.autograd.grad`, goes with its backward.
            forget = functools.partial(self._forget, backward)
            torch.autograd.Variable._execution_engine.queue_callback(forget)
        self._pending[backward].append((looked, gradients))
        return self.anchor.new_zeros(1)

    def _forget(self, backward: int) -> None:
        self._pending.pop(backward, None)

    def _accumulate(self) -> None:
        """Queue what this backward has pushed. A `torch.autograd.grad` never comes here."""
        pushed = self._pending.pop(torch._C._current_graph_task_id(), [])
        self._check_writable()
        if not self._was_applied:
            self._check_anchor()
        self._follow_anchor()
        self._items += pushed
        self._num_keys = sum([looked.num_keys for looked, _ in self._items])
        self._sum = self.engine.sum(self._items)
        self._norm = self._own_norm()
        self._show(self._norm)

    def _own_norm(self) -> float:
        """Return the norm of the queue of this process, which takes no other process."""
        own_norm = getattr(self._sum, "own_norm", None)
        return float(self._sum.norm) if own_norm is None else float(own_norm)

    def show_norm(self) -> None:
        """Show the norm over all processes in the anchor's gradient, if other processes have keys.

        All processes call it after their last backward, also one without a queued key.
        """
        if not self.engine.steps_always:
            return
        self._follow_anchor()
        self._norm = float(self.summed().norm)
        if self.anchor.grad is None:
            self.anchor.grad = torch.zeros_like(self.anchor)
        self._show(self._norm)

    def _check_writable(self) -> None:
        """Refuse an anchor whose gradient `_show` cannot write as a float in main memory."""
        gradient = self.anchor.grad
        assert gradient is not None
        if gradient.dtype is torch.float32 and gradient.is_cpu and gradient.numel() == 1:
            return
        anchor = self.anchor
        raise ValueError(
            f"[PendingGradients] expected an anchor of one float32 on cpu, got "
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
                f"[PendingGradients] expected a step of the table since the last backward, "
                f"got one of its anchor alone {self.which}: its rows are not trained; use "
                "monolith.optim.Optimizer(model, dense=...), or call step() of the module",
                RuntimeWarning,
                stacklevel=2,
            )

    def _follow_anchor(self) -> None:
        """Do to the queue what was done to the anchor's gradient since the last backward."""
        if not self._items and not self.engine.steps_always:
            return
        gradient = self.anchor.grad
        value = 0.0 if gradient is None else gradient.item()
        if value == 0:
            self._empty()
        elif value != self._seen and self._seen != 0 and math.isfinite(self._seen):
            self.scale(value / self._seen)

    def scale(self, factor: float) -> None:
        """Multiply every queued gradient."""
        self._items = [(looked, gradients.scaled(factor)) for looked, gradients in self._items]
        scaled = getattr(self._sum, "scaled", None)
        self._sum = None if scaled is None else scaled(factor)
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

    def check(self, where: str, learning_rates: Sequence[float]) -> int:
        """Refuse what a step would meet, before anything has changed.

        Args:
            where: begins a message.
            learning_rates: of all segments, table after table.

        Returns:
            The number of queued keys, each as often as it occurs; 0 makes no step.
        """
        self._follow_anchor()
        if not self._num_keys and not self.engine.steps_always:
            return 0
        self.engine.check_open(where)
        if tuple(learning_rates) != self._checked_rates:
            self._check_rates(learning_rates)
            self._checked_rates = tuple(map(float, learning_rates))
        if not math.isfinite(self._norm):
            for table in self.tables:
                norm = self._norm_of(table.name)
                if table.config.non_finite == "refuse" and not math.isfinite(norm):
                    raise ValueError(
                        f"{where} expected finite gradients, got norm {norm} (table "
                        f"{table.name!r}); call zero_grad(), or choose non_finite='skip' or 'clip'"
                    )
        return max(self._num_keys, int(self.engine.steps_always))

    def _check_rates(self, rates: Sequence[float]) -> None:
        for table in self.tables:
            check_training(table.config, _VERB)
        sizes = [len(segments_of(table.config)) for table in self.tables]
        is_plain = len(rates) == sum(sizes) and set(map(type, rates)) == {float}
        if is_plain and 0 <= min(rates) <= max(rates) <= MAX_FLOAT32 and not math.isnan(sum(rates)):
            return  # of a thousand tables in one go
        starts = list(itertools.accumulate(sizes[:-1], initial=0))
        for table, first, end in zip(self.tables, starts, [*starts[1:], None], strict=True):
            check_rates(table.config, _VERB, 0, rates[first:end])

    def _norm_of(self, table: str) -> float:
        summed = self.summed()
        if isinstance(self.engine, TableEngine):
            return self._norm
        return float(getattr(summed, "own_norm_of", summed.norm_of)(table))

    def summed(self) -> Any:
        """Return the engine's sum of the queue, as `check` saw it."""
        if self._sum is None:
            self._sum = self.engine.sum(self._items)
        return self._sum

    def step(self, time_of: Callable[[BaseTable], int]) -> AppliedCounts:
        """Apply the queue right after `check`, with its rates; the queue is empty then.

        If the step fails in one of several tables, or in a shard, others may have made theirs, and
        the queue is dropped; a single table keeps it.

        Args:
            time_of: gives the time of a table's clock, for steps without `now`.
        """
        times, clamped = self._times(time_of)
        is_done = False
        try:
            applied = self.engine.step(self.summed(), self._checked_rates, times)
            is_done = True
        finally:
            if is_done or len(self._tables) != 1 or self._tables[0]._is_spread:
                self.applied()
        for table in clamped:
            table._count_clamped()
        return applied

    def _times(self, time_of: Callable[[BaseTable], int]) -> tuple[list[int], list[BaseTable]]:
        """Return the time of each table, and the tables whose time was clamped.

        Each clock is asked once.
        """
        if self.now is None and len(self._clocks) == 1:
            return [time_of(self._tables[0])] * len(self._tables), []
        times, clamped = {}, set()
        for clock, table in self._clocks.items():
            if self.now is None:
                times[clock] = time_of(table)
            else:
                times[clock], is_clamped = table._resolve_time(_VERB, self.now)
                if is_clamped:
                    clamped.add(clock)
        every = [times[id(table._clock)] for table in self._tables]
        return every, [table for table in self._tables if id(table._clock) in clamped]

    def applied(self) -> None:
        """Note that a step has applied the queue."""
        self._was_applied = True
        self.drop()

    def apply(
        self, learning_rates: Sequence[float] | None = None, *, now: int | None = None
    ) -> AppliedCounts:
        """Make a step without an optimizer. Without a queued key it is no update.

        Args:
            learning_rates: of all segments, table after table; each segment's own if None.
            now: time of the step in seconds; `self.now` if None.
        """
        where = "[PendingGradients.apply]"
        self.engine.check_open(where)
        rates = self._scheduled_rates() if learning_rates is None else list(learning_rates)
        if not self.check(where, rates):
            self.drop()
            return Applied(0, 0, 0, 0)
        before = self.now
        self.now = before if now is None else now
        try:
            return self.step(lambda table: table._resolve_time(_VERB, None)[0])
        finally:
            self.now = before

    def _scheduled_rates(self) -> list[float]:
        return [
            segment.optimizer.rate(table._next_update())
            for table in self.tables
            for segment in segments_of(table.config)
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and deepcopy: tables of its own, and nothing queued."""
        return {
            "engine": self.engine,
            "anchor": self.anchor,
            "is_seed_drawn": self.is_seed_drawn,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._connect(state["engine"], state["anchor"], state["is_seed_drawn"])


# A graph of torch.compile or torch.export holds no objects, but the number of a queue. A number is
# never used again, and a queue goes with its modules.
_HANDLES = itertools.count(1)
_QUEUES: weakref.WeakValueDictionary[int, PendingGradients[Any]] = weakref.WeakValueDictionary()


def pending_at(handle: int) -> PendingGradients[Any]:
    """Return the queue of a handle in a graph."""
    queue = _QUEUES.get(int(handle))
    if queue is None:
        raise FailedPreconditionError(
            f"[monolith::lookup] expected the module of table handle {handle} to be alive in this "
            "process, got none; compile or export the module again where it is"
        )
    return queue


def pending_of(table: BaseTable) -> PendingGradients[TableEngine]:
    """Return the queue that all modules of one table share; a new one for the first module."""
    for queue in list(_QUEUES.values()):
        if isinstance(queue.engine, TableEngine) and queue.engine.table is table:
            return queue
    return PendingGradients(TableEngine(table))


def new_anchor() -> torch.nn.Parameter:
    """Return a parameter of one element, whatever torch's default dtype and device are."""
    return torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))


def step_all(queues: Sequence[PendingGradients[Any]]) -> None:
    """Apply and empty queues of different tables, right after the `check` of each.

    Each clock is asked once. Native tables with a queue each (`EmbeddingBag`) make their steps in
    one call of the core; together or one by one, their rows have the same bits.
    """
    time_of = functools.partial(_time, {})
    if len(queues) == 1:
        queues[0].step(time_of)
        return
    together: list[tuple[PendingGradients[TableEngine], _native.Table]] = []
    for queue in queues:
        core = queue.engine.step_core() if isinstance(queue.engine, TableEngine) else None
        if core is None or queue.now is not None:
            queue.step(time_of)
        else:
            together.append((queue, core))
    if together:
        _step_together(together, time_of)


def _time(times: dict[int, int], table: BaseTable) -> int:
    """Return the time of the table's clock, kept in `times` by the clock."""
    clock = id(table._clock)
    if clock not in times:
        now = table._clock_time(_VERB)
        check_time(table.config, _VERB, now)
        times[clock] = now
    return times[clock]


def _step_together(
    steps: "Sequence[tuple[PendingGradients[TableEngine], _native.Table]]",
    time_of: Callable[[BaseTable], int],
) -> None:
    """If memory runs out in a table, queues of tables that have made their step are empty."""
    import monolith._native as native

    queues, cores = zip(*steps, strict=True)
    sums = [queue.summed() for queue in queues]
    rates = [rate for queue in queues for rate in queue._checked_rates]
    times = [time_of(queue.engine.table) for queue in queues]
    threads = default_threads(sum([queue._num_keys for queue in queues]))
    are_done = torch.zeros(len(steps), dtype=torch.bool, device="cpu")
    try:
        with OpenCore(native, _VERB) as core:
            parts = [summed.core for summed in sums]
            core.step_tables(list(cores), parts, rates, times, are_done.data_ptr(), threads)
    finally:
        for queue, is_done in zip(queues, are_done.tolist(), strict=True):
            if is_done:
                queue.applied()
