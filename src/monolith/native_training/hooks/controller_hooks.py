"""Control a run by a file in its model directory: `ControllerHook` and `QueryActionHook`."""

import enum
import logging
import os
import posixpath
import threading
import time
from collections.abc import Callable
from types import MappingProxyType

from monolith.checkpoint.storage import delete, read_file, write_file
from monolith.checkpoint.text_format import Field, parse_message
from monolith.cluster.job.shared_state import SharedState
from monolith.errors import InvalidArgumentError, MonolithError, NotFoundError
from monolith.native_training.barrier_ops import BarrierAlreadyPlacedError, BarrierOp
from monolith.native_training.util.run_state import shared_state_of
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.util.waiting import check_timeout

STOP_ACTION = "Stop"
"""Action of the barrier that ends a run."""

ACTION_FILE, RESPONSE_FILE = "monolith_action", "monolith_action_response"
"""Names of the files of a request and of its answer."""

_FLAGS, _STOP, _SAVE = "controller_hook", 0, 1
_QUERY_SECONDS, _BLOCK_SECONDS, _POLL_SECONDS = 60.0, 30.0, 2.0

_log = logging.getLogger(__name__)


class Action(enum.IntEnum):
    """What a file asks for."""

    UNKNOWN = 0
    TRIGGER_SAVE = 1
    STOP = 2


_SCHEMA = MappingProxyType({"action": Field(tuple(action.name for action in Action))})


class ControllerHook(Hook):
    """The hook of the chief that stops or saves a run when it was asked to, after a step.

    Args:
        num_ps: Number of servers; a label only, as server 0 holds the requests.
        barrier_op: Barrier of the workers; None refuses a stop.
        trigger_save: Saves the run; None refuses a save.
        shared: Holds the requests; None takes the state of the current run, or a new one.
        block_seconds: Seconds that the workers have to reach the barrier.
        poll_seconds: Seconds between two looks at them.

    Raises:
        ValueError: A time is negative or not a number.
    """

    def __init__(
        self,
        num_ps: int = 0,
        barrier_op: BarrierOp | None = None,
        trigger_save: Callable[[Run], object] | None = None,
        *,
        shared: SharedState | None = None,
        block_seconds: float = _BLOCK_SECONDS,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self.num_ps, self._barrier, self._trigger_save = num_ps, barrier_op, trigger_save
        self._shared = shared_state_of() if shared is None else shared
        self._block_seconds = check_timeout("[ControllerHook]", block_seconds)
        self._poll_seconds = check_timeout("[ControllerHook]", poll_seconds)

    def request_stop(self) -> None:
        """Ask for the end of the run after the next step.

        Raises:
            InvalidArgumentError: The hook has no barrier.
        """
        if self._barrier is None:
            raise InvalidArgumentError(
                "[ControllerHook] expected a barrier_op for a stop, got None; give one"
            )
        self._shared.set_flag(_FLAGS, 2, _STOP, True)

    def request_save(self) -> None:
        """Ask for a save after the next step.

        Raises:
            InvalidArgumentError: The hook has no function that saves.
        """
        if self._trigger_save is None:
            raise InvalidArgumentError(
                "[ControllerHook] expected trigger_save for a save, got None; give one"
            )
        self._shared.set_flag(_FLAGS, 2, _SAVE, True)

    def before_run(self, ctx: StepContext) -> Callable[[], list[bool]]:
        """Look at the requests during the step."""
        return lambda: self._shared.flags(_FLAGS, 2)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Do what was asked."""
        is_stop, is_save = results.extra.get(self, (False, False))
        if is_save and self._trigger_save is not None:
            self._shared.set_flag(_FLAGS, 2, _SAVE, False)
            self._trigger_save(ctx.run)
        if is_stop and self._barrier is not None:
            self._shared.set_flag(_FLAGS, 2, _STOP, False)
            self._stop(self._barrier, ctx.run)

    def _stop(self, barrier: BarrierOp, run: Run) -> None:
        """Tell all workers at the barrier that the run ends."""
        try:
            barrier.place_barrier(run, STOP_ACTION)
        except BarrierAlreadyPlacedError:
            _log.warning("the run is not ended: another one has placed the barrier")
            return
        end = time.monotonic() + self._block_seconds
        while not barrier.is_all_blocked(run) and time.monotonic() < end:
            time.sleep(min(self._poll_seconds, max(0.0, end - time.monotonic())))
        if not barrier.is_all_blocked(run):
            late = barrier.get_unblocked_indices(run)
            _log.warning("workers %s are not at the barrier after %g s", late, self._block_seconds)
        barrier.remove_barrier(run)


class StopHelper:
    """Ends a run whose barrier got the action `Stop`.

    helper = StopHelper()
    barrier = BarrierOp(capacity, barrier_callbacks=[helper.barrier_callback])
    hooks = [BarrierHook(index, barrier), helper.create_stop_hook()]
    """

    def __init__(self) -> None:
        self._is_stopping = threading.Event()

    def barrier_callback(self, action: str, session: Run | None) -> None:
        """Note the action of a barrier."""
        if action == STOP_ACTION:
            self._is_stopping.set()

    def create_stop_hook(self) -> Hook:
        """Return the hook that requests the end; it comes after `BarrierHook`."""
        return _StopHook(self._is_stopping)


class _StopHook(Hook):
    def __init__(self, is_stopping: threading.Event) -> None:
        self._is_stopping = is_stopping

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        if self._is_stopping.is_set():
            ctx.request_stop()


class QueryActionHook(Hook):
    """The hook of the chief that does what the file `monolith_action` in the model directory asks.

        action: TRIGGER_SAVE             or STOP

    The answer, `OK` or an error, is in `monolith_action_response`; the file is removed before.

    Args:
        model_dir: The model directory.
        hook: Stops and saves the run.
        interval_seconds: Seconds between two looks for the file.

    Raises:
        ValueError: The interval is negative or not a number.
    """

    def __init__(
        self,
        model_dir: "str | os.PathLike[str]",
        hook: ControllerHook,
        *,
        interval_seconds: float = _QUERY_SECONDS,
    ) -> None:
        directory = os.fspath(model_dir)
        self._path = posixpath.join(directory, ACTION_FILE)
        self._response_path = posixpath.join(directory, RESPONSE_FILE)
        self._hook = hook
        self._interval_seconds = check_timeout("[QueryActionHook]", interval_seconds)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Look for the file on a thread of the run."""
        coordinator.start(lambda: self._serve(coordinator), name="query action")

    def _serve(self, coordinator: Coordinator) -> None:
        while not coordinator.wait_for_stop(self._interval_seconds):
            try:
                self.query()
            except OSError as error:
                _log.warning("the file %s is not served: %s", self._path, error)
            except MonolithError as error:
                _log.warning("the file %s is not served: %s", self._path, error)

    def query(self) -> None:
        """Do what the file asks, if there is one, and write the answer.

        The file is removed first: a file that is there later is another request.
        """
        try:
            text = read_file(self._path)
        except NotFoundError:
            return
        delete(self._path)
        write_file(self._response_path, self._answer(text).encode())

    def _answer(self, text: bytes) -> str:
        try:
            number = parse_message(_SCHEMA, text.decode()).get("action", Action.UNKNOWN)
            action = Action(number)
            if action is Action.STOP:
                self._hook.request_stop()
            elif action is Action.TRIGGER_SAVE:
                self._hook.request_save()
            else:
                return "[QueryActionHook] expected action TRIGGER_SAVE or STOP, got none"
        except (MonolithError, ValueError) as error:
            return str(error)
        return "OK"
