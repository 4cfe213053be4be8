"""Files that arrive between two runs: a resumed pipeline reads them after the files of its state.

    state     the files that each source knew, and the position in the files of the last arrival
    resume    the arrival of the state, read to its end as if there were no new files; then, as one
              more arrival, the files that came since

Each arrival is read like a pipeline of its own: windows, batches and passes end with its files. So
a position never depends on files that came later. Random orders and draws differ by arrival, as
they do by epoch. A `repeat` without end ends with the pass under way, and the next arrival repeats
all files that are there.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from monolith.data.cursor import (
    Cursor,
    SourceWait,
    Stage,
    State,
    attach_wait,
    enable_read_ahead,
    is_stream,
    rebuild,
    settled,
    sources_of,
)
from monolith.data.epochs import Cache, Repeat
from monolith.data.files.file_source import FileSource
from monolith.data.files.known_files import (
    ANEW,
    WHERE,
    FileChanges,
    KnownFiles,
    first_paths,
    words_of_changes,
)
from monolith.data.files.listing import DataFile
from monolith.data.flows.flow_reader import Flow
from monolith.data.operations.draws import Sampling
from monolith.data.stages import Blocks, Filter, Map, Part, ShardSamples, Take, next_parts
from monolith.errors import FailedPreconditionError

_log = logging.getLogger(__name__)

# Stages after a repetition without end whose positions do not depend on later passes.
_WITHOUT_WINDOWS = (Blocks, Filter, Flow, Map, Sampling, ShardSamples, Take)
_AS_THEN = (
    "give the files of then and no others, for example by a glob that matches only them, " + ANEW
)


@dataclass(frozen=True)
class Arrival:
    """The files that one arrival adds, as the stages that read them.

    Args:
        stage: last stage of the pipeline over these files.
        head: lines of the pipeline and known files, as a state has them.
        num_bytes: size of the files.
    """

    stage: Stage
    head: State
    num_bytes: int

    @classmethod
    def of(cls, stage: Stage, known: Sequence[KnownFiles], number: int) -> "Arrival":
        """Return the arrival of a number; `known` are the files of each source up to this one."""
        head: State = {"pipeline": stage.describe()}
        if known:
            head["files"] = {"arrival": number, "sources": [each.to_state() for each in known]}
        files = [file for source in _file_sources(stage) for file in source.files]
        return cls(stage, head, sum(file.size for file in files))


@dataclass(frozen=True)
class Arrivals:
    """The arrivals that an iteration reads, one after another.

    Args:
        arrivals: the arrival of a state, and that of new files if there are any.
        number: number of the first one; the files of the first run are arrival 0.
    """

    arrivals: tuple[Arrival, ...]
    number: int = 0

    @property
    def is_stream(self) -> bool:
        """Whether a source has no end, so that its positions are settled late."""
        return is_stream(self._stages)

    def reading_ahead(self) -> "Arrivals":
        """Return the arrivals with sources that decode blocks ahead."""
        return self._with_stages(enable_read_ahead(self._stages))

    def waiting_in(self, wait: SourceWait) -> "Arrivals":
        """Return the arrivals with streams that wait in `wait`."""
        return self._with_stages(attach_wait(self._stages, wait))

    @property
    def _stages(self) -> list[Stage]:
        return [arrival.stage for arrival in self.arrivals]

    def _with_stages(self, stages: Sequence[Stage]) -> "Arrivals":
        pairs = zip(self.arrivals, stages, strict=True)
        return replace(self, arrivals=tuple(replace(old, stage=stage) for old, stage in pairs))

    def open(self, state: State | None) -> "ArrivalsCursor":
        """Begin at the start, or at a state of a cursor of these arrivals."""
        if state is None:
            return ArrivalsCursor(self, 0, None)
        return ArrivalsCursor(self, arrival_of(state) - self.number, state["state"])


class ArrivalsCursor:
    """One pass over the arrivals, one after another."""

    def __init__(self, arrivals: Arrivals, at: int, state: State | None) -> None:
        self._arrivals, self._at, self._done = arrivals, at, 0
        self._settle = settled if arrivals.is_stream else _same
        self._cursor = self._open(state)

    def _open(self, state: State | None) -> Cursor:
        arrival = self._arrivals.arrivals[self._at]
        return arrival.stage.open(self._arrivals.number + self._at, state)

    def next_parts(self) -> list[Part] | None:
        """Return the next block as parts; None at the end of the last arrival."""
        while True:
            parts = next_parts(self._cursor)
            if parts is not None or self._at + 1 == len(self._arrivals.arrivals):
                return parts
            self._done += self._cursor.progress()[1]
            self._cursor.close()
            self._at += 1
            self._cursor = self._open(None)

    def state(self) -> State:
        """Return the position of the next block, with the files of its arrival."""
        head = self._arrivals.arrivals[self._at].head
        return {**head, "state": self._settle(self._cursor.state())}

    def progress(self) -> tuple[int, int]:
        """Return the progress over the arrivals of this cursor; see `Cursor`."""
        position, total = self._cursor.progress()
        current, *later = (arrival.num_bytes for arrival in self._arrivals.arrivals[self._at :])
        # The files of a later arrival are passed over as often as those of this one.
        total += sum(total * num_bytes // max(1, current) for num_bytes in later)
        return self._done + position, self._done + total if total else 0

    def close(self) -> None:
        """See `Cursor`."""
        self._cursor.close()


def _same(state: State) -> State:
    return state


def arrival_of(state: State) -> int:
    """Return the number of the arrival of a state; 0 for a state without names of files."""
    return int(state["files"]["arrival"]) if "files" in state else 0


def first_arrival(stage: Stage, number: int = 0) -> Arrivals:
    """Return the arrivals of a pipeline over the files that are there, all of them as one."""
    known = [KnownFiles(source.files) for source in _file_sources(stage)]
    return Arrivals((Arrival.of(stage, known, number),), number)


def resumed_arrivals(stage: Stage, state: State) -> Arrivals:
    """Return the arrivals of a pipeline that goes on at a state, and log which files are new.

    Args:
        stage: last stage of the pipeline, over the files that are there.
        state: state of the pipeline.

    Raises:
        FailedPreconditionError: the state belongs to another pipeline; or a file of the state was
            changed, or was removed before it was read.
    """
    sources, number = _file_sources(stage), arrival_of(state)
    entries = state["files"]["sources"] if "files" in state else []
    if len(entries) != len(sources):  # such as a state of an older version
        _check_lines(stage.describe(), state["pipeline"])
        return first_arrival(stage, number)
    pairs = list(zip(entries, sources, strict=True))
    known = [KnownFiles.from_state(entry, source) for entry, source in pairs]
    current = _with_files(stage, sources, [each.current for each in known])
    _check_lines(current.describe(), state["pipeline"])
    changes = [FileChanges.of(each, source) for each, source in zip(known, sources, strict=True)]
    has_new, has_gone = any(c.new for c in changes), any(c.gone for c in changes)
    is_endless = any(map(_is_endless, _walk(stage)))
    later: tuple[Arrival, ...] = ()
    if is_endless and (has_new or has_gone):
        _check_above_repeat(stage, changes)
        current = _ending_after_pass(current)
        later = first_arrival(stage, number + 1).arrivals
    elif has_new:
        _check_sources(stage, changes)
        then = [KnownFiles([*each.kept, *each.new], len(each.kept)) for each in changes]
        new = _with_files(stage, sources, [each.new for each in changes])
        later = (Arrival.of(new, then, number + 1),)
    _check_gone(current, state["state"], number, changes)
    _log_changes(known, changes, is_endless)
    return Arrivals((Arrival.of(current, known, number), *later), number)


def _walk(stage: Any) -> Iterator[Any]:
    """Yield a stage and all stages from which it reads, each once."""
    seen, waiting = set[int](), [stage]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += sources_of(each)


def _file_sources(stage: Stage) -> list[FileSource]:
    return [each for each in _walk(stage) if isinstance(each, FileSource)]


def _is_endless(stage: Any) -> bool:
    return isinstance(stage, Repeat) and stage.count is None


def _with_files(
    stage: Stage, sources: Sequence[FileSource], files: Sequence[Sequence[DataFile]]
) -> Stage:
    """Return the stage over sources with other files."""
    files_of = {id(source): list(each) for source, each in zip(sources, files, strict=True)}

    def change(old: Any, copy: Any) -> Any:
        if isinstance(old, FileSource):
            is_same = list(old.files) == files_of[id(old)]
            return old if is_same else replace(old, files=files_of[id(old)])
        # The blocks of a cache are those of its files.
        return Cache(copy.source) if isinstance(copy, Cache) and copy is not old else copy

    (changed,) = rebuild([stage], change)
    result: Stage = changed
    return result


def _ending_after_pass(stage: Stage) -> Stage:
    """Return the stage with repetitions that are not without end; see `Repeat`."""

    def change(_: Any, copy: Any) -> Any:
        return replace(copy, ends_after_pass=True) if _is_endless(copy) else copy

    (changed,) = rebuild([stage], change)
    result: Stage = changed
    return result


def _check_lines(ours: Sequence[str], theirs: Sequence[str]) -> None:
    """Refuse a state of another pipeline."""
    if list(ours) == list(theirs):
        return
    pairs = zip([*ours, "the end"], [*theirs, "the end"], strict=False)
    mine, other = next((a, b) for a, b in pairs if a != b)
    raise FailedPreconditionError(
        f"{WHERE} expected a state of this pipeline ({mine!r}), got one of another ({other!r}); "
        f"make stages and files as they were when the state was taken, {ANEW}"
    )


def _check_gone(stage: Stage, state: State, number: int, changes: Sequence[FileChanges]) -> None:
    """Refuse files that are gone if the arrival of a state reads them after the state."""
    gone = {file.path for each in changes for file in each.gone}
    for file in _files_left(stage, state, number, again=False) if gone else ():
        if file.path in gone:
            raise FailedPreconditionError(
                f"{WHERE} expected file {file.path!r}, which had to be read after the state was "
                f"taken, got none; put it back, {ANEW}"
            )


def _files_left(stage: Any, state: State | None, epoch: int, *, again: bool) -> Iterator[DataFile]:
    """Yield the files that a stage reads from a state on.

    Args:
        stage: stage to follow down to its sources.
        state: state of a cursor of the stage; None is the start.
        epoch: number of the pass.
        again: whether the stage is opened once more at its start.
    """
    if isinstance(stage, FileSource):
        yield from stage.files_left(epoch, None if again else state)
        return
    inner = [None if state is None else state.get("source")] * len(sources_of(stage))
    if state is not None and "sources" in state:
        inner = [each["source"] for each in state["sources"]]
    if isinstance(stage, Repeat):
        number = 0 if state is None else state["number"]
        epoch = stage.first_pass(epoch) + number
        if stage.ends_after_pass:
            yield from _files_left(stage.source, inner[0], epoch, again=again)
            again = again or _is_at_end(stage.source, inner[0], epoch)  # one more pass follows
        else:
            again = again or stage.count is None or number + 1 < stage.count
    again = again or isinstance(stage, Cache)
    for source, each in zip(sources_of(stage), inner, strict=True):
        yield from _files_left(source, each, epoch, again=again)


def _is_at_end(stage: Stage, state: State | None, epoch: int) -> bool:
    """Whether a stage has no more blocks after a state, which only a read can tell."""
    with closing(stage.open(epoch, state)) as cursor:
        return cursor.next() is None


def _check_above_repeat(stage: Any, changes: Sequence[FileChanges]) -> None:
    """Refuse other files if a stage with windows stands after a repetition without end."""
    if _is_endless(stage) or not any(map(_is_endless, _walk(stage))):
        return
    if not isinstance(stage, _WITHOUT_WINDOWS):
        raise FailedPreconditionError(
            f"{WHERE} expected the files of the state, got {words_of_changes(changes)}: "
            f"{type(stage).__name__}, after repeat() without end, goes over the end of a pass; "
            f"{_AS_THEN}"
        )
    for source in sources_of(stage):
        _check_above_repeat(source, changes)


def _check_sources(stage: Stage, changes: Sequence[FileChanges]) -> None:
    """Refuse new files next to a source without files, which would be read again."""
    for each in _walk(stage):
        if not sources_of(each) and not isinstance(each, FileSource):
            raise FailedPreconditionError(
                f"{WHERE} expected the files of the state, got {words_of_changes(changes)}: the "
                f"source {each.describe()[0]!r} next to them would be read again; {_AS_THEN}"
            )


def _log_changes(
    known: Sequence[KnownFiles], changes: Sequence[FileChanges], is_endless: bool
) -> None:
    """Log which files are new and when they are read, and which are gone."""
    new = [file for each in changes for file in each.new]
    gone = [file for each in changes for file in each.gone]
    if new:
        old = _count([file for each in known for file in each.files], "old file")
        when = f"in the passes after this one over {old}" if is_endless else f"after {old}"
        which = f"{_count(new, 'new file')} since the saved position"
        _log.warning("[data] %s, read %s: %s", which, when, first_paths(new))
    if gone:
        which = f"{_count(gone, 'file')} gone since the saved position"
        _log.warning("[data] %s, which had been read: %s", which, first_paths(gone))


def _count(files: Sequence[DataFile], noun: str) -> str:
    return f"{len(files):,} {noun}{'' if len(files) == 1 else 's'}"
