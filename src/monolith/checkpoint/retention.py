"""Which checkpoints are kept."""

from collections.abc import Callable, Iterable

from monolith.checkpoint.files import split_prefix
from monolith.checkpoint.state import MANIFEST_SUFFIX
from monolith.checkpoint.storage import modified_time
from monolith.errors import NotFoundError


class Retention:
    """Keeps the newest checkpoints, some for their age, and exempt ones always.

    Args:
        max_to_keep: number of checkpoints that are kept; None or 0 keeps all, and lists none.
        every_n_hours: one that would go is kept if it was saved after the next such time.
        clock: seconds since 1970.
    """

    def __init__(
        self, max_to_keep: int | None, every_n_hours: float, clock: Callable[[], float]
    ) -> None:
        self._max_to_keep, self._clock = max_to_keep, clock
        self._every_seconds = every_n_hours * 3600
        self._next_keep = clock() + self._every_seconds
        self._kept: list[tuple[str, float]] = []

    @property
    def kept(self) -> list[tuple[str, float]]:
        """Prefix and time of each checkpoint, oldest first."""
        return list(self._kept)

    def set_kept(self, kept: Iterable[tuple[str, float]]) -> None:
        """Go on with these."""
        self._kept = list(kept)

    def recover(self, prefixes: Iterable[str]) -> None:
        """Go on with those of these that exist; the times of their manifests count."""
        found = []
        for prefix in prefixes:
            try:
                found.append((prefix, modified_time(prefix + MANIFEST_SUFFIX)))
            except NotFoundError:
                continue
        self._kept = found

    def record(self, prefix: str) -> None:
        """A checkpoint was saved; one of the same prefix is the newest now."""
        if self._max_to_keep:
            self._kept = [each for each in self._kept if each[0] != prefix]
            self._kept.append((prefix, self._clock()))

    def next_to_go(self, exempt: set[str]) -> str | None:
        """Take the oldest one beyond the number off the list; None if it is kept on disk.

        Args:
            exempt: names of checkpoints that do not count and never go.
        """
        counted = [each for each in self._kept if split_prefix(each[0])[1] not in exempt]
        if not self._max_to_keep or len(counted) <= self._max_to_keep:
            return None
        oldest = counted[0]
        self._kept = [each for each in self._kept if each is not oldest]
        if oldest[1] > self._next_keep:
            self._next_keep += self._every_seconds
            return None
        return oldest[0]
