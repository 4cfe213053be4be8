"""Verbs that tell what a table was and what changed: cuts and the touched log."""

from monolith.embedding.calls import TableCalls
from monolith.embedding.cut import MAX_CUTS, Snapshot
from monolith.embedding.rows import Touched
from monolith.errors import FailedPreconditionError

__all__ = ["ChangeVerbs"]


class ChangeVerbs(TableCalls):
    """The part of a table that others follow; see `TableVerbs` for the rest."""

    def cut(self) -> Snapshot:
        """All rows as they are now, to be read while writers go on. Safe with every verb.

        Every writing call is wholly before or wholly after the cut: it waits for those that run. A
        later writer keeps a copy of each row that it changes first, until the cut is closed. At
        most four cuts are open at once; `clear` is refused meanwhile, and so is a cut while
        `restore_tables` fills the table.

        Example:
            >>> import torch
            >>> from monolith.embedding import Segment, Table, TableConfig
            >>> table = Table(TableConfig("user", Segment(1)))
            >>> table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
            >>> with table.cut() as snapshot:
            ...     table.assign(torch.tensor([7]), torch.tensor([[2.0]]))
            ...     print([rows.columns["weight/0"].item() for rows in snapshot.export()])
            [1.0]
        """
        self._check_open("cut")
        with self._cut_lock:
            self._check_not_loading("[Table.cut]")  # half of a table is no moment of it
            storage = self._open_cut()
        if storage is None:
            raise FailedPreconditionError(
                f"[Table.cut] expected at most {MAX_CUTS} open cuts, got one more; close one "
                f"(table {self.name!r})"
            )
        return Snapshot(self.config, storage)

    def changes(self, cursor: str) -> Touched:
        """Keys that changed or went since the cursor's last read. Safe with every verb.

        The first read of a cursor is full, and so is one after `clear`, after a load, and where the
        log grew over its bound (`changes_bytes`) meanwhile. A read that fails drops the cursor, so
        that no key is lost. It waits for running writers.

        Args:
            cursor: name of the reader; a new name starts a new cursor.
        """
        self._check_open("changes")
        self._check_cursor("changes", cursor)
        try:
            return Touched(*self._changes(cursor))
        except BaseException:  # Ctrl-C too
            if not self._is_closed:
                self._drop_cursor(cursor)
            raise

    def drop_cursor(self, cursor: str) -> None:
        """Forget a cursor; without cursors nothing is logged. Safe with every verb."""
        self._check_open("drop_cursor")
        self._check_cursor("drop_cursor", cursor)
        if not self._drop_cursor(cursor):
            raise FailedPreconditionError(
                f"[Table.drop_cursor] expected one of the cursors {self._cursors()}, got "
                f"{cursor!r} (table {self.name!r})"
            )

    def cursors(self) -> list[str]:
        """Names of the cursors, sorted."""
        self._check_open("cursors")
        return self._cursors()

    def _check_cursor(self, verb: str, cursor: str) -> None:
        if not isinstance(cursor, str) or not cursor:
            raise TypeError(
                f"[Table.{verb}] expected cursor as a name, got {cursor!r} (table {self.name!r})"
            )
