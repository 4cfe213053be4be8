"""Loads in which each shard reads the files of its own rows."""

import threading

import pytest
import torch

from monolith.checkpoint import Chain, Contents, open_checkpoint, write
from monolith.cluster import ShardedTable
from monolith.cluster.transport import LocalTransport
from monolith.cluster.wire.value_codec import bytes_of, decode, encode
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from monolith.table import Budget, Segment, SlidingFilter, Table, TableConfig
from monolith.table.disk import restore_tables, save_tables
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.checkpoint.chains import CONFIG, NOW, few_changes, first_rows, new_table, save
from tests.suites.table_base import assert_same_rows
from tests.table.disk.cases import assert_same_table, plain


class Noting(LocalTransport):
    """Notes the verbs of its calls."""

    def __init__(self, host, seen):
        super().__init__(host)
        self.seen = seen

    def send(self, call):
        self.seen.append(call.verb)
        return super().send(call)


def sharded(num_shards=3, routing=PartitionRouting, config=CONFIG):
    return ShardedTable.local(config, num_shards, routing=routing(num_shards), clock=lambda: NOW)


def noting(table):
    """The verbs of all calls to the shards from now on."""
    seen = []
    ways = table._client.transports
    ways[:] = [Noting(way.host, seen) for way in ways]
    return seen


def change(table, step):
    if step:
        few_changes(table, step)
    else:
        first_rows(table)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Prefixes of a full checkpoint and two links of 4 shards, with local tables of the steps."""
    table, writer, saves = sharded(4), Chain(tmp_path_factory.mktemp("chain")), []
    for step in range(3):
        change(table, step)
        local = new_table()
        for past in range(step + 1):
            change(local, past)
        saves.append((save(writer, table, step).prefix, local))
    return saves


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("routing", [PartitionRouting, FloorModRouting])
@pytest.mark.parametrize("num_shards", [1, 3, 4])
def test_shards_read_their_own_rows(chain, step, routing, num_shards):
    prefix, expected = chain[step]
    table = sharded(num_shards, routing)
    seen = noting(table)
    open_checkpoint(prefix).restore_tables(table)
    assert not {"import_rows", "import_candidates", "erase"} & set(seen)
    assert seen.count("start_load") == 2 * num_shards  # once to check, once to fill
    assert_same_rows(table, expected)
    candidates = [sorted_by_key(t.export_candidates()) for t in (table, expected)]
    assert candidates[0] == candidates[1]


def sorted_by_key(columns):
    return sorted(zip(*(column.tolist() for column in columns.values()), strict=True))


def test_a_local_table_reads_what_shards_wrote(chain):
    prefix, expected = chain[2]
    table = Table(CONFIG, clock=lambda: NOW)
    open_checkpoint(prefix).restore_tables(table)
    assert_same_table(table, expected)


@pytest.mark.parametrize("routing", [PartitionRouting, FloorModRouting])
def test_one_shard_reads_a_chain_and_the_others_keep_their_rows(chain, routing):
    prefix, expected = chain[2]
    table = sharded(3, routing)
    table.import_rows(next(expected.export(chunk_rows=1 << 20)))
    keys = torch.cat([rows.keys for rows in table.export()])
    table.assign(keys, torch.full((len(keys), table.dim), 7.0))
    seen = noting(table)
    open_checkpoint(prefix).restore_tables(table, shards=[1])
    assert "import_rows" not in seen
    is_restored = (table.routing.shard_of(keys) == 1)[:, None]
    assert torch.equal(
        table.lookup(keys),
        torch.where(is_restored, expected.lookup(keys), torch.tensor(7.0)),
    )


def test_filters_of_shards_return_to_their_shards(tmp_path):
    config = TableConfig("user", Segment(1), admission=SlidingFilter(3, capacity=1 << 12))
    table, other = (sharded(2, FloorModRouting, config) for _ in range(2))
    keys = torch.arange(500)
    for _ in range(2):
        table.apply_gradients(keys, torch.ones(500, table.dim))
    save_tables(table, tmp_path)
    restore_tables(other, tmp_path)
    for each in (table, other, table, other):
        each.apply_gradients(keys, torch.ones(500, each.dim))
    assert len(table) == 500
    assert_same_rows(other, table)


def test_a_damaged_file_changes_no_shard(tmp_path):
    table = sharded(3)
    first_rows(table)
    write(Contents(tables=table), tmp_path / "m")
    path = sorted((tmp_path / "m.assets").glob("*.arrow"))[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    expected = new_table()
    first_rows(expected)
    with pytest.raises(DataLossError, match="checksum"):
        open_checkpoint(tmp_path / "m").restore_tables(table)
    assert_same_rows(table, expected)


def test_a_folder_that_a_server_does_not_see_is_named(tmp_path):
    table = sharded(2)
    save_tables(table, tmp_path / "m")

    class Elsewhere(LocalTransport):
        def send(self, call):
            if call.verb == "start_load":
                number, request = call.arguments
                sources = [("/nowhere", *rest) for _, *rest in request["sources"]]
                call = call._replace(arguments=(number, {**request, "sources": sources}))
            return super().send(call)

    table._client.transports[1] = Elsewhere(table._client.transports[1].host)
    with pytest.raises(NotFoundError, match="got none at /nowhere; servers need the same path"):
        restore_tables(table, tmp_path / "m")


def test_a_budget_that_refuses_rows_is_told_by_the_whole_table(tmp_path):
    table = sharded(2, config=plain(name="user"))
    table.assign(torch.arange(50_000), torch.ones(50_000, 1))
    save_tables(table, tmp_path)
    small = sharded(2, config=plain(name="user", budget=Budget(1 << 20)))
    with pytest.raises(FailedPreconditionError, match="expected room for 50000 rows"):
        restore_tables(small, tmp_path)
    assert len(small) == 0


def test_progress_counts_the_rows_of_all_shards(tmp_path):
    table, seen = sharded(3), []
    first_rows(table)
    save_tables(table, tmp_path)
    restore_tables(table, tmp_path, progress=seen.append)
    assert (seen[-1].num_rows, seen[-1].total_rows) == (1500, 1500)


def test_a_load_that_fails_leaves_empty_shards_and_no_job(tmp_path, monkeypatch):
    table = sharded(3)
    first_rows(table)
    save_tables(table, tmp_path)
    go, num_calls = threading.Event(), []
    import_candidates = Table._import_candidates

    def fails_once(self, columns):
        num_calls.append(None)
        if len(num_calls) == 1:
            go.set()
            raise DataLossError("broken")
        assert go.wait(60)
        import_candidates(self, columns)

    monkeypatch.setattr(Table, "_import_candidates", fails_once)
    with pytest.raises(DataLossError, match="broken"):
        restore_tables(table, tmp_path)
    assert len(table) == 0
    assert [way.host._jobs._jobs for way in table._client.transports] == [{}, {}, {}]


def travelled(value):
    """A value as it arrives."""
    body, columns = encode(value)
    return decode(body, [bytes_of(column) for column in columns])


class Wired(LocalTransport):
    """Sends arguments and answers as the bytes of the wire."""

    def send(self, call):
        arguments = travelled(call.arguments)
        answer = super().send(call._replace(arguments=arguments))
        value = answer.result()
        return answer._replace(value=travelled(value))


def test_saves_and_loads_go_over_the_wire(tmp_path):
    table, other, writer = sharded(3), sharded(2), Chain(tmp_path)
    for each in (table, other):
        ways = each._client.transports
        ways[:] = [Wired(way.host) for way in ways]
    for step in range(2):
        change(table, step)
        saved = save(writer, table, step)
    assert saved.manifest.base is not None
    open_checkpoint(saved.prefix).restore_tables(other)
    assert_same_table(other, table)
