"""Write traces of some steps of a run with torch's profiler."""

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch.autograd import profiler
from torch.profiler import ProfilerActivity

from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.util.stores import local_path, open_store

_log = logging.getLogger(__name__)

_DELTA_STEPS = 10
_UPLOAD_SECONDS = 60.0


class ProfilerHook(Hook):
    """The hook that writes a trace of a window of steps, once or periodically.

    A trace is a file `*.pt.trace.json` for Perfetto and TensorBoard, with the operators of all
    threads and the stages of the steps by name (docs/life_of_a_batch.md). A window that the end of
    the run cuts short has a trace too, also if the run fails. A trace that cannot be written is
    logged and does not end the run. A thread uploads the traces of a store; the end of the run
    waits for the thread for at most a minute. A process can profile one window at a time: a window
    that is due while another profiler runs begins after it.

    Args:
        directory: Folder for the traces; made if missing.
        init_step_range: Global steps between which the first window lies: its steps are those
            after the first number, up to the second. If the run is at a later step already, the
            window is as long and begins at once. Without a start, the window begins
            `warm_up_steps` after the first step of the run; without an end, it has `delta_steps`.
        save_steps: Number of steps from the start of a window to the start of the next one.
        save_secs: Number of seconds from the start of a window to the start of the next one;
            without both there is one window.
        delta_steps: Number of steps of a window without an end.
        warm_up_steps: Number of steps of the run before a window without a start.
        clock: Clock that returns seconds; only differences count.

    Attributes:
        directory: Folder for the traces.
        num_steps: Number of steps of a window.
        traces: Paths of the traces so far.

    Raises:
        ValueError: The window is empty or longer than `save_steps`, both paces are set, or the
            folder cannot be written.

    Example:
        >>> import tempfile
        >>> hook = ProfilerHook(tempfile.mkdtemp(), (500, 510), save_steps=10_000)
        >>> hook.num_steps
        10
    """

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        init_step_range: tuple[int | None, int | None] = (None, None),
        save_steps: int | None = None,
        save_secs: float | None = None,
        *,
        delta_steps: int = _DELTA_STEPS,
        warm_up_steps: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, end = init_step_range
        if end is not None and (self._start is None or end <= self._start):
            raise ValueError(
                f"End step invalid, expected one above the start step {self._start}, got {end}; "
                f"without an end the window has {delta_steps} steps"
            )
        self.num_steps = delta_steps if end is None else end - (self._start or 0)
        if self.num_steps < 1 or warm_up_steps < 0:
            raise ValueError(
                "[ProfilerHook] expected delta_steps >= 1 and warm_up_steps >= 0, got "
                f"{delta_steps} and {warm_up_steps}"
            )
        if save_steps is not None and save_steps <= self.num_steps:
            raise ValueError(
                f"Save steps must be greater than delta steps(default: {_DELTA_STEPS}), got "
                f"{save_steps} with a window of {self.num_steps}"
            )
        if save_steps is not None and save_secs is not None:
            raise ValueError(
                "[ProfilerHook] expected one of save_steps and save_secs, got "
                f"{save_steps} and {save_secs}; use a second hook for the other pace"
            )
        local = local_path(os.fspath(directory))
        self.directory = os.fspath(directory) if local is None else os.path.abspath(local)
        _check_folder(self.directory)
        self._uploads: list[threading.Thread] = []
        self._save_steps, self._save_secs, self._clock = save_steps, save_secs, clock
        self._warm_up_steps = warm_up_steps
        self.traces: list[str] = []
        self._profile: torch.profiler.profile | None = None
        self._next: int | None = self._start  # first step of the next window, if steps count
        self._next_time: float | None = None
        self._end = 0

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Set the first window, and write the trace of a window that a failure cuts short."""
        if self._next is None and self._next_time is None and not self.traces:
            self._next = (run.global_step or 0) + self._warm_up_steps
        coordinator.add_cleanup(self._finish)

    def before_run(self, ctx: StepContext) -> None:
        """Start the profiler before the first step of a window."""
        step = ctx.run.global_step or 0
        is_busy = self._profile is not None or profiler._is_profiler_enabled
        if is_busy or not self._is_due(step):  # two profilers at once would end the process
            return
        self._end = step + self.num_steps
        self._next = None if self._save_steps is None else step + self._save_steps
        self._next_time = None if self._save_secs is None else self._clock() + self._save_secs
        activities = [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        profile = torch.profiler.profile(activities=activities, experimental_config=all_threads)
        profile.start()
        self._profile = profile

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Write the trace after the last step of a window."""
        if self._profile is not None and (ctx.run.global_step or 0) >= self._end:
            self._stop()

    def end(self, run: Run) -> None:
        """Write the trace of a window that the end of the run cuts short."""
        self._finish()

    def _is_due(self, step: int) -> bool:
        if self._next_time is not None:
            return self._clock() >= self._next_time
        return self._next is not None and step >= self._next

    def _finish(self) -> None:
        self._stop()
        end = time.monotonic() + _UPLOAD_SECONDS
        while self._uploads:
            thread = self._uploads.pop()
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                _log.warning("a trace is not yet in %s; the run waits no longer", self.directory)

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.stop()
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        path = f"{self.directory.rstrip('/')}/{name}"
        with _logged_errors(path):
            if local_path(self.directory) is None:
                self._start_upload(profile, path)
                return
            profile.export_chrome_trace(f"{path}.part")
            os.replace(f"{path}.part", path)
            self._note(path)

    def _start_upload(self, profile: torch.profiler.profile, path: str) -> None:
        folder = tempfile.TemporaryDirectory(prefix="monolith-trace-")
        file = os.path.join(folder.name, "trace.json")

        def upload() -> None:
            with folder, _logged_errors(path):
                store, inner = open_store(path)
                with open(file, "rb") as source, store.open(inner, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                self._note(path)

        try:
            profile.export_chrome_trace(file)
        except BaseException:
            folder.cleanup()
            raise
        thread = threading.Thread(target=upload, name="monolith-trace", daemon=True)
        thread.start()
        self._uploads.append(thread)

    def _note(self, path: str) -> None:
        self.traces.append(path)
        _log.info("the profiler has written %s", path)


@contextlib.contextmanager
def _logged_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError):  # the disk may be full
        _log.exception("the trace %s is not written; the run goes on", path)


def _check_folder(directory: str) -> None:
    """Make a folder and write into it, so that an unwritable folder is refused at the start."""
    name = f".{os.getpid()}.probe"
    try:
        if local_path(directory) is None:
            store, inner = open_store(f"{directory.rstrip('/')}/{name}")
            store.pipe_file(inner, b"")
            store.rm(inner)
            return
        probe = os.path.join(directory, name)
        os.makedirs(directory, exist_ok=True)
        with open(probe, "wb"):
            pass
        os.remove(probe)
    except OSError as error:
        raise ValueError(
            f"[ProfilerHook] expected a folder that can be written, got {directory!r}: "
            f"{error.strerror or error}; choose another one"
        ) from error
