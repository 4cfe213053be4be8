"""`feature_evict_every_n_hours` of configs and slots removes expired rows."""

import dataclasses

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.native_training.slots import FeatureSlotConfig
from monolith.native_training.tables import DistributedMultiTypeHashTable
from monolith.native_training.tables.entry_config import (
    CuckooHashTableConfig,
    EntryConfig,
    HashTableConfigInstance,
)
from monolith.native_training.tables.entry_parts import SlotExpireTimeConfig
from monolith.native_training.tables.hash_table import HashTable
from monolith.native_training.tables.multi_hash_table import MultiHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Trainer
from tests.native_training.tasks import native_tasks
from tests.native_training.tasks.native_tasks import Score, columns, made
from tests.suites.table_base import column, keys

DAY, HOUR = 86_400, 3600
TWO_HOURS = CuckooHashTableConfig(feature_evict_every_n_hours=2)


def config():
    """A table whose rows live for a day and are swept every two hours."""
    given = generate_test_hash_table_config(1)
    entry = EntryConfig(given.table_config.entry_config.segments)
    swept = TWO_HOURS.table_config(entry, SlotExpireTimeConfig(default_expire_time=1))
    return HashTableConfigInstance(swept, given.learning_rate_fns)


class Time:
    now = 9 * DAY

    def __call__(self):
        return self.now


def fill(write):
    write(keys(1, 2), column(1, 1), 0)
    write(keys(3), column(1), 5 * DAY)


def check(sweeps, clock):
    """Rows that the sweeps remove, when the clock has advanced far enough."""
    clock.now += 2 * HOUR - 1
    assert [sweep.check() for sweep in sweeps] == [None] * len(sweeps)
    clock.now += 1
    return sum(sweep.check() for sweep in sweeps)


def test_a_table_of_this_process_is_swept_until_it_is_closed():
    clock = Time()
    table = HashTable("user", config(), clock=clock)
    fill(table.assign)
    assert (check([table.sweep], clock), table.size()) == (2, 1)
    table.close()
    assert not table.sweep.is_running
    assert HashTable("user", generate_test_hash_table_config(1)).sweep is None


def test_several_tables_are_swept_until_they_are_closed():
    clock = Time()
    configs = {"a": config(), "b": generate_test_hash_table_config(1)}
    with MultiHashTable(configs, clock=clock) as table:
        fill(lambda ids, rows, now: table.assign({"a": (ids, rows)}, now=now))
        (sweep,) = table.sweeps.values()
        assert (check([sweep], clock), table.size("a")) == (2, 1)
    assert not sweep.is_running


def test_servers_sweep_the_shards_of_a_table():
    clock = Time()
    with LocalServers(2) as servers:
        table = DistributedMultiTypeHashTable({"a": config()}, servers, clock=clock)
        fill(lambda ids, rows, now: table.assign({"a": (ids, rows)}, now=now))
        table.assign({"a": (keys(4), column(1))}, now=5 * DAY)
        sweeps = [servers[i].sweeps["a"] for i in range(2)]
        assert (check(sweeps, clock), len(table.tables["a"])) == (2, 2)
        DistributedMultiTypeHashTable({"a": config()}, servers, clock=clock)
        assert [servers[i].sweeps["a"] for i in range(2)] == sweeps
    assert not any(sweep.is_running for sweep in sweeps)


@pytest.mark.parametrize(("hours", "num_rows"), [(0, 4), (2, 2)])
def test_a_native_task_sweeps_the_tables_of_its_slots(hours, num_rows, monkeypatch):
    kind = CuckooHashTableConfig(feature_evict_every_n_hours=hours)
    slot = FeatureSlotConfig(
        "s",
        default_vec_initializer=Zeros(),
        default_vec_optimizer=SGD(1.0),
        hashtable_config=kind,
        expire_time=1,
    )
    monkeypatch.setattr(native_tasks, "SLOT", slot)
    batches = [columns() | {"req_time": torch.full((2,), day * DAY)} for day in (1, 5)]
    batches[1]["a"] = dataclasses.replace(batches[1]["a"], values=keys(3, 4, 4))
    with Trainer(made(Score, batches=batches)) as trainer:
        trainer.fit()
        assert len(trainer.features.tables["a"]) == num_rows
