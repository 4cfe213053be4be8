"""Open the sinks and the profiler that `monolith train` was asked for, before data is read."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from monolith.cli.console import fail, say
from monolith.observe import (
    JsonLinesSink,
    MetricsSink,
    MultiSink,
    PrometheusSink,
    TensorBoardSink,
)
from monolith.train import ProfilerHook

_PROFILE_DIR = "profiles"
_WARM_UP_STEPS = 10  # before the first profiled step


class Observers(NamedTuple):
    """What observes a run.

    Attributes:
        sink: Sink of the measurements; None without one.
        profilers: The hook that profiles; an empty list without one.
    """

    sink: MetricsSink | None
    profilers: list[ProfilerHook]


@dataclass(frozen=True)
class ObserveOptions:
    """Options of `monolith train` for metrics and profiles.

    Args:
        tensorboard: Folder for event files; None writes none.
        port: Port of the Prometheus endpoint, 0 for any free port; None opens none.
        host: Address of the Prometheus endpoint; None takes the loopback address.
        file: File of JSON lines; None writes none.
        profile: Steps to profile, such as `from=500,steps=10`; None profiles none.
        profile_dir: Folder for traces; None takes the folder of TensorBoard, or `profiles`.
    """

    tensorboard: str | None
    port: int | None
    host: str | None
    file: str | None
    profile: str | None
    profile_dir: str | None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Observers]:
        """Open sinks and profiler; at the end of the block close them, and say where traces are.

        A port in use, a path that cannot be written or a wrong value ends the program with status
        2.
        """
        sinks: list[MetricsSink] = []
        try:
            self._check()
            profilers = self._profilers()
            self._open(sinks)
        except ValueError as error:
            MultiSink(sinks).close()
            fail(str(error), status=2)
        sink = MultiSink(sinks)
        try:
            yield Observers(sink if sinks else None, profilers)
        finally:
            sink.close()
            _say_traces(profilers)

    def _check(self) -> None:
        """Refuse an option without the option that it belongs to."""
        if self.host is not None and self.port is None:
            raise ValueError("expected --metrics-port with --metrics-host, got none")
        if self.profile_dir is not None and self.profile is None:
            raise ValueError("expected --profile with --profile-dir, got none")

    def _open(self, sinks: list[MetricsSink]) -> None:
        """Append each sink to `sinks` when it is open."""
        if self.port is not None:
            host = self.host or "127.0.0.1"
            sinks.append(endpoint := PrometheusSink(self.port, host))
            address = f"[{host}]" if ":" in host else host
            say(f"metrics: http://{address}:{endpoint.port}/metrics")
        if self.tensorboard is not None:
            sinks.append(TensorBoardSink(self.tensorboard))
            say(f"to see the run: tensorboard --logdir {self.tensorboard}")
        if self.file is not None:
            sinks.append(JsonLinesSink(self.file))

    def _profilers(self) -> list[ProfilerHook]:
        if self.profile is None:
            return []
        start, steps = _window(self.profile)
        folder = self.profile_dir or self.tensorboard or _PROFILE_DIR
        if start is not None:
            return [ProfilerHook(folder, (start, start + steps))]
        return [ProfilerHook(folder, delta_steps=steps, warm_up_steps=_WARM_UP_STEPS)]


def _say_traces(profilers: list[ProfilerHook]) -> None:
    for profiler in profilers:
        for path in profiler.traces:
            say(f"trace: {path}; next: open it at https://ui.perfetto.dev")
        if not profiler.traces:
            say("no trace: the run ended before the steps of --profile")


def _window(text: str) -> tuple[int | None, int]:
    """Return the first step, or None, and the number of steps of a `--profile`.

    Example:
        >>> _window("from=500,steps=10"), _window("steps=3")
        ((500, 10), (None, 3))
    """
    match = re.fullmatch(r"(?:from=(\d+),)?steps=([1-9]\d*)", text)
    if match is None:
        raise ValueError(
            "expected --profile as steps=N with N >= 1, or from=STEP,steps=N, got "
            f"{text!r}; such as --profile steps=10"
        )
    start, steps = match.groups()
    return None if start is None else int(start), int(steps)
