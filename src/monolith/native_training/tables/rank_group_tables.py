"""`RankedGroup`: many tables with a shard in each rank, whose rows are exchanged by collectives."""

from collections.abc import Mapping, Sequence

import torch

from monolith.cluster.ranks.channel import Channel
from monolith.cluster.ranks.rank_group import RankGroup
from monolith.native_training.tables.sharded_group import ShardedGroup
from monolith.native_training.tables.updates import AppliedUpdate
from monolith.ops import Ragged

_NO_TIME = -1


class RankedGroup:
    """The verbs of a `ShardedGroup` that training needs, over ranks.

    All ranks call the same verbs in the same order, one thread for lookups and one for updates.

    Args:
        local: tables of this rank, as one shard.
        ranks: the ranks.

    """

    def __init__(self, local: ShardedGroup, ranks: RankGroup) -> None:
        self._local, self._ranks = local, ranks
        self._widths = local.order.widths

    def lookup(self, parts: Sequence[Ragged], *, step: int = 0) -> list[torch.Tensor]:
        """Return the rows of the keys of each rank, flat.

        Args:
            parts: keys of each rank, with a row per table.
            step: training step, for a `OneBit` view.
        """
        asked = _Received(self._ranks.lookups, parts, self._widths, None)
        rows = self._local.lookup([asked.keys], step=step)[0]
        return asked.answer(rows)

    def apply_gradients(
        self,
        parts: Sequence[Ragged],
        grads: Sequence[torch.Tensor],
        *,
        counts: Sequence[torch.Tensor] | None = None,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """Update the rows of this rank with the gradients of all ranks, summed by key.

        Args:
            parts: keys of each rank, with a row per table.
            grads: flat gradients of the keys.
            counts: int32, occurrences of each key; 1 if None.
            step: training step.
            learning_rates: of some tables, by name, one per segment.
            now: time of the update in seconds; the latest one of all ranks counts.

        Returns:
            Counts of this rank's shard.
        """
        given = _Received(self._ranks.gradients, parts, self._widths, now)
        own = [given.take(grads)]
        numbers = None if counts is None else [given.take_counts(counts)]
        return self._local.apply_gradients(
            [given.keys],
            own,
            counts=numbers,
            step=step,
            learning_rates=learning_rates,
            now=given.now,
        )


class _Received:
    """The keys that this rank has got from all ranks, table by table.

    Keys travel rank by rank, and each rank's table by table. They are sorted by table here, those
    of a table by rank.
    """

    def __init__(
        self, channel: Channel, parts: Sequence[Ragged], widths: torch.Tensor, now: int | None
    ) -> None:
        self._channel, self._widths = channel, widths
        self._sent = torch.stack([part.lengths for part in parts])  # (ranks, tables)
        time = _NO_TIME if now is None else now
        heads = torch.nn.functional.pad(self._sent, (0, 1), value=time)
        got = self._exchange(heads.reshape(-1), [heads.shape[1]] * len(parts), None)
        got = got.view(len(parts), -1)
        self._got, latest = got[:, :-1], int(got[:, -1].max())
        self.now = None if latest == _NO_TIME else latest
        tables = torch.arange(len(widths), device="cpu").repeat(len(parts))
        self._table_of = tables.repeat_interleave(self._got.reshape(-1))
        self._order = torch.argsort(self._table_of, stable=True)
        self._key_counts = [self._sent.sum(1).tolist(), self._got.sum(1).tolist()]
        self._float_counts = [(n * widths).sum(1).tolist() for n in (self._sent, self._got)]
        keys = self._exchange(torch.cat([part.values for part in parts]), *self._key_counts)
        splits = torch.nn.functional.pad(self._got.sum(0).cumsum(0), (1, 0))
        self.keys = Ragged(keys[self._order], splits)

    def _exchange(
        self, sent: torch.Tensor, sent_sizes: list[int], received_sizes: list[int] | None
    ) -> torch.Tensor:
        sizes = sent_sizes if received_sizes is None else received_sizes
        received = sent.new_empty(sum(sizes))
        self._channel.all_to_all(received, sent.contiguous(), sizes, sent_sizes)
        return received

    def take(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        """Send the gradients of the keys, and return those of `keys`, flat."""
        flat = self._exchange(torch.cat([part.float() for part in grads]), *self._float_counts)
        return _moved(flat, self._widths[self._table_of], self._order)

    def take_counts(self, counts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Send the occurrences of the keys, and return those of `keys`."""
        return self._exchange(torch.cat(list(counts)), *self._key_counts)[self._order]

    def answer(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Send the rows of `keys` back, and return those of the keys that this rank has sent."""
        widths = self._widths[self._table_of[self._order]]
        back = _moved(rows, widths, torch.argsort(self._order))
        sent, received = self._float_counts
        flat = self._exchange(back, received, sent)
        return list(torch.split_with_sizes(flat, sent))


def _moved(flat: torch.Tensor, widths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return the rows of other widths in another order.

    Example:
        >>> _moved(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 1]), torch.tensor([1, 0]))
        tensor([3., 1., 2.])
    """
    new = widths[order]
    shift = (widths.cumsum(0) - widths)[order] - (new.cumsum(0) - new)
    return flat[shift.repeat_interleave(new) + torch.arange(len(flat), device="cpu")]
