"""Views of a job: a table on a terminal, a line at intervals elsewhere, JSON for machines."""

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

import rich.box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from monolith.launch.job_status import PS, JobEnd, JobStatus, RoleState, RoleStatus

if TYPE_CHECKING:
    from typing_extensions import Self

_LIVE_SECONDS = 0.5
_COLUMNS = ("role", "state", "step", "samples/s", "loss", "AUC", "stale", "rows", "restarts")


class View(Protocol):
    """What a `Supervisor` tells about a job.

    Attributes:
        interval_seconds: Seconds between two calls of `show`.
    """

    interval_seconds: float

    def line(self, name: str, text: str) -> None:
        """Take a line that a role wrote, with the name of the role."""

    def note(self, text: str) -> None:
        """Take a remark of the launcher."""

    def show(self, status: JobStatus) -> None:
        """Take the state of the job.

        Raises:
            BrokenPipeError: The reader of the JSON lines is gone.
        """


class JobView:
    """Shows a job while the block runs; starts no thread.

    A console that cannot be written, such as a terminal that is gone, gets no more output, so that
    the job ends as usual.

    Args:
        console: Console of the lines and of the table, usually on stderr.
        is_json: Whether the states go to stdout, a JSON object each, instead of the console.
        interval_seconds: Seconds between two states, except on a terminal.
    """

    def __init__(
        self, console: Console, *, is_json: bool = False, interval_seconds: float = 2.0
    ) -> None:
        self._console, self._is_json, self._is_mute = console, is_json, False
        self._live: Live | None = None
        self.interval_seconds = interval_seconds
        if console.is_interactive and not is_json:
            self._live = Live(console=console, auto_refresh=False)
            self.interval_seconds = _LIVE_SECONDS

    def __enter__(self) -> "Self":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def line(self, name: str, text: str) -> None:
        """Print a line of a role after its name."""
        self._print(f"{name} | {text}")

    def note(self, text: str) -> None:
        """Print a remark of the launcher."""
        self._print(text)

    def show(self, status: JobStatus) -> None:
        """Show the state of the job.

        Raises:
            BrokenPipeError: The reader of the JSON lines is gone.
        """
        if self._is_json:
            _write_json({"event": "status", **status.as_json()})
        elif self._live is None:
            self._print(words_of_job(status))
        elif not self._is_mute:
            try:
                self._live.update(_table(status), refresh=True)
            except OSError:
                self._is_mute = True

    def end(self, end: JobEnd) -> None:
        """Show the state of the job at its end."""
        if not self._is_json:
            self.show(end.job)
            return
        facts = {"event": "ended", "status": end.status, "reason": end.reason}
        with contextlib.suppress(BrokenPipeError):
            _write_json({**facts, **end.job.as_json(), "result": end.result})

    def _print(self, text: str) -> None:
        if self._is_mute:
            return
        encoding = self._console.encoding  # which may lack a character of a role's line
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)
        except OSError:
            self._is_mute = True


def words_of_job(status: JobStatus) -> str:
    """Return the state of a job as one line.

    Example:
        >>> server = RoleStatus("ps-0", PS, RoleState.RUNNING, figures={"rows": 1200})
        >>> figures = {"step": 40, "samples_per_second": 9000.0, "loss": 0.5}
        >>> roles = (server, RoleStatus("worker-0", "worker", RoleState.RUNNING, figures=figures))
        >>> words_of_job(JobStatus(4.0, roles))
        '4 s: step 40, 9,000 samples/s, 1,200 rows | ps-0 1,200 rows | worker-0 9,000 samples/s, loss 0.5000'
    """  # noqa: E501
    total = [f"step {status.step:,}", f"{status.samples_per_second:,.0f} samples/s"]
    total += [f"{status.num_rows:,} rows"]
    if status.num_restarts:
        total += [f"{status.num_restarts} restart{'' if status.num_restarts == 1 else 's'}"]
    parts = [", ".join(total), *map(_words_of_role, status.roles)]
    return f"{status.seconds:.0f} s: " + " | ".join(parts)


def _words_of_role(role: RoleStatus) -> str:
    words = [] if role.state is RoleState.RUNNING else [role.state.value]
    if role.kind == PS:
        words += [f"{int(role.number('rows')):,} rows"] if "rows" in role.figures else []
    elif role.figures:
        rate = f"{role.number('samples_per_second'):,.0f} samples/s"
        words += [rate] if role.state is RoleState.RUNNING else []
        words += [f"loss {loss}"] if (loss := _decimals(role.figures.get("loss"))) else []
        words += [f"AUC {auc}"] if (auc := _auc(role)) else []
        stale = int(role.number("staleness"))
        words += [f"{stale} step{'' if stale == 1 else 's'} stale"] if stale else []
    return f"{role.name} {', '.join(words)}".strip()


def _auc(role: RoleStatus) -> str:
    metrics = role.figures.get("metrics")
    return _decimals(metrics.get("auc")) if isinstance(metrics, dict) else ""


def _decimals(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else ""


def _table(status: JobStatus) -> Table:
    title = (
        f"{status.seconds:.0f} s, step {status.step:,}, "
        f"{status.samples_per_second:,.0f} samples/s, {status.num_rows:,} rows"
    )
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title)
    table.title_justify, table.title_style = "left", "cyan"
    for column in _COLUMNS:
        is_text = column in _COLUMNS[:2]
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for role in status.roles:
        figures = role.figures
        is_ps = role.kind == PS
        cells = (
            role.name,
            role.state.value,
            "" if is_ps or "step" not in figures else f"{int(role.number('step')):,}",
            "" if is_ps or not figures else f"{role.number('samples_per_second'):,.0f}",
            "" if is_ps else _decimals(figures.get("loss")),
            "" if is_ps else _auc(role),
            "" if is_ps or not figures else f"{int(role.number('staleness'))}",
            f"{int(role.number('rows')):,}" if is_ps and "rows" in figures else "",
            str(role.num_restarts) if role.num_restarts else "",
        )
        style = "" if role.state is RoleState.RUNNING else "dim"
        table.add_row(*map(Text, cells), style=style)
    return table


def _write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()  # a reader of the pipe follows the job
