"""Saves whose files are written by the shards of a table."""

import errno
import threading

import pytest
import torch

from monolith.checkpoint import Chain, Contents, WriteOptions, open_checkpoint, write
from monolith.cluster import LocalServers, ShardedTable
from monolith.cluster.disk import shard_jobs
from monolith.cluster.transport import LocalTransport
from monolith.errors import CancelledError, NotFoundError, OpError
from monolith.table import Table
from monolith.table.disk import load_tables, save_tables, workers
from monolith.table.disk.new_file import LocalFile
from monolith.table.reference import ReferenceTable
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.checkpoint.cases import listing
from tests.checkpoint.chains import (
    CONFIG,
    NOW,
    assert_restores,
    few_changes,
    first_rows,
    new_table,
    save,
)
from tests.suites.table_base import assert_same_rows


def sharded(num_shards=3, config=CONFIG, **options):
    return ShardedTable.local(config, num_shards, clock=lambda: NOW, **options)


def filled(num_shards=3, config=CONFIG, **options):
    table = sharded(num_shards, config, **options)
    first_rows(table)
    return table


def calls_of(table, seen):
    """Note the verbs of the calls to the first shard."""
    transport = table._client.transports[0]

    class Noting(LocalTransport):
        def send(self, call):
            seen.append(call.verb)
            return super().send(call)

    table._client.transports[0] = Noting(transport.host)
    return table


def test_shards_write_their_files_and_no_row_travels(tmp_path):
    seen = []
    table = calls_of(filled(), seen)
    write(Contents(tables=table), tmp_path / "m")
    verbs = dict.fromkeys(seen)
    assert "start_save" in verbs
    assert not {"cut_chunk", "cut_entries", "cut_candidates", "export_chunk"} & set(verbs)
    assert_restores(tmp_path / "m", table)


def test_each_shard_writes_files_of_its_partitions(tmp_path):
    write(Contents(tables=filled(3)), tmp_path / "m")
    (entry,) = open_checkpoint(tmp_path / "m").manifest.tables
    runs = [((0, 1365),), ((1366, 2730),), ((2731, 4095),)]
    assert [file.partitions for file in entry.files] == runs * 2
    assert [file.kind for file in entry.files] == ["rows"] * 3 + ["candidates"] * 3


def test_a_single_shard_writes_the_bytes_of_a_local_save(tmp_path):
    options = WriteOptions(clock=lambda: 1.5)
    local = new_table()
    first_rows(local)
    write(Contents(tables=local), tmp_path / "a" / "m", options)
    write(Contents(tables=filled(1)), tmp_path / "b" / "m", options)
    assert listing(tmp_path / "a") == listing(tmp_path / "b")


def rows_of(prefix):
    """Columns of all files of rows and of candidates, in the order of the manifest."""
    import pyarrow as pa

    checkpoint = open_checkpoint(prefix)
    files = {"rows": [], "candidates": []}
    for file in checkpoint.manifest.tables[0].files:
        with pa.OSFile(f"{prefix}{file.path}") as source:
            files[file.kind].append(pa.ipc.open_file(source).read_all())
    return {kind: pa.concat_tables(tables).combine_chunks() for kind, tables in files.items()}


@pytest.mark.parametrize("num_shards", [2, 5])
def test_the_files_of_shards_have_the_content_of_a_local_save(tmp_path, num_shards):
    local = new_table()
    first_rows(local)
    for name, table in (("a", local), ("b", filled(num_shards))):
        write(Contents(tables=table), tmp_path / name, WriteOptions(clock=lambda: 1.5))
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    a, b = (open_checkpoint(tmp_path / name).manifest.tables[0] for name in "ab")
    assert (a.config, a.num_update_calls, a.latest_time) == (b.config, b.num_update_calls, NOW)


def test_expired_rows_are_left_out_by_the_time_of_the_whole_table(tmp_path):
    table, keys = sharded(), torch.arange(300)
    for now in (NOW - 5 * 86400, NOW - 4 * 86400):
        table.apply_gradients(keys, torch.ones(300, table.dim), now=now)
    table.apply_gradients(keys[:1], torch.ones(1, table.dim), now=NOW)
    write(Contents(tables=table), tmp_path / "m")
    (entry,) = open_checkpoint(tmp_path / "m").manifest.tables
    assert (entry.num_rows, entry.num_expired) == (1, len(table) - 1)


@pytest.mark.parametrize("kind", [Table, ReferenceTable])
def test_a_save_is_loaded_into_one_table(tmp_path, kind):
    table = filled(4)
    save_tables(table, tmp_path)
    other = kind(CONFIG, clock=lambda: NOW)
    from monolith.table.disk import restore_tables

    restore_tables(other, tmp_path)
    assert_same_rows(other, table)


def test_a_part_of_the_partitions_is_saved_by_the_shards_that_have_them(tmp_path):
    table = filled()
    save_tables(table, tmp_path, partitions=range(1000, 2000))
    keys = load_tables(tmp_path, partitions=range(1000, 2000))["user"].export()
    expected = [rows.keys for rows in table.export(range(1000, 2000))]
    assert torch.equal(torch.cat([rows.keys for rows in keys]), torch.cat(expected))


def test_shards_that_share_partitions_leave_the_files_to_the_client(tmp_path):
    seen = []
    table = calls_of(filled(routing=FloorModRouting(3)), seen)
    write(Contents(tables=table), tmp_path / "m")
    assert "start_save" not in seen
    assert_same_rows(open_checkpoint(tmp_path / "m").load_tables()["user"], table)


def test_a_chain_of_links_restores_every_step(tmp_path):
    chain, table = Chain(tmp_path), filled(3)
    saves = [save(chain, table, 0)]
    for step in range(1, 5):
        few_changes(table, step)
        saves.append(save(chain, table, step))
        assert_restores(saves[-1].prefix, table)
    assert [saved.is_full for saved in saves] == [True, False, False, False, False]
    chain.compact()
    assert_restores(saves[-1].prefix, table)


def test_a_link_of_shards_is_that_of_one_table(tmp_path):
    manifests = []
    for name, table in (("a", new_table()), ("b", sharded(3))):
        first_rows(table)
        chain = Chain(tmp_path / name)
        save(chain, table, 0)
        few_changes(table, 1)
        manifests.append(save(chain, table, 1).manifest)
    a, b = (m.tables[0] for m in manifests)
    counts = [
        {
            kind: sum(f.num_rows for f in entry.files if f.kind == kind)
            for kind in ("rows", "candidates", "tombstones")
        }
        for entry in (a, b)
    ]
    assert counts[0] == counts[1]
    assert manifests[0].base.num_rows == manifests[1].base.num_rows


class SlowFile(LocalFile):
    """A file whose first write waits for an event, in one of the shards' threads."""

    go = threading.Event()

    def write(self, data):
        assert self.go.wait(60)
        super().write(data)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr("monolith.table.disk.folder.LocalFile", SlowFile)
    SlowFile.go.clear()
    yield SlowFile.go
    SlowFile.go.set()


def in_background(call):
    result = {}

    def run():
        try:
            result["value"] = call()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_training_goes_on_while_shards_write(tmp_path, slow):
    table, expected = filled(), new_table()
    first_rows(expected)
    with Contents(tables=table, step=1).cut() as snapshot:
        thread, result = in_background(lambda: write(snapshot, tmp_path / "m"))
        few_changes(table, 3)
        slow.set()
        thread.join(60)
    assert "error" not in result
    assert_restores(tmp_path / "m", expected)


def test_a_stopped_save_leaves_no_file(tmp_path, slow):
    table, control = filled(), workers.WriteControl()
    options = WriteOptions(control=control)
    thread, result = in_background(lambda: write(Contents(tables=table), tmp_path / "m", options))
    while not any(tmp_path.rglob("*.arrow*")):
        thread.join(0.001)
    control.stop()
    slow.set()
    thread.join(60)
    assert isinstance(result["error"], CancelledError)
    assert listing(tmp_path) == {}
    write(Contents(tables=table), tmp_path / "m")
    assert_restores(tmp_path / "m", table)


def test_a_lifted_rate_ends_a_slow_save(tmp_path):
    table, control = filled(), workers.WriteControl()
    options = WriteOptions(control=control, max_bytes_per_second=1.0)
    thread, result = in_background(lambda: write(Contents(tables=table), tmp_path / "m", options))
    while not any(tmp_path.rglob("*.arrow*")):
        thread.join(0.001)
    thread.join(0.2)
    assert thread.is_alive()
    control.lift_rate()
    thread.join(60)
    assert "error" not in result
    assert_restores(tmp_path / "m", table)


def test_the_rate_is_divided_among_the_shards(tmp_path, monkeypatch):
    rates = []
    monkeypatch.setattr(
        shard_jobs, "Throttle", lambda rate, wait: rates.append(rate) or workers_throttle(wait)
    )
    write(Contents(tables=filled(4)), tmp_path / "m", WriteOptions(max_bytes_per_second=4e6))
    assert rates == [1e6] * 4


def workers_throttle(wait):
    from monolith.table.disk.writer import Throttle

    return Throttle(None, wait=wait)


class FullDisk:
    """Lets the disk be full once, for a file of a shard."""

    def __init__(self, monkeypatch):
        self.num_left = 1
        write = LocalFile.write

        def limited(file, data):
            if ".arrow" in file._file.name and self.num_left:
                self.num_left -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            write(file, data)

        monkeypatch.setattr(LocalFile, "write", limited)


def test_a_full_disk_of_a_server_fails_the_save_by_name(tmp_path, monkeypatch):
    with LocalServers(2) as servers:
        routing = PartitionRouting(2)
        table = ShardedTable.over(CONFIG, servers.shards(CONFIG, routing), clock=lambda: NOW)
        first_rows(table)
        chain = Chain(tmp_path)
        save(chain, table, 0)
        few_changes(table, 1)
        before = listing(tmp_path)
        FullDisk(monkeypatch)
        text = r"expected to write into .*, got No space left on device \(shard \d on /job:ps/task:"
        with pytest.raises(OpError, match=text):
            save(chain, table, 1)
        assert listing(tmp_path) == before
        few_changes(table, 2)
        saved = save(chain, table, 2)
        assert saved.reason == "failed"
        assert_restores(saved.prefix, table)


def test_a_cut_that_is_kept_is_written_again_after_an_error(tmp_path, monkeypatch):
    table = filled()
    with Contents(tables=table, step=1).cut() as snapshot:
        FullDisk(monkeypatch)
        options = WriteOptions(keeps_cut=True)
        with pytest.raises(OpError):
            write(snapshot, tmp_path / "m", options)
        write(snapshot, tmp_path / "m", options)
    assert_restores(tmp_path / "m", table)


class Elsewhere(LocalTransport):
    """A shard on a machine whose folders are others."""

    def __init__(self, host, folder):
        super().__init__(host)
        self._folder = folder

    def send(self, call):
        if call.verb == "start_save":
            number, cut, request = call.arguments
            request = {**request, "folder": str(self._folder)}
            call = call._replace(arguments=(number, cut, request))
        return super().send(call)


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_folder_that_a_server_does_not_see_is_named(tmp_path, has_folder):
    table, other = filled(), tmp_path / "other"
    if has_folder:
        (other / "m.assets").mkdir(parents=True)
    table._client.transports[1] = Elsewhere(table._client.transports[1].host, other)
    text = "of shard 1 in .*, got none; servers need" if has_folder else f"got none at {other}"
    with pytest.raises(NotFoundError, match=text):
        write(Contents(tables=table), tmp_path / "here" / "m")
    assert listing(tmp_path) == {}


def test_a_save_ends_with_its_cut(tmp_path, slow):
    table = filled()
    cut = table.cut()
    thread, result = in_background(lambda: write(Contents(tables=cut, step=1), tmp_path / "m"))
    while not any(tmp_path.rglob("*.arrow*")):
        thread.join(0.001)
    cut.close()
    slow.set()
    thread.join(60)
    assert isinstance(result["error"], OpError)
    assert listing(tmp_path) == {}
