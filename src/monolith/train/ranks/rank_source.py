"""`RankSource`: the batches of one rank, and what all ranks have left of the data."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monolith.data import Batch, split_source
from monolith.data.shares.counted_batches import CountedBatches
from monolith.data.shares.division import Shares
from monolith.data.shares.share_names import WholeShare, read_name

_log = logging.getLogger(__name__)

_KIND = "ranks"
_REST = "rest:"  # begins the name of every n-th batch of a source that one process has begun

Left = list[tuple[int, str, Any]]
"""Shares with their epochs, and the positions in them; None at the beginning."""


class RankPosition(NamedTuple):
    """A position of one rank.

    Attributes:
        left: shares that the rank had left when its iteration began.
        num_done: number of shares of `left`, and then of the epochs, that the rank has finished.
        position: position in the next share; None at its beginning.
    """

    left: Left
    num_done: int
    position: Any


def is_of_ranks(position: Any) -> bool:
    """Whether a saved position is a list of shares: that of all ranks, or of a job's workers."""
    return isinstance(position, Mapping) and position.get("kind") == _KIND


def position_of_shares(lists: Sequence[Left], division: int, epoch: int) -> dict[str, Any]:
    """Return the position of all ranks as JSON accepts it.

    Args:
        lists: what each rank has left.
        division: number by which the epochs after these shares are divided.
        epoch: number of the first of these epochs.
    """
    every = [[list(share) for share in left] for left in lists]
    return {"kind": _KIND, "division": division, "epoch": epoch, "left": every}


def trained_text(num_samples: int | None) -> str:
    """Return the number of trained samples as text; older checkpoints do not know it."""
    return "its samples" if num_samples is None else f"{num_samples:,} samples"


def warn_read_again(why: str, num_trained: int | None) -> None:
    """Warn that a run that goes on with a checkpoint reads its data from the beginning.

    Args:
        why: what the position of the checkpoint does not fit.
        num_trained: number of samples that were trained before; None if it is not known.
    """
    _log.warning(
        "the position of the checkpoint cannot be used, as %s: data is read from the beginning, "
        "and %s that were trained before are trained once more",
        why,
        trained_text(num_trained),
    )


class RankSource(Iterable[Batch]):
    """Divides the batches of a source among ranks, which never ask each other.

    The shares of an epoch are dealt out in turn. A position of all ranks goes on with any number of
    ranks: with the same one each rank has its own shares, with another one the shares that are left
    are dealt out anew, and each batch is trained once.

    The shares of a job with servers are named in the same way, so either goes on with the other.

    Args:
        source: source of the task, equal in all ranks.
        rank: number of this rank.
        size: number of ranks.
        num_trained: number of samples that were trained before; None if it is not known.

    Raises:
        TypeError: the source cannot be divided.
    """

    def __init__(
        self,
        source: Iterable[Batch],
        rank: int,
        size: int,
        *,
        num_trained: int | None = None,
    ) -> None:
        self._source, self._rank, self._size = source, rank, size
        self._num_trained = num_trained
        self._division = size
        self._shares = _divided(source, size)
        self._first_epoch = 0

    @property
    def is_stream(self) -> bool:
        """Whether the source is a stream, which one rank reads as a whole."""
        return getattr(self._source, "is_stream", False)

    def __iter__(self) -> "RankBatches":
        return RankBatches(self, [], 0, None)

    def resume(self, position: Any) -> "RankBatches":
        """Go on after a checkpoint of ranks, of a job, or of a run in one process.

        Args:
            position: position of all ranks, or of the source.
        """
        return RankBatches(self, self.lists_at(position)[self._rank], 0, None)

    def lists_at(self, position: Any) -> list[Left]:
        """Return what each rank has left at a position, and begin further epochs after that.

        Shares of which this source knows nothing are left out, with a warning: then all data is
        left.

        Args:
            position: position of all ranks, or of the source.
        """
        if is_of_ranks(position):
            position = self._of_one(position)
        if position is None:
            return [[]] * self._size
        if not is_of_ranks(position):
            self._set_division(1)  # all epochs are in the rest of the source
            self._first_epoch = 1
            return [[(0, f"{_REST}{rank}/{self._size}", position)] for rank in range(self._size)]
        lists: list[Left] = [[(e, name, p) for e, name, p in rank] for rank in position["left"]]
        every = [share for rank in lists for share in rank]
        unknown = [name for _, name, _ in every if not self._knows(name)]
        if unknown:
            warn_read_again(f"the source has no share {unknown[0]}", self._num_trained)
            return [[]] * self._size
        self._set_division(position["division"])
        self._first_epoch = position["epoch"]
        if len(lists) != self._size:
            lists = [every[rank :: self._size] for rank in range(self._size)]
        return lists

    def _knows(self, name: str) -> bool:
        """Whether a name is one of this kind of source."""
        if name.startswith(_REST):
            return hasattr(self._source, "resume")
        if not isinstance(self._shares, Shares):
            return True  # the source refuses what it does not know
        try:
            read_name(name)
        except ValueError:
            return False
        return True

    def _of_one(self, position: Any) -> Any:
        """Return the position in the whole source, if one rank has read it and several go on."""
        shares = [share for rank in position["left"] for share in rank]
        is_whole = len(shares) == 1 and shares[0][1] == str(WholeShare())
        return shares[0][2] if is_whole and self._size > 1 else position

    def _set_division(self, division: int) -> None:
        self._division = division
        if isinstance(self._shares, Shares):  # others divide themselves
            self._shares = _divided(self._source, division)

    @property
    def num_epochs(self) -> int | None:
        """Number of epochs; None without end."""
        return self._shares.num_epochs

    def names(self, epoch: int = 0) -> list[str]:
        """Return the names of the shares of an epoch."""
        return list(self._shares.names(epoch))

    def own_names(self, epoch: int, rank: int | None = None) -> Sequence[str]:
        """Return the names of a rank's shares in an epoch."""
        return self._shares.names(epoch)[self._rank if rank is None else rank :: self._size]

    def open(self, name: str, epoch: int, position: Any) -> Any:
        """Return the batches of a share, from a position on."""
        if name.startswith(_REST):
            index, count = map(int, name.removeprefix(_REST).split("/"))
            if position is None or "batches" not in position:
                position = {"batches": 0, "source": position}
            return CountedBatches(self._source, index, count, position)
        return self._shares.open(name, epoch, position)

    def left_of(self, position: RankPosition | None) -> tuple[Left, int]:
        """Return what a rank has left, and the first epoch of which it has left all."""
        if position is None:
            return [], self._first_epoch
        left, epoch, number = list(position.left), self._first_epoch, position.num_done
        while len(left) < number:
            left += [(epoch, name, None) for name in self.own_names(epoch)]
            epoch += 1
        left = left[number:]
        if position.position is not None:
            if not left:
                left += [(epoch, name, None) for name in self.own_names(epoch)]
                epoch += 1
            left[0] = (*left[0][:2], position.position)
        return left, epoch

    def joined(self, lists: Sequence[tuple[Left, int]]) -> dict[str, Any]:
        """Return the position of all ranks as JSON accepts it.

        Args:
            lists: result of `left_of` in each rank.
        """
        epoch = max(first for _, first in lists)
        every = []
        for rank, (left, first) in enumerate(lists):
            later = [(e, n, None) for e in range(first, epoch) for n in self.own_names(e, rank)]
            every.append([*left, *later])
        return position_of_shares(every, self._division, epoch)

    @property
    def first_epoch(self) -> int:
        """Number of the first epoch that is dealt out in turn."""
        return self._first_epoch


def _divided(source: Iterable[Batch], number: int) -> Shares:
    """Return the shares of a source; one with a method `divide` has shares of its own."""
    divide = getattr(source, "divide", None)
    shares: Shares = split_source(source, number) if divide is None else divide(number)
    return shares


class RankBatches(Iterator[Batch]):
    """Iterates over the batches of one rank. Not thread-safe.

    Args:
        source: of the batches.
        left: shares that come before those of further epochs.
        num_done: number of shares that are done.
        position: position in the next share.
    """

    def __init__(self, source: RankSource, left: Left, num_done: int, position: Any) -> None:
        self._source, self._left = source, left
        self._num_done, self._position = num_done, position
        self._shares = self._list_shares()
        self._batches: Any = None

    def _list_shares(self) -> Iterator[tuple[int, str, Any]]:
        yield from self._left
        epoch = self._source.first_epoch
        while self._source.num_epochs is None or epoch < self._source.num_epochs:
            names = self._source.own_names(epoch)
            for name in names:
                yield epoch, name, None
            if not names and self._source.num_epochs is None:
                return  # a rank without shares waits for the others
            epoch += 1

    def __next__(self) -> Batch:
        while True:
            if self._batches is None:
                epoch, name, position = next(self._shares)
                self._batches = self._source.open(name, epoch, position)
            try:
                batch: Batch = next(self._batches)
            except StopIteration:
                self.close()
                self._num_done, self._position = self._num_done + 1, None
            else:
                self._position = self._batches.state_dict()
                return batch

    def state_dict(self) -> RankPosition:
        """Return the position after the last batch."""
        return RankPosition(self._left, self._num_done, self._position)

    def close(self) -> None:
        """Close the files of the share."""
        batches, self._batches = self._batches, None
        if batches is not None:
            with contextlib.suppress(ValueError):
                batches.close()
