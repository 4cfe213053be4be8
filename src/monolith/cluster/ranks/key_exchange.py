"""`KeyExchange`: the keys of a lookup from each rank to each owner, in one collective."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from monolith.cluster.ranks.channel import Channel
from monolith.errors import DataLossError

_MAGIC = 0x4D6F6E6F4B657931  # with the version of the format
_NO_TIME = -1
_HISTORY = 16  # messages of a rank from which the size of its next one is taken
_SLACK = 32  # one of so many parts is added to that size
_ROUND = 8

Keys = tuple[torch.Tensor, torch.Tensor]
"""Keys of all tables, int64, and where those of each table begin and end, int64 (tables + 1,)."""


class LookupFacts(NamedTuple):
    """What a rank says with the keys of a lookup.

    Attributes:
        num_samples: number of samples of its batch.
        has_ended: whether its data has ended, so that the batch is empty.
        time: latest time of its samples; None without times.
        now: its clock.
    """

    num_samples: int
    has_ended: bool = False
    time: int | None = None
    now: int = 0


class KeyMessages(NamedTuple):
    """The keys that this rank has got for one lookup.

    Attributes:
        number: number of the lookup, equal in all ranks.
        facts: those of all ranks.
        keys: keys from each rank, of which this rank has the rows.
    """

    number: int
    facts: list[LookupFacts]
    keys: list[Keys]

    @property
    def num_samples(self) -> int:
        """Number of samples of all ranks."""
        return sum(facts.num_samples for facts in self.facts)

    @property
    def has_ended(self) -> bool:
        """Whether the data of all ranks has ended."""
        return all(facts.has_ended for facts in self.facts)


@dataclass
class ExchangeCounts:
    """Numbers of bytes that this rank has sent to other ranks.

    Attributes:
        key_bytes: keys and their headers, as the distinct ids need.
        padding_bytes: what was sent with them and not needed.
        row_bytes: rows.
        gradient_bytes: gradients, counts and their headers.
        num_overflows: collectives with keys that did not fit.
    """

    key_bytes: int = 0
    padding_bytes: int = 0
    row_bytes: int = 0
    gradient_bytes: int = 0
    num_overflows: int = 0

    @property
    def num_bytes(self) -> int:
        """Number of all bytes."""
        return self.key_bytes + self.padding_bytes + self.row_bytes + self.gradient_bytes

    @property
    def padding_share(self) -> float:
        """Share of the bytes that was not needed."""
        return self.padding_bytes / max(1, self.num_bytes)


class KeyExchange:
    """Sends the keys of lookups. One thread at a time calls it, in all ranks in the same order.

    ```
    message to a rank    header | ends of the keys of each table | keys | padding
    ```

    All messages of a rank have one size, which follows from the headers that all ranks have seen:
    the largest need of its last 16 lookups, and a little more. So no rank has to ask for sizes. If
    the keys of a rank do not fit, all ranks see so in its header, and send the rest once more.

    Args:
        channel: of the lookups.
        num_tables: number of tables.

    Attributes:
        counts: numbers of sent bytes.
    """

    def __init__(self, channel: Channel, num_tables: int) -> None:
        self._channel, self._num_tables = channel, num_tables
        self._header = 6 + num_tables
        self._needs = [deque[int](maxlen=_HISTORY) for _ in range(channel.size)]
        self._number = 0
        self.counts = ExchangeCounts()

    def _bound(self, rank: int) -> int:
        """Return the number of integers of a rank's next messages, which all ranks know."""
        need = max(self._needs[rank], default=self._header)
        return -(-(need + need // _SLACK) // _ROUND) * _ROUND

    def exchange(self, parts: Sequence[Keys], facts: LookupFacts) -> KeyMessages:
        """Send keys to their owners, and return those that this rank owns.

        Args:
            parts: keys for each rank.
            facts: what this rank says of the lookup.
        """
        rank, size = self._channel.rank, self._channel.size
        number, self._number = self._number, self._number + 1
        if size == 1:
            return KeyMessages(number, [facts], [parts[0]])
        need = self._header + max(len(keys) for keys, _ in parts)
        bounds = [self._bound(other) for other in range(size)]
        sent_sizes = [0 if other == rank else bounds[rank] for other in range(size)]
        received_sizes = [0 if other == rank else bound for other, bound in enumerate(bounds)]
        head = _numbers_of(facts, need)
        sent = self._messages(parts, head, bounds[rank])
        received = torch.empty(sum(received_sizes), dtype=torch.int64, device="cpu")
        self._channel.all_to_all(received, sent, received_sizes, sent_sizes)
        blocks = list(torch.split_with_sizes(received, received_sizes))
        heads = [
            head if other == rank else self._checked(block, other, bounds[other])
            for other, block in enumerate(blocks)
        ]
        for needs, (*_, needed) in zip(self._needs, heads, strict=True):
            needs.append(needed)
        rests = self._rests(parts, blocks, heads, bounds)
        keys = [
            parts[rank] if other == rank else self._keys_of(block, rest)
            for other, (block, rest) in enumerate(zip(blocks, rests, strict=True))
        ]
        self._count(parts, bounds[rank])
        return KeyMessages(number, [_facts_of(head) for head in heads], keys)

    def _messages(self, parts: Sequence[Keys], head: list[int], bound: int) -> torch.Tensor:
        """Return the messages to all other ranks, one after another."""
        rank, size, start = self._channel.rank, self._channel.size, self._header
        sent = torch.zeros(size - 1, bound, dtype=torch.int64, device="cpu")
        sent[:, : len(head)] = torch.tensor(head, dtype=torch.int64, device="cpu")
        others = [part for other, part in enumerate(parts) if other != rank]
        for message, (keys, splits) in zip(sent, others, strict=True):
            message[len(head) : start] = splits[1:]
            fitting = keys[: bound - start]
            message[start : start + len(fitting)] = fitting
        return sent.view(-1)

    def _checked(self, block: torch.Tensor, other: int, bound: int) -> list[int]:
        """Return the numbers of a header, after a check of them and of the sizes after them."""
        head = block[:6].tolist()
        ends = block[6 : self._header]
        num_keys = int(ends[-1]) if self._num_tables else 0
        is_right = (
            head[0] == _MAGIC
            and not bool((torch.diff(ends, prepend=ends.new_zeros(1)) < 0).any())
            and self._header + num_keys <= head[5]
        )
        if not is_right:
            raise DataLossError(
                f"[KeyExchange] expected the keys of a lookup from rank {other}, got other numbers "
                f"({head}, {bound} in all); start all ranks with the same version"
            )
        return head

    def _rests(
        self,
        parts: Sequence[Keys],
        blocks: Sequence[torch.Tensor],
        heads: Sequence[list[int]],
        bounds: Sequence[int],
    ) -> Sequence[torch.Tensor]:
        """Return the keys of each rank that did not fit; a collective if there are some."""
        rank, start = self._channel.rank, self._header
        if all(head[-1] <= bound for head, bound in zip(heads, bounds, strict=True)):
            return [blocks[rank]] * len(blocks)
        self.counts.num_overflows += 1
        rests = [keys[max(0, bounds[rank] - start) :] for keys, _ in parts]
        rests[rank] = rests[rank][:0]
        sizes = [
            0 if other == rank else max(0, start + self._num_keys(block) - bounds[other])
            for other, block in enumerate(blocks)
        ]
        received = torch.empty(sum(sizes), dtype=torch.int64, device="cpu")
        self._channel.all_to_all(received, torch.cat(rests), sizes, list(map(len, rests)))
        return torch.split_with_sizes(received, sizes)

    def _num_keys(self, block: torch.Tensor) -> int:
        return int(block[self._header - 1]) if self._num_tables else 0

    def _keys_of(self, block: torch.Tensor, rest: torch.Tensor) -> Keys:
        splits = torch.nn.functional.pad(block[6 : self._header], (1, 0))
        keys = block[self._header : self._header + self._num_keys(block)]
        return (torch.cat([keys, rest]) if len(rest) else keys.clone()), splits

    def _count(self, parts: Sequence[Keys], bound: int) -> None:
        for other, (keys, _) in enumerate(parts):
            if other != self._channel.rank:
                need = self._header + len(keys)
                self.counts.key_bytes += 8 * need
                self.counts.padding_bytes += 8 * max(0, bound - need)


def _numbers_of(facts: LookupFacts, need: int) -> list[int]:
    time = _NO_TIME if facts.time is None else facts.time
    return [_MAGIC, facts.num_samples, int(facts.has_ended), time, facts.now, need]


def _facts_of(head: Sequence[int]) -> LookupFacts:
    _, num_samples, has_ended, time, now, _ = head
    return LookupFacts(num_samples, bool(has_ended), None if time == _NO_TIME else time, now)
