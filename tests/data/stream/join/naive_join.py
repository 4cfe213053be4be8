"""The join as its documentation says it, one event after another: the meaning of `OnlineJoiner`."""

from collections import Counter

UNKNOWN = -(1 << 62)


class NaiveJoin:
    """Returns samples as (row of the impression, names of its kinds)."""

    def __init__(self, window, lateness=0, leaves_at_once=False, kinds=(), num_inputs=2):
        self.window, self.lateness, self.at_once = window, lateness, leaves_at_once
        self.kinds = kinds
        self.newest = [UNKNOWN] * num_inputs
        self.is_waited_for = [True] * num_inputs
        self.mark = UNKNOWN
        self.shown = {}  # key: impression, the oldest first
        self.waiting = []
        self.counts = Counter()

    def add(self, source, row, kind=None):
        """An event: a row with "key" and "time"; an impression if it has no kind."""
        self.newest[source] = max(self.newest[source], row["time"])
        self.is_waited_for[source] = True
        samples = self.advance()
        self.counts["impressions" if kind is None else "actions"] += 1
        is_late = row["time"] + self.window < self.mark
        if kind is None:
            samples += self.show(row, is_late)
        elif kind not in self.kinds:
            self.counts["other_actions"] += 1
        elif is_late:
            self.counts["late_actions"] += 1
        elif row["key"] in self.shown:
            samples += self.join(self.shown[row["key"]], [(row["time"], kind)])
        else:
            self.waiting.append((row["key"], row["time"], kind))
        return samples

    def show(self, row, is_late):
        if is_late:
            self.counts["late_impressions"] += 1
            return []
        if row["key"] in self.shown:
            self.counts["duplicate_impressions"] += 1
            return []
        impression = {"row": row, "kinds": set(), "has_left": False}
        self.shown[row["key"]] = impression
        ours = [(time, kind) for key, time, kind in self.waiting if key == row["key"]]
        self.waiting = [each for each in self.waiting if each[0] != row["key"]]
        return self.join(impression, ours)

    def join(self, impression, actions):
        start, had_left = impression["row"]["time"], impression["has_left"]
        for time, kind in actions:
            if not start <= time <= start + self.window:
                self.counts["outside_actions"] += 1
            elif had_left:
                self.counts["late_actions"] += 1
            elif kind in impression["kinds"]:
                self.counts["duplicate_actions"] += 1
            else:
                self.counts["joined_actions"] += 1
                impression["kinds"].add(kind)
        if self.at_once and impression["kinds"] and not had_left:
            return [self.leave(impression)]
        return []

    def leave(self, impression):
        impression["has_left"] = True
        self.counts["positives" if impression["kinds"] else "all_negatives"] += 1
        return impression["row"], impression["kinds"]

    def advance(self):
        pairs = zip(self.newest, self.is_waited_for, strict=True)
        times = [time for time, is_waited_for in pairs if is_waited_for]
        if times:
            self.mark = max(self.mark, min(times) - self.lateness)
        open_ones = [each for each in self.shown.values() if not each["has_left"]]
        closed = [e for e in open_ones if e["row"]["time"] + self.window < self.mark]
        samples = [self.leave(each) for each in sorted(closed, key=lambda e: e["row"]["time"])]
        for key, impression in list(self.shown.items()):
            if impression["row"]["time"] + 2 * self.window < self.mark:
                del self.shown[key]
        is_in_time = [time + self.window >= self.mark for _, time, _ in self.waiting]
        self.counts["unmatched_actions"] += is_in_time.count(False)
        pairs = zip(self.waiting, is_in_time, strict=True)
        self.waiting = [each for each, keep in pairs if keep]
        return samples

    def leave_out(self, source):
        self.is_waited_for[source] = False
        return self.advance()

    def finish(self):
        self.newest, self.is_waited_for = [1 << 62], [True]
        self.lateness = 0
        return self.advance()
