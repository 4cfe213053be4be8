"""Put the calls of functions off to the next step."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from monolith.errors import CancelledError, QueueFullError
from monolith.native_training.queues.prefetched import prefetch
from monolith.native_training.util.run_registry import check_ops_dependence
from monolith.train.driver import (
    Action,
    Coordinator,
    Hook,
    Run,
    StepContext,
    StepResults,
    current_or_default_run,
)
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS


class _Sized(Protocol):
    def size(self) -> int: ...


class AsyncPushHook(Hook):
    """The hook that has `ops` called during each step after the queue was seen with an element.

    A run that overlaps calls `ops` on a thread, concurrently with the step.

    Args:
        queue: Queue with `size()`.
        ops: Function that takes one element out of the queue and uses it. At the end of the run it
            is called until the queue is empty; a run that fails leaves the rest in the queue for
            the next run.
    """

    def __init__(self, queue: _Sized, ops: Callable[[], Any]) -> None:
        self._queue, self._ops = queue, ops
        self._size: Callable[[], int] = queue.size
        self._has_seen_element = False

    def begin(self) -> None:
        """Look up how to ask for the queue's size."""
        self._size = self._queue.size

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Look at the queue: a run that failed may have left something in it."""
        self._has_seen_element = self._size() > 0

    def before_run(self, ctx: StepContext) -> Callable[[], Any] | None:
        """Return `ops`, once the queue has been seen with an element."""
        return self._ops if self._has_seen_element else None

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Look at the queue."""
        self._has_seen_element = self._has_seen_element or self._size() > 0

    def end(self, run: Run) -> None:
        """Use up what is left."""
        while self._size() > 0:
            self._ops()


class _DeferredCalls(AsyncPushHook):
    """The hook that executes the calls of a function that were entered before a step.

    A call is taken out of the queue before the step begins, so that the queue has room for the call
    that the step enters, and so that this call waits for the next step.

    Args:
        queue: Queue of the calls.
        take: Function that takes the arguments of a call out of the queue.
        execute: Function of the arguments of a call.
    """

    def __init__(
        self, queue: _Sized, take: Callable[[], Any], execute: Callable[[Any], Any]
    ) -> None:
        super().__init__(queue, self._execute_calls)
        self._take, self._execute = take, execute
        self._calls: deque[Any] = deque()  # taken and not executed
        self._last_step = self._num_set_backs = 0
        self._has_begun = False  # a step whose end the hook has not been told

    def begin(self) -> None:
        """Begin a run; calls that an earlier run has left are executed."""
        self._last_step, self._num_set_backs, self._has_begun = 0, 0, False

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Drop the calls of steps that a recovery has undone or that are done once more."""
        step, is_set_back = run.global_step or 0, run.num_set_backs > self._num_set_backs
        if step < self._last_step:
            self._take_calls()
            self._calls.clear()
        elif self._has_begun and (run.is_step_open or (is_set_back and step == self._last_step)):
            while self._queue.size() > 0:
                self._take()
        self._last_step, self._num_set_backs, self._has_begun = step, run.num_set_backs, False

    def before_run(self, ctx: StepContext) -> Callable[[], Any] | None:
        """Return the execution of the calls that were entered."""
        self._take_calls()
        self._has_begun = True
        return self._ops if self._calls else None

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Keep the step, to notice a recovery that goes back."""
        self._last_step, self._has_begun = ctx.run.global_step or 0, False

    def end(self, run: Run) -> None:
        """Execute the calls that are left."""
        self._take_calls()
        self._execute_calls()

    def _take_calls(self) -> None:
        while self._queue.size() > 0:
            self._calls.append(self._take())

    def _execute_calls(self) -> Any:
        result = None
        while self._calls:
            result = self._execute(self._calls.popleft())
        return result


class AsyncFunctionManager:
    """Turns calls of functions into entries of queues, which are executed during the next step.

    A queue holds one call: a step makes at most one call of each function. Every call that was
    entered is executed once, the last ones when the run ends; a run that fails executes no more,
    and the next run with these hooks begins with what it left. A call that found no room was not
    entered. A run that overlaps executes the calls on a thread, concurrently with the next step;
    the next step must then not write the tensors of their arguments.

    Args:
        is_async: whether functions are put off unless told otherwise.
        timeout_seconds: limit on the wait for the queue of a function to be empty.

    Example:
        >>> from monolith.train.driver import drive
        >>> pushed, numbers = [], iter(range(3))
        >>> manager = AsyncFunctionManager()
        >>> number = lambda: torch.tensor(next(numbers))
        >>> push = manager.add_async_function(lambda x: pushed.append(x.item()), [number])
        >>> run = drive(push, manager.hooks)
        >>> pushed
        [0, 1, 2]
    """

    def __init__(
        self, is_async: bool = True, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        self._is_async, self._timeout_seconds = is_async, timeout_seconds
        self._hooks: list[Hook] = []

    @property
    def hooks(self) -> list[Hook]:
        """The hooks that the run needs, in the order of the functions."""
        return list(self._hooks)

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """Call a function at once, or make the action that a step calls to have it called later.

        Arguments that are callables without arguments are called when the call is made. What they
        give, and the others, are structures that `NestedTensors` takes. Callables that were
        recorded with `run.action`, and a target that was, are checked: the arguments must not need
        the target.

        Args:
            target: the function. It must use nothing but its arguments: it runs a step later.
            args: its positional arguments.
            kwargs: its keyword arguments.
            is_async: whether it is put off; None for the manager's choice.
            queue_name: of the queue, and the first part of the names of its two actions.

        Returns:
            The result of the function, or the action.

        Raises:
            Exception: making the call needs the function that is put off.
            ValueError: an argument that `NestedTensors` does not take; when the call is made.
        """
        positional, named = tuple(args or ()), dict(kwargs or {})
        if not (self._is_async if is_async is None else is_async):
            return target(
                *[_value(v) for v in positional], **{k: _value(v) for k, v in named.items()}
            )

        def make_call() -> Any:
            # Lists, not iterators: those would take a StopIteration of an argument for their own.
            # The tensor makes an element of a call without arguments.
            return (
                [_value(v) for v in positional],
                {k: _value(v) for k, v in named.items()},
                torch.zeros(()),
            )

        call, queue = prefetch(make_call, 1, queue_name, timeout_seconds=self._timeout_seconds)
        assert queue is not None

        def enter() -> None:
            try:
                queue.enqueue_op()
            except (CancelledError, QueueFullError):
                queue.drop_unsent()  # the next call has arguments of its own
                raise

        def execute(arguments: Any) -> Any:
            positional, keywords, _ = arguments
            return target(*positional, **keywords)

        run = current_or_default_run()
        name = run.unique_name(queue_name)
        needs = [v for v in (*positional, *named.values()) if isinstance(v, Action)]
        enqueue = run.action(f"{name}/enqueue", enter, needs)
        targets = [target] if isinstance(target, Action) else []
        deferred = run.action(f"{name}/execute", execute, targets)
        check_ops_dependence(enqueue.name, [deferred.name, *(action.name for action in targets)])
        self._hooks.append(_DeferredCalls(queue, call, deferred))
        return enqueue


def _value(argument: Any) -> Any:
    return argument() if callable(argument) else argument
