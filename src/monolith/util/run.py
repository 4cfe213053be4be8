"""A run: its step, named collections, metadata and actions; and which run is the current one."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from monolith.util.names import UniqueNames

__all__ = ["Action", "Run", "current_or_default_run", "current_run", "enter_run"]


@dataclass(frozen=True)
class Action:
    """A named function, and the names of the actions that it needs; called like the function."""

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


class Run:
    """What the parts of one training, evaluation or prediction run know of each other.

    Nothing of it belongs to the process: two runs can live side by side. Every method is safe from
    any thread. The step function counts `global_step`; nothing here does.

    Args:
        global_step: number of steps done so far, also by earlier runs; None if nobody counts them.
        is_exporting: whether the run exports a model: what it restores is what was saved, and
            nothing that is meant for training once is done or used up.

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
        """Append to a collection, which begins with its first value."""
        with self._lock:
            self._collections.setdefault(name, []).append(value)

    def collection(self, name: str) -> tuple[Any, ...]:
        """The values of a collection so far, in the order in which they were added."""
        with self._lock:
            return tuple(self._collections.get(name, ()))

    def take(self, name: str) -> tuple[Any, ...]:
        """The values of a collection so far; it is empty afterwards."""
        with self._lock:
            return tuple(self._collections.pop(name, ()))

    def unique_name(self, name: str) -> str:
        """The name, then with `_1`, `_2` and so on for each further call with the same one."""
        with self._lock:
            return self._names.take(name)

    def action(
        self, name: str, function: Callable[..., Any], needs: Iterable[str | Action] = ()
    ) -> Action:
        """Record a function under a name, with the recorded actions that it needs.

        Raises:
            ValueError: the name is taken, or a needed action is not recorded.
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
        """Names of all actions that these need, directly or not; these themselves too.

        Raises:
            ValueError: one of the names is not recorded.
        """
        found: set[str] = set()
        pending = list(names)
        with self._lock:
            self._check_recorded("[Run.needed_by]", pending)
            while pending:
                if (name := pending.pop()) not in found:
                    found.add(name)
                    pending += self._actions[name].needs
        return frozenset(found)

    @contextmanager
    def as_current(self) -> Iterator["Run"]:
        """Make this the current run of the calling context until the block ends."""
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
    """One place on the stack; a run may have several."""

    def __init__(self, run: Run) -> None:
        self.run = run


# The stack is never changed in place, so that contexts which were copied do not share changes.
_STACK: ContextVar[tuple[_Entry, ...]] = ContextVar("monolith_runs", default=())
_DEFAULT: ContextVar[Run | None] = ContextVar("monolith_default_run", default=None)


def current_run() -> Run | None:
    """The innermost active run of the calling context; None outside of all runs.

    A new thread begins outside, unless a `Coordinator` started it.
    """
    stack = _STACK.get()
    return stack[-1].run if stack else None


def current_or_default_run() -> Run:
    """The current run; outside of all runs, one that belongs to the calling context."""
    run = current_run() or _DEFAULT.get()
    if run is None:
        run = Run()
        _DEFAULT.set(run)
    return run


def enter_run(run: Run) -> Callable[[], None]:
    """Make a run the current one; the function that is returned takes it off again, once."""
    entry = _Entry(run)
    _STACK.set((*_STACK.get(), entry))

    def leave() -> None:
        _STACK.set(tuple(other for other in _STACK.get() if other is not entry))

    return leave
