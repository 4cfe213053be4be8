"""Hooks that write records to files, and count steps in a metrics sink."""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, BinaryIO, NamedTuple, TextIO

from monolith.environment import metric_prefix
from monolith.errors import UnavailableError
from monolith.observe.metrics import MetricsSink, NullSink
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.train.run_metrics import METRICS
from monolith.util.tfrecord import tfrecord_frame

Record = Mapping[str, Any]

_IDLE_SECONDS = 24 * 3600.0
_CHECK_SECONDS = 600.0
_PART = re.compile(r"part_(\d{6,})\.")
_FIRST_SECONDS = 100_000_000  # smaller request times are days such as 20220927
_FLUSH_RECORDS = 1024


def folder_of_record(record: Record, worker: int, base: str) -> str:
    """Return the folder of a record's line: `<base>/<model>/<day in UTC>/worker_<id>`.

    Example:
        >>> folder_of_record({"model_name": "ctr", "req_time": 1664236800}, 0, "out")
        'out/ctr/20220927/worker_0'
    """
    moment = int(record["req_time"])
    if moment >= _FIRST_SECONDS:
        moment = int(datetime.fromtimestamp(moment, timezone.utc).strftime("%Y%m%d"))
    return os.path.join(base, str(record["model_name"]), str(moment), f"worker_{worker}")


def line_of_record(record: Record) -> str:
    """Return the line of a record: time; gid; uid; predictions; labels.

    Example:
        >>> line_of_record({"req_time": 9, "gid": 5, "uid": 7, "predict": {"a": 0.5}, "label": {}})
        '9;5;7;{"a": 0.5};{}'
    """
    heads = [json.dumps(record[name]) for name in ("predict", "label")]
    return ";".join([*(str(record.get(name, "")) for name in ("req_time", "gid", "uid")), *heads])


class FileMetricHook(Hook):
    """The hook that writes each record that it is called with as a line of a file.

    Lines of a folder are in files `part_000000.<ext>`, `part_000001.<ext>` and so on; a run begins
    new files after those that are there. The files are closed when the run ends, also by an error.
    Used by one thread.

    Args:
        base_name: folder of all files; made when the run begins.
        worker_id: number of the worker.
        parse_fn: record as text -> dictionary.
        key_fn: record, worker and base -> folder.
        layout_fn: record -> line.
        file_ext: ending of the files.
        batch_size: lines after which a file is flushed.
        partition_size: lines after which the next file begins.
        clock: seconds; files without a line for a day are closed.

    Raises:
        ValueError: `base_name` is empty, or a size is below 1.
    """

    def __init__(
        self,
        base_name: str,
        worker_id: int = 0,
        parse_fn: Callable[[str], Record] | None = None,
        key_fn: Callable[[Record, int, str], str] | None = None,
        layout_fn: Callable[[Record], str] | None = None,
        file_ext: str = "txt",
        batch_size: int = 1024,
        partition_size: int = 1_000_000,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not base_name:
            raise ValueError(
                "[FileMetricHook] expected a folder as base_name, got ''; set "
                "params.metrics.file_base_name"
            )
        if min(batch_size, partition_size) < 1:
            raise ValueError(
                f"[FileMetricHook] expected batch_size and partition_size >= 1, got {batch_size} "
                f"and {partition_size}"
            )
        self._base, self._worker = base_name, worker_id
        self._parse, self._folder = parse_fn or json.loads, key_fn or folder_of_record
        self._layout, self._ext = layout_fn or line_of_record, file_ext
        self._batch_size, self._partition_size, self._clock = batch_size, partition_size, clock
        self._parts: dict[str, _Part] = {}
        self._checked_at = clock()

    def begin(self) -> None:
        """Make the folder, so that one which cannot be written ends the run at its start."""
        try:
            os.makedirs(self._base, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._base):
                pass
        except OSError as error:
            raise UnavailableError(
                f"[FileMetricHook] expected a folder to write to, got {error} ({self._base!r}); "
                "set params.metrics.file_base_name to another"
            ) from error

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Have the files closed when the run ends."""
        coordinator.add_cleanup(self.close)

    def __call__(self, message: str) -> None:
        """Write the line of a record."""
        record = self._parse(message)
        folder, now = self._folder(record, self._worker, self._base), self._clock()
        part = self._parts.get(folder)
        if part is None or part.num_lines >= self._partition_size:
            part = self._parts[folder] = self._next_part(folder, part)
        part.file.write(self._layout(record) + "\n")
        part.num_lines, part.used_at = part.num_lines + 1, now
        if part.num_lines % self._batch_size == 0:
            part.file.flush()
        if now - self._checked_at >= _CHECK_SECONDS:
            self._close_idle(now)

    def close(self) -> None:
        """Close all files; a later record begins a new one."""
        parts, self._parts = self._parts, {}
        for part in parts.values():
            part.file.close()

    def _next_part(self, folder: str, last: "_Part | None") -> "_Part":
        if last is not None:
            last.file.close()
        os.makedirs(folder, exist_ok=True)
        numbers = [int(m[1]) for name in os.listdir(folder) if (m := _PART.match(name))]
        name = f"part_{max(numbers, default=-1) + 1:06d}.{self._ext}"
        return _Part(open(os.path.join(folder, name), "x", encoding="utf-8"))

    def _close_idle(self, now: float) -> None:
        self._checked_at = now
        for folder, part in list(self._parts.items()):
            if now - part.used_at >= _IDLE_SECONDS:
                part.file.close()
                del self._parts[folder]


class _Part:
    """An open file, its lines, and the time of its last line."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.num_lines, self.used_at = file, 0, 0.0


class RecordDump(Hook):
    """The hook that appends each record that it is called with to a TFRecord file.

    Args:
        path: file, which is opened when the run begins and closed when the run ends.
    """

    def __init__(self, path: str) -> None:
        self._path, self._num_records = path, 0
        self._file: BinaryIO | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Open the file, and have it closed when the run ends."""
        if self._file is not None and not self._file.closed:
            return  # a recovery goes on with the file
        try:
            os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
            self._file = open(self._path, "ab")  # noqa: SIM115
        except OSError as error:
            raise UnavailableError(
                f"[RecordDump] expected a file to append to, got {error} ({self._path!r}); set "
                "params.metrics.dump_filename to another"
            ) from error
        coordinator.add_cleanup(self._file.close)

    def __call__(self, message: str) -> None:
        """Append a record."""
        assert self._file is not None, "a run opens it"
        self._file.write(tfrecord_frame(message.encode()))
        self._num_records += 1
        if self._num_records % _FLUSH_RECORDS == 0:
            self._file.flush()


class _Interval(NamedTuple):
    step: int
    seconds: float


class ThroughputMetricHook(Hook):
    """The hook that counts steps, and times them, in a metrics sink every few seconds.

    Names follow `MONOLITH_METRIC_PREFIX`: the counter `run_steps.all`, the timer
    `run_steps_elapsed_time.all` of the same steps, and once `run_start_elapsed_time.all`.

    Args:
        model_name: tag of the measurements.
        start_time_secs: time at which the job was submitted; None leaves its timer out.
        cluster_type: tag of the measurements.
        run_every_n_secs: seconds between two measurements; the end of the run is measured too.
        sink: receives the measurements; that of the trainer (`Trainer(metrics=...)`) if None.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        model_name: str,
        start_time_secs: float | None = None,
        cluster_type: str = "stable",
        run_every_n_secs: float = 30,
        *,
        sink: MetricsSink | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tags = {"model_name": model_name, "cluster_type": cluster_type}
        self._start_time, self._every = start_time_secs, run_every_n_secs
        self._own_sink, self._clock = sink, clock
        self._sink: MetricsSink = NullSink()
        self._last = _Interval(0, 0.0)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Begin the first interval."""
        self._sink = self._own_sink or run.metadata.get(METRICS) or NullSink()
        now = self._clock()
        self._last = _Interval(run.global_step or 0, now)
        if self._start_time is not None:
            self._time("run_start_elapsed_time.all", now - self._start_time)
            self._start_time = None  # a recovery is no start

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Write the interval if it is over."""
        if self._clock() - self._last.seconds >= self._every:
            self._write(ctx.run)

    def end(self, run: Run) -> None:
        """Write the steps since the last interval."""
        if (run.global_step or 0) > self._last.step:
            self._write(run)

    def _write(self, run: Run) -> None:
        interval = _Interval(run.global_step or 0, self._clock())
        number = interval.step - self._last.step
        self._sink.count(f"{metric_prefix()}.run_steps.all", number, self._tags)
        self._time("run_steps_elapsed_time.all", interval.seconds - self._last.seconds)
        self._last = interval

    def _time(self, name: str, seconds: float) -> None:
        self._sink.time(f"{metric_prefix()}.{name}", seconds * 1e6, self._tags)
