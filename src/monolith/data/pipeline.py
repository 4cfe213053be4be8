"""`Pipeline`: shuffle, shard, map, filter, batch and prefetch samples, with an exact state."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data import stages
from monolith.data.arrivals import first_arrival, resumed_arrivals
from monolith.data.batches import STATE_VERSION, Batches
from monolith.data.columns import Columns, IdColumn
from monolith.data.convert import BadSamples
from monolith.data.cursor import Stage, State, is_stream
from monolith.data.epochs import Cache, Repeat
from monolith.data.files.file_source import FileSource
from monolith.data.flows.flow_reader import Flow
from monolith.data.flows.merge import Merge
from monolith.data.flows.splitter import make_splitter
from monolith.data.hashing import cross_ids
from monolith.data.operations.draws import Draws, Sampling
from monolith.data.operations.negatives import NegativeGen, NegativeStage
from monolith.data.selection import narrow
from monolith.errors import FailedPreconditionError

_Keep = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class Pipeline:
    """Describes a source of samples and the stages after it; iterate over it for batches.

    Functions such as `monolith.data.parquet` create a pipeline. A method returns a new pipeline
    with one more stage; nothing is read before iteration. Two iterations give the same batches.
    Thread-safe: each iteration has its own state.

    Between source and batch, samples travel in blocks, which are Arrow record batches: ids are
    int64 or lists of int64, everything else is float32 (time: int64). `map` and `filter` see these
    blocks.

    Attributes:
        stage: last stage.
        columns: columns of the batches; a block may have more.
        bad: handling of bad samples.
        depth: number of batches that are prepared ahead.
        inferred: names of the columns that a source chose by their types alone.
        left_out: names of the columns that `select` left out.

    Example:
        >>> from monolith import data
        >>> table = pa.table({"user": [7, 8, 9], "label": [1, 0, 1]})
        >>> [batch.features["user"].to_lists() for batch in data.arrow_table(table).batch(2)]
        [[[7], [8]], [[9]]]
    """

    stage: Stage
    columns: Columns
    bad: BadSamples
    depth: int = 0
    inferred: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()

    def _then(self, stage: Stage) -> "Pipeline":
        return replace(self, stage=stage)

    def _files(self, method: str) -> FileSource:
        if not isinstance(self.stage, FileSource):
            raise ValueError(
                f"[Pipeline.{method}] expected a source of files, without a stage after it; call "
                "it right after the source is made"
            )
        return self.stage

    def shuffle_files(self, seed: int = 0) -> "Pipeline":
        """Read files in a random order that differs by epoch. Allowed directly after the source."""
        return self._then(replace(self._files("shuffle_files"), shuffle_seed=seed))

    def interleave(self, num_files: int) -> "Pipeline":
        """Read `num_files` files in turns, block by block. Allowed directly after the source."""
        _check_positive("interleave", "files", num_files)
        return self._then(replace(self._files("interleave"), interleave=num_files))

    def shard(self, index: int, count: int) -> "Pipeline":
        """Keep the part of one of `count` workers: every count-th file.

        Keeps every count-th sample instead if the source has no files, or fewer files than workers,
        or if other stages come first.
        """
        if not 0 <= index < count:
            raise ValueError(
                f"[Pipeline.shard] expected an index from 0 to {count - 1}, got {index}"
            )
        if isinstance(self.stage, FileSource) and self.stage.worker == (0, 1):
            return self._then(replace(self.stage, worker=(index, count)))
        return self._then(stages.ShardSamples(self.stage, index, count))

    def shuffle(self, num_samples: int, seed: int = 0) -> "Pipeline":
        """Shuffle windows of `num_samples` samples; each window is held in memory.

        A window is filled, put in an order that depends on seed, epoch and number of the window,
        and emptied. Together with `shuffle_files` and `interleave`, samples are mixed over all the
        data.
        """
        _check_positive("shuffle", "samples", num_samples)
        return self._then(stages.Shuffle(stages.Blocks(self.stage, num_samples), seed))

    def map(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        adds: Columns | None = None,
        reads: Iterable[str] | None = None,
    ) -> "Pipeline":
        """Change blocks by a function, such as those of `monolith.data.operations`.

        Args:
            function: function of a block that returns a block; it keeps the columns that it does
                not change.
            adds: new columns of the result; None takes the attribute `adds` of the function.
            reads: names of the columns that the function reads; None takes the attribute `reads` of
                the function. Without either, a `select` after this stage leaves out no column
                before it.
        """
        columns = self.columns.plus(adds or getattr(function, "adds", None))
        declared = _reads_of("map", function, reads)
        stage = stages.Map(self.stage, function, _name_of(function), declared)
        return replace(self, stage=stage, columns=columns)

    def sample(
        self,
        function: Callable[[pa.RecordBatch, Draws], pa.RecordBatch],
        *,
        reads: Iterable[str] | None = None,
    ) -> "Pipeline":
        """Keep, drop or change samples by random numbers, as `operations.NegativeSample` does.

        Args:
            function: function of a block and its random numbers, which depend on seed, epoch and
                number of the sample; its attribute `adds` names new columns.
            reads: names of the columns that the function reads, as in `map`.
        """
        columns = self.columns.plus(getattr(function, "adds", None))
        declared = _reads_of("sample", function, reads)
        stage = Sampling(self.stage, function, _name_of(function), declared)
        return replace(self, stage=stage, columns=columns)

    def generate_negatives(
        self,
        generation: NegativeGen,
        *,
        pool_folder: str | os.PathLike[str] | None = None,
        save_every: int = 1_000_000,
        num_kept: int = 4,
        initial_pool: str | os.PathLike[str] | None = None,
    ) -> "Pipeline":
        """Add negatives to each positive, with items of a pool.

        The pool is part of the state but too large to be stored in it. A resumed pipeline re-reads
        the samples after the last save of the pool, or the whole epoch if there is no folder.

        Args:
            generation: settings of the generation.
            pool_folder: folder for the files of the pool, used by this pipeline only.
            save_every: number of samples between two saves.
            num_kept: number of files that are kept; a state that names an older file cannot be
                resumed.
            initial_pool: file of the pool at the begin of every epoch.
        """
        _check_positive("generate_negatives", "save_every", save_every)
        _check_positive("generate_negatives", "num_kept", num_kept)
        folder = None if pool_folder is None else Path(pool_folder)
        initial = None if initial_pool is None else Path(initial_pool)
        stage = NegativeStage(self.stage, generation, folder, save_every, num_kept, initial)
        return replace(self, stage=stage, columns=self.columns.plus(generation.adds))

    def drop(self, *names: str) -> "Pipeline":
        """Remove columns that operations need and the model does not."""
        columns = self.columns.without(names)
        stage = stages.Map(self.stage, _Drop(names), f"drop {list(names)}", frozenset())
        return replace(self, stage=stage, columns=columns)

    def select(self, *names: str) -> "Pipeline":
        """Keep the named columns; the source does not read columns that nothing needs.

        A source reads the named columns and those that its stages read. A stage with a Python
        function reads all columns, unless the function declares them by `reads`; so does a source
        with `on_error="skip"`, which checks every column. Positions do not depend on the columns:
        a state is resumed with other columns too.

        Raises:
            ValueError: a name is not among the columns, or there is no name.

        Example:
            >>> from monolith import data
            >>> table = pa.table({"user": [7], "item": [8], "label": [1]})
            >>> batch = next(iter(data.arrow_table(table).batch(1).select("user", "label")))
            >>> list(batch.features), list(batch.labels)
            (['user'], ['label'])
        """
        _check_positive("select", "columns", len(names))
        columns = self.columns.only(names)
        left_out = self.left_out.union(self.columns.names()).difference(columns.names())
        return replace(self, stage=narrow(self.stage, names), columns=columns, left_out=left_out)

    def filter(self, keeps: _Keep, *, reads: Iterable[str] | None = None) -> "Pipeline":
        """Keep the samples for which a function of a block returns True in an array of booleans.

        Args:
            keeps: function of a block.
            reads: names of the columns that the function reads, as in `map`.

        Example:
            >>> from monolith import data
            >>> import pyarrow.compute as pc
            >>> source = data.arrow_table(pa.table({"user": [7, 8, 9], "label": [1, 0, 1]}))
            >>> clicked = source.filter(lambda block: pc.greater(block["label"], 0)).batch(2)
            >>> [batch.features["user"].to_lists() for batch in clicked]
            [[[7], [9]]]
        """
        declared = _reads_of("filter", keeps, reads)
        return self._then(stages.Filter(self.stage, _mask_of(keeps), _name_of(keeps), declared))

    def filter_numbered(
        self,
        keeps: Callable[[pa.RecordBatch, int], npt.NDArray[np.bool_]],
        name: str,
        *,
        reads: Iterable[str] | None = None,
    ) -> "Pipeline":
        """Filter as `filter` does; the function also receives the block's first sample number."""
        declared = _reads_of("filter_numbered", keeps, reads)
        return self._then(stages.Filter(self.stage, keeps, name, declared, is_numbered=True))

    def split(
        self,
        by: str | Callable[[pa.RecordBatch], Any],
        flows: Sequence[str] | Mapping[str, int | str],
        *,
        others: Literal["raise", "drop"] = "raise",
        max_waiting: int = 65_536,
        reads: Iterable[str] | None = None,
    ) -> dict[str, "Pipeline"]:
        """Split the samples into named flows; each flow is a pipeline.

        A flow that is iterated alone reads the source by itself. Flows that `merge` or
        `FlowBatches` reads together read the source once. A flow has the same state in both cases.

        Args:
            by: column of ids; or a function of a block that returns the number of each sample's
                flow in `flows`, as integers or booleans, and a number below 0 for no flow.
            flows: names of the flows; with a column also a mapping from names to ids. The id of a
                string is its hash: `data_source_key` in a column of this name, else `hash_strings`.
            others: whether a sample of no flow is an error, or left out.
            max_waiting: number of samples that may wait for the reader of a flow in `FlowBatches`
                and in a merge by time, before another block is read.
            reads: names of the columns that a function `by` reads, as in `map`.

        Raises:
            ValueError: an argument does not fit.

        Example:
            >>> from monolith import data
            >>> source = data.arrow_table({"user": [7, 8, 9], "device": [1, 2, 1]})
            >>> flows = source.split("device", {"phone": 1, "pc": 2})
            >>> [batch.features["user"].to_lists() for batch in flows["phone"].batch(2)]
            [[[7], [9]]]
        """
        ids = [column.name for column in self.columns.id_columns]
        name = f"by {by!r}" if isinstance(by, str) else f"by {_name_of(by)}"
        declared = _reads_of("split", by, reads)
        splitter = make_splitter(by, flows, others, max_waiting, ids, name, declared)
        return {flow: self._then(Flow(self.stage, splitter, flow)) for flow in splitter.names}

    def merge(self, *others: "Pipeline", by: Literal["turns", "time"] = "turns") -> "Pipeline":
        """Merge this stream with others that have the same columns.

        The order is the same in every pass. Streams that are at their end are left out. Flows of
        one split read their source once; in turns, a flow without samples in the current block is
        left out until the next block.

        Args:
            others: other streams.
            by: "turns" takes a sample of each stream in turns; "time" takes the sample with the
                smallest time of all next samples, and of equal times that of the first stream.

        Raises:
            ValueError: columns differ, or there are no times.

        Example:
            >>> from monolith import data
            >>> first, second = (data.arrow_table({"user": ids}) for ids in ([1, 2, 3], [7]))
            >>> next(iter(first.merge(second).batch(9))).features["user"].to_lists()
            [[1], [7], [2], [3]]
        """
        streams = (self, *others)
        for number, stream in enumerate(streams):
            ours, theirs = _kinds_of(self.columns), _kinds_of(stream.columns)
            if theirs != ours:
                raise ValueError(
                    f"[Pipeline.merge] expected the columns of stream 0, {ours}, got {theirs} in "
                    f"stream {number}; rename them in Columns, or drop those that only one has"
                )
        if by not in ("turns", "time") or (by == "time" and self.columns.time is None):
            raise ValueError(
                f'[Pipeline.merge] expected by "turns", or "time" with a column of times, got '
                f"{by!r} (time column: {self.columns.time}); name the column in Columns(time=...)"
            )
        stage = Merge(
            tuple(stream.stage for stream in streams),
            self.columns.time if by == "time" else None,
            tuple(self.columns.names()),
        )
        return replace(
            self,
            stage=stage,
            bad=BadSamples(parts=tuple(stream.bad for stream in streams)),
            depth=max(stream.depth for stream in streams),
            inferred=frozenset.intersection(*(stream.inferred for stream in streams)),
            left_out=frozenset.union(*(stream.left_out for stream in streams)),
        )

    def cross(self, name: str, features: Sequence[str]) -> "Pipeline":
        """Add a feature: the hashed combinations of the ids of other features of a sample.

        See `cross_ids` for the ids.
        """
        known = [column.name for column in self.columns.id_columns]
        for feature in features:
            if feature not in known:
                raise ValueError(
                    f"[Pipeline.cross] expected features, got {feature!r} (features: {known})"
                )
        if len(features) < 2:
            raise ValueError(f"[Pipeline.cross] expected at least 2 features, got {len(features)}")
        columns = replace(self.columns, ids=(*self.columns.ids, IdColumn(name)))
        cross = _Cross(name, tuple(features))
        text = f"cross {name} {features}"
        crossed = stages.Map(self.stage, cross, text, frozenset(features))
        return replace(self, stage=crossed, columns=columns)

    def take(self, num_samples: int) -> "Pipeline":
        """Keep the first `num_samples` samples of each epoch."""
        _check_positive("take", "samples", num_samples)
        return self._then(stages.Take(self.stage, num_samples))

    def cache(self) -> "Pipeline":
        """Keep the blocks of the first pass in memory, for the later passes."""
        return self._then(Cache(self.stage))

    def repeat(self, num_epochs: int | None = None) -> "Pipeline":
        """Continue with another epoch at the end, `num_epochs` times or without end."""
        if num_epochs is not None:
            _check_positive("repeat", "epochs", num_epochs)
        return self._then(Repeat(self.stage, num_epochs))

    def batch(
        self,
        num_samples: int,
        *,
        drop_remainder: bool = False,
        seconds: float | None = None,
    ) -> "Pipeline":
        """Form batches of `num_samples` samples; the last batch has the rest, or is dropped.

        Args:
            num_samples: number of samples of a batch.
            drop_remainder: whether the last batch is dropped if the data ends within it.
            seconds: for streams, the longest time that the first sample of a batch waits for the
                others: a batch ends by size or by time, whichever comes first. None waits for all
                samples.

        Raises:
            ValueError: a number is too small, or there is no stream to wait for.
        """
        _check_positive("batch", "samples", num_samples)
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(
                f"[Pipeline.batch] expected seconds above 0 and finite, got {seconds!r}"
            )
        if seconds is not None and not self.is_stream:
            raise ValueError(
                f"[Pipeline.batch] expected a stream with seconds={seconds}, got a source that "
                "ends, whose batches are full but for the last one; leave seconds out"
            )
        return self._then(stages.Blocks(self.stage, num_samples, drop_remainder, seconds))

    @property
    def is_stream(self) -> bool:
        """Whether a source has no end, so that an iteration waits for more samples."""
        return is_stream([self.stage])

    def prefetch(self, num_batches: int = 2) -> "Pipeline":
        """Prepare batches ahead on another thread, and decode files ahead of that thread."""
        _check_positive("prefetch", "batches", num_batches)
        return replace(self, depth=num_batches)

    def describe(self) -> list[str]:
        """Return a line for each stage."""
        return self.stage.describe()

    def __iter__(self) -> Batches:
        return Batches(self, first_arrival(self.stage), None)

    def resume(self, state: State) -> Batches:
        """Continue after the batch at which `Batches.state_dict` was called.

        Files that came since the state was taken are read after those of the state, as one more
        pass of the pipeline; see `monolith.data.arrivals`. Files that were read may be gone.

        Raises:
            FailedPreconditionError: the state belongs to another pipeline; or a file of the state
                was changed, or was removed before it was read.
        """
        version = state.get("version")
        if version != STATE_VERSION:
            raise FailedPreconditionError(
                f"[Pipeline.resume] expected a state of version {STATE_VERSION}, got {version}"
            )
        return Batches(self, resumed_arrivals(self.stage, state), state)


@dataclass(frozen=True)
class _Drop:
    """Drops the columns that a block has; those that nothing needs were not read."""

    names: tuple[str, ...]

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return block.drop_columns([name for name in self.names if name in block.schema.names])


@dataclass(frozen=True)
class _Cross:
    name: str
    features: tuple[str, ...]

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        values, lengths = cross_ids([_rows(block.column(name)) for name in self.features])
        splits = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        crossed = pa.ListArray.from_arrays(pa.array(splits), pa.array(values))
        return block.append_column(self.name, crossed)


def _rows(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if not isinstance(array, pa.ListArray):
        return array.to_numpy(), np.ones(len(array), np.int64)
    lengths = array.value_lengths().to_numpy().astype(np.int64)
    return array.flatten().to_numpy(), lengths


def _mask_of(keeps: _Keep) -> Callable[[pa.RecordBatch, int], npt.NDArray[np.bool_]]:
    def mask(block: pa.RecordBatch, _: int) -> npt.NDArray[np.bool_]:
        answer = keeps(block)
        if isinstance(answer, pa.Array | pa.ChunkedArray):
            answer = answer.to_numpy(zero_copy_only=False)
        answer = np.asarray(answer)
        if answer.dtype != np.bool_ or answer.shape != (block.num_rows,):
            raise ValueError(
                f"[Pipeline.filter] expected {block.num_rows} booleans, got shape {answer.shape} "
                f"of {answer.dtype}"
            )
        return answer

    return mask


def _reads_of(method: str, function: object, reads: Iterable[str] | None) -> frozenset[str] | None:
    """Return the columns that a function of a stage declares to read; None without declaration."""
    if isinstance(reads, str):
        raise TypeError(
            f"[Pipeline.{method}] expected reads as names, got {reads!r}; write [{reads!r}]"
        )
    names = getattr(function, "reads", None) if reads is None else reads
    return None if names is None else frozenset(names)


def _name_of(function: Callable[..., Any]) -> str:
    if is_dataclass(function):  # with its fields, because a state fits equal fields only
        text = repr(function)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return text if len(text) < 200 else f"{type(function).__qualname__} {digest}"
    return getattr(function, "__qualname__", type(function).__qualname__)


def _kinds_of(columns: Columns) -> dict[str, str]:
    """Return the kind of each column, by its name."""
    kinds = {column.name: "ids" for column in columns.id_columns}
    kinds |= {column.name: "dense" for column in columns.dense_columns}
    kinds |= {column.name: "label" for column in columns.label_columns}
    extra = {columns.weight: "weight", columns.time: "time"}
    kinds |= {name: kind for name, kind in extra.items() if name is not None}
    return dict(sorted(kinds.items()))


def _check_positive(method: str, what: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"[Pipeline.{method}] expected at least 1 of {what}, got {number}")
