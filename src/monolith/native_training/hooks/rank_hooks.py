"""Hooks of synchronous training: a decision is taken by rank 0, and all ranks receive it.

The ranks are those of `hvd_lib`. All ranks have the same hooks in the same order, since a hook
waits for the hook of the other ranks. A hook that changes a timer comes before the hook that saves
by the timer, so that the decision counts for the same step.
"""

import logging
import posixpath
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from monolith.checkpoint.storage import exists, read_file
from monolith.errors import NotFoundError
from monolith.native_training import hvd_lib
from monolith.native_training.saver.listeners import SaverListener
from monolith.native_training.saver.tide import TimeSource
from monolith.table.base import BaseTable
from monolith.train.driver import Hook, Run, StepContext, StepResults

_log = logging.getLogger(__name__)

REQ_TIME = "req_time"
"""Collection of a run with times of requests: numbers, tensors, or functions that return one."""
HASH_TABLES = "hash_tables"
"""Collection of a run with its tables."""

_FIRST_HOUR, _LAST_HOUR = 18, 20  # in UTC; both belong to the window
_INFO_SECONDS = 600.0
_SIGNATURE, _TIMEOUT_MS = "hashtable_assign", 3000
_SYSTEM_TIME = TimeSource()


class Timer(Protocol):
    """Decides when a hook saves; a `SecondOrStepTimer` is one."""

    def enable(self) -> None:
        """Let the timer trigger again."""

    def disable(self) -> None:
        """Never trigger until `enable`."""

    def reset(self) -> None:
        """Let the next query trigger."""


class SyncTrainingBarrierSaverListener(SaverListener):
    """Lets all ranks wait for each other after each save. An error is logged, and no more."""

    def after_save(self, run: Run, global_step: int) -> None:
        """Wait for the other ranks."""
        try:
            hvd_lib.broadcast([global_step], 0, name="barrier after a save")
        except Exception:
            _log.exception("the ranks have not met after the save of step %d", global_step)


class SyncBackend(Protocol):
    """Knows the servers that receive parameters."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, Any]:
        """Return the name of the model, and addresses: a list, or address -> further facts."""


class ParameterSyncClient(Protocol):
    """Sends changed rows to servers."""

    def create_sync_op(self) -> Callable[["SyncConfig"], object]:
        """Return the function that sends what has changed since its last call."""


@dataclass(frozen=True)
class SyncConfig:
    """Says where the parameters of a shard go.

    Attributes:
        model_name: Model of the receivers.
        targets: Addresses of the receivers.
        targets_extra_info: Further facts of each receiver, in the order of `targets`; empty if the
            backend knows none.
        signature_name: Signature that receives the rows.
        timeout_in_ms: Limit on a call.
    """

    model_name: str
    targets: tuple[str, ...]
    targets_extra_info: tuple[Any, ...] = ()
    signature_name: str = _SIGNATURE
    timeout_in_ms: int = _TIMEOUT_MS


def refresh_sync_config(sync_backend: SyncBackend, ps_index: int) -> SyncConfig:
    """Return where the parameters of a shard go now.

    Example:
        >>> class Backend:
        ...     def get_sync_targets(self, sub_graph):
        ...         return f"clicks:{sub_graph}", ["10.0.0.1:9000"]
        >>> refresh_sync_config(Backend(), 2).model_name
        'clicks:ps_2'
    """
    model_name, targets = sync_backend.get_sync_targets(f"ps_{ps_index}")
    facts = tuple(targets.values()) if isinstance(targets, Mapping) else ()
    return SyncConfig(model_name, tuple(targets), facts)


class ParameterSyncHook(Hook):
    """Sends the changed rows of this rank after every step.

    Args:
        sync_backend: Knows the receivers.
        ps_index: Number of the shard, which is that of the rank.
        refresh_interval: Seconds after which the backend is asked again.
        client: Sends the rows.
        clock: Seconds; only differences count.
    """

    def __init__(
        self,
        sync_backend: SyncBackend,
        ps_index: int,
        refresh_interval: float = 100,
        *,
        client: ParameterSyncClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._ps_index = sync_backend, ps_index
        self._interval, self._clock = refresh_interval, clock
        self._client = client
        self._send: Callable[[SyncConfig], object] | None = None
        self._config: SyncConfig | None = None
        self._refreshed_at = 0.0

    def begin(self) -> None:
        """Make the function that sends."""
        self._send = self._client.create_sync_op()

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Send, to the receivers of a config that is at most `refresh_interval` old."""
        assert self._send is not None
        now = self._clock()
        if self._config is None or now - self._refreshed_at >= self._interval:
            self._config = refresh_sync_config(self._backend, self._ps_index)
            self._refreshed_at = now
        self._send(self._config)


class _EveryFewSteps(Hook):
    """Asks rank 0 for a decision every few steps, and follows it in all ranks."""

    def __init__(self, model_dir: str, target_timer: Timer, step_interval: int) -> None:
        if step_interval < 1:
            raise ValueError(
                f"[{type(self).__name__}] expected step_interval >= 1, got {step_interval}"
            )
        self._model_dir, self._timer = str(model_dir), target_timer
        self._step_interval = step_interval

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Decide and follow, after every `step_interval` steps."""
        step = ctx.run.global_step or 0
        if step % self._step_interval:
            self._between(step)
            return
        numbers = self._decide(ctx.run, step) if hvd_lib.rank() == 0 else [0] * self._size
        sent = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._follow(ctx, hvd_lib.broadcast(sent, 0, name=type(self).__name__).tolist())

    _size = 1  # of a decision

    def _decide(self, run: Run, step: int) -> list[int]:
        """Return the decision as numbers; called in rank 0."""
        raise NotImplementedError

    def _follow(self, ctx: StepContext, decision: list[int]) -> None:
        """Do what was decided; called in all ranks."""
        raise NotImplementedError

    def _between(self, step: int) -> None:
        """Do nothing at other steps."""

    def _path(self, name: str) -> str:
        return posixpath.join(self._model_dir, name)

    def _set(self, *, is_enabled: bool) -> None:
        (self._timer.enable if is_enabled else self._timer.disable)()


class SyncTrainingForceDumpHook(_EveryFewSteps):
    """Saves and stops all ranks by files of an operator; lets the timer run in the evening only.

    | in `model_dir` after step 200 | what all ranks do |
    |---|---|
    | `dump_200` | the timer is enabled and triggers for this step |
    | `stop_200` | the run ends |

    The timer is otherwise enabled from 18:00 to 20:59 UTC, by the clock of rank 0.

    Args:
        model_dir: Folder of the files.
        target_timer: Timer of the hook that saves; its hook comes after this one.
        step_interval: Steps between two looks at the files and the clock.
        source: The time.

    Raises:
        ValueError: `step_interval` is below 1.
    """

    _size = 3

    def __init__(
        self,
        model_dir: str,
        target_timer: Timer,
        step_interval: int = 100,
        *,
        source: TimeSource = _SYSTEM_TIME,
    ) -> None:
        super().__init__(model_dir, target_timer, step_interval)
        self._source = source
        self._is_evening = self._is_forced = False

    def _decide(self, run: Run, step: int) -> list[int]:
        is_evening = _FIRST_HOUR <= self._source.utc_now().hour <= _LAST_HOUR
        files = (f"dump_{step}", f"stop_{step}")
        return [*(int(exists(self._path(name))) for name in files), int(is_evening)]

    def _follow(self, ctx: StepContext, decision: list[int]) -> None:
        is_dump, is_stop, is_evening = map(bool, decision)
        self._is_evening, self._is_forced = is_evening, is_dump
        self._set(is_enabled=is_evening or is_dump)
        if is_dump:
            self._timer.reset()
        if is_stop:
            _log.info("the run ends by the file stop_%d", ctx.run.global_step or 0)
            ctx.coordinator.request_stop()  # all ranks do so after the same step

    def _between(self, step: int) -> None:
        if self._is_forced:  # a dump is of one step
            self._is_forced = False
            self._set(is_enabled=self._is_evening)


class SyncTrainingSaverControlHook(_EveryFewSteps):
    """Lets all ranks save by the timer while `model_dir` has a file `ONLINE`.

    Args:
        model_dir: Folder of the file.
        target_timer: Timer of the hook that saves; its hook comes after this one.
        step_interval: Steps between two looks at the file.

    Raises:
        ValueError: `step_interval` is below 1.
    """

    def __init__(self, model_dir: str, target_timer: Timer, step_interval: int = 100) -> None:
        super().__init__(model_dir, target_timer, step_interval)

    def _decide(self, run: Run, step: int) -> list[int]:
        return [int(exists(self._path("ONLINE")))]

    def _follow(self, ctx: StepContext, decision: list[int]) -> None:
        self._set(is_enabled=bool(decision[0]))


class SyncTrainingInfoHook(Hook):
    """Logs the number of rows of all tables, at most every 600 seconds.

    Args:
        tables: Tables by name; None takes what the collection "hash_tables" of the run holds.
        clock: Seconds; only differences count.
    """

    def __init__(
        self,
        tables: Mapping[str, BaseTable] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables, self._clock = tables, clock
        self._logged_at: float | None = None

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Log if it is time."""
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < _INFO_SECONDS:
            return
        self._logged_at = now
        tables = self._tables
        if tables is None:
            tables = {table.config.name: table for table in ctx.run.collection(HASH_TABLES)}
        sizes = ", ".join(f"{name}: {len(table)}" for name, table in sorted(tables.items()))
        _log.info("rows of the tables: %s", sizes or "no tables")


class ReqTimeControlDumpHook(_EveryFewSteps):
    """Saves and stops all ranks when the requests of the samples have reached a time.

    The time is the largest number of the collection "req_time" of rank 0's run. The limit is the
    number in the file `limit_req_time`; without the file there is no limit.

    Args:
        model_dir: Folder of the file.
        target_timer: Timer of the hook that saves; its hook comes after this one.
        step_interval: Steps between two looks at the file.

    Raises:
        ValueError: `step_interval` is below 1.
    """

    _size = 3

    def __init__(self, model_dir: str, target_timer: Timer, step_interval: int = 1000) -> None:
        super().__init__(model_dir, target_timer, step_interval)

    def _decide(self, run: Run, step: int) -> list[int]:
        limit, now = self._limit(), _latest(run.collection(REQ_TIME))
        if limit is None or now is None:
            return [0, 0, 0]
        return [1, limit, now]

    def _limit(self) -> int | None:
        path = self._path("limit_req_time")
        try:
            text = read_file(path).decode().strip()
        except (NotFoundError, UnicodeDecodeError):
            return None
        try:
            return int(text) if text else None
        except ValueError:
            _log.warning("expected an integer in %s, got %r: there is no limit", path, text[:100])
            return None

    def _follow(self, ctx: StepContext, decision: list[int]) -> None:
        has_limit, limit, now = decision
        if has_limit and now >= limit:
            _log.info("the run ends: requests have reached %d, the limit is %d", now, limit)
            self._timer.enable()
            self._timer.reset()
            ctx.coordinator.request_stop()  # all ranks do so after the same step


def _latest(values: Iterable[Any]) -> int | None:
    """Return the largest number of some values; None without numbers."""
    known = [value() if callable(value) else value for value in values]
    numbers = [
        int(value.max()) if isinstance(value, torch.Tensor) else int(value)
        for value in known
        if value is not None and not (isinstance(value, torch.Tensor) and not value.numel())
    ]
    return max(numbers, default=None)


class EofHook(Hook):
    """Ends the run in all ranks after the step in which one rank had its last element.

    Args:
        has_ended: Whether the element of the last step was the last one of this rank.
    """

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        self._has_ended = has_ended

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Ask all ranks."""
        if bool(hvd_lib.allgather([int(self._has_ended())], name="end of data").any()):
            ctx.coordinator.request_stop()  # all ranks do so after the same step
