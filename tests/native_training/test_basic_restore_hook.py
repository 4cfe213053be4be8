import torch

from monolith.native_training import basic_restore_hook, hash_table_ops, multi_hash_table_ops
from monolith.native_training.saver import PartialRecoverySaver
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.train.driver import Run, drive
from tests.suites.table_base import column, keys


def test_a_run_restores_tables_at_their_paths_of_the_reference_system(tmp_path):
    config = generate_test_hash_table_config(1)
    one = hash_table_ops.HashTable("one", config).assign(keys(7), column(1))
    many = multi_hash_table_ops.MultiHashTable({"many": config})
    many.assign({"many": (keys(7), column(2))})
    listener = multi_hash_table_ops.MultiHashTableCheckpointSaverListener([one, many])
    prefix, model = f"{tmp_path}/model.ckpt-3", torch.nn.Linear(1, 1)
    saver = PartialRecoverySaver(model)
    saver.save(Run(global_step=3), f"{tmp_path}/model.ckpt", global_step=3, tables=listener.tables)
    one.assign(keys(7, 8), column(5, 5))
    many.assign({"many": (keys(7), column(5))})
    restorers = [
        hash_table_ops.HashTableCheckpointRestorerListener(one),
        multi_hash_table_ops.MultiHashTableCheckpointRestorerListener(many),
    ]
    hook = basic_restore_hook.CheckpointRestorerHook(tmp_path, saver, listeners=restorers)
    run = drive(iter([]).__next__, [hook], run=Run(global_step=0))
    assert (run.global_step, prefix) == (3, saver.last_checkpoints[-1])
    assert (one.lookup(keys(7)).item(), one.size()) == (1.0, 1)
    assert many.lookup({"many": keys(7)})["many"].item() == 2.0
    many.close()
