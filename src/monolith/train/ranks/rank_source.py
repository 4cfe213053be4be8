"""`RankSource`: the batches of one rank, and what all ranks have left of the data."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monolith.data import Batch, split_source
from monolith.data.shares.counted_batches import CountedBatches
from monolith.data.shares.division import Shares
from monolith.data.shares.share_names import WholeShare

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
    """Whether a saved position is that of all ranks of a job."""
    return isinstance(position, Mapping) and position.get("kind") == _KIND


class RankSource(Iterable[Batch]):
    """Divides the batches of a source among ranks, which never ask each other.

    The shares of an epoch are dealt out in turn. A position of all ranks goes on with any number of
    ranks: with the same one each rank has its own shares, with another one the shares that are left
    are dealt out anew, and each batch is trained once.

    Args:
        source: source of the task, equal in all ranks.
        rank: number of this rank.
        size: number of ranks.

    Raises:
        TypeError: the source cannot be divided.
    """

    def __init__(self, source: Iterable[Batch], rank: int, size: int) -> None:
        self._source, self._rank, self._size = source, rank, size
        self._division = size
        self._shares = _divided(source, size)
        self._first_epoch = 0

    def __iter__(self) -> "RankBatches":
        return RankBatches(self, [], 0, None)

    def resume(self, position: Any) -> "RankBatches":
        """Go on after a checkpoint of ranks, or of a run in one process.

        Args:
            position: position of all ranks, or of the source.
        """
        if is_of_ranks(position):
            position = self._of_one(position)
        if position is None:
            return RankBatches(self, [], 0, None)
        if not is_of_ranks(position):
            left: Left = [(0, f"{_REST}{self._rank}/{self._size}", position)]
            self._set_division(1)  # all epochs are in the rest of the source
            self._first_epoch = 1
            return RankBatches(self, left, 0, None)
        self._set_division(position["division"])
        self._first_epoch = position["epoch"]
        lists: list[Left] = [[(e, name, p) for e, name, p in rank] for rank in position["left"]]
        if len(lists) != self._size:
            every = [share for rank in lists for share in rank]
            lists = [every[rank :: self._size] for rank in range(self._size)]
        return RankBatches(self, lists[self._rank], 0, None)

    def _of_one(self, position: Any) -> Any:
        """Return the position in the whole source, if one rank has read it and several go on."""
        shares = [share for rank in position["left"] for share in rank]
        is_whole = len(shares) == 1 and shares[0][1] == str(WholeShare())
        return shares[0][2] if is_whole and self._size > 1 else position

    def _set_division(self, division: int) -> None:
        self._division = division
        self._shares = _divided(self._source, division)

    @property
    def num_epochs(self) -> int | None:
        """Number of epochs; None without end."""
        return self._shares.num_epochs

    def own_names(self, epoch: int, rank: int | None = None) -> Sequence[str]:
        """Return the names of a rank's shares in an epoch."""
        return self._shares.names(epoch)[self._rank if rank is None else rank :: self._size]

    def open(self, epoch: int, name: str, position: Any) -> Any:
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
            every.append([list(share) for share in [*left, *later]])
        return {"kind": _KIND, "division": self._division, "epoch": epoch, "left": every}

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
                self._batches = self._source.open(epoch, name, position)
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
