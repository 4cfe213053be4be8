"""`RunControl` is what a controller does with a trainer's run; `ControlHook` starts it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from monolith.checkpoint import find
from monolith.control import (
    BarrierAlreadyPlacedError,
    BlockStatus,
    ControllerServer,
    ControlOptions,
    ControlRequests,
    RowValues,
    RunStatus,
    SavedCheckpoint,
    WorkerState,
    WorkerStatus,
)
from monolith.control.controlled import ALREADY_PLACED, CALL_SECONDS
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.table.disk.contents import rows_of_key
from monolith.train.controlled.park_hook import Boundary, LocalPark, Park, ParkHook
from monolith.train.driver import Coordinator, Hook, Run
from monolith.train.figures import Meter
from monolith.train.loop import TrainLoop
from monolith.train.saves.checkpoint_hook import CheckpointHook
from monolith.train.settings import TrainSettings

if TYPE_CHECKING:
    from typing_extensions import Self

    from monolith.train.trainer import Trainer


@dataclass(frozen=True)
class ControlledFit:
    """A running `fit`, as its control sees it.

    Args:
        trainer: Trainer of the run.
        loop: Loop of the run.
        meter: Meter of the run.
        savers: Hooks that save the run.
    """

    trainer: "Trainer"
    loop: TrainLoop
    meter: Meter
    savers: Sequence[CheckpointHook]

    @property
    def boundary(self) -> Boundary:
        """What a `ParkHook` needs of the run."""
        job = self.trainer.job
        return Boundary(
            settle=self.trainer.finish_updates,
            paused=self.meter.paused,
            is_stopping=lambda: self.loop.is_stopping,
            check=(lambda: None) if job is None else job.check,
            leave=job.stop_all if job is not None and job.is_chief else lambda: None,
        )

    def save(self) -> SavedCheckpoint:
        """Save on the training thread.

        Raises:
            FailedPreconditionError: The run saves no checkpoints.
        """
        saver = next((hook for hook in self.savers if not hook.is_dense_only), None)
        if saver is None:
            raise FailedPreconditionError(
                "[control] expected a run that saves checkpoints, got one without a folder for "
                "them; set checkpoint_dir"
            )
        prefix = saver.save_now()
        return SavedCheckpoint(prefix, self.trainer.state.step)


class RunControl:
    """Stops, resumes and saves a run of a trainer, and tells how it goes; see `Operated`.

    Args:
        fit: The run.
        park: Stops the run, or all workers of its job.
        requests: Requests to the training thread.
        checkpoint: Newest checkpoint before the run; empty without one.
    """

    def __init__(
        self, fit: ControlledFit, park: Park, requests: ControlRequests, checkpoint: str = ""
    ) -> None:
        self._fit, self._trainer, self._checkpoint = fit, fit.trainer, checkpoint
        self._park, self._requests = park, requests

    def stop(self, timeout_seconds: float = CALL_SECONDS) -> None:
        """See `Controlled`."""
        if not self._park.place(timeout_seconds):
            raise BarrierAlreadyPlacedError(ALREADY_PLACED)

    def resume(self, timeout_seconds: float = CALL_SECONDS) -> None:
        """See `Controlled`."""
        self._park.remove(timeout_seconds)

    def block_status(self, timeout_seconds: float = CALL_SECONDS) -> BlockStatus:
        """See `Controlled`."""
        is_parked = {
            facts.worker: facts.state == "parked" for facts in self._park.workers(timeout_seconds)
        }
        return BlockStatus(
            [worker for worker, stands in is_parked.items() if stands],
            [worker for worker, stands in is_parked.items() if not stands],
        )

    def save(self, timeout_seconds: float) -> SavedCheckpoint:
        """See `Controlled`."""
        return self._requests.call("a save", self._fit.save, timeout_seconds)

    def global_step(self, timeout_seconds: float = CALL_SECONDS) -> int:
        """See `Controlled`."""
        job = self._trainer.job
        return self._trainer.state.step if job is None else job.read_steps(timeout_seconds)

    def status(self, timeout_seconds: float = CALL_SECONDS) -> RunStatus:
        """See `Operated`."""
        trainer, job, meter = self._trainer, self._trainer.job, self._fit.meter
        end = time.monotonic() + timeout_seconds
        counts = {} if job is None else job.counts(timeout_seconds)
        step = trainer.state.step
        workers = []
        for facts in self._park.workers(max(0.0, end - time.monotonic())):
            state = WorkerState(facts.state)
            worker = WorkerStatus(
                facts.worker, state, facts.number, facts.samples_per_second, facts.heard_seconds
            )
            if job is None:
                is_running = state is WorkerState.RUNNING
                rate = meter.samples_per_second if is_running else 0.0
                worker = WorkerStatus(0, state, step, rate)
            workers.append(worker)
        return RunStatus(
            counts.get("steps", step),
            self._park.is_placed,
            workers,
            trainer.state.checkpoint or self._checkpoint,
            counts.get("samples", trainer.state.num_samples),
            counts.get("lost_pushes", 0),
            trainer.task.name,
        )

    def rows(self, key: int, table: str, timeout_seconds: float = CALL_SECONDS) -> list[RowValues]:
        """See `Operated`."""
        tables = self._trainer.features.tables
        if table and table not in tables:
            raise NotFoundError(
                f"[control] expected a table of the run ({', '.join(tables)}), got {table!r}"
            )
        keys, rows = torch.tensor([key], device="cpu"), []
        for name in [table] if table else tables:
            entries = tables[name].lookup_entry(keys)
            if bool(entries.present[0]):
                rows += rows_of_key(key, tables[name].config, entries.rows)
        return [RowValues(row.table, row.time, row.columns) for row in rows]


class ControlHook(Hook):
    """The hook that starts the controller of a run, and ends it after the last save.

    Args:
        control: Control of the run.
        requests: Requests to the training thread.
        model_dir: Folder of the run.
        options: Where the controller listens.
    """

    def __init__(
        self,
        control: RunControl,
        requests: ControlRequests,
        model_dir: str,
        options: ControlOptions,
    ) -> None:
        self._control, self._requests = control, requests
        self._model_dir, self._options = model_dir, options
        self._server: ControllerServer | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Start the controller; it goes on over recoveries."""
        if self._server is None:
            self._server = ControllerServer(self._model_dir, self._control, self._options)

    def end(self, run: Run) -> None:
        """Do what was asked until now, and end the controller."""
        self._requests.serve()
        self.close("the run has ended")

    def close(self, reason: str) -> None:
        """Refuse what was asked, and end the controller. Closing twice is fine."""
        self._requests.close(reason)
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close("the run has failed")


def check_control(
    options: ControlOptions | None, settings: TrainSettings, *, has_ranks: bool
) -> None:
    """Refuse a controller where a run has no place for it.

    Args:
        options: Where the controller listens; None starts none.
        settings: Settings of the run.
        has_ranks: Whether the run is one of synchronous ranks.

    Raises:
        InvalidArgumentError: The run has no folder for the address, or it is that of a rank.
    """
    if options is None:
        return
    if has_ranks:
        raise InvalidArgumentError(
            "[Trainer] expected no control with ranks, got both; one rank that stands would end "
            "the others by their timeout"
        )
    if settings.checkpoint_dir is None:
        raise InvalidArgumentError(
            "[Trainer] expected checkpoint_dir with control, got none; the controller writes "
            "its address there"
        )


def control_hooks(fit: ControlledFit, options: ControlOptions | None) -> list[Hook]:
    """Return the hooks by which a run is controlled; they come after all others.

    A worker of a job stands when its job is stopped, with or without a controller of its own.

    Args:
        fit: The run.
        options: Where its controller listens; None starts none.
    """
    trainer = fit.trainer
    if trainer.job is None and options is None:
        return []
    requests = ControlRequests()
    park: Park = LocalPark() if trainer.job is None else trainer.job.park
    hook = ParkHook(park, requests, fit.boundary)
    if trainer.job is not None:
        trainer.job.on_wait = hook.at_boundary
    if options is None:
        return [hook]
    model_dir = trainer.settings.checkpoint_dir
    assert model_dir is not None, "the trainer checks it"
    checkpoint = find(model_dir)  # a chief has saved, or has come back
    control = RunControl(fit, park, requests, "" if checkpoint is None else checkpoint.prefix)
    return [ControlHook(control, requests, model_dir, options), hook]
