"""The demonstration of online training: a stream, a trainer, and a kill -9 of the trainer."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolith.checkpoint import Checkpoint, find
from monolith.cli.demos.click_stream import DONE, NUM_ITEMS, NUM_USERS
from monolith.errors import FailedPreconditionError, UnavailableError

_POLL_SECONDS = 0.05
_WORK_SECONDS, _END_SECONDS = 300.0, 60.0
_SAVE_SECONDS = 2.0
_TASK, _MARK = "clicks.py", ".monolith_demo"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Counts:
    """How often the events of a stream were trained, by the rows of a checkpoint.

    Attributes:
        num_events: Number of events.
        once: Number of events that were trained once.
        often: Number of events that were trained several times.
        never: Number of events that were not trained.
    """

    num_events: int
    once: int
    often: int
    never: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, num_events: int) -> "Counts":
        """Count the rows of the events in a checkpoint."""
        chunks = checkpoint.load_tables()["event"].export()
        times = [-round(float(w)) for c in chunks for w in c.columns["weight/0"].flatten()]
        once = times.count(1)
        return cls(num_events, once, len(times) - once, num_events - len(times))


class _Process:
    """A process with its output: lines on stdout, which a thread reads, and a log of stderr.

    Args:
        command: Arguments of Python.
        folder: Working folder, and that of the log.
        name: Name of the log.
    """

    def __init__(self, command: Sequence[str], folder: Path, name: str) -> None:
        self.log, self.lines = folder / f"{name}.log", list[str]()
        with open(self.log, "a", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.strip())

    @property
    def text(self) -> str:
        """What the process, and those of this name before it, have printed on stderr."""
        return self.log.read_text(encoding="utf-8")

    def write(self, line: str) -> None:
        """Write a line to stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait until something is there, while the process runs."""
        limit = time.monotonic() + _WORK_SECONDS
        while not is_there():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise UnavailableError(
                    f"[demo] expected {what}, got none (status {self.process.poll()}); "
                    f"{self.log}:\n{self.text.strip()[-2000:]}"
                )
            time.sleep(_POLL_SECONDS)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and wait for the end; return the status."""
        self.process.send_signal(number)
        return self.process.wait(_END_SECONDS)

    def close(self) -> None:
        """Kill the process if it runs, and close its pipes."""
        self.process.kill()
        self.process.wait(_END_SECONDS)
        self._reader.join(_END_SECONDS)
        assert self.process.stdin is not None
        self.process.stdin.close()


class _Watch:
    """Follows the JSON lines of a trainer, and prints a line for each window of scores.

    Attributes:
        step: Newest step.
    """

    def __init__(self, trainer: _Process, say: Say) -> None:
        self._trainer, self._say = trainer, say
        self.step, self._num_read, self._num_rows, self._window = 0, 0, 0, -1

    def look(self) -> int:
        """Read the new lines; return the number of rows of all tables."""
        lines = self._trainer.lines[self._num_read :]
        self._num_read += len(lines)
        for line in lines:
            figures = json.loads(line)
            if "step" in figures:
                self._note(figures)
        return self._num_rows

    def _note(self, figures: dict[str, Any]) -> None:
        self.step, self._num_rows = figures["step"], figures["num_rows"]
        window = figures["windows"].get("samples")
        if window is None or window["number"] == self._window:
            return
        self._window = window["number"]
        age = (figures["stream"] or {}).get("freshness_seconds")
        words = "" if age is None else f", newest click {age:.1f} s ago"
        self._say(
            f"  step {self.step:6,}  {self._num_rows:8,} rows  clicks {self._window + 1:2} x "
            f"{window['num_samples']:,}: AUC {window['scores']['auc']:.4f} before they were "
            f"learned{words}"
        )


@dataclass
class StreamDemo:
    """A stream of clicks, and a trainer that is killed and goes on.

    Args:
        folder: Folder of everything; it is made new.
        num_events: Number of clicks.
        rate: Clicks per second.
        with_broker: Whether the clicks come from a broker, a process of its own; else from a
            folder.
        say: Prints a line.
    """

    folder: Path
    num_events: int
    rate: float
    with_broker: bool
    say: Say

    def run(self) -> Counts:
        """Run the demonstration.

        Raises:
            UnavailableError: A process has ended, or did nothing for minutes.
        """
        self._make_folder()
        shutil.copyfile(Path(__file__).parent / "_stream_task.py", self.folder / _TASK)
        producer = self._start_producer()
        try:
            self._train_and_kill(producer)
            self._train_to_end(producer)
        finally:
            producer.close()
        checkpoint = find(self.folder / "saves")
        assert checkpoint is not None
        return Counts.of(checkpoint, self.num_events)

    def _make_folder(self) -> None:
        if self.folder.exists() and any(self.folder.iterdir()):
            if not (self.folder / _MARK).exists():
                raise FailedPreconditionError(
                    f"[demo] expected a new folder, or one of a demonstration, got {self.folder}; "
                    "choose another one: --folder DIR"
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _MARK).touch()

    def _start_producer(self) -> _Process:
        program = ["-m", "monolith.cli.demos.click_stream", "clicks"]
        options = ["--broker"] if self.with_broker else []
        numbers = [str(self.num_events), str(self.rate)]
        producer = _Process([*program, *numbers, *options], self.folder, "producer")
        try:
            producer.wait_for(lambda: bool(producer.lines), "a stream")
        except BaseException:
            producer.close()
            raise
        where = "a broker, a process of its own" if self.with_broker else "a folder that grows"
        self.say(f"{self.num_events:,} clicks, {self.rate:,.0f} a second, go to {where}")
        return producer

    def _start_trainer(self, uri: str, *options: str) -> _Process:
        command = ["train", _TASK, "--stream", uri, "--checkpoints", "saves"]
        command += ["--save-seconds", str(_SAVE_SECONDS), *options]
        self.say(f"$ {shlex.join(['monolith', *command])}")
        settings = {"log_every": 10, "score_samples": max(1, self.num_events // 12), "threads": 1}
        command += [f"--set=train.{name}={value}" for name, value in settings.items()]
        return _Process(["-m", "monolith", *command, "--json"], self.folder, "trainer")

    def _train_and_kill(self, producer: _Process) -> None:
        trainer = self._start_trainer(producer.lines[0])
        watch = _Watch(trainer, self.say)
        try:
            trainer.wait_for(lambda: "\nreading " in trainer.text, "a trainer that reads")
            producer.write("go")
            trainer.wait_for(
                lambda: watch.look() > self.num_events // 3 and self._step_saved() > 0,
                "a third of the clicks in the tables, and a checkpoint",
            )
            trainer.end(signal.SIGKILL)
        finally:
            trainer.close()
        self.say(
            f"$ kill -9 {trainer.process.pid}    it told of step {watch.step:,}; the newest "
            f"checkpoint is that of step {self._step_saved():,}"
        )

    def _train_to_end(self, producer: _Process) -> None:
        trainer = self._start_trainer(producer.lines[0], "--resume")
        watch = _Watch(trainer, self.say)
        num_rows = self.num_events + NUM_USERS + NUM_ITEMS
        try:
            trainer.wait_for(lambda: watch.look() >= num_rows, "all clicks in the tables")
            producer.wait_for(lambda: DONE in producer.lines, "the end of the clicks")
            self.say(f"$ kill {trainer.process.pid}    the stream has nothing more")
            status = trainer.end(signal.SIGTERM)
        finally:
            trainer.close()
        if status != 128 + signal.SIGTERM:
            raise UnavailableError(f"[demo] expected a trainer that saves and ends, got {status}")

    def _step_saved(self) -> int:
        checkpoint = find(self.folder / "saves")
        return 0 if checkpoint is None else checkpoint.step or 0
