"""`GradientExchange`: the gradients of a step from each rank to the owners of the rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from monolith.cluster.exchange.exchange_engine import ExchangeSum
from monolith.cluster.host_verbs import TRANSFERS
from monolith.cluster.ranks.channel import Channel
from monolith.cluster.ranks.key_exchange import ExchangeCounts, Keys
from monolith.cluster.ranks.rank_folds import RankPart, cut_by
from monolith.cluster.shard_hosts import narrowed
from monolith.errors import DataLossError
from monolith.ops.ragged import check_splits

_MAGIC = 0x4D6F6E6F47726431  # with the version of the format
_BITS = 62  # of an integer that has marks of tables


class KeptKeys(NamedTuple):
    """The keys of a lookup that is not yet stepped.

    Attributes:
        owned: keys from each rank, of which this rank has the rows.
        asked: ends of the keys of each table that this rank has sent, int64 (ranks, tables + 1).
    """

    owned: Sequence[Keys]
    asked: torch.Tensor


class StepHeads(NamedTuple):
    """What all ranks say of a step.

    Attributes:
        with_keys: whether a rank has keys of a table, bool (ranks, tables).
        not_finite: whether a rank has gradients of a table that are not finite, the same.
        are_regular: whether the gradients of a rank are those of all keys of its lookup.
    """

    with_keys: torch.Tensor
    not_finite: torch.Tensor
    are_regular: list[bool]


class GradientExchange:
    """Sends gradients to the owners of their keys. One thread at a time calls it.

    ```
    message to a rank    header | gradients | counts
    ```

    The owner has kept the keys of the lookup, so they do not travel again, and all sizes are known.
    A rank whose gradients are those of other keys says so in the header, and then all ranks send
    keys and gradients in two more collectives.

    Args:
        channel: of the gradients.
        dims: width of the rows of each table.
        transfer: dtype of the gradients on their way.
        with_counts: whether a table counts the occurrences of keys.
        counts: numbers of sent bytes.
    """

    def __init__(
        self,
        channel: Channel,
        dims: Sequence[int],
        transfer: str,
        counts: ExchangeCounts,
        *,
        with_counts: bool,
    ) -> None:
        self._channel, self._counts, self._with_counts = channel, counts, with_counts
        self._dims = torch.tensor(list(dims), dtype=torch.int64, device="cpu")
        self._dtype = TRANSFERS[transfer]
        self._num_words = -(-len(dims) // _BITS)
        self._head_bytes = 8 * (3 + 2 * self._num_words)

    def send_sums(
        self, summed: ExchangeSum | None, kept: KeptKeys | None, number: int, norms: list[float]
    ) -> tuple[StepHeads, list[RankPart]]:
        """Send the sums of this rank to the owners, and return what this rank has got.

        Args:
            summed: sums of this rank; None without gradients.
            kept: keys of the lookup of the step; None for a step of several lookups, in all ranks.
            number: number of the newest lookup of the step.
            norms: norm of each table.
        """
        own = self._own_parts(summed)
        rank, size = self._channel.rank, self._channel.size
        is_regular = kept is not None and _is_regular(summed, kept)
        head = self._head(own, number, norms, is_regular=is_regular)
        if size == 1:
            return self._heads([head], number), own
        sizes, messages = [0] * size, [head.view(torch.uint8)] * size
        if kept is not None:
            sizes = [self._num_bytes(splits) for _, splits in kept.owned]
            asked = [self._num_bytes(splits) for splits in kept.asked]
            blanks = [[torch.zeros(n, dtype=torch.uint8, device="cpu")] for n in asked]
            payloads = [self._payload(part) for part in own] if is_regular else blanks
            messages = [torch.cat([messages[0], *payload]) for payload in payloads]
        received_sizes = [0 if o == rank else self._head_bytes + sizes[o] for o in range(size)]
        messages[rank] = messages[rank][:0]
        received = self._exchange(messages, received_sizes)
        heads = [
            head if other == rank else block[: self._head_bytes].view(torch.int64)
            for other, block in enumerate(received)
        ]
        facts = self._heads(heads, number)
        if kept is None or not all(facts.are_regular):
            return facts, self._send_all(own)
        parts = [
            own[rank] if other == rank else self._part(keys, block[self._head_bytes :])
            for other, (keys, block) in enumerate(zip(kept.owned, received, strict=True))
        ]
        return facts, parts

    def _own_parts(self, summed: ExchangeSum | None) -> list[RankPart]:
        """Return keys, gradients and counts for each rank."""
        if summed is None:
            nothing = torch.empty(0, dtype=torch.int64, device="cpu")
            splits = torch.zeros(len(self._dims) + 1, dtype=torch.int64, device="cpu")
            floats = torch.empty(0, device="cpu")
            part = RankPart((nothing, splits), floats, nothing.int() if self._with_counts else None)
            return [part] * self._channel.size
        core = summed.requests.core
        key_sizes = torch.tensor(core.key_starts, device="cpu").diff().tolist()
        float_sizes = torch.tensor(core.float_starts, device="cpu").diff().tolist()
        grads = cut_by(float_sizes, summed.grads)
        counts = cut_by(key_sizes, summed.counts)
        return [
            RankPart(keys, part, numbers if self._with_counts else None)
            for keys, part, numbers in zip(summed.requests.parts(), grads, counts, strict=True)
        ]

    def _head(
        self, own: Sequence[RankPart], number: int, norms: list[float], *, is_regular: bool
    ) -> torch.Tensor:
        lengths = torch.stack([part.keys[1] for part in own]).diff().sum(0)
        finite = torch.tensor(norms, dtype=torch.float64, device="cpu").isfinite()
        words = [*self._words(lengths > 0), *self._words(~finite)]
        fields = [_MAGIC, number, int(is_regular), *words]
        return torch.tensor(fields, dtype=torch.int64, device="cpu")

    def _words(self, marks: torch.Tensor) -> list[int]:
        bits = torch.zeros(self._num_words * _BITS, dtype=torch.int64, device="cpu")
        bits[: len(marks)] = marks
        powers = torch.arange(_BITS, dtype=torch.int64, device="cpu")
        words: list[int] = (bits.view(-1, _BITS) << powers).sum(1).tolist()
        return words

    def _marks(self, words: torch.Tensor) -> torch.Tensor:
        powers = torch.arange(_BITS, dtype=torch.int64, device="cpu")
        bits = (words.unsqueeze(1) >> powers) & 1
        return bits.bool().view(-1)[: len(self._dims)]

    def _heads(self, heads: Sequence[torch.Tensor], number: int) -> StepHeads:
        words = torch.stack(list(heads))
        wrong = [r for r, row in enumerate(words.tolist()) if row[:2] != [_MAGIC, number]]
        if wrong:
            raise DataLossError(
                f"[GradientExchange] expected the gradients of lookup {number}, got others from "
                f"rank {wrong[0]}; let all ranks make the same steps"
            )
        middle = 3 + self._num_words
        with_keys = torch.stack([self._marks(row[3:middle]) for row in words])
        not_finite = torch.stack([self._marks(row[middle:]) for row in words])
        return StepHeads(with_keys, not_finite, (words[:, 2] > 0).tolist())

    def _num_bytes(self, splits: torch.Tensor) -> int:
        floats = int((splits.diff() * self._dims).sum())
        return self._dtype.itemsize * floats + (4 * int(splits[-1]) if self._with_counts else 0)

    def _payload(self, part: RankPart) -> list[torch.Tensor]:
        grads = narrowed("[RanksEngine.step]", "gradients", part.grads, self._dtype)
        counts = [] if part.counts is None else [part.counts.view(torch.uint8)]
        return [grads.view(torch.uint8), *counts]

    def _part(self, keys: Keys, data: torch.Tensor) -> RankPart:
        num_floats = int((keys[1].diff() * self._dims).sum())
        middle = self._dtype.itemsize * num_floats
        grads = data[:middle].clone().view(self._dtype).float()
        counts = data[middle:].clone().view(torch.int32) if self._with_counts else None
        return RankPart(keys, grads, counts)

    def _exchange(
        self, messages: Sequence[torch.Tensor], received_sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        sent = torch.cat(list(messages))
        self._counts.gradient_bytes += len(sent)
        received = torch.empty(sum(received_sizes), dtype=torch.uint8, device="cpu")
        self._channel.all_to_all(received, sent, received_sizes, list(map(len, messages)))
        return [part.clone() for part in cut_by(received_sizes, received)]

    def _send_all(self, own: Sequence[RankPart]) -> list[RankPart]:
        """Send keys and gradients, whatever the lookup was; all ranks take part."""
        rank, size, num_ends = self._channel.rank, self._channel.size, len(self._dims) + 1
        ends = torch.stack([part.keys[1] for part in own]).view(-1)
        theirs = torch.empty_like(ends)
        self._channel.all_to_all(theirs, ends, [num_ends] * size, [num_ends] * size)
        splits = list(theirs.view(size, num_ends))
        for row in splits:
            check_splits("[GradientExchange]", "splits", row, int(row[-1]))
        sizes = [8 * int(row[-1]) + self._num_bytes(row) for row in splits]
        sizes[rank] = 0
        messages = [torch.cat([p.keys[0].view(torch.uint8), *self._payload(p)]) for p in own]
        messages[rank] = messages[rank][:0]
        parts = []
        for other, block in enumerate(self._exchange(messages, sizes)):
            middle = 8 * int(splits[other][-1])
            keys = block[:middle].clone().view(torch.int64), splits[other]
            parts.append(own[rank] if other == rank else self._part(keys, block[middle:]))
        return parts

    def send_occurrences(
        self, keys: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Send each occurrence of the keys of one table, so that its owner's policy sees them all.

        Args:
            keys: keys for each rank.
            grads: float32 (n, dim) for each rank.
            dim: width of a row.

        Returns:
            Keys and gradients from all ranks, in their order.
        """
        size = self._channel.size
        lengths = torch.tensor([len(part) for part in keys], device="cpu")
        theirs = torch.empty_like(lengths)
        self._channel.all_to_all(theirs, lengths, [1] * size, [1] * size)
        counts = theirs.tolist()
        own_keys = torch.empty(sum(counts), dtype=torch.int64, device="cpu")
        self._channel.all_to_all(own_keys, torch.cat(list(keys)), counts, lengths.tolist())
        own_grads = torch.empty(sum(counts) * dim, device="cpu")
        sizes = [dim * n for n in counts], [dim * n for n in lengths.tolist()]
        self._channel.all_to_all(own_grads, torch.cat(list(grads)).view(-1), *sizes)
        return own_keys, own_grads.view(-1, dim)


def _is_regular(summed: ExchangeSum | None, kept: KeptKeys) -> bool:
    """Whether the sums are those of all keys of the lookup, key by key."""
    if summed is None:
        return not bool(kept.asked[:, -1].any())
    return len(summed.items) == 1 and summed.requests is summed.items[0][0].requests
