"""`split_source`: divide the batches of a source among the workers of a job."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

from monolith.data.arrivals import first_arrival
from monolith.data.batch import Batch
from monolith.data.batches import Batches
from monolith.data.cursor import Stage, rebuild
from monolith.data.epochs import Repeat
from monolith.data.files.file_source import FileSource
from monolith.data.files.listing import DataFile, naming
from monolith.data.files.parquet import PartsFormat
from monolith.data.operations.draws import Sampling
from monolith.data.order import permutation
from monolith.data.pipeline import Pipeline
from monolith.data.shares.counted_batches import CountedBatches, ShareBatches
from monolith.data.shares.row_ranges import cut_rows
from monolith.data.shares.share_names import FileShare, StrideShare, WholeShare, read_name
from monolith.data.shares.share_stages import SharePass, Stride
from monolith.data.stages import Blocks, Filter, Map, Shuffle
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

_SHARES_PER_WORKER = 4  # fewer files than this are cut, so that workers end at about the same time
# Stages whose results do not change their meaning if each share is a pass of its own.
_PER_SHARE = (Blocks, Filter, Map, Repeat, Sampling, Shuffle)


def split_source(source: Iterable[Batch], num_workers: int) -> "Shares":
    """Divide a source into shares, each of which one worker reads.

    Args:
        source: pipeline, or another iterable that gives the same batches in every process and every
            time.
        num_workers: number of workers of the job.

    Raises:
        ValueError: there is no worker.
        TypeError: the source cannot be iterated a second time, and there are several workers.

    Example:
        >>> from monolith import data
        >>> source = data.arrow_table({"user": [7, 8, 9, 10, 11]}).batch(1)
        >>> shares = data.split_source(source, num_workers=2)
        >>> for name in shares.names():
        ...     [batch.features["user"].to_lists() for batch in shares.open(name)]
        [[[7]], [[9]], [[11]]]
        [[[8]], [[10]]]
    """
    return Shares(source, num_workers)


class Shares:
    """Describes how the batches of a source are divided among workers.

    Every worker makes its own source from the same task, and so the same shares. A name is valid in
    all of them, and in a job that is resumed with another number of workers. Thread-safe: each
    opened share has its own position.

    | source | shares |
    |---|---|
    | one worker | the whole source, unchanged |
    | pipeline over files without stages that need the whole pass | files, or ranges of their rows |
    | anything else | share i of n has batches i, i + n, ... |

    Args:
        source: see `split_source`.
        num_workers: see `split_source`.

    Attributes:
        num_epochs: number of epochs, each with all shares; None means without end. A `repeat` of a
            pipeline is taken out of its shares, unless there is one worker.
    """

    num_epochs: int | None

    def __init__(self, source: Iterable[Batch], num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"[split_source] expected at least 1 worker, got {num_workers}")
        if num_workers > 1 and isinstance(source, Iterator):
            raise TypeError(
                "[split_source] expected a source that can be iterated again, such as a Pipeline "
                f"or a list, got {type(source).__name__}, which ends after one pass; let "
                "Task.source return a Pipeline, or train with one worker"
            )
        self._source, self._num_workers = source, num_workers
        if num_workers > 1 and self.is_stream:
            raise InvalidArgumentError(
                f"[split_source] expected one worker to train on a stream, got {num_workers}: the "
                "positions of a stream belong to one reader; train with one worker, or let each "
                "worker be a run of its own on a part of the stream"
            )
        self._pass: Pipeline | None = None  # one pass over a pipeline
        self.num_epochs = 1
        if isinstance(source, Pipeline):
            stage, num_epochs = _without_repeat(source.stage)
            self._pass = replace(source, stage=stage)
            self.num_epochs = 1 if num_workers == 1 else num_epochs

    @property
    def is_stream(self) -> bool:
        """Whether the source is a stream."""
        return isinstance(self._source, Pipeline) and self._source.is_stream

    @cached_property
    def _files(self) -> FileSource | None:
        """Source of files whose samples do not need those of other files."""
        if self._pass is None:
            return None
        stage: Any = self._pass.stage
        while _is_per_share(stage):
            stage = stage.source
        has_all_files = isinstance(stage, FileSource) and stage.worker == (0, 1)
        return stage if has_all_files else None

    @cached_property
    def _stream(self) -> str:
        """Digest of the stages and files of a pipeline."""
        if self._pass is None:
            return ""
        head = first_arrival(self._pass.stage).arrivals[0].head
        return hashlib.sha256(json.dumps(head).encode()).hexdigest()[:16]

    @cached_property
    def _file_shares(self) -> list[FileShare]:
        """Files in their order, or ranges of their rows if there are few files."""
        if self._files is None:
            return []
        listed = list(_with_copies(self._files.files))
        shares = [FileShare(file.path, file.size, copy=copy) for file, copy in listed]
        wanted = _SHARES_PER_WORKER * self._num_workers
        if len(shares) >= wanted or not isinstance(self._files.format, PartsFormat):
            return shares
        parts = [_rows_of_parts(file, self._files.format) for file in self._files.files]
        num_rows = sum(map(sum, parts))
        size = 1 if self._pass is None else _batch_size(self._pass.stage)
        ranges: list[FileShare] = []
        for share, rows in zip(shares, parts, strict=True):
            count = sum(rows)
            num_ranges = min(-(-count * wanted // max(1, num_rows)), count // size)
            cuts = cut_rows(rows, num_ranges)
            ranges += [replace(share, rows=cut) for cut in cuts] if len(cuts) > 1 else [share]
        return ranges

    def names(self, epoch: int = 0) -> list[str]:
        """Return the names of the shares of an epoch, in the order in which they are handed out.

        Reads the numbers of rows of the files if there are few. With `shuffle_files`, the order
        differs by epoch.
        """
        if self._num_workers == 1:
            return [str(WholeShare())]
        shares = self._file_shares
        if self._files is None or len(shares) < self._num_workers:
            count = self._num_workers
            return [str(StrideShare(index, count, self._stream)) for index in range(count)]
        seed = self._files.shuffle_seed
        order = range(len(shares)) if seed is None else permutation(len(shares), seed, epoch)
        return [str(shares[number]) for number in order]

    def open(self, name: str, epoch: int = 0, position: Any | None = None) -> ShareBatches:
        """Return the batches of a share, from its beginning or from a position on.

        Args:
            name: name of a share.
            epoch: number of the epoch, on which random orders and draws depend.
            position: result of `state_dict` of the iterator of this share in this epoch.

        Raises:
            FailedPreconditionError: a file of the share has changed or is gone, or the source gives
                other batches.
            ValueError: the text is not the name of a share, or the source has no such epoch.
        """
        share = read_name(name)
        if isinstance(share, FileShare):
            return self._open_file(share, epoch, position)
        if epoch and (self._pass is None or isinstance(share, WholeShare)):
            raise ValueError(
                f"[Shares.open] expected epoch 0 of a source with one epoch, got {epoch} (share "
                f"{name}); repeat a Pipeline of several workers to have more"
            )
        if isinstance(share, WholeShare):
            if isinstance(self._source, Pipeline):
                return _begin(self._source, position)
            return CountedBatches(self._source, 0, 1, position)
        if share.stream != self._stream:
            raise FailedPreconditionError(
                "[Shares.open] expected the stages and files of the source as they were when the "
                f"share was named, got others (share {name}, now {self._stream!r}); make the "
                "source as it was then"
            )
        if self._pass is None:
            return CountedBatches(self._source, share.index, share.count, position)
        stage = Stride(SharePass(self._pass.stage, epoch), share.index, share.count)
        return _begin(replace(self._pass, stage=stage), position)

    def _open_file(self, share: FileShare, epoch: int, position: Any | None) -> ShareBatches:
        listed = _with_copies(() if self._files is None else self._files.files)
        file = next((f for f, copy in listed if (f.path, copy) == (share.path, share.copy)), None)
        if file is None or self._files is None or self._pass is None:
            raise FailedPreconditionError(
                f"[Shares.open] expected file {share.path!r} among the files of the source, as "
                "when the share was named, got none; put it back"
            )
        _check_file(file, share)
        source = replace(self._files, files=[file], shuffle_seed=None, interleave=1)
        if share.rows is not None:
            if not isinstance(source.format, PartsFormat):
                raise FailedPreconditionError(
                    f"[Shares.open] expected files that are read by rows, got {source.format.name} "
                    f"(share {share}); make the source as it was when the share was named"
                )
            source = replace(source, format=source.format.of_rows(share.rows))
        old = self._files
        (stage,) = rebuild([self._pass.stage], lambda each, copy: source if each is old else copy)
        return _begin(replace(self._pass, stage=SharePass(stage, epoch, str(share))), position)


def _begin(pipeline: Pipeline, position: Any | None) -> Batches:
    return iter(pipeline) if position is None else pipeline.resume(position)


def _is_per_share(stage: Any) -> bool:
    return isinstance(stage, _PER_SHARE) and not getattr(stage, "is_numbered", False)


def _without_repeat(stage: Stage) -> tuple[Stage, int | None]:
    """Return the stages without repetitions that a share may leave out, and the number of passes.

    A repetition below a stage that needs the whole pass stays.
    """
    counts, removed = list[Any](), set[int]()
    each: Any = stage
    while _is_per_share(each):
        if isinstance(each, Repeat):
            removed.add(id(each))
            counts.append(each.count)
        each = each.source

    def change(old: Any, copy: Any) -> Any:
        return copy.source if id(old) in removed else copy

    (changed,) = rebuild([stage], change)
    return changed, None if None in counts else prod(counts)


def _batch_size(stage: Any) -> int:
    """Return the number of samples of a batch; 1 if the pipeline does not form batches."""
    while _is_per_share(stage):
        if isinstance(stage, Blocks):
            return stage.size
        stage = stage.source.source if isinstance(stage, Shuffle) else stage.source
    return 1


def _with_copies(files: Iterable[DataFile]) -> Iterator[tuple[DataFile, int]]:
    """Yield each file, and how often its path is listed before."""
    counts: dict[str, int] = {}
    for file in files:
        copy = counts.get(file.path, 0)
        counts[file.path] = copy + 1
        yield file, copy


def _rows_of_parts(file: DataFile, file_format: PartsFormat) -> list[int]:
    file.check_size(file.size_now())
    with naming(file):
        return file_format.rows_of_parts(file)


def _check_file(file: DataFile, share: FileShare) -> None:
    """Refuse a file that is not the one that was named."""
    try:
        size = file.size_now()
    except NotFoundError as error:
        raise FailedPreconditionError(
            f"[Shares.open] expected file {share.path!r}, as when the share was named, got none; "
            "put it back"
        ) from error
    if size != share.size:
        raise FailedPreconditionError(
            f"[Shares.open] expected file {share.path!r} of {share.size} bytes, as when the share "
            f"was named, got {size}; put the file of then back"
        )
