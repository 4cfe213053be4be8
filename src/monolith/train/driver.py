"""Drive a run: a step function, hooks around it, and the threads that belong to it.

`drive` calls the step until its input ends or a hook requests a stop, and recovers from
`PREEMPTION_ERRORS`; `Run` has the collections, names and actions of the run; `Hook` is the base
class of users' hooks.
"""

import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from monolith.errors import AbortedError, CancelledError, OpError, OutOfRangeError
from monolith.train.coordinator import Coordinator as Coordinator
from monolith.util.names import UniqueNames

PREEMPTION_ERRORS: tuple[type[OpError], ...] = (AbortedError,)
"""Errors from which `drive` recovers; any other error ends the run."""

QUEUE_HOOKS = "queue_hooks"
"""Collection of a run with further hooks, such as those of the queues that a table feeds."""

MAX_RECOVERIES = 3
"""Default bound on recoveries in a row without a complete step."""

_log = logging.getLogger(__name__)


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
        num_recoveries: Number of recoveries of the run from `PREEMPTION_ERRORS`.
        num_set_backs: Number of those recoveries that restored an earlier state, so that what the
            failed step did is undone.
        is_step_open: Whether a step has begun and its body has not ended. In `after_create_session`
            this means that the failed step will be done once more.

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
        self.num_recoveries = self.num_set_backs = 0
        self.is_step_open = False
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
        ask_stop: Asks for the end of a run of several processes; None ends the run at once.
    """

    run: Run
    coordinator: Coordinator
    ask_stop: Callable[[], None] | None = None

    def request_stop(self) -> None:
        """End the run normally after this step and the `after_run` of every hook.

        A run of synchronous ranks ends after the next step, in all ranks.
        """
        (self.ask_stop or self.coordinator.request_stop)()

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

        begin, after_create_session, (before_run, idle ..., step, after_run) ..., end

    Every method does nothing unless overridden. Hooks are called in the order of their list. When
    the run fails, `end` is not called: add a clean-up to the coordinator for work that must happen
    then too.
    """

    def begin(self) -> None:
        """Run once before the first step; the run is already current."""

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Run when parameters are initialised or restored, and again after each recovery.

        Each time the coordinator is a new one: the threads of the one before have ended.
        """

    def before_run(self, ctx: StepContext) -> Callable[[], Any] | None:
        """Run before each step; a returned callable is called concurrently with the step.

        The callables of a step are called in hook order on one thread, or before the step on the
        calling thread if the run does not overlap; their results are `results.extra`.
        """

    def idle(self, ctx: StepContext) -> None:
        """Run again and again while a step of a trainer waits for its samples.

        It is called on the thread of the steps, about five times a second. Nothing of the step has
        begun: what a hook saves here is the state after the step before.
        """

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Run after each step and after the callables of all hooks."""

    def end(self, run: Run) -> None:
        """Run once when the run ends normally."""


class _HookWork:
    """The callables that hooks have returned for one step, and their results."""

    def __init__(self, calls: Sequence[tuple[Hook, Callable[[], Any]]]) -> None:
        self._calls, self._num_done = calls, 0
        self._error: BaseException | None = None
        self._is_over: threading.Event | None = None  # set by the thread; None without a thread
        self.extra: dict[Hook, Any] = {}

    def run(self) -> None:
        for hook, call in self._calls:
            self.extra[hook] = call()
            self._num_done += 1

    @property
    def is_done(self) -> bool:
        """Whether every callable has a result."""
        return self._num_done == len(self._calls)

    def has_results_of(self, hook: Hook) -> bool:
        """Whether no callable of a hook has failed or was left out after one that failed."""
        return not any(other is hook for other, _ in self._calls[self._num_done :])

    def start(self, thread: "_HookThread") -> None:
        self._is_over = threading.Event()
        context = contextvars.copy_context()
        thread.put(lambda: context.run(self._run_on_thread, thread.coordinator))

    def _run_on_thread(self, coordinator: Coordinator) -> None:
        assert self._is_over is not None
        try:
            self.run()
        except BaseException as error:
            self._error = error
            is_end = isinstance(error, OutOfRangeError)
            if not is_end and not (isinstance(error, CancelledError) and coordinator.is_closed):
                coordinator.request_stop(error)  # now, so that a step that waits is woken
        finally:
            self._is_over.set()

    def wait(self) -> None:
        """Wait for the thread, if one has the work, and raise the error of the work."""
        if self._is_over is None:
            return
        while not self._is_over.wait(_WORD_SECONDS):
            _log.info("waiting for the work of hooks; Ctrl-C ends the run")
        if self._error is not None:
            raise self._error


_WORD_SECONDS = 60.0


class _HookThread:
    """The thread of a session that runs the callables of hooks; the first of them starts it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_started = False

    def put(self, call: Callable[[], None]) -> None:
        if not self._is_started:
            self._is_started = True
            self.coordinator.add_cleanup(lambda: self._calls.put(None))
            self.coordinator.start(self._serve, name="hooks")
        self._calls.put(call)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def drive(
    step: Callable[[], Any],
    hooks: Sequence[Hook] = (),
    *,
    run: Run | None = None,
    stop_seconds: float = 120.0,
    overlap: bool = True,
    finish: Callable[[], None] | None = None,
    recover: Callable[[OpError], bool] | None = None,
    max_recoveries: int = MAX_RECOVERIES,
    ask_stop: Callable[[], None] | None = None,
) -> Run:
    """Call `step` until its input ends or a hook requests a stop.

    The input ends when the step or a hook raises `OutOfRangeError`, or when the step raises
    `StopIteration`. The run is current while hooks and steps are called. When the run fails, `end`
    of the hooks is not called; clean-ups of the coordinator are always called.

    Hooks that the collection `QUEUE_HOOKS` of the run has, or gets while the run goes on, are hooks
    of the run too, and are called before the others.

    After one of `PREEMPTION_ERRORS`, of the step, a hook or a thread, the run recovers: its threads
    end, its clean-ups are called, `recover` is called, and the run goes on with a new coordinator
    and `after_create_session` of all hooks. A step whose body had not ended is begun anew; hooks
    that had not been told of a complete step are told now. An error of `begin` or `end` ends the
    run, and so does an error of a thread or clean-up that is not one of `PREEMPTION_ERRORS`.

    Args:
        step: Function that does one step; it may count `run.global_step`. A step that raises one of
            `PREEMPTION_ERRORS` is called again: it must then do the same step.
        hooks: Hooks of the run, called in this order.
        run: State of the run; None makes a new `Run`.
        stop_seconds: Limit on the wait for the threads of the run at its end.
        overlap: Whether callables that hooks return are called on a thread, concurrently with the
            step; False calls them before the step, on the calling thread.
        finish: Function that is called after the last step, before `end` of the hooks, for work of
            the steps that may still fail; None for no such work.
        recover: Function of the error that makes the state of the run whole. It returns whether it
            has set the state back to an earlier step; the rest of the failed step is then
            forgotten, and so are stops that were requested. None keeps the state as it is.
        max_recoveries: Largest number of recoveries in a row without a complete step beyond those
            that were complete before; 0 never recovers.
        ask_stop: Called if a hook requests a stop; None ends the run.

    Returns:
        The run, with `num_recoveries`.

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
    loop = _StepLoop(step, hooks, run, finish, ask_stop)
    with run.as_current():
        loop.begin()
        while True:
            coordinator = Coordinator(stop_seconds)
            try:
                with coordinator:
                    loop.run_session(coordinator, _HookThread(coordinator) if overlap else None)
                return run
            except PREEMPTION_ERRORS as error:
                loop.begin_recovery(error, coordinator, max_recoveries)
                if recover is not None and recover(error):
                    loop.set_back()


class _StepLoop:
    """The loop over the steps of a run, over all its sessions.

    A session is the life of one coordinator: a recovery ends a session and begins the next one.
    """

    def __init__(
        self,
        step: Callable[[], Any],
        hooks: Sequence[Hook],
        run: Run,
        finish: Callable[[], None] | None,
        ask_stop: Callable[[], None] | None,
    ) -> None:
        self._step, self._run, self._finish = step, run, finish
        self._ask_stop = ask_stop
        self._hooks = list(hooks)
        self._num_front = self._num_listed = 0  # hooks of QUEUE_HOOKS, at the front of the hooks
        self._is_ending = False
        self._is_stop_wanted = False  # requested in an earlier session
        run.is_step_open = False
        self._results: StepResults | None = None  # of the last step
        self._untold: deque[Hook] = deque()  # hooks that await `after_run` of that step
        self._num_tries = 0  # recoveries since the last complete step
        self._step_at_error: int | None = None
        self._lost_until: int | None = None  # step before which steps are done a second time

    def begin(self) -> None:
        """Call `begin` of all hooks."""
        self._take_up_hooks()
        for hook in list(self._hooks):
            hook.begin()
        while new := self._take_up_hooks():
            for hook in new:
                hook.begin()

    def run_session(self, coordinator: Coordinator, thread: _HookThread | None) -> None:
        """Run steps until the run ends, and call `end` of the hooks."""
        ctx = StepContext(self._run, coordinator, self._ask_stop)
        for hook in list(self._hooks):
            hook.after_create_session(self._run, coordinator)
        self._start_new_hooks(coordinator)
        try:
            self._tell_hooks(ctx)
            while self._run.is_step_open or not (
                self._is_stop_wanted or coordinator.stop_requested
            ):
                self._drive_one(ctx, thread)
        except OutOfRangeError:
            self._untold.clear()
        coordinator.raise_error()
        self._run.is_step_open, self._is_stop_wanted = False, True
        coordinator.request_stop()
        if self._finish is not None:
            self._finish()
        self._is_ending = True
        for hook in self._hooks:
            hook.end(self._run)

    def begin_recovery(self, error: OpError, coordinator: Coordinator, most: int) -> None:
        """Count a recovery, or raise the error that ends the run.

        Args:
            error: Error of the session.
            coordinator: Closed coordinator of the session.
            most: Largest number of recoveries in a row.
        """
        if self._is_ending or coordinator.has_threads:
            raise error
        other = coordinator.error
        if other is not None and not isinstance(other, (*PREEMPTION_ERRORS, CancelledError)):
            raise other from error
        if self._num_tries >= most:
            raise error
        self._num_tries += 1
        self._run.num_recoveries += 1
        self._step_at_error = self._run.global_step
        if coordinator.is_end_requested:
            self._is_stop_wanted = True
        _log.warning("recovery %d of at most %d in a row, from: %s", self._num_tries, most, error)

    def set_back(self) -> None:
        """Forget the rest of the failed step, because the state is that of an earlier step."""
        self._run.num_set_backs += 1
        self._run.is_step_open = self._is_stop_wanted = False
        self._untold.clear()
        self._lost_until = max(self._lost_until or 0, self._step_at_error or 0)

    def _drive_one(self, ctx: StepContext, thread: _HookThread | None) -> None:
        self._start_new_hooks(ctx.coordinator)
        self._run.is_step_open = True
        calls = [(hook, call) for hook in self._hooks if (call := hook.before_run(ctx)) is not None]
        ctx.coordinator.raise_error()  # of a thread that failed while a hook waited
        work = _HookWork(calls)
        if calls and thread is not None:
            work.start(thread)
        else:
            work.run()
        try:
            value = self._step()
        except (StopIteration, OutOfRangeError) as end:
            work.wait()
            raise OutOfRangeError("[drive] the input of the step ended") from end
        self._run.is_step_open = False
        try:
            work.wait()
        finally:
            self._results = StepResults(value, work.extra)
            is_told = self._hooks if work.is_done else filter(work.has_results_of, self._hooks)
            self._untold.extend(is_told)
        self._tell_hooks(ctx)
        if self._lost_until is None or (self._run.global_step or 0) > self._lost_until:
            self._num_tries, self._lost_until = 0, None

    def _tell_hooks(self, ctx: StepContext) -> None:
        while self._untold:
            assert self._results is not None
            self._untold.popleft().after_run(ctx, self._results)
        self._results = None

    def _start_new_hooks(self, coordinator: Coordinator) -> None:
        while new := self._take_up_hooks():
            for hook in new:
                hook.begin()
                hook.after_create_session(self._run, coordinator)

    def _take_up_hooks(self) -> list[Hook]:
        """Add the hooks that the collection of the run has got, and return them."""
        listed = self._run.collection(QUEUE_HOOKS)
        new: list[Hook] = []
        for hook in listed[self._num_listed :]:
            if not any(hook is other for other in (*self._hooks, *new)):
                new.append(hook)
        self._num_listed = len(listed)
        self._hooks[self._num_front : self._num_front] = new
        self._num_front += len(new)
        return new
