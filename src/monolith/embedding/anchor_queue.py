"""Gradients between backward and step, and the parameter that stands for them in a model."""

import ctypes
import functools
import itertools
import math
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.autograd.function import once_differentiable

from monolith.embedding.verbs import TableVerbs
from monolith.errors import FailedPreconditionError

__all__ = ["AnchorQueue", "QueueHandles", "check_eager", "new_anchor", "queue_once", "refusal"]

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


class AnchorQueue(ABC, Generic[Item, Summed]):
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
    def tables(self) -> Sequence[TableVerbs]:
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


Queue = TypeVar("Queue", bound="AnchorQueue[Any, Any]")


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


def refusal(where: str, norm: float, table: TableVerbs) -> ValueError:
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


def check_eager(queue: "AnchorQueue[Item, Summed]", anchor: torch.Tensor) -> None:
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


def _check_not_averaged(queue: "AnchorQueue[Item, Summed]") -> None:
    """Refuse DistributedDataParallel: it averages the anchor's gradient, a norm, over ranks."""
    running = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if running is not None and any(p is queue.anchor for p in running._module_parameters):
        raise RuntimeError(
            f"[DistributedDataParallel] expected no table in the wrapped model, got one "
            f"{queue.which}: the ranks would scale its gradients; wrap the dense part alone"
        )
