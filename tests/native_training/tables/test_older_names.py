"""Checkpoints that were written when the tables of a model had other names."""

import dataclasses

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.errors import NotFoundError
from monolith.native_training.slots import FeatureColumn
from monolith.native_training.tables import DistributedMultiTypeHashTable
from monolith.native_training.tables.hash_table import HashTable
from monolith.native_training.tables.merged_table import MergedMultiTypeHashTable
from monolith.native_training.tables.multi_hash_table import MultiTypeHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.ops import Ragged
from monolith.table.disk import restore_tables, save_tables
from monolith.train import Trainer, TrainSettings
from tests.native_training.tasks.native_tasks import SLOT, Score, made, trained
from tests.suites.table_base import NOW, keys

CONFIG = generate_test_hash_table_config(2)
pytestmark = pytest.mark.req("NT-DPS-T15")


def fids(slot):
    return (slot << 48) | torch.arange(50)


def merged(prefix, servers):
    """Slots 1 and 2 in one table; features are called `<prefix>1` and `<prefix>2`."""
    slots = {f"{prefix}{slot}": CONFIG for slot in (1, 2)}
    return MergedMultiTypeHashTable(
        slots,
        lambda configs: DistributedMultiTypeHashTable(configs, servers, clock=lambda: NOW),
    )


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 1)])
def test_merged_slots_restore_from_their_older_names(tmp_path, before, after):
    with LocalServers(before) as some, LocalServers(after) as others:
        old, new = merged("slot_", some), merged("fc_slot_", others)
        values = {slot: torch.rand(50, 2) for slot in (1, 2)}
        old.assign({f"slot_{slot}": (fids(slot), rows) for slot, rows in values.items()})
        save_tables(list(old.table.tables.values()), tmp_path)
        assert list(old.table.tables) != list(new.table.tables)
        restore_tables(list(new.table.tables.values()), tmp_path)
        found = new.lookup({f"fc_slot_{slot}": fids(slot) for slot in (1, 2)})
        assert all(torch.equal(found[f"fc_slot_{slot}"], rows) for slot, rows in values.items())


@pytest.mark.parametrize("make", [HashTable, lambda name, c: MultiTypeHashTable({name: c})])
def test_tables_of_this_process_have_the_names_of_their_config(tmp_path, make):
    def table_of(made):
        return made.table if isinstance(made, HashTable) else made.group.tables["new"]

    old = HashTable("old", CONFIG).assign(keys(7), torch.ones(1, 2))
    save_tables(old.table, tmp_path)
    new = table_of(make("new", dataclasses.replace(CONFIG, extra_restore_names=["old"])))
    restore_tables(new, tmp_path)
    assert new.lookup(keys(7)).tolist() == [[1, 1]]


class Columns(Score):
    """Two columns of one slot, of which the first has the table."""

    names = ("slot_1", "b")

    def lookup(self):
        slot = self.ctx.create_feature_slot(SLOT)
        part = slot.add_feature_slice(1)
        columns = [FeatureColumn(slot, name) for name in self.names]
        return columns[0], sum(c.embedding_lookup(part) for c in columns).squeeze(1)

    def create_input_fn(self, mode):
        ids = Ragged.from_lists([[1], [2, 2]])
        batch = dict.fromkeys(self.names, ids) | {"label": torch.ones(2)}
        return lambda: [batch, batch]


class Renamed(Columns):
    names = ("fc_slot_1", "b")


class Reordered(Columns):
    names = ("b", "slot_1")


@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize("task", [Renamed, Reordered])
def test_a_trainer_of_a_native_task_restores_an_older_name(tmp_path, task, servers, caplog):
    before = trained(made(Columns))
    before.save(tmp_path)
    with Trainer(made(task), TrainSettings(), servers) as trainer:
        caplog.clear()
        trainer.restore(tmp_path)
        assert not caplog.text  # no rate counts as changed
        (old,), (new,) = before.features.tables.values(), trainer.features.tables.values()
        assert (old.name, new.name) == ("slot_1", task.names[0])
        assert torch.equal(new.lookup(keys(1, 2)), old.lookup(keys(1, 2)))
        assert len(new) == 2
    before.close()


def test_a_name_that_is_none_of_the_slots_is_not_found(tmp_path):
    before = trained(made(Columns))
    before.save(tmp_path)
    before.close()
    text = r"expected table 'a' in .*, got tables \['slot_1'"
    with Trainer(made(Score)) as trainer, pytest.raises(NotFoundError, match=text):
        trainer.restore(tmp_path)
