"""Handles of updates, of every class with tables."""

import threading

import pytest

from monolith.cluster import LocalServers
from monolith.cluster.transport import LocalTransport
from monolith.errors import DeadlineExceededError
from monolith.native_training.saver import (
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
)
from monolith.native_training.tables import DistributedHashTable, DistributedMultiTypeHashTable
from monolith.native_training.tables.hash_table import HashTable
from monolith.native_training.tables.merged_table import MergedMultiTypeHashTable
from monolith.native_training.tables.multi_hash_table import MultiHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from tests.suites.table_base import column, keys

CONFIG = generate_test_hash_table_config(1)
PAIR = {"a": (keys(4, 7), column(1, 1))}


def merged(servers):
    return MergedMultiTypeHashTable(
        {"a": CONFIG}, lambda configs: DistributedMultiTypeHashTable(configs, servers)
    )


class Single(DistributedHashTable):
    """`DistributedHashTable` with the calls of the others."""

    def __init__(self, servers):
        super().__init__(TableConfig("a", Segment(1, SGD(1.0), Zeros())), servers)

    def apply_gradients(self, pairs):
        ids, grads = pairs["a"]
        return super().apply_gradients([(grads, self.lookup(ids))])


BY_SLOT = {
    "single": Single,
    "multi": lambda servers: DistributedMultiTypeHashTable({"a": CONFIG}, servers),
    "merged": merged,
    "local": lambda servers: MultiHashTable({"a": CONFIG}),
}


@pytest.mark.parametrize("name", BY_SLOT)
def test_an_update_that_has_returned_is_done(name):
    with LocalServers(2) as servers:
        update = BY_SLOT[name](servers).apply_gradients(PAIR)
        assert update.as_op().is_done()
        update.as_op().wait(0.0)


def test_writes_of_one_table_and_of_local_tables_give_handles():
    one = HashTable("a", CONFIG).assign(keys(7), column(1)).assign_add(keys(7), column(1))
    assert one.apply_gradients(keys(7), column(1), 0).as_op().is_done()
    with MultiHashTable({"a": CONFIG}) as many:
        assert many.assign(PAIR).assign_add(PAIR).as_op().is_done()
        assert many.raw_apply_gradients(many.group.keys({}), column().flatten()).as_op().is_done()


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("name", ["single", "multi", "merged"])
def test_a_handle_waits_for_the_updates_of_every_server(name, slow, monkeypatch):
    has_begun, may_end, send = threading.Event(), threading.Event(), LocalTransport.send

    def hold(self, call):
        if call.verb.startswith("apply") and self.host in slow_hosts:
            has_begun.set()
            assert may_end.wait(30)
        return send(self, call)

    with LocalServers(2) as servers:
        table = BY_SLOT[name](servers)
        group = getattr(table, "_group", None) or getattr(
            getattr(table, "table", None), "_group", None
        )
        client = table.table._client if group is None else group._client
        slow_hosts = [client.transports[slow].host]
        monkeypatch.setattr(LocalTransport, "send", hold)
        update = threading.Thread(target=table.apply_gradients, args=(PAIR,))
        update.start()
        assert has_begun.wait(30)
        handle = table.as_op()
        assert not handle.is_done()
        with pytest.raises(DeadlineExceededError, match=r"updates to end within 0\.0 s"):
            handle.wait(0.0)
        may_end.set()
        handle.wait(30)
        assert handle.is_done()
        update.join()


@pytest.mark.parametrize(
    "listener", [HashTableCheckpointSaverListener, HashTableCheckpointRestorerListener]
)
def test_a_listener_refuses_what_has_no_tables(listener):
    with pytest.raises(TypeError, match=rf"\[{listener.__name__}\] expected tables, got str"):
        listener(["model"])


def test_a_listener_takes_the_tables_of_every_class():
    with LocalServers(2) as servers:
        tables = [*(make(servers) for make in BY_SLOT.values()), HashTable("b", CONFIG)]
        names = [table.name for table in HashTableCheckpointSaverListener(tables).tables]
    (sub_table,) = tables[2].sub_tables.sub_table_name_to_config
    assert names == ["a", "a", sub_table, "a", "b"]
