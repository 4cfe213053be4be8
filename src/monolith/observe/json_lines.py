"""A file of JSON objects, one on each line: the intervals and the events of a run."""

import json
import os
import posixpath
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from monolith.observe.buffered_sink import BufferedSink, Times, label, plain
from monolith.observe.store_log import StoreLog
from monolith.util.stores import local_path, open_store


class JsonLinesSink(BufferedSink):
    """Appends a line to a file for each interval and each event.

    A line of an interval has `step`, `time` (seconds since 1970), `gauges` that were set in the
    interval, totals of all `counters`, and under `microseconds` the count, mean, p99 and maximum of
    the times of the interval; p99 is that of the last 4096. Names of series are `name/tag=value`.
    A line of an event has `event`, `step` (of the interval before, or after which the run goes on),
    `time` and `fields`. NaN and infinities are null.

    `event`, `flush` and `close` write to the file and wait for the write, not for the disk.
    Other measurements do not wait for them.

    A path in a store names the files of a `StoreLog`: `s3://run/metrics.jsonl` stands for
    `s3://run/metrics.00000.jsonl`, `s3://run/metrics.00001.jsonl` and so on. Their lines in the
    order of the names are the log. `event` and `flush` do not wait for the store.

    Args:
        path: Path of the file, which may exist; folders above are created.

    Raises:
        ValueError: The file cannot be opened.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "metrics.jsonl")
        >>> with JsonLinesSink(path) as sink:
        ...     sink.gauge("loss", 0.5, {})
        ...     sink.flush(100)
        >>> line = json.loads(path.read_text())
        >>> line["step"], line["gauges"]
        (100, {'loss': 0.5})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        local = local_path(os.fspath(path))
        self._path = os.fspath(path) if local is None else os.path.abspath(local)
        self._file_lock = threading.Lock()
        self._step = 0
        try:
            self._file: BinaryIO | StoreLog = (
                _open_in_store(self._path) if local is None else _open(self._path)
            )
        except OSError as error:
            raise ValueError(
                f"[JsonLinesSink] expected a file that can be written, got {self._path} "
                f"({error}); choose another path"
            ) from error

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Append the line of an event."""
        with self._file_lock:
            self._write({"event": name, "step": self._step, "time": time.time(), "fields": fields})

    def restart(self, step: int) -> None:
        """Give the events that follow the step after which the run goes on."""
        with self._file_lock:
            self._step = step

    def flush(self, step: int) -> None:
        """Append the line of an interval."""
        with self._file_lock:
            self._step = step
            self._write_interval()

    def close(self) -> None:
        """Append what came since the last flush, under its step, and close the file."""
        with self._file_lock:
            try:
                if self._has_news and not self._file.closed:
                    self._write_interval()
            finally:
                self._file.close()

    def _write_interval(self) -> None:
        gauges, counters, times = self._take()
        self._write(
            {
                "step": self._step,
                "time": time.time(),
                "gauges": {label(series): value for series, value in gauges.items()},
                "counters": {label(series): value for series, value in counters.items()},
                "microseconds": {label(series): _figures(times[series]) for series in times},
            }
        )

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file.closed:
            raise ValueError(
                f"[JsonLinesSink] expected an open sink, got a closed one of {self._path}"
            )
        self._file.write(json.dumps(plain(line), allow_nan=False).encode() + b"\n")
        self._file.flush()


def _open(path: str) -> BinaryIO:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    is_torn = _ends_within_a_line(path)
    file = open(path, "ab")  # noqa: SIM115 -- closed by `close`
    if is_torn:  # the last writer was killed
        file.write(b"\n")
    return file


def _open_in_store(path: str) -> StoreLog:
    """Open a log that begins with the file after those of earlier runs."""
    stem, end = posixpath.splitext(path)
    store, inner = open_store(posixpath.dirname(path))
    pattern = re.compile(rf"{re.escape(posixpath.basename(stem))}\.(\d{{5}}){re.escape(end)}")
    try:
        names = [posixpath.basename(name) for name in store.ls(inner)]
    except FileNotFoundError:
        names = []
    numbers = [int(match[1]) for name in names if (match := pattern.fullmatch(name))]
    return StoreLog(lambda number: f"{stem}.{number:05d}{end}", first=max(numbers, default=-1) + 1)


def _ends_within_a_line(path: str) -> bool:
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _figures(times: Times) -> dict[str, float]:
    summary = times.summary()
    return {
        "count": summary.num_times,
        "mean": summary.mean,
        "p99": summary.p99,
        "max": summary.maximum,
    }
