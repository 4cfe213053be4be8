"""Stages of a step: their names, and their times where somebody measures."""

import time
from types import TracebackType

from torch.autograd import profiler


class Stage:
    """A stage of a step as a context: its time so far, and its name in a trace of torch's profiler.

    One thread at a time may be in a stage; any thread may read its attributes.

    Args:
        name: Name of the stage.

    Attributes:
        name: Name of the stage.
        is_timed: Whether the stage is timed.
        seconds: Sum of the measured times; a stage that raises an error adds none.
    """

    def __init__(self, name: str) -> None:
        self.name, self.is_timed = name, False
        self.seconds = 0.0
        self._begin: float | None = None
        self._range: profiler.record_function | None = None

    def __enter__(self) -> None:
        if profiler._is_profiler_enabled:
            self._range = profiler.record_function(f"monolith.{self.name}")
            self._range.__enter__()  # type: ignore[no-untyped-call]
        if self.is_timed:
            self._begin = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        begin, self._begin = self._begin, None
        if begin is not None and kind is None:
            self.seconds += time.perf_counter() - begin
        if self._range is not None:
            self._range.__exit__(kind, error, traceback)
            self._range = None


class Stages:
    """The stages of a step, by name in `all`.

    Attributes:
        read: Take the batches of a step from the source, on a thread with prefetch.
        lookup: Look up the rows of a step, on a thread with prefetch.
        send: Copy rows and columns into pinned memory, from which they go to the device of the
            dense model; on the thread of the lookup. 0 on the CPU.
        wait: Wait for the batches and rows of a step; without prefetch, this is read, lookup and
            send.
        forward: Compute loss and predictions; on a device, start to compute them.
        backward: Compute gradients and queue those of the tables, after the update of the step
            before; on a device, start to compute them.
        copy: Wait until a device has computed and copied loss, predictions and gradients of rows.
            0 on the CPU.
        update: Update the dense parameters and tables; with push, start the update of the tables.
        step: The whole step, from wait to update, without hooks.
    """

    def __init__(self) -> None:
        self.read, self.lookup, self.wait = Stage("read"), Stage("lookup"), Stage("wait")
        self.send, self.copy = Stage("send"), Stage("copy")
        self.forward, self.backward = Stage("forward"), Stage("backward")
        self.update, self.step = Stage("update"), Stage("step")
        self.all: tuple[Stage, ...] = tuple(vars(self).values())

    def start_timing(self) -> None:
        """Time all stages from now on."""
        for stage in self.all:
            stage.is_timed = True
