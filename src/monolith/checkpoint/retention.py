"""Keep the newest checkpoints of a directory: the state file lists them, older ones are removed."""

import logging
import math
import os
import posixpath
import time
from collections.abc import Callable, Iterable

from monolith.checkpoint.commit import remove, split_prefix
from monolith.checkpoint.load import Checkpoint, open_checkpoint
from monolith.checkpoint.manifest import MANIFEST_SUFFIX
from monolith.checkpoint.state import (
    STATE_FILE,
    CheckpointState,
    exempt_names,
    read_checkpoint_state,
    write_checkpoint_state,
)
from monolith.checkpoint.storage import modified_time
from monolith.errors import NotFoundError, OpError

_log = logging.getLogger(__name__)


class Retention:
    """Keeps the newest checkpoints, some for their age, and exempt ones always.

    Args:
        keep: number of checkpoints that stay; None or 0 keeps all, and adds none to the
            list of `recover` but the current one.
        exempt: returns base names of checkpoints that never go and do not count; None: the names
            cannot be read now, so nothing goes.
        every_n_hours: one checkpoint more stays for each such time.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        keep: int | None,
        exempt: Callable[[], set[str] | None] = set,
        *,
        every_n_hours: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keep, self._exempt, self._clock = keep, exempt, clock
        self._every_seconds = every_n_hours * 3600
        self._next_keep = clock() + self._every_seconds
        self._kept: list[tuple[str, float]] = []
        self._dropped: list[str] = []  # off the list, with files, bases before their links

    @classmethod
    def of_directory(
        cls,
        directory: "str | os.PathLike[str]",
        keep: int | None,
        clock: Callable[[], float] = time.time,
    ) -> "Retention":
        """Go on with the checkpoints of a directory, and exempt those of `monolith_checkpoint`.

        Raises:
            ValueError: `keep` is negative.
        """
        if keep is not None and keep < 0:
            raise ValueError(f"[Retention] expected keep >= 0, got {keep}; 0 keeps all checkpoints")
        retention = cls(keep, lambda: exempt_names(directory), clock=clock)
        state = read_checkpoint_state(directory)
        if state is not None:
            retention.recover(state.paths_in(directory))
        return retention

    @property
    def kept(self) -> list[tuple[str, float]]:
        """Prefix and time of each checkpoint, oldest first."""
        return list(self._kept)

    def set_kept(self, kept: Iterable[tuple[str, float]]) -> None:
        """Go on with these prefixes and times."""
        self._kept = list(kept)

    def recover(self, prefixes: Iterable[str]) -> None:
        """Go on with the checkpoints of these prefixes that exist, as old as their manifests.

        Checkpoints that are off the list, but that links on the list need, go when none does.
        """
        self._kept = []
        for prefix in prefixes:
            try:
                self._kept.append((prefix, modified_time(prefix + MANIFEST_SUFFIX)))
            except NotFoundError:
                continue
        listed = {prefix for prefix, _ in self._kept}
        try:
            bases = [base.prefix for prefix in listed for base in bases_of(prefix)]
        except OpError as error:
            _log.warning("checkpoints that only links need are not deleted: %s", error)
            return
        self._dropped = [prefix for prefix in dict.fromkeys(bases) if prefix not in listed]

    def add(self, prefix: str, filename: str = STATE_FILE, *, relative: bool = True) -> None:
        """Make a checkpoint the current one of its directory, and remove the oldest beyond `keep`.

        Args:
            prefix: of a checkpoint that is complete; one of the same prefix goes off the list.
            filename: the state file.
            relative: see `write_checkpoint_state`.

        Raises:
            OpError: the state file cannot be written; nothing is removed then.
        """
        self.record(prefix, filename, relative=relative)
        self.remove_dropped()

    def record(self, prefix: str, filename: str = STATE_FILE, *, relative: bool = True) -> None:
        """Make a checkpoint the current one, and drop the oldest beyond `keep` from the list.

        `remove_dropped` removes the files of dropped checkpoints. Arguments and errors are those of
        `add`.
        """
        if self._keep:
            self._kept = [item for item in self._kept if item[0] != prefix]
            self._kept.append((prefix, self._clock()))
        kept, next_keep, last = self._next()
        listed = kept or [(prefix, self._clock())]
        state = CheckpointState(prefix, [path for path, _ in listed], [at for _, at in listed])
        write_checkpoint_state(split_prefix(prefix)[0], state, filename, relative=relative)
        # Not before: a checkpoint that is off the list is never removed.
        self._kept, self._next_keep = kept, next_keep
        if last is not None:
            self._dropped.append(last)

    def remove_dropped(self) -> None:
        """Remove the files of the checkpoints that `record` dropped, unless a kept link needs them.

        What a link needs is removed by a later call, when no link needs it any more.
        """
        if not self._dropped:
            return
        needed = self._needed()
        if needed is None:
            return
        dropped = [prefix for prefix in self._dropped if prefix not in needed]
        self._dropped = [prefix for prefix in self._dropped if prefix in needed]
        for prefix in reversed(dropped):  # links before their bases, also if this is killed
            try:
                remove(prefix)
            except OpError as error:  # the new checkpoint is complete all the same
                _log.warning("the old checkpoint %s is not removed: %s", prefix, error)

    def _needed(self) -> set[str] | None:
        """Return the prefixes that links on the list, and exempt ones, continue; None: unknown."""
        exempt = self._exempt()
        if exempt is None:
            return None
        directories = {split_prefix(prefix)[0] for prefix in self._dropped}
        links = [prefix for prefix, _ in self._kept]
        links += [posixpath.join(folder, name) for folder in directories for name in exempt]
        try:
            return {base.prefix for prefix in links for base in bases_of(prefix)}
        except OpError as error:
            _log.warning("no checkpoint is deleted: a link may need it, but %s", error)
            return None

    def _next(self) -> tuple[list[tuple[str, float]], float, str | None]:
        """The next `_kept` and `_next_keep`, and the checkpoint to remove."""
        exempt = self._exempt()
        if exempt is None:
            _log.warning("no checkpoint is deleted: nobody knows which ones are exempt")
            return self._kept, self._next_keep, None
        counted = [item for item in self._kept if split_prefix(item[0])[1] not in exempt]
        if not self._keep or len(counted) <= self._keep:
            return self._kept, self._next_keep, None
        oldest = counted[0]
        kept = [item for item in self._kept if item is not oldest]
        if oldest[1] > self._next_keep:
            return kept, self._next_keep + self._every_seconds, None
        return kept, self._next_keep, oldest[0]


def bases_of(prefix: str) -> list[Checkpoint]:
    """Return the checkpoints that a link continues; empty for a full one, or where there is none.

    Raises:
        OpError: a manifest cannot be read, or one of the chain is missing.
    """
    try:
        checkpoint = open_checkpoint(prefix)
    except NotFoundError:
        return []
    return checkpoint.chain
