"""What every call on a table starts with: an open table, checked arguments, a time."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from monolith.embedding import checks
from monolith.embedding.arguments import as_integer
from monolith.embedding.config import TableConfig
from monolith.embedding.storage import TableStorage
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Clock",
    "DEFAULT_CHANGES_BYTES",
    "TableCalls",
    "check_options",
    "resolve_time",
    "wall_clock",
]

Clock = Callable[[], int]
"""Seconds since 1970."""

DEFAULT_CHANGES_BYTES = 64 << 20
_FUTURE_SECONDS = 3600  # a `now` further ahead of the clock is clamped (contract 1)


def wall_clock() -> int:
    """The machine's time in whole seconds."""
    return int(time.time())


def resolve_time(where: tuple[str, str], clock: Clock, now: int | None) -> tuple[int, bool]:
    """The time of a writing call, and whether it was clamped; `where` is of the message."""
    clock_now = as_integer(where[0], "the clock's time", clock(), f" {where[1]}")
    latest = clock_now + _FUTURE_SECONDS
    now = clock_now if now is None else as_integer(where[0], "now", now, f" {where[1]}")
    time_now = min(now, latest)
    checks.check_time_of(where, time_now)
    return time_now, now > latest


def check_options(config: TableConfig, clock: Clock, changes_bytes: int) -> int:
    """Refuse what no table can be made of; `changes_bytes` as an int."""
    if not isinstance(config, TableConfig):
        raise TypeError(f"[Table] expected config as a TableConfig, got {type(config).__name__}")
    if not callable(clock):
        raise TypeError(
            f"[Table] expected clock as a function that gives seconds, got {clock!r} "
            f"(table {config.name!r})"
        )
    which = f"(table {config.name!r})"
    num_bytes = as_integer("[Table]", "changes_bytes", changes_bytes, f" {which}")
    if not 0 <= num_bytes < 1 << 63:
        raise ValueError(
            f"[Table] expected changes_bytes in [0, 2**63), got {changes_bytes} {which}"
        )
    return num_bytes


class TableCalls(TableStorage):
    """A table's config, clock and life; base of the classes that have the verbs.

    Args:
        config: what the table is.
        clock: gives the time of a call that has no `now`.
        changes_bytes: bound of the touched log; a cursor that has not read what goes starts anew.
    """

    _is_spread = False  # rows live in shards, which the object reaches and does not own

    def __init__(
        self,
        config: TableConfig,
        *,
        clock: Clock = wall_clock,
        changes_bytes: int = DEFAULT_CHANGES_BYTES,
    ) -> None:
        self._changes_bytes = check_options(config, clock, changes_bytes)
        self.config = config
        self.name = config.name
        self.dim = config.dim
        self._is_serving = config.kind == "serving"
        self._clock = clock
        self._is_closed = False
        self._watchers: list[weakref.WeakMethod[Callable[[str], None]]] = []
        self._cut_lock = threading.Lock()
        self._is_loading = False  # a restore fills the table; changed under `_cut_lock`

    def close(self) -> None:
        """Free the table; running calls finish, later ones raise. Closing twice is fine."""
        self._is_closed = True
        for watcher in self._watchers:
            tell = watcher()
            if tell is not None:
                tell(self.name)
        self._close()

    def _on_close(self, tell: Callable[[str], None]) -> None:
        """Call a method with the table's name when the table is closed; its object may go first."""
        self._watchers = [watcher for watcher in self._watchers if watcher() is not None]
        self._watchers.append(weakref.WeakMethod(tell))

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise self._closed_error(verb)

    def _closed_error(self, verb: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"[Table.{verb}] expected an open table, got a closed one (table {self.name!r})"
        )

    def _cut_error(self, where: str = "[Table.clear]") -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{where} expected no open cut, got one; close it first (table {self.name!r})"
        )

    def _check_not_loading(self, where: str) -> None:
        if self._is_loading:
            raise FailedPreconditionError(
                f"{where} expected a table at rest, got one that restore_tables fills "
                f"(table {self.name!r})"
            )

    def _check_keys(self, verb: str, keys: torch.Tensor) -> None:
        self._check_open(verb)
        checks.check_keys(self.config, verb, keys)

    def _check_values(
        self,
        verb: str,
        keys: torch.Tensor,
        name: str,
        values: torch.Tensor,
        num_threads: int | None,
    ) -> int:
        self._check_keys(verb, keys)
        checks.check_matrix(self.config, verb, name, values, (keys.numel(), self.dim))
        return checks.check_threads(self.config, verb, num_threads, keys.numel())

    def _check_missing(self, verb: str, missing: str) -> bool:
        """Whether a missing key reads as the row it would get."""
        if missing not in ("initial", "zeros"):
            raise ValueError(
                f"[Table.{verb}] expected missing 'initial' or 'zeros', got {missing!r} "
                f"(table {self.name!r})"
            )
        return missing == "initial" and not self._is_serving

    @contextmanager
    def _time(self, verb: str, now: int | None) -> Iterator[int]:
        """The time of a writing call, counted if clamped when the call has succeeded."""
        time_now, is_clamped = self._resolve_time(verb, now)
        yield time_now
        if is_clamped:
            self._count_clamped()

    def _resolve_time(self, verb: str, now: int | None) -> tuple[int, bool]:
        """The time of a writing call, and whether it was clamped."""
        return resolve_time((f"[Table.{verb}]", f"(table {self.name!r})"), self._clock, now)

    def _clock_time(self, verb: str) -> int:
        return checks.check_integer(self.config, verb, "the clock's time", self._clock())
