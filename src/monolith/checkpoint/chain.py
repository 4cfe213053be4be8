"""`Chain`: the checkpoints of a run, full ones and links with what changed since the last save."""

import logging
import os
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from monolith.checkpoint.commit import remove_unnamed
from monolith.checkpoint.compact import compact
from monolith.checkpoint.cut import CheckpointSnapshot, Contents
from monolith.checkpoint.load import open_checkpoint
from monolith.checkpoint.manifest import Base, CheckpointManifest
from monolith.checkpoint.retention import Retention
from monolith.checkpoint.save import BASE_NAME, Link, WriteOptions, write
from monolith.checkpoint.storage import make_folder
from monolith.errors import OpError
from monolith.table.base import BaseTable
from monolith.table.disk.call_arguments import checked_path
from monolith.table.rows import Touched
from monolith.table.snapshot import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

FULL_REASONS = ("first", "log", "failed", "many changes", "tables", "base")
"""Reasons of a full save; see `Saved.reason`."""


@dataclass(frozen=True)
class Saved:
    """What `Chain.save` has written.

    Attributes:
        prefix: prefix of the checkpoint.
        manifest: its manifest.
        reason: why the checkpoint is full; None for a link. "first": the chain begins, or makes no
            links. "log": a table lost track of its changes: its touched log grew beyond its bound,
            or it was cleared or loaded. "failed": the save before failed. "many changes": more than
            half of the rows changed. "tables": the tables are others than before. "base": the
            checkpoint that a link would continue is gone or replaced, or has the same step.
        num_bytes: number of bytes of all its files.
    """

    prefix: str
    manifest: CheckpointManifest
    reason: str | None
    num_bytes: int

    @property
    def is_full(self) -> bool:
        """Whether the checkpoint has all rows."""
        return self.manifest.base is None


@dataclass(frozen=True)
class RestoreMark:
    """Marks the moment at which tables had the rows of a checkpoint, for `Chain.follow`.

    Attributes:
        prefix: prefix of the checkpoint.
        tables: the tables.
        cursor: cursor of their touched logs, which was read at that moment.
    """

    prefix: str
    tables: Sequence[BaseTable]
    cursor: str

    @classmethod
    def set(cls, prefix: str, tables: Iterable[BaseTable]) -> "Self":
        """Mark this moment: the tables have just been restored from the checkpoint."""
        mark = cls(prefix, list(tables), _new_cursor())
        for table in mark.tables:
            table.changes(mark.cursor)
        return mark

    def drop(self) -> None:
        """Remove the cursors from the tables that are open; a second call is fine."""
        for table in self.tables:
            try:
                table.drop_cursor(self.cursor)
            except OpError as error:  # the table is closed, or has no such cursor
                _log.debug("no cursor to drop: %s", error)


def _new_cursor() -> str:
    return f"checkpoints-{secrets.token_hex(4)}"


class Chain:
    """Saves a run into a directory: full checkpoints, and links that continue the last one.

    A link has the rows that changed since the save before and the keys of rows that went; all else
    of it is whole. It restores as a full checkpoint of the same step would, bit for bit. `compact`
    makes a full checkpoint of the newest link. Each table keeps a cursor of its touched log for the
    chain, until `close`.

    `cut` is called between two steps; one thread at a time calls `save`, and another may call
    `compact` meanwhile.

    Args:
        directory: folder of the checkpoints, made if missing. No other chain writes there.
        keep: number of checkpoints that stay; see `save`. Checkpoints that links need stay too.
        full_every: number of links after which `is_long`; 1 makes every save a full one.
        clock: function that returns seconds since 1970.

    Raises:
        ValueError: `full_every` is below 1, or `keep` is negative.

    Example:
        >>> import tempfile, torch
        >>> from monolith.checkpoint import Chain, Contents, load
        >>> from monolith.table import Segment, Table, TableConfig
        >>> table = Table(TableConfig("user", Segment(1)))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     chain = Chain(path)
        ...     for step in (1, 2):
        ...         table.assign(torch.arange(10 // step), torch.full((10 // step, 1), float(step)))
        ...         contents = Contents(tables=table, step=step, with_expired=True)
        ...         with chain.cut(contents) as snapshot:
        ...             saved = chain.save(snapshot)
        ...         print(saved.is_full)
        ...     load(path).load_tables()["user"].lookup(torch.tensor([0, 9])).tolist()
        True
        False
        [[2.0], [1.0]]
    """

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        keep: int | None = 5,
        full_every: int = 10,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(full_every, bool) or not isinstance(full_every, int) or full_every < 1:
            raise ValueError(f"[Chain] expected full_every >= 1, got {full_every!r}")
        self.directory = checked_path("[Chain]", directory)
        self._full_every, self._clock = full_every, clock
        remove_unnamed(self.directory)
        self._retention = Retention.of_directory(self.directory, keep, clock)
        self._cursor = _new_cursor()
        self._tables: Sequence[BaseTable] = ()
        self._links: list[tuple[str, str]] = []  # name and id, a full checkpoint first
        self._full_reason = "first"  # of the next save, if it has no link to continue
        self._lock = threading.Lock()  # of the directory

    @property
    def num_links(self) -> int:
        """Number of links after the last full checkpoint."""
        return max(0, len(self._links) - 1)

    @property
    def is_long(self) -> bool:
        """Whether it is time to `compact` the chain."""
        return self._makes_links and self.num_links >= self._full_every

    @property
    def _makes_links(self) -> bool:
        return self._full_every > 1

    def cut(self, contents: Contents, *, with_copies: bool = True) -> CheckpointSnapshot:
        """Take everything as it is. Call it between two steps.

        Args:
            contents: what the checkpoint holds; with a step, and with expired rows if the chain
                makes links.
            with_copies: copy the dense tensors, so that steps may go on before the save is done.

        Raises:
            ValueError: `contents` has no step, or leaves out expired rows, which a link would keep.
        """
        if contents.step is None:
            raise ValueError("[Chain.cut] expected contents with a step, got None")
        if not self._makes_links:
            return contents.cut(with_copies=with_copies)
        if not contents.with_expired:
            raise ValueError(
                "[Chain.cut] expected contents with_expired, got False: a row that expires between "
                "two saves does not change; set full_every=1 to leave expired rows out"
            )
        one = contents.tables
        tables = [one] if isinstance(one, BaseTable | Snapshot) else one
        self._tables = [table for table in tables if isinstance(table, BaseTable)]
        return contents.cut(with_copies=with_copies, cursor=self._cursor)

    def save(self, snapshot: CheckpointSnapshot, options: WriteOptions | None = None) -> Saved:
        """Write `<directory>/model.ckpt-<step>`, name it in the state file, remove older ones.

        After an error the next save is full; it may be that of the same snapshot, if its tables are
        not used up (`WriteOptions`).

        Args:
            snapshot: result of `cut`; it stays open.
            options: threads, rate, progress and clock.

        Raises:
            OpError: the directory cannot be written; older checkpoints are as they were.
        """
        options = replace(options or WriteOptions(), clock=self._clock)
        prefix = posixpath.join(self.directory, f"{BASE_NAME}-{snapshot.step}")
        try:
            with self._lock:
                link, reason = self._link(snapshot, prefix)
                make_folder(self.directory)
                manifest = write(snapshot, prefix, options, link=link)
                self._retention.add(prefix)
        except BaseException:
            self._links, self._full_reason = [], "failed"
            raise
        self._links = [*(self._links if link else ()), (posixpath.basename(prefix), manifest.id)]
        num_bytes = sum(fact.num_bytes for fact in manifest.files)
        return Saved(prefix, manifest, reason, num_bytes)

    def compact(self, options: WriteOptions | None = None) -> Saved | None:
        """Make a full checkpoint of the newest link, from its files; None if it is full already.

        Args:
            options: rate and progress.

        Raises:
            OpError: a file cannot be read or written; the chain is as it was.
        """
        if not self.num_links:
            return None
        name, identity = self._links[-1]
        prefix = posixpath.join(self.directory, name)
        manifest = compact(prefix, options, lock=self._lock)
        with self._lock:
            if (name, identity) in self._links:  # no full save meanwhile
                self._links = self._links[self._links.index((name, identity)) :]
            self._retention.remove_dropped()
        num_bytes = sum(fact.num_bytes for fact in manifest.row_files)
        return Saved(prefix, manifest, None, num_bytes)

    def follow(self, mark: RestoreMark) -> bool:
        """Continue the checkpoint from which tables were restored. The mark belongs to the chain.

        Returns:
            Whether the next save can be a link of this checkpoint; else it is full.
        """
        self.close()
        self._tables, self._cursor = mark.tables, mark.cursor
        directory = posixpath.dirname(mark.prefix)
        if not self._makes_links or directory.rstrip("/") != self.directory.rstrip("/"):
            self.close()
            return False
        checkpoint = open_checkpoint(mark.prefix)
        is_same = checkpoint.table_names == sorted(table.name for table in mark.tables)
        if not checkpoint.manifest.id or not is_same:
            return False
        self._links = [(base.name, base.manifest.id) for base in (*checkpoint.chain, checkpoint)]
        return True

    def close(self) -> None:
        """Remove the cursors from the tables that are open; a second call is fine."""
        self._links, self._full_reason = [], "first"
        RestoreMark("", self._tables, self._cursor).drop()
        self._tables = ()

    def _link(self, snapshot: CheckpointSnapshot, prefix: str) -> tuple[Link | None, str | None]:
        """Return the base and changes of a link, or None and the reason for a full save."""
        if not self._makes_links:
            return None, "first"
        changes = {table.config.name: table.changes() for table in snapshot.tables}
        if not self._links:
            return None, self._full_reason
        if any(touched.full for touched in changes.values()):
            return None, "log"
        if (reason := self._base_problem(changes, prefix)) is not None:
            return None, reason
        num_rows = {table.config.name: len(table) for table in snapshot.tables}
        num_changed = sum(len(touched.keys) for touched in changes.values())
        if 2 * num_changed > sum(num_rows.values()):
            return None, "many changes"
        return Link(Base(*self._links[-1], num_rows), changes), None

    def _base_problem(self, changes: Mapping[str, Touched], prefix: str) -> str | None:
        """Return the reason why no link can continue the last checkpoint; None if one can."""
        name, identity = self._links[-1]
        if name == posixpath.basename(prefix):
            return "base"
        try:
            manifest = open_checkpoint(posixpath.join(self.directory, name)).manifest
        except OpError:
            return "base"
        if manifest.id != identity:
            return "base"
        return None if sorted(changes) == [table.name for table in manifest.tables] else "tables"
