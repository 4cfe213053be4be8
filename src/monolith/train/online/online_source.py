"""`OnlineSource`: files first, if there are any, and then a stream."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from monolith.data import Batch, Batches, Pipeline
from monolith.data.stages import Blocks
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.train.inputs import TaskColumns
from monolith.train.task import Mode, Task

_log = logging.getLogger(__name__)

FILES, STREAM = "files", "stream"
_PART, _POSITION = "part", "position"


class OnlineSource(Iterable[Batch]):
    """The source of an online run: files that are read once, and then a stream without end.

        state    {"part": "files", "position": ...} of the files, then
                 {"part": "stream", "position": ...} of the stream

    The stream begins at its own start when the files have ended. A state of the files alone, of a
    run that had no stream, continues the files, or without files begins the stream at its start.

    Args:
        stream: The stream.
        files: Files to read before it; None reads none.
    """

    is_stream = True

    def __init__(self, stream: Pipeline, files: Pipeline | None = None) -> None:
        self.stream, self.files = stream, files

    def __iter__(self) -> "OnlineBatches":
        if self.files is None:
            return OnlineBatches(self, STREAM, iter(self.stream))
        return OnlineBatches(self, FILES, iter(self.files))

    def resume(self, state: Any) -> "OnlineBatches":
        """Return the batches after a state.

        Raises:
            FailedPreconditionError: The state is one in files, and there are none.
        """
        if _PART not in state:  # a run that had no stream
            if self.files is not None:
                return OnlineBatches(self, FILES, self.files.resume(state))
            _log.warning("the checkpoint has a position in files: the stream begins at its start")
            return iter(self)
        if state[_PART] == STREAM:
            return OnlineBatches(self, STREAM, self.stream.resume(state[_POSITION]))
        if self.files is None:
            raise FailedPreconditionError(
                "[OnlineSource.resume] expected the files that the run was reading before its "
                "stream, got none; give them again: --backfill FILES"
            )
        return OnlineBatches(self, FILES, self.files.resume(state[_POSITION]))


class OnlineBatches(Iterator[Batch]):
    """The batches of an `OnlineSource`. Not thread-safe.

    Attributes:
        is_stream: True: it has no end.
        part: "files" or "stream": what is being read.
    """

    is_stream = True

    def __init__(self, source: OnlineSource, part: str, batches: Batches) -> None:
        self._source, self.part, self._batches = source, part, batches
        self._on_wait: Callable[[], None] | None = None

    def __next__(self) -> Batch:
        if self.part == FILES:
            try:
                return next(self._batches)
            except StopIteration:
                self._begin_stream()
        return next(self._batches)

    def _begin_stream(self) -> None:
        _log.warning("the files have ended: the stream begins")
        self._batches.close()
        self._batches = iter(self._source.stream)
        self.part = STREAM
        self.on_wait = self._on_wait

    @property
    def on_wait(self) -> Callable[[], None] | None:
        """Function that is called while the stream has nothing; see `Batches.on_wait`."""
        return self._on_wait

    @on_wait.setter
    def on_wait(self, call: Callable[[], None] | None) -> None:
        self._on_wait = call
        self._batches.on_wait = call

    @property
    def stream_batches(self) -> Batches | None:
        """The batches of the stream; None while files are read."""
        return self._batches if self.part == STREAM else None

    def state_dict(self) -> Any:
        """Return the position after the last batch."""
        return {_PART: self.part, _POSITION: self._batches.state_dict()}

    def close(self) -> None:
        """Close files and connections."""
        self._batches.close()


def open_stream(
    task: Task, uri: str, files: str | None = None, *, seconds: float | None = None
) -> OnlineSource:
    """Return the source of a task whose training data are a stream.

    The task reads the stream as it reads files: by `source`, with the path of the training data
    replaced by the URI.

    Args:
        task: The task, whose settings have the URI afterwards.
        uri: URI of the stream.
        files: File, folder or glob to read before the stream; None reads none.
        seconds: Time until a batch of the stream ends, unless the task says so itself; None waits
            until a batch is full.

    Raises:
        InvalidArgumentError: The source of the task is no pipeline over its training data.
    """
    backfill = None if files is None else _source_of(task, files, is_stream=False)
    stream = _source_of(task, uri, is_stream=True)
    return OnlineSource(stream if seconds is None else _timed(stream, seconds), backfill)


def _timed(stream: Pipeline, seconds: float) -> Pipeline:
    """Return a stream whose batches end by time, if its last stage makes batches."""
    stage = stream.stage
    if not isinstance(stage, Blocks) or stage.seconds is not None:
        return stream
    return replace(stream, stage=replace(stage, seconds=seconds))


def _source_of(task: Task, path: str, *, is_stream: bool) -> Pipeline:
    task.settings.data[Mode.TRAIN.value] = path
    source = TaskColumns.of(task).select(task.source(Mode.TRAIN))
    if not isinstance(source, Pipeline) or source.is_stream != is_stream:
        raise InvalidArgumentError(
            f"[{task.name}.source] expected a pipeline that reads {path!r}, got "
            f"{_words_of(source)}; read settings.data[mode] in source, for example "
            "monolith.data.jsonl(self.settings.data[mode]).batch(self.settings.batch_size)"
        )
    return source


def _words_of(source: object) -> str:
    if not isinstance(source, Pipeline):
        return f"a {type(source).__name__}"
    return source.describe()[0]
