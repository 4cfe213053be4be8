"""`join_events`: the joiner as a stage over pipelines of impressions and actions."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples
from monolith.data.cursor import Cursor, Stage, State
from monolith.data.pipeline import Pipeline
from monolith.data.stream.join.input_order import AlignedInputs, Inputs, LiveInputs
from monolith.data.stream.join.join_settings import JoinSettings
from monolith.data.stream.join.joiner import OnlineJoiner


@dataclass(frozen=True)
class JoinOptions:
    """How a stage keeps its state, and whether it waits for inputs.

    Args:
        folder: see `OnlineJoiner`; None re-reads the inputs from the start to resume.
        save_every: see `OnlineJoiner`.
        num_kept: see `OnlineJoiner`.
        memory_bytes: see `OnlineJoiner`.
        idle_seconds: seconds without an event after which an input is idle; None waits for ever.
    """

    folder: Path | None
    save_every: int
    num_kept: int
    memory_bytes: int
    idle_seconds: float | None


@dataclass(frozen=True)
class JoinStage:
    """Joins the events of its sources.

    Without a folder, the state is a number of steps, which are done again from the start.

    Args:
        sources: last stage of each input.
        settings: which events belong together.
        options: how the state is kept.
        counts: numbers of the last pass in this process; see `OnlineJoiner.counts`.
    """

    sources: tuple[Stage, ...]
    settings: JoinSettings
    options: JoinOptions
    counts: dict[str, int] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """See `Stage`."""
        lines = [f"{len(self.sources)} inputs joined by {self.settings!r}"]
        for number, source in enumerate(self.sources):
            lines += [f"input {number}: {line}" for line in source.describe()]
        return lines

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return _JoinCursor(self, epoch, state)


class _JoinCursor:
    def __init__(self, stage: JoinStage, epoch: int, state: State | None) -> None:
        self._stage, options = stage, stage.options
        saved = None
        if state is not None and options.folder is not None:
            positions = [each["source"] for each in state["sources"]]
            saved = {**state["joiner"], "positions": positions}
        self._joiner = OnlineJoiner(
            stage.settings,
            len(stage.sources),
            folder=options.folder,
            state=saved,
            save_every=options.save_every,
            num_kept=options.num_kept,
            memory_bytes=options.memory_bytes,
        )
        self._replay = self._joiner.replay()
        positions = self._joiner.final_positions
        cursors: list[Cursor] = []
        try:
            for source, position in zip(stage.sources, positions, strict=True):
                cursors.append(source.open(epoch, position))
        except BaseException:
            for cursor in cursors:
                cursor.close()
            self._joiner.close()
            raise
        idle = options.idle_seconds
        self._inputs: Inputs = AlignedInputs(cursors) if idle is None else LiveInputs(cursors, idle)
        self._num_steps, self._is_over = 0, False
        if state is not None and options.folder is None:
            for _ in range(state["steps"]):
                self._step()

    def next(self) -> pa.RecordBatch | None:
        """See `Cursor`."""
        for samples in self._replay:
            if samples is not None:
                return self._counted(samples)
        while not self._is_over:
            samples = self._step()
            if samples is not None:
                return self._counted(samples)
        return self._counted(None)

    def _counted(self, samples: pa.RecordBatch | None) -> pa.RecordBatch | None:
        self._stage.counts.update(self._joiner.counts)
        return samples

    def _step(self) -> pa.RecordBatch | None:
        """Take one block of an input, or note that an input does not give one."""
        arrival = self._inputs.next(self._joiner.newest)
        self._num_steps += 1
        if arrival is None:
            self._is_over = True
            return self._joiner.finish()
        if arrival.block is None:
            return self._joiner.leave_out(arrival.source)
        return self._joiner.add(arrival.block, arrival.source, arrival.position)

    def state(self) -> State:
        """See `Cursor`."""
        if self._stage.options.folder is None:
            return {
                "sources": [{"source": None}] * len(self._stage.sources),
                "steps": self._num_steps,
            }
        saved = self._joiner.state()
        positions = saved.pop("positions")
        return {"sources": [{"source": each} for each in positions], "joiner": saved}

    def progress(self) -> tuple[int, int]:
        """Return the sums over the inputs."""
        pairs = self._inputs.progress()
        totals = [total for _, total in pairs]
        return sum(position for position, _ in pairs), sum(totals) if all(totals) else 0

    def close(self) -> None:
        """See `Cursor`."""
        self._inputs.close()
        self._joiner.close()


def join_events(
    inputs: Sequence[Pipeline],
    settings: JoinSettings,
    *,
    folder: str | os.PathLike[str] | None = None,
    save_every: int = 1_000_000,
    num_kept: int = 4,
    memory_bytes: int = 1 << 30,
    idle_seconds: float | None = None,
) -> Pipeline:
    """Return a pipeline of the samples that impressions and actions of several inputs make.

    An input with the column `settings.kind` has actions, or both kinds of events; the others have
    impressions. The next block comes from the input whose newest event is oldest, so inputs of
    files are joined in the order of time, the same in every pass.

    Args:
        inputs: pipelines without batches; their columns name the key and the kind as ids, and
            `settings.time` as the time.
        settings: which events belong together.
        folder: folder for the state, used by this pipeline only: see `OnlineJoiner`. Without a
            folder, a resumed pipeline reads all inputs again from their start, which is exact for
            files only.
        save_every: see `OnlineJoiner`.
        num_kept: see `OnlineJoiner`.
        memory_bytes: see `OnlineJoiner`.
        idle_seconds: for streams: takes whichever input has events, and does not wait for an input
            that had none for so many seconds. None waits for every input.

    Raises:
        ValueError: a column is missing, impressions differ in their columns, or an argument does
            not fit.

    Example:
        >>> from monolith import data
        >>> time = data.Columns(["request", "item"], time="time")
        >>> shown = data.arrow_table({"request": [7, 8], "item": [3, 4], "time": [0, 1]},
        ...                          columns=time)
        >>> clicks = data.arrow_table({"request": [8], "kind": ["click"], "time": [5]},
        ...                           columns=data.Columns(["request", "kind"], time="time"))
        >>> settings = JoinSettings("request", window=10, labels={"click": ["click"]})
        >>> next(iter(join_events([shown, clicks], settings).batch(2))).label.tolist()
        [0.0, 1.0]
    """
    where = "[join_events]"
    if idle_seconds is not None and folder is None:
        raise ValueError(
            f"{where} expected a folder with idle_seconds, got none: inputs that are not waited "
            "for come in another order when they are read again; give folder="
        )
    if idle_seconds is not None and idle_seconds <= 0:
        raise ValueError(f"{where} expected idle_seconds above 0, got {idle_seconds}")
    columns = _columns(where, inputs, settings)
    options = JoinOptions(
        None if folder is None else Path(folder), save_every, num_kept, memory_bytes, idle_seconds
    )
    stage = JoinStage(tuple(each.stage for each in inputs), settings, options)
    return Pipeline(
        stage,
        columns,
        BadSamples(parts=tuple(each.bad for each in inputs)),
        depth=max(each.depth for each in inputs),
        left_out=frozenset.union(*(each.left_out for each in inputs)) - {*columns.names()},
    )


def _columns(where: str, inputs: Sequence[Pipeline], settings: JoinSettings) -> Columns:
    """Return the columns of the samples."""
    of_impressions: Columns | None = None
    for number, each in enumerate(inputs):
        columns = each.columns
        ids = {column.name for column in columns.id_columns}
        if settings.key not in ids or columns.time != settings.time:
            raise ValueError(
                f"{where} expected id column {settings.key!r} and time column {settings.time!r}, "
                f"got ids {sorted(ids)} and time {columns.time!r} (input {number}); name them in "
                "Columns(ids=, time=)"
            )
        if settings.kind in ids and settings.impression is None:
            continue  # actions only
        shown = columns.without([settings.kind]) if settings.kind in ids else columns
        if of_impressions is not None and sorted(shown.names()) != sorted(of_impressions.names()):
            raise ValueError(
                f"{where} expected impressions with columns {sorted(of_impressions.names())}, got "
                f"{sorted(shown.names())} (input {number})"
            )
        of_impressions = shown if of_impressions is None else of_impressions
    if of_impressions is None:
        raise ValueError(
            f"{where} expected an input with impressions, got {len(inputs)} inputs whose column "
            f"{settings.kind!r} has actions only; set impression= to the kind of impressions"
        )
    added = settings.adds
    for name in set(of_impressions.names()) & set(added.names()) - {added.weight}:
        raise ValueError(
            f"{where} expected impressions without a column {name!r}, which the join adds; drop or "
            "rename it"
        )
    return of_impressions.plus(added)
