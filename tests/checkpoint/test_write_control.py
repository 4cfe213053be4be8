"""Saves that another thread stops or hurries, and snapshots that are written twice."""

import threading
import time

import pytest

from monolith.checkpoint import Contents, WriteOptions, open_checkpoint, write
from monolith.errors import CancelledError, FailedPreconditionError
from monolith.table.disk.workers import WriteControl
from tests.checkpoint.cases import filled, listing, saved
from tests.table.disk.cases import assert_same_table
from tests.time_limits import AT_ONCE

SLOW = 1.0  # bytes per second: hours for a save


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_save_whose_rate_is_lifted_goes_on_at_once(tmp_path, num_threads):
    control = WriteControl()
    threading.Timer(0.05, control.lift_rate).start()
    options = {"max_bytes_per_second": SLOW, "num_threads": num_threads, "control": control}
    assert open_checkpoint(saved(tmp_path / "c", **options)).verify() > 0
    assert open_checkpoint(saved(tmp_path / "d", **options)).verify() > 0


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_save_that_is_stopped_leaves_nothing_at_once(tmp_path, num_threads):
    saved(tmp_path / "c-1")
    before, control = listing(tmp_path), WriteControl()
    threading.Timer(0.05, control.stop).start()
    start = time.monotonic()
    options = {"max_bytes_per_second": SLOW, "num_threads": num_threads, "control": control}
    with pytest.raises(CancelledError, match=r"stopped"):
        saved(tmp_path / "c-2", **options)
    assert time.monotonic() - start < AT_ONCE
    assert listing(tmp_path) == before


def test_a_control_stays_stopped(tmp_path):
    control = WriteControl()
    control.stop()
    for name in ("c-1", "c-2"):
        with pytest.raises(CancelledError, match=r"^\[WriteControl\] stopped: the save was aban"):
            saved(tmp_path / name, control=control)
    assert not any(name.startswith("c-") for name in listing(tmp_path))


def test_a_snapshot_that_is_kept_can_be_written_again_after_an_error(tmp_path):
    seen = []

    def fail(progress):
        seen.append(progress.num_rows)
        if seen.count(25) == 3:  # rows and candidates are written, and then a document
            raise ZeroDivisionError

    table, expected = filled(), filled()
    with Contents(tables=table, trainer={"epoch": 1}, step=7).cut() as snapshot:
        table.erase(next(table.export()).keys)
        options = WriteOptions(num_threads=1, progress=fail, keeps_cut=True)
        with pytest.raises(ZeroDivisionError):
            write(snapshot, tmp_path / "c", options)
        write(snapshot, tmp_path / "c")
        with pytest.raises(FailedPreconditionError, match="expected an open cut"):
            write(snapshot, tmp_path / "d")
    assert_same_table(open_checkpoint(tmp_path / "c").load_tables()["user"], expected)
