"""Measurements of a run for TensorBoard."""

import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from monolith.observe.buffered_sink import BufferedSink, Times, label, plain
from monolith.observe.event_files import EventFile
from monolith.observe.summaries import TensorSummary


class TensorBoardSink(BufferedSink):
    """Writes scalars, texts and tensors to a new event file in a folder.

    | measurement | in TensorBoard |
    |---|---|
    | `gauge("rows", ...)` | scalar `rows`, if set since the last flush |
    | `count("requests", ...)` | scalar `requests`, the total |
    | `time("lookup", ...)` | scalars `lookup/mean_microseconds` and `lookup/p99_microseconds` |
    | `event("save", fields)` | text `save`, the fields as JSON |
    | `write_tensor(summary, step)` | the tensor under its tag |

    Tags follow the name: `rows/table=user`. Everything is written by `flush` under its step, events
    at the time when they happened; p99 is that of the last 4096 times. A reader sees what was
    flushed, also if the process is killed. Each run needs a folder of its own: a second file in a
    folder continues the run of the first one.

    Args:
        folder: Folder of the run; created if missing. In a store, readers see events some seconds
            later, and a large event file is followed by another one: see `StoreLog`.

    Raises:
        ValueError: The folder cannot be written.

    Example:
        >>> import os, tempfile
        >>> with TensorBoardSink(tempfile.mkdtemp()) as sink:
        ...     sink.gauge("loss", 0.5, {})
        ...     sink.flush(100)
        >>> os.path.basename(sink.path).split(".")[:3]
        ['events', 'out', 'tfevents']
    """

    writes_tensors = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self._file = EventFile(folder)
        self._write_lock = threading.Lock()
        self._step = 0
        self._events: list[tuple[float, str, str]] = []

    @property
    def path(self) -> str:
        """Path of the event file; in a store, of the newest one."""
        return self._file.path

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Keep an event until the next flush."""
        text = json.dumps(plain(fields))
        with self._lock:
            self._events.append((time.time(), name, text))
            self._has_news = True

    def write_tensor(self, summary: TensorSummary, step: int) -> None:
        """Write a tensor, copied to the CPU; readers see the tensor after the next flush.

        Raises:
            ValueError: The tensor has a dtype that event files do not have, such as complex64.
        """
        self._file.add_tensor(summary, step)

    def restart(self, step: int) -> None:
        """Have readers drop what was written for later steps: the run goes on after this step."""
        with self._write_lock:
            self._step = step
            self._file.restart(step)

    def flush(self, step: int) -> None:
        """Write the interval under a step."""
        with self._write_lock:
            self._step = step
            self._write_interval()

    def close(self) -> None:
        """Write what came since the last flush, under its step, and close the file."""
        with self._write_lock:
            try:
                if self._has_news and not self._file.is_closed:
                    self._write_interval()
            finally:
                self._file.close()

    def _write_interval(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        gauges, counters, times = self._take()
        scalars = {label(series): float(value) for series, value in (gauges | counters).items()}
        for (name, tags), timer in times.items():
            for figure, value in _figures(timer).items():
                scalars[label((f"{name}/{figure}_microseconds", tags))] = value
        for seconds, name, text in events:
            self._file.add_text(name, text, self._step, seconds)
        self._file.add_scalars(scalars, self._step)
        self._file.flush()


def _figures(times: Times) -> dict[str, float]:
    summary = times.summary()
    return {"mean": summary.mean, "p99": summary.p99}
