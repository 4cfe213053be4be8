"""The benchmark of saves and loads: what both sides find before they are timed."""

import mmap

from benchmarks import disk, harness
from benchmarks.workload import Workload


def test_memory_is_warm_and_files_are_cold_before_each_read(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_FOLDER", tmp_path / "disk")
    measured = disk.Disk(Workload(1000, 4))
    calls = []
    monkeypatch.setattr(disk, "touch_and_free", lambda num_bytes: calls.append(num_bytes))
    monkeypatch.setattr(disk, "drop_from_cache", lambda paths: calls.append(len(paths)))
    for read in (measured.load, measured.read):
        calls.clear()
        read()
        assert calls[0] >= 1
        assert calls[1] == 3 * measured.num_bytes


def test_warm_memory_is_private_as_that_of_tables(monkeypatch):
    asked = []

    class Area(mmap.mmap):
        def __new__(cls, file, size, flags=mmap.MAP_SHARED):
            asked.append(flags)
            return super().__new__(cls, file, size, flags)

    monkeypatch.setattr(mmap, "mmap", Area)
    harness.touch_and_free(1 << 22)
    assert asked == [mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS]
