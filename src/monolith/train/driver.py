"""Drive a run: a step function, hooks around it, and the threads that belong to it.

`drive` calls the step until its input ends or a hook requests a stop; `Run` has the collections,
names and actions of the run; `Coordinator` stops and joins threads; `Hook` is the base class of
users' hooks.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from monolith.errors import CancelledError, DeadlineExceededError, OutOfRangeError
from monolith.util.names import UniqueNames
from monolith.util.waiting import check_timeout

if TYPE_CHECKING:
    from typing_extensions import Self


_log = logging.getLogger(__name__)


class Coordinator:
    """Stops the threads of a run, joins them, runs its clean-ups and keeps the first error.

    As a context manager, the coordinator is closed when the block ends, also by an error. The error
    of a thread is raised then, and replaces a `CancelledError` that it caused in the block. Any
    other error of the block stays, and the errors of threads and clean-ups are logged.

    Every method is thread-safe.

    Args:
        stop_seconds: Limit on the wait of `close` for all threads together.

    Example:
        >>> with Coordinator() as coordinator:
        ...     thread = coordinator.start(lambda: coordinator.wait_for_stop(60), name="waiter")
        >>> thread.is_alive()
        False
    """

    def __init__(self, stop_seconds: float = 120.0) -> None:
        self.stop_seconds = check_timeout("[Coordinator]", stop_seconds)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._cleanups: list[Callable[[], None]] = []

    @property
    def stop_requested(self) -> bool:
        """Whether the end of the run was requested, or a thread failed."""
        return self._stop.is_set()

    def request_stop(self, error: BaseException | None = None) -> None:
        """Request the end of the run; with an error, the run fails with the first error.

        Later errors are logged.
        """
        if error is not None:
            with self._lock:
                is_first = self._error is None
                self._error = self._error or error
            if not is_first:
                _log.error("a further error while a run ends", exc_info=error)
        self._stop.set()

    def wait_for_stop(self, timeout_seconds: float) -> bool:
        """Wait for a stop request, at most `timeout_seconds`; return whether there is one."""
        return self._stop.wait(min(timeout_seconds, threading.TIMEOUT_MAX))

    def raise_error(self) -> None:
        """Raise the error that `request_stop` keeps, if any."""
        if self._error is not None:
            raise self._error

    def start(self, target: Callable[[], None], *, name: str) -> threading.Thread:
        """Run a function on a thread, in a copy of the calling context.

        An error of the function ends the run.
        """
        context = contextvars.copy_context()

        def body() -> None:
            try:
                context.run(target)
            except BaseException as error:
                self.request_stop(error)

        thread = threading.Thread(target=body, name=name, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()
        return thread

    def add_cleanup(self, call: Callable[[], None]) -> None:
        """Add a function that is called when the run ends, also by an error, last added first."""
        with self._lock:
            self._cleanups.append(call)

    def close(self) -> None:
        """Request a stop, run the clean-ups, join the threads. Safe to call again.

        Raises:
            DeadlineExceededError: A thread did not end within `stop_seconds`.
            BaseException: The first error of a thread or clean-up.
        """
        self.request_stop()
        while cleanup := self._next_cleanup():
            try:
                cleanup()
            except BaseException as error:
                self.request_stop(error)
        self._join()
        self.raise_error()

    def _next_cleanup(self) -> Callable[[], None] | None:
        with self._lock:
            return self._cleanups.pop() if self._cleanups else None

    def _join(self) -> None:
        deadline = time.monotonic() + self.stop_seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        if alive := [thread.name for thread in threads if thread.is_alive()]:
            late = DeadlineExceededError(
                f"[Coordinator.close] expected all threads to end within {self.stop_seconds} s of "
                f"the stop, got {len(alive)} that go on: {', '.join(alive)}; have them look at "
                "`stop_requested`, or add a clean-up that wakes them"
            )
            self.request_stop(late)

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except BaseException as other:
            if error is None or isinstance(error, CancelledError):
                raise
            if other is not error:
                _log.error("a further error while a failed run ends", exc_info=other)


@dataclass(frozen=True)
class Action:
    """A named function, with the names of the actions that it needs; callable like the function."""

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


class Run:
    """The shared state of one training, evaluation or prediction run.

    Two runs of a process share nothing. Every method is thread-safe. The step function counts
    `global_step`; `Run` and `drive` do not.

    Args:
        global_step: Number of steps so far, earlier runs included; None if steps are not counted.
        is_exporting: Whether the run exports a model; a custom restore of the training is then left
            out.

    Attributes:
        metadata: Values of the run by name, for its parts.

    Example:
        >>> run = Run(global_step=0)
        >>> run.add("losses", 0.5)
        >>> run.collection("losses")
        (0.5,)
        >>> with run.as_current():
        ...     current_run() is run
        True
    """

    def __init__(self, *, global_step: int | None = None, is_exporting: bool = False) -> None:
        self.global_step, self.is_exporting = global_step, is_exporting
        self.metadata: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._collections: dict[str, list[Any]] = {}
        self._actions: dict[str, Action] = {}
        self._names = UniqueNames()

    def add(self, name: str, value: Any) -> None:
        """Append a value to a collection; the first value creates the collection."""
        with self._lock:
            self._collections.setdefault(name, []).append(value)

    def collection(self, name: str) -> tuple[Any, ...]:
        """Return the values of a collection so far, in the order in which they were added."""
        with self._lock:
            return tuple(self._collections.get(name, ()))

    def take(self, name: str) -> tuple[Any, ...]:
        """Return the values of a collection and empty the collection."""
        with self._lock:
            return tuple(self._collections.pop(name, ()))

    def unique_name(self, name: str) -> str:
        """Return a name that is new in this run: `name`, then `name_1`, `name_2` and so on."""
        with self._lock:
            return self._names.take(name)

    def action(
        self, name: str, function: Callable[..., Any], needs: Iterable[str | Action] = ()
    ) -> Action:
        """Record a function under a name, with the recorded actions that it needs.

        Raises:
            ValueError: An action has this name already, or a needed action is not recorded.
        """
        names = tuple(need.name if isinstance(need, Action) else need for need in needs)
        with self._lock:
            if name in self._actions:
                raise ValueError(
                    f"[Run.action] expected a new name, got {name!r}; take one of `unique_name`"
                )
            self._check_recorded("[Run.action]", names)
            self._actions[name] = action = Action(name, function, names)
        return action

    def needed_by(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names of the actions and of all actions that they need, directly or not.

        Raises:
            ValueError: A name is not recorded.
        """
        needs: set[str] = set()
        pending = list(names)
        with self._lock:
            self._check_recorded("[Run.needed_by]", pending)
            while pending:
                if (name := pending.pop()) not in needs:
                    needs.add(name)
                    pending += self._actions[name].needs
        return frozenset(needs)

    @contextmanager
    def as_current(self) -> Iterator["Run"]:
        """Make this run the current run of the calling context until the block ends."""
        leave = enter_run(self)
        try:
            yield self
        finally:
            leave()

    def _check_recorded(self, where: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._actions:
                raise ValueError(
                    f"{where} expected names of recorded actions, got {name!r}; "
                    "record it with `run.action` first"
                )


class _Entry:
    """One place on the stack of runs; a run may have several places."""

    def __init__(self, run: Run) -> None:
        self.run = run


# The stack is never changed in place, so that copied contexts do not share changes.
_STACK: ContextVar[tuple[_Entry, ...]] = ContextVar("monolith_runs", default=())
_DEFAULT: ContextVar[Run | None] = ContextVar("monolith_default_run", default=None)


def current_run() -> Run | None:
    """Return the innermost active run of the calling context; None outside of all runs.

    A new thread begins outside of all runs, unless a `Coordinator` started the thread.
    """
    stack = _STACK.get()
    return stack[-1].run if stack else None


def current_or_default_run() -> Run:
    """Return the current run; outside of all runs, the default run of the calling context."""
    run = current_run() or _DEFAULT.get()
    if run is None:
        run = Run()
        _DEFAULT.set(run)
    return run


def enter_run(run: Run) -> Callable[[], None]:
    """Make a run the current run; return a function that takes it off the stack, once."""
    entry = _Entry(run)
    _STACK.set((*_STACK.get(), entry))

    def leave() -> None:
        _STACK.set(tuple(other for other in _STACK.get() if other is not entry))

    return leave


@dataclass(frozen=True)
class StepContext:
    """The argument of a hook at a step: the run, and a way to end the run.

    Args:
        run: The run of the step.
        coordinator: Coordinator of the threads of the run.
    """

    run: Run
    coordinator: Coordinator

    def request_stop(self) -> None:
        """End the run normally after this step and the `after_run` of every hook."""
        self.coordinator.request_stop()

    @property
    def stop_requested(self) -> bool:
        """Whether the end of the run was requested, or a thread of the run failed."""
        return self.coordinator.stop_requested


@dataclass(frozen=True)
class StepResults:
    """The results of a step.

    Args:
        value: Return value of the step function.
        extra: Hook -> return value of the callable that the hook's `before_run` returned.
    """

    value: Any
    extra: Mapping["Hook", Any] = field(default_factory=dict)


class Hook:
    """Base class of hooks, whose methods are called around the steps of a run.

        begin, after_create_session, (before_run, step, after_run) ..., end

    Every method does nothing unless overridden. Hooks are called in the order of their list. When
    the run fails, `end` is not called: add a clean-up to the coordinator for work that must happen
    then too.
    """

    def begin(self) -> None:
        """Run once before the first step; the run is already current."""

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Run when parameters are initialised or restored."""

    def before_run(self, ctx: StepContext) -> Callable[[], Any] | None:
        """Run before each step; a returned callable is called before the step, in hook order."""

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Run after each step."""

    def end(self, run: Run) -> None:
        """Run once when the run ends normally."""


def drive(
    step: Callable[[], Any],
    hooks: Sequence[Hook] = (),
    *,
    run: Run | None = None,
    stop_seconds: float = 120.0,
) -> Run:
    """Call `step` until its input ends or a hook requests a stop.

    The input ends when the step or a hook raises `OutOfRangeError`, or when the step raises
    `StopIteration`. The run is current while hooks and steps are called. When the run fails, `end`
    of the hooks is not called; clean-ups of the coordinator are always called.

    Args:
        step: Function that does one step; it may count `run.global_step`.
        hooks: Hooks of the run, called in this order.
        run: State of the run; None makes a new `Run`.
        stop_seconds: Limit on the wait for the threads of the run at its end.

    Returns:
        The run.

    Raises:
        DeadlineExceededError: A thread of the run did not end after the run.
        BaseException: The error of the step, a hook, a thread or a clean-up.

    Example:
        >>> batches = iter([1, 2, 3])
        >>> numbers = []
        >>> run = drive(lambda: numbers.append(next(batches)))
        >>> numbers
        [1, 2, 3]
    """
    run = Run() if run is None else run
    with run.as_current(), Coordinator(stop_seconds) as coordinator:
        for hook in hooks:
            hook.begin()
        for hook in hooks:
            hook.after_create_session(run, coordinator)
        try:
            while not coordinator.stop_requested:
                _drive_one(step, hooks, StepContext(run, coordinator))
        except OutOfRangeError:
            coordinator.request_stop()
        coordinator.raise_error()
        for hook in hooks:
            hook.end(run)
    return run


def _drive_one(step: Callable[[], Any], hooks: Sequence[Hook], ctx: StepContext) -> None:
    calls = [(hook, call) for hook in hooks if (call := hook.before_run(ctx)) is not None]
    ctx.coordinator.raise_error()  # of a thread that failed while a hook waited
    extra = {hook: call() for hook, call in calls}
    try:
        value = step()
    except StopIteration as end:
        raise OutOfRangeError("[drive] the input of the step ended") from end
    results = StepResults(value, extra)
    for hook in hooks:
        hook.after_run(ctx, results)
