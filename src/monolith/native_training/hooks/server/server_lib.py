"""`ServerHook`: starts the controller of a run that a barrier stops and a saver hook saves."""

import os

from monolith.control import BlockStatus, ControllerServer, ControlOptions, SavedCheckpoint
from monolith.control.controlled import CALL_SECONDS
from monolith.native_training.barrier_ops import BarrierOp
from monolith.native_training.saver import NoFirstSaveCheckpointSaverHook
from monolith.train.driver import Coordinator, Hook, Run


class _BarrierControl:
    """Stops a run by a barrier; see `Controlled`."""

    def __init__(
        self,
        run: Run,
        model_dir: str,
        barrier_op: BarrierOp,
        saver_hook: NoFirstSaveCheckpointSaverHook,
    ) -> None:
        self._run, self._model_dir = run, model_dir
        self._barrier, self._saver_hook = barrier_op, saver_hook

    def stop(self, timeout_seconds: float = CALL_SECONDS) -> None:
        self._barrier.place_barrier(self._run)

    def resume(self, timeout_seconds: float = CALL_SECONDS) -> None:
        self._barrier.remove_barrier(self._run)

    def block_status(self, timeout_seconds: float = CALL_SECONDS) -> BlockStatus:
        blocked = self._barrier.get_blocked_indices(self._run)
        return BlockStatus(
            blocked, [i for i in range(self._barrier.capacity) if i not in set(blocked)]
        )

    def save(self, timeout_seconds: float) -> SavedCheckpoint:
        """Save as the hook does, within the limit of the hook, too."""
        self._saver_hook.trigger_save(self._run, timeout_seconds=timeout_seconds)
        return SavedCheckpoint(self._model_dir, self.global_step())

    def global_step(self, timeout_seconds: float = CALL_SECONDS) -> int:
        return self._run.global_step or 0


class ServerHook(Hook):
    """The hook of the chief that lets other processes stop, resume and save the run.

    Args:
        model_dir: Folder of the run, which gets the address.
        barrier_op: Barrier of the workers.
        saver_hook: Hook that saves the run; it comes before this hook.
        options: Where to listen; None takes the defaults.
    """

    def __init__(
        self,
        model_dir: "str | os.PathLike[str]",
        barrier_op: BarrierOp,
        saver_hook: NoFirstSaveCheckpointSaverHook,
        *,
        options: ControlOptions | None = None,
    ) -> None:
        self._model_dir, self._options = os.fspath(model_dir), options
        self._barrier, self._saver_hook = barrier_op, saver_hook
        self._server: ControllerServer | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Start the server; the server of before a recovery is closed by then."""
        control = _BarrierControl(run, self._model_dir, self._barrier, self._saver_hook)
        self._server = ControllerServer(self._model_dir, control, self._options)
        coordinator.add_cleanup(self._server.close)

    def end(self, run: Run) -> None:
        """Refuse calls, and give those that are running 20 seconds."""
        if self._server is not None:
            self._server.close()
