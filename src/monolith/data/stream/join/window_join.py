"""`WindowJoin`: which action belongs to which impression, and which samples leave when.

    impression       |-------- window --------|                     key is remembered
                     t                   t + window                 t + 2 * window
    action  outside  | joined, or late if the | outside
                     | sample left at once    |

Every event is handled in the order in which it comes: the watermark moves, samples whose window the
watermark passed leave, then the event itself is judged. The events of a block are handled together,
with the same result: a moment is a position in the block, and `marks` has the watermark at each
position. So a sample is open at a moment if `marks[moment]` has not passed the end of its window.

A key is remembered for a second window: no action that is accepted can come later, so each action
of a sample that left is known to be late.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monolith.data.operations.sample_rows import Ids, Mask
from monolith.data.stream.join.event_watermark import Watermark
from monolith.data.stream.join.impressions import Impressions
from monolith.data.stream.join.join_settings import MAX_KINDS
from monolith.data.stream.join.waiting_actions import WaitingActions

IMPRESSION, OTHER = -1, -2  # in place of the number of a kind
_END = 1 << 62  # after every window
_COUNTS = (
    "impressions",
    "late_impressions",
    "duplicate_impressions",
    "actions",
    "joined_actions",
    "late_actions",
    "outside_actions",
    "duplicate_actions",
    "unmatched_actions",
    "other_actions",
)


@dataclass(frozen=True, slots=True)
class Events:
    """Events in the order in which they came.

    Args:
        keys: key of each event.
        times: event time of each event.
        kinds: number of each action's kind, `IMPRESSION`, or `OTHER` for a kind of no label.
        rows: row of each event in its block.
    """

    keys: Ids
    times: Ids
    kinds: Ids
    rows: Ids

    def part(self, start: int, end: int) -> "Events":
        """Return the events from `start` to before `end`."""
        at = slice(start, end)
        return Events(self.keys[at], self.times[at], self.kinds[at], self.rows[at])


@dataclass(frozen=True, slots=True)
class Left:
    """Samples that left, in this order.

    Args:
        keys: key of each sample.
        kinds: bits of the kinds of the actions of each sample.
        pages: number of the page with the features of each sample.
        rows: row in the page.
    """

    keys: Ids
    kinds: Ids
    pages: Ids
    rows: Ids

    @classmethod
    def joined(cls, parts: "Sequence[Left]") -> "Left":
        """Return the samples of all parts, at least one part."""
        if len(parts) == 1:
            return parts[0]
        names = ("keys", "kinds", "pages", "rows")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class _Added:
    """Impressions that a part of a block added, sorted by key."""

    keys: Ids
    positions: Ids
    moments: Ids

    def find(self, keys: Ids) -> Ids:
        """Return the place of each key in these arrays, or -1."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: Ids = np.where(self.keys[at] == keys, at, -1)
        return found


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of an impression and an action; `moments` is when both are there."""

    positions: Ids
    moments: Ids
    times: Ids
    kinds: Ids

    def where(self, mask: Mask | Ids) -> "_Pairs":
        return _Pairs(self.positions[mask], self.moments[mask], self.times[mask], self.kinds[mask])


class WindowJoin:
    """State of a join without features. Not thread-safe.

    Args:
        window: longest time from an impression to an action.
        lateness: see `Watermark`.
        leaves_at_once: whether a sample leaves with its first action.
        num_inputs: number of inputs.

    Attributes:
        impressions: open impressions, and remembered keys.
        waiting: actions whose impression has not come.
        watermark: watermark over all inputs.
        counts: numbers of events, by what became of them.
    """

    def __init__(self, window: int, lateness: int, leaves_at_once: bool, num_inputs: int) -> None:
        self._window, self._leaves_at_once = window, leaves_at_once
        self.impressions = Impressions()
        self.waiting = WaitingActions.none()
        self.watermark = Watermark(num_inputs, lateness)
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))

    def take(self, source: int, events: Events, page: int) -> tuple[int, Left]:
        """Handle events, at least one, of an input.

        Args:
            source: number of the input.
            events: events of a block.
            page: number of the page of this block.

        Returns:
            The number of impressions that were added, and the samples that left.
        """
        marks = self.watermark.advance(source, events.times)
        parts, start, num_added = [], 0, 0
        while start < len(marks):
            # While the watermark moves by at most a window, no impression is both added and
            # forgotten, so a key is added at most once.
            end = int(np.searchsorted(marks, marks[start] + self._window, side="right"))
            added, left = self._take(events.part(start, end), marks[start:end], page)
            parts.append(left)
            num_added += added
            start = end
        self.impressions.forget(int(marks[-1]) - 2 * self._window)
        return num_added, Left.joined(parts)

    def leave_out(self, source: int) -> Left:
        """Do not wait for an input until its next event; return the samples that left."""
        return self._pass(self.watermark.leave_out(source))

    def finish(self) -> Left:
        """Close all windows; every later event is late."""
        self.watermark.value = _END
        return self._pass(_END)

    def _pass(self, mark: int) -> Left:
        self._expire(mark)
        return self._leave(np.array([mark]), np.empty(0, np.int64), np.empty(0, np.int64))

    def _take(self, events: Events, marks: Ids, page: int) -> tuple[int, Left]:
        moments = np.flatnonzero(events.kinds >= 0)
        num_other = int(np.count_nonzero(events.kinds == OTHER))
        self.counts["actions"] += len(moments) + num_other
        self.counts["other_actions"] += num_other
        is_late = events.times[moments] + self._window < marks[moments]
        self.counts["late_actions"] += int(np.count_nonzero(is_late))
        moments = moments[~is_late]
        known = self._known(events.keys[moments], marks[moments])
        added = self._add(events, marks, page)
        gone = self._join(self._pairs(events, marks, moments, known, added), marks)
        self._expire(int(marks[-1]))
        return len(added.keys), self._leave(marks, *gone)

    def _known(self, keys: Ids, marks: Ids) -> Ids:
        """Return the position of each key's impression if it is remembered, else -1."""
        positions = self.impressions.find(keys)
        has = np.flatnonzero(positions >= 0)
        times = self.impressions.time[positions[has]]
        positions[has[times + 2 * self._window < marks[has]]] = -1
        return positions

    def _add(self, events: Events, marks: Ids, page: int) -> _Added:
        """Add the impressions that are neither late nor duplicates."""
        moments = np.flatnonzero(events.kinds == IMPRESSION)
        self.counts["impressions"] += len(moments)
        is_late = events.times[moments] + self._window < marks[moments]
        self.counts["late_impressions"] += int(np.count_nonzero(is_late))
        moments = moments[~is_late]
        new = moments[self._known(events.keys[moments], marks[moments]) < 0]
        new = new[np.sort(np.unique(events.keys[new], return_index=True)[1])]
        self.counts["duplicate_impressions"] += len(moments) - len(new)
        keys = events.keys[new]
        positions = self.impressions.add(keys, events.times[new], page, events.rows[new])
        order = np.argsort(keys)
        return _Added(keys[order], positions[order], new[order])

    def _pairs(self, events: Events, marks: Ids, moments: Ids, known: Ids, added: _Added) -> _Pairs:
        """Return the actions that have an impression; those without it wait."""
        at = added.find(events.keys[moments])
        is_new = (at >= 0) & (added.moments[at] < moments) if len(added.keys) else at >= 0
        positions = known.copy()
        positions[is_new] = added.positions[at[is_new]]
        direct = positions >= 0
        now = moments[direct]
        pairs = _Pairs(positions[direct], now, events.times[now], events.kinds[now])
        wait = moments[~direct]
        self.waiting = self.waiting.plus(
            WaitingActions(events.keys[wait], events.times[wait], events.kinds[wait])
        )
        if not len(self.waiting) or not len(added.keys):
            return pairs
        return self._with_waiting(pairs, marks, added)

    def _with_waiting(self, pairs: _Pairs, marks: Ids, added: _Added) -> _Pairs:
        """Return the pairs, with those of waiting actions whose impression was added."""
        waiting = self.waiting
        at = added.find(waiting.key)  # later actions are pairs already
        moments = added.moments[at]  # of some impression, where `at` is -1
        has = (at >= 0) & (waiting.time + self._window >= marks[moments])
        if not has.any():
            return pairs
        ready, self.waiting = waiting.where(has), waiting.where(~has)
        # Before the others, because pairs of one moment are joined in this order.
        return _Pairs(
            np.concatenate([added.positions[at[has]], pairs.positions]),
            np.concatenate([moments[has], pairs.moments]),
            np.concatenate([ready.time, pairs.times]),
            np.concatenate([ready.kind, pairs.kinds]),
        )

    def _join(self, pairs: _Pairs, marks: Ids) -> tuple[Ids, Ids]:
        """Join actions to impressions; return which samples leave at once, and when."""
        state = self.impressions
        pairs = pairs.where(np.lexsort((pairs.moments, pairs.positions)))
        times = state.time[pairs.positions]
        inside = (pairs.times >= times) & (pairs.times <= times + self._window)
        self.counts["outside_actions"] += len(inside) - int(np.count_nonzero(inside))
        pairs, times = pairs.where(inside), times[inside]
        is_open = state.is_open[pairs.positions] & (times + self._window >= marks[pairs.moments])
        num_pairs = len(is_open)
        pairs = pairs.where(is_open)
        firsts = np.flatnonzero(np.diff(pairs.positions, prepend=-1))  # of each impression
        gone = pairs.positions[firsts], pairs.moments[firsts]
        if self._leaves_at_once:
            lengths = np.diff(firsts, append=len(pairs.positions))
            pairs = pairs.where(pairs.moments == np.repeat(gone[1], lengths))
        self.counts["late_actions"] += num_pairs - len(pairs.positions)
        self._set_kinds(pairs)
        return gone if self._leaves_at_once else (gone[0][:0], gone[1][:0])

    def _set_kinds(self, pairs: _Pairs) -> None:
        kinds = self.impressions.kinds
        is_new = (kinds[pairs.positions] >> pairs.kinds) & 1 == 0
        codes = pairs.positions * (MAX_KINDS + 1) + pairs.kinds
        is_first = np.zeros(len(codes), np.bool_)
        is_first[np.unique(codes, return_index=True)[1]] = True
        new = pairs.where(is_new & is_first)
        for kind in np.unique(new.kinds):  # an impression occurs once for each kind
            kinds[new.positions[new.kinds == kind]] |= 1 << int(kind)
        self.counts["joined_actions"] += len(new.kinds)
        self.counts["duplicate_actions"] += len(codes) - len(new.kinds)

    def _expire(self, mark: int) -> None:
        """Give up the waiting actions whose impression would be late."""
        if len(self.waiting):
            is_in_time = self.waiting.time + self._window >= mark
            num_old = len(self.waiting)
            self.waiting = self.waiting.where(is_in_time)
            self.counts["unmatched_actions"] += num_old - len(self.waiting)

    def _leave(self, marks: Ids, gone: Ids, gone_moments: Ids) -> Left:
        """Close windows; return these samples and those that leave at once, in order."""
        state = self.impressions
        state.is_open[gone] = False
        closed = state.closing(int(marks[-1]) - self._window)
        state.is_open[closed] = False
        moments = np.searchsorted(marks, state.time[closed] + self._window, side="right")
        moments = np.concatenate([moments, gone_moments])
        positions = np.concatenate([closed, gone])
        # At one moment, closed impressions come first: the watermark has passed their windows only.
        positions = positions[np.lexsort((positions, state.time[positions], moments))]
        return Left(
            state.key[positions],
            state.kinds[positions],
            state.page[positions],
            state.row[positions],
        )
