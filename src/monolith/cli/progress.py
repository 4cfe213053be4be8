"""Progress and end of a training run, a bar on a terminal, lines or JSON; progress of a save."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from monolith.checkpoint import WriteOptions
from monolith.cli.console import emit_json, row_progress, say
from monolith.data import Pipeline
from monolith.train import Figures, FitResult, ReportHook, StepContext
from monolith.train.figures import StreamFigures, WindowScores
from monolith.train.imported_rows import ImportTarget
from monolith.train.online.score_windows import SAMPLES, TIME

if TYPE_CHECKING:
    from typing_extensions import Self


_TITLES = MappingProxyType({"auc": "AUC", "log_loss": "log loss"})
_SHOWN_COLUMNS = 5
_REFRESH_SECONDS = 0.1  # least time between two updates of the bar


def words_of(figures: Figures) -> list[str]:
    """Return the figures in words, without the step.

    Example:
        >>> words_of(Figures(3, 3072, 0.5, samples_per_second=51234.5, num_rows=7))
        ['51,234 samples/s', 'loss 0.5000', '7 rows']
    """
    counts = {"keys refused": figures.num_refused, "rows evicted": figures.num_evicted}
    words = [f"{figures.samples_per_second:,.0f} samples/s", f"loss {figures.loss:.4f}"]
    words += [_scores(figures.metrics, _TITLES)] if figures.metrics else []
    words += _words_of_window(figures.windows)
    words += [] if figures.stream is None else _words_of_stream(figures.stream)
    words += [f"{figures.num_rows:,} rows"]
    words += [f"{count:,} {noun}" for noun, count in counts.items() if count]
    if figures.memory_bytes:
        words += [f"{figures.memory_bytes / 2**30:.2f} GiB"]
    if figures.staleness > figures.staleness_bound:  # other workers of a job have made steps
        words += [f"{figures.staleness} steps stale"]
    elif figures.staleness_bound:
        words += [f"at most {figures.staleness_bound} steps stale"]
    return words


def _words_of_window(windows: Mapping[str, WindowScores]) -> list[str]:
    """Return the scores of the last window of samples, or else of time, in words."""
    last = windows.get(SAMPLES) or windows.get(TIME)
    if last is None:
        return []
    return [f"last window of {last.num_samples:,}: {_scores(last.scores, _TITLES)}"]


def _words_of_stream(stream: StreamFigures) -> list[str]:
    """Return how far a run is behind its stream in words.

    Example:
        >>> _words_of_stream(StreamFigures(0.25, 1200, 0, 3))
        ['newest event 0.2 s ago', '1,200 waiting', '3 bad']
    """
    seconds = stream.freshness_seconds
    words = [] if seconds is None else [f"newest event {seconds:,.1f} s ago"]
    words += [] if stream.lag is None else [f"{stream.lag:,} waiting"]
    counts = {"late": stream.num_late, "bad": stream.num_bad}
    return [*words, *(f"{count:,} {name}" for name, count in counts.items() if count)]


# 128 plus the number of the signal, as in shells.
STATUS_OF_SIGNAL = MappingProxyType({"interrupted": 130, "terminated": 143})
"""End of a run by a signal -> exit status."""


class TrainProgress:
    """Shows the figures of a run while the block runs; starts no thread and never waits.

    On a terminal: a bar with steps, time left and figures. Elsewhere: a line every
    `interval_seconds` and one at the end. With `is_json`: the same figures as JSON lines on stdout.

    Args:
        console: console of the bar or the lines, usually on stderr; it handles `NO_COLOR`.
        total_steps: number of the last step. None shows the share of the source that was read.
        is_json: whether to print JSON lines on stdout instead.
        interval_seconds: least time between two lines.
        clock: function that returns seconds; only differences count.

    Example:
        >>> import sys
        >>> with TrainProgress(Console(file=sys.stdout, width=80), 100) as progress:
        ...     progress.update(Figures(25, 25_600, loss=0.5, samples_per_second=900.0))
        step 25/100 (25 %), 900 samples/s, loss 0.5000, 0 rows
    """

    def __init__(
        self,
        console: Console,
        total_steps: int | None,
        *,
        is_json: bool = False,
        interval_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._total, self._clock = console, total_steps, clock
        self._is_json = is_json
        self._live: Live | None = None
        if console.is_interactive and not is_json:
            self._live = Live(console=console, auto_refresh=False)
        self._interval = interval_seconds if self._live is None else _REFRESH_SECONDS
        self._first: tuple[float, float] | None = None  # time and share of the first figures
        self._shown_at = clock()
        self._pending: Figures | None = None

    def __enter__(self) -> "Self":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pending is not None:
            self._show(self._pending)
        if self._live is not None:
            self._live.stop()

    def update(self, figures: Figures) -> None:
        """Take new figures. Cheap unless it is time to show them."""
        now, share = self._clock(), self._share(figures)
        if self._first is None and share is not None:
            self._first = (now, share)
        self._pending = figures
        self.refresh()

    def refresh(self) -> None:
        """Show the newest figures if they are not shown and it is time. Cheap otherwise."""
        if self._pending is not None and (now := self._clock()) - self._shown_at >= self._interval:
            self._shown_at = now
            self._show(self._pending)

    def _show(self, figures: Figures) -> None:
        self._pending = None
        share = self._share(figures)
        seconds = self._seconds_left(share)
        if self._is_json:
            emit_json({**asdict(figures), "total_steps": self._total, "seconds_left": seconds})
            sys.stdout.flush()  # a reader of the pipe follows the run
        elif self._live is not None:
            self._live.update(self._screen(figures, share, seconds), refresh=True)
        else:
            finished = "" if share is None else f" ({share:.0%})".replace("%", " %")
            parts = [f"step {self._steps(figures)}{finished}", *words_of(figures), *_left(seconds)]
            text = ", ".join(parts)
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _share(self, figures: Figures) -> float | None:
        """Return the finished share of the steps or, without a number of steps, of the source."""
        return figures.share if self._total is None else figures.step / self._total

    def _seconds_left(self, share: float | None) -> float | None:
        """Estimate the remaining seconds from the rate of this run; None without an end or a rate.

        A source at its end may still have samples to deliver, for example those of a shuffle.
        """
        if share is None or share >= 1 or self._first is None or share <= self._first[1]:
            return None
        elapsed = self._clock() - self._first[0]
        return elapsed * (1 - share) / (share - self._first[1])

    def _steps(self, figures: Figures) -> str:
        return f"{figures.step:,}" + ("" if self._total is None else f"/{self._total:,}")

    def _screen(self, figures: Figures, share: float | None, seconds: float | None) -> Group:
        bar = ProgressBar(total=1.0, completed=share or 0.0, pulse=share is None)
        first = Table.grid(padding=(0, 1), expand=True)
        first.add_column(no_wrap=True)
        first.add_column(ratio=1)
        first.add_column(no_wrap=True)
        left = Text(" ".join(_left(seconds)), style="cyan")
        first.add_row(Text(f"step {self._steps(figures)}"), bar, left)
        return Group(first, Text(" | ".join(words_of(figures)), style="dim"))


def _left(seconds: float | None) -> list[str]:
    """Return `0:01:40 left`, or nothing."""
    if seconds is None:
        return []
    minutes, rest = divmod(round(seconds), 60)
    return [f"{minutes // 60}:{minutes % 60:02}:{rest:02} left"]


def save_with_progress(target: ImportTarget) -> str:
    """Save the checkpoint of a target with a bar of its rows; return the prefix."""
    num_rows = target.trainer.features.num_rows()
    with row_progress(f"saving {target.directory}", num_rows) as advance:
        return target.save(WriteOptions(progress=lambda progress: advance(progress.num_rows)))


def words_of_columns(samples: Pipeline) -> str:
    """Say how many columns of the samples are used, and which are not."""
    num_used, others = len(samples.columns.names()), sorted(samples.left_out)
    shown = ", ".join(others[:_SHOWN_COLUMNS]) + (", ..." if len(others) > _SHOWN_COLUMNS else "")
    return f"{num_used:,} of {num_used + len(others):,} columns are used; not used: {shown}"


class ProgressHook(ReportHook):
    """The hook that shows the figures of a run.

    Args:
        progress: shows them.
    """

    def __init__(self, progress: TrainProgress) -> None:
        self._progress = progress

    def report(self, figures: Figures) -> None:
        """Show the figures."""
        self._progress.update(figures)

    def idle(self, ctx: StepContext) -> None:
        """Show the last figures before a wait, when it is time."""
        self._progress.refresh()


def _scores(metrics: Mapping[str, float], titles: Mapping[str, str] = MappingProxyType({})) -> str:
    return ", ".join(f"{titles.get(name, name)} {value:.4f}" for name, value in metrics.items())


def tell_end(
    task: str,
    result: FitResult,
    held_out: dict[str, float] | None,
    as_json: bool,
    *,
    has_hints: bool = True,
) -> None:
    """Print the result of the run and the next command."""
    _emit_end(result, held_out, as_json)
    lines = _lines_of_end(f"{result.num_steps:,} steps, ", result, held_out)
    if not has_hints:
        pass
    elif held_out is None:
        lines.append(f"next: monolith train {task} --data eval=PATH, to score held-out samples")
    else:
        lines.append(f"next: monolith train {task} --help")
    say("\n".join(lines))


def tell_end_of_worker(
    index: int, result: FitResult, held_out: dict[str, float] | None, as_json: bool, **facts: Any
) -> None:
    """Print the result of a worker; its steps are those of the job, so only samples are named.

    Args:
        index: Number of the worker.
        result: Result of the worker.
        held_out: Figures of held-out data, in the chief.
        as_json: Whether an object is printed on stdout, too.
        **facts: Further values of the object.
    """
    _emit_end(result, held_out, as_json, event="ended", index=index, **facts)
    say("\n".join(_lines_of_end(f"worker {index}: ", result, held_out)))


def _emit_end(
    result: FitResult, held_out: dict[str, float] | None, as_json: bool, **facts: Any
) -> None:
    if as_json:
        emit_json(
            {
                "ended": result.ended,
                "num_steps": result.num_steps,
                "num_samples": result.num_samples,
                "seconds": result.seconds,
                "figures": asdict(result.figures),
                "evaluations": result.evaluations,
                "saves": asdict(result.saves),
                "eval": held_out,
                **facts,
            }
        )


def _lines_of_end(start: str, result: FitResult, held_out: dict[str, float] | None) -> list[str]:
    rate = result.num_samples / result.seconds if result.seconds else 0.0
    lines = [
        f"{start}{result.num_samples:,} samples in {result.seconds:.1f} s "
        f"({rate:,.0f} samples/s); ended: {result.ended}",
        f"last: {', '.join(words_of(result.figures)[1:])}",
    ]
    for step, metrics in result.evaluations.items():
        lines.append(f"eval at step {step:,}: {_scores(metrics)}")
    if held_out is not None:
        lines.append(f"eval: {_scores(held_out)}")
    return lines
