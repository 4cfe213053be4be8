"""`KeyIndex`: from keys to the newest position of each key, for whole arrays of keys."""

import numpy as np

from monolith.data.operations.sample_rows import Ids

_Run = tuple[Ids, Ids]


class KeyIndex:
    """Finds the newest position of keys. Not thread-safe.

        runs   keys [1, 4, 4, 9]  positions [2, 0, 3, 1]   # sorted by key; the oldest run first
               keys [4, 7]        positions [5, 4]         # finds 4 at 5

    A run has at least twice as many keys as the next one, so there are few runs, and each key is
    merged a logarithmic number of times. Positions never decrease from one `add` to the next.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, keys: Ids, positions: Ids) -> None:
        """Add keys at positions above those of all earlier keys."""
        if not len(keys):
            return
        run = _sorted(keys, positions)
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            old = self._runs.pop()
            pairs = zip(old, run, strict=True)
            run = _sorted(*(np.concatenate(pair) for pair in pairs))
        self._runs.append(run)

    def find(self, keys: Ids) -> Ids:
        """Return the newest position of each key, or -1."""
        order = np.argsort(keys)  # sorted queries find their places in the cache
        queries = keys[order]
        newest = np.full(len(keys), -1, np.int64)
        for run_keys, positions in self._runs:
            at = np.searchsorted(run_keys, queries, side="right") - 1  # the newest of equal keys
            has = run_keys[at] == queries  # at is -1 below the first key, which differs
            has &= at >= 0
            newest[has] = positions[at[has]]
        found = np.empty_like(newest)
        found[order] = newest
        return found


def _sorted(keys: Ids, positions: Ids) -> _Run:
    order = np.argsort(keys, kind="stable")  # of equal keys the newest is last
    return keys[order], positions[order]
