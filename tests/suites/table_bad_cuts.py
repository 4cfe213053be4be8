"""Test which cuts are refused, and what happens when a cut ends early."""

import pytest

from monolith.errors import FailedPreconditionError
from tests.suites.table_base import TableCase, column, keys, refuses


class BadCuts(TableCase):
    def test_a_fifth_cut_is_refused(self):
        table = self.table()
        snapshots = [table.cut() for _ in range(4)]
        text = "[Table.cut] expected at most 4 open cuts, got one more; close one (table 'user')"
        with refuses(table, FailedPreconditionError, text):
            table.cut()
        snapshots[1].close()
        table.cut().close()

    def test_closing_twice_frees_one_cut(self):
        table = self.table()
        snapshots = [table.cut() for _ in range(4)]
        snapshots[0].close()
        snapshots[0].close()
        snapshots.append(table.cut())
        with pytest.raises(FailedPreconditionError):
            table.cut()

    def test_a_cut_that_nobody_holds_is_closed(self):
        table = self.table()
        for _ in range(5):
            table.cut()
        table.clear()

    @pytest.mark.parametrize(
        ("verb", "call"),
        [
            ("export", lambda snapshot: snapshot.export()),
            ("export_candidates", lambda snapshot: snapshot.export_candidates()),
            ("release", lambda snapshot: snapshot.release([0])),
        ],
    )
    def test_a_closed_cut_is_refused(self, verb, call):
        with self.table().cut() as snapshot:
            pass
        with pytest.raises(FailedPreconditionError) as caught:
            call(snapshot)
        text = f"[Snapshot.{verb}] expected an open cut, got a closed one (table 'user')"
        assert str(caught.value) == text

    def test_an_export_that_meets_the_close_of_its_cut_is_refused(self):
        table = self.table()
        table.assign(keys(1, 2), column(1, 2))
        with table.cut() as snapshot:
            chunks = snapshot.export(chunk_rows=1)
            next(chunks)
        with pytest.raises(FailedPreconditionError, match="expected an open cut"):
            next(chunks)

    @pytest.mark.parametrize("verb", ["export", "export_candidates"])
    def test_released_partitions_are_refused(self, verb):
        with self.table().cut() as snapshot:
            snapshot.release([9, 5])
            with pytest.raises(FailedPreconditionError) as caught:
                getattr(snapshot, verb)([3, 5, 9])
        assert str(caught.value) == (
            f"[Snapshot.{verb}] expected partitions that were not released, got 5 (table 'user')"
        )

    def test_an_export_that_meets_a_release_is_refused(self):
        table = self.table()
        table.assign(keys(1, 2), column(1, 2))
        with table.cut() as snapshot:
            chunks = snapshot.export(chunk_rows=1)
            next(chunks)
            snapshot.release(range(4096))
            with pytest.raises(FailedPreconditionError, match="that were not released, got"):
                next(chunks)

    def test_clear_is_refused_while_a_cut_is_open(self):
        table = self.table()
        table.assign(keys(1), column(1), now=7)
        table.changes("a")
        with table.cut():
            text = "[Table.clear] expected no open cut, got one; close it first (table 'user')"
            with refuses(table, FailedPreconditionError, text):
                table.clear()
            assert (table.latest_time, table.changes("a").full) == (7, False)
        table.clear()
        assert len(table) == 0

    def test_a_cut_of_a_closed_table_is_refused(self):
        table = self.table()
        snapshot = table.cut()
        table.close()
        text = r"\[Table\.{}\] expected an open table, got a closed one \(table 'user'\)"
        for verb, call in {
            "cut": table.cut,
            "export": lambda: next(snapshot.export()),
            "export_candidates": snapshot.export_candidates,
        }.items():
            with pytest.raises(FailedPreconditionError, match=text.format(verb)):
                call()
        snapshot.close()
