"""Methods that a table implements, and the checks that begin every call."""

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from monolith.errors import FailedPreconditionError
from monolith.table import _checks as checks
from monolith.table.arguments import as_integer
from monolith.table.config import TableConfig
from monolith.table.rows import Applied, Entries, Rows
from monolith.table.rules import SlidingFilter
from monolith.table.snapshot import CutStorage

if TYPE_CHECKING:
    from typing_extensions import Self

    from monolith.table.disk.remote.remote_load import RemoteLoader


class TableStorage(ABC):
    """Methods that store rows; each implements the verb of its name, with checked arguments."""

    @abstractmethod
    def _lookup(
        self, keys: torch.Tensor, initial: bool, step: int, threads: int
    ) -> torch.Tensor: ...

    @abstractmethod
    def _contains(self, keys: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _lookup_entry(self, keys: torch.Tensor) -> Entries: ...

    @abstractmethod
    def _export_chunk(self, first: int, last: int, limit: int) -> Rows:
        """Return at most `limit` rows, the first with a hash in [first, last], ascending."""

    @abstractmethod
    def _lookup_or_insert(
        self, keys: torch.Tensor, step: int, now: int, threads: int
    ) -> torch.Tensor: ...

    @abstractmethod
    def _assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        absent: torch.Tensor | None,
        now: int,
        threads: int,
    ) -> None:
        """Assign values; the last occurrence of a key decides by `absent` that it has no row."""

    @abstractmethod
    def _assign_add(
        self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int
    ) -> None: ...

    @abstractmethod
    def _apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied: ...

    def _apply_sums(
        self,
        keys: torch.Tensor,
        sums: torch.Tensor,
        counts: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """`_apply_gradients` of sums of gradients; counts: int32 (n,), occurrences of each sum.

        The occurrences are the sum and then rows of -0.0, which change no sum.
        """
        width = sums.shape[1]
        grads = torch.full((int(counts.sum()), width), -0.0, dtype=torch.float32, device="cpu")
        grads[counts.cumsum(0) - counts] = sums
        keys = keys.repeat_interleave(counts)
        return self._apply_gradients(keys, grads, rates, step, now, threads)

    @abstractmethod
    def _reinitialize(self, keys: torch.Tensor, now: int) -> torch.Tensor: ...

    @abstractmethod
    def _erase(self, keys: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _import_rows(self, rows: Rows, absent: torch.Tensor | None, threads: int) -> None:
        """Import rows; `absent` has the meaning of `_assign`."""

    def _fill_rows(self, rows: Rows) -> None:
        """Import rows during a load; after an error, some of the rows may be present."""
        self._import_rows(rows, None, 1)

    def _expect_rows(self, num_rows: int) -> None:  # noqa: B027 - a hint that many need not take
        """Prepare for `num_rows` rows with keys of all partitions; an optional hint."""

    def _remote_loader(self) -> "RemoteLoader | None":
        """Return what reads files into the rows, if other processes hold the rows."""
        return None

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _num_rows(self) -> int: ...

    @abstractmethod
    def _memory_report(self) -> dict[str, int]: ...

    @abstractmethod
    def _stats(self) -> dict[str, int]: ...

    @abstractmethod
    def _count_clamped(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _update_calls(self) -> int: ...

    @abstractmethod
    def _set_update_calls(self, number: int) -> None: ...

    @abstractmethod
    def _seen_time(self) -> int:
        """Return the largest update time of a successful call, or of an imported row."""

    @abstractmethod
    def _set_seen_time(self, time: int) -> None: ...

    @abstractmethod
    def _evict(self, reference: int) -> int: ...

    @abstractmethod
    def _evict_slice(self, first: int, reference: int) -> tuple[int, int | None]:
        """Evict from the hash `first` on; return the number of rows, and the next hash or None."""

    @abstractmethod
    def _export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]: ...

    @abstractmethod
    def _import_candidates(self, columns: dict[str, torch.Tensor]) -> None: ...

    @abstractmethod
    def _open_cut(self, cursor: str | None) -> CutStorage | None:
        """Return a cut after running writers have ended; None if four cuts are open.

        With a cursor, the moment of the cut is also a read of the cursor: `CutStorage.changes`.
        """

    @abstractmethod
    def _has_cut(self) -> bool:
        """Whether a cut is open."""

    @abstractmethod
    def _changes(self, cursor: str) -> tuple[bool, torch.Tensor, torch.Tensor]:
        """Return whether the cursor starts anew, the changed keys, and the removed keys."""

    @abstractmethod
    def _drop_cursor(self, cursor: str) -> bool:
        """Remove a cursor; return whether it existed."""

    @abstractmethod
    def _cursors(self) -> list[str]: ...


Clock = Callable[[], int]
"""Function that returns seconds since 1970."""

DEFAULT_CHANGES_BYTES = 64 << 20
# Largest distance of `now` ahead of the clock; later times are clamped (contract 1).
_FUTURE_SECONDS = 3600


def wall_clock() -> int:
    """Return the machine's time in whole seconds."""
    return int(time.time())


def resolve_time(where: tuple[str, str], clock: Clock, now: int | None) -> tuple[int, bool]:
    """Return the time of a writing call, and whether it was clamped; `where` names the call."""
    clock_now = as_integer(where[0], "the clock's time", clock(), f" {where[1]}")
    latest = clock_now + _FUTURE_SECONDS
    now = clock_now if now is None else as_integer(where[0], "now", now, f" {where[1]}")
    time_now = min(now, latest)
    checks.check_time_of(where, time_now)
    return time_now, now > latest


def check_options(config: TableConfig, clock: Clock, changes_bytes: int) -> int:
    """Refuse invalid options of a table; return `changes_bytes` as an int."""
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


def _check_filter(config: TableConfig) -> None:
    """Refuse filters of several shards in a table that is none."""
    rule = config.admission
    if isinstance(rule, SlidingFilter) and rule.num_shards > 1 and config.kind != "serving":
        raise ValueError(
            f"[Table] expected a SlidingFilter with num_shards=1, got {rule.num_shards} (table "
            f"{config.name!r}); its filters are those of a ShardedTable with "
            f"FloorModRouting({rule.num_shards})"
        )


class TableCalls(TableStorage):
    """Config, clock and life of a table; base of the classes with the verbs.

    Args:
        config: settings of the table.
        clock: function that returns the time of a call without `now`.
        changes_bytes: bound of the touched log; a cursor that has not read dropped entries starts
            anew.

    Attributes:
        restore_names: other names under which a save may have the table; `restore_tables` reads
            them.
    """

    _is_spread = False  # the rows belong to shards that this object calls but does not own

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
        if not self._is_spread:
            _check_filter(config)
        self.restore_names: Sequence[str] = ()
        self._is_serving = config.kind == "serving"
        self._clock = clock
        self._is_closed = False
        self._watchers: list[weakref.WeakMethod[Callable[[str], None]]] = []
        self._cut_lock = threading.Lock()
        self._is_loading = False  # a restore fills the table; changed under `_cut_lock`

    def _next_update(self) -> int:
        """Return the number of the next update, as far as it is known without a message."""
        return self._update_calls()

    def close(self) -> None:
        """Free the table; running calls finish, later calls raise. A second call has no effect."""
        self._is_closed = True
        for watcher in self._watchers:
            tell = watcher()
            if tell is not None:
                tell(self.name)
        self._close()

    def _on_close(self, tell: Callable[[str], None]) -> None:
        """Call a method with the table's name at `close`, unless its object is deleted before."""
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
        """Whether a missing key reads as the row that it would get."""
        if missing not in ("initial", "zeros"):
            raise ValueError(
                f"[Table.{verb}] expected missing 'initial' or 'zeros', got {missing!r} "
                f"(table {self.name!r})"
            )
        return missing == "initial" and not self._is_serving

    @contextmanager
    def _time(self, verb: str, now: int | None) -> Iterator[int]:
        """Yield the time of a writing call; a successful call counts a clamped time."""
        time_now, is_clamped = self._resolve_time(verb, now)
        yield time_now
        if is_clamped:
            self._count_clamped()

    def _resolve_time(self, verb: str, now: int | None) -> tuple[int, bool]:
        """Return the time of a writing call, and whether it was clamped."""
        return resolve_time((f"[Table.{verb}]", f"(table {self.name!r})"), self._clock, now)

    def _clock_time(self, verb: str) -> int:
        return checks.check_integer(self.config, verb, "the clock's time", self._clock())
