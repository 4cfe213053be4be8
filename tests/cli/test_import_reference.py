import functools
import json

import pytest
import torch

from monolith.checkpoint import load
from monolith.checkpoint.reference_dump.dump_stream import DumpStream
from monolith.table import Expiry, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import FTRL, Adagrad
from monolith.table.reference import ReferenceTable
from tests.checkpoint.reference_dump.dump_writer import (
    entries_of,
    entry,
    message,
    tfrecord,
    write,
    write_multi,
    write_single,
)
from tests.cli.run import run

pytestmark = pytest.mark.req("NT-SAVE-T10")

NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC
TASK = """
import torch
import monolith as ml
from monolith.ops import Ragged
from monolith.table.optimizers import Adagrad, BatchSoftmax

class Clicks(ml.Task):
    features = (
        ml.Feature("user", dim=2, optimizer=Adagrad(0.1), restore_names=["member"]),
        ml.Feature("item", shares="user"),
    )

    def source(self, mode):
        ids = {"user": Ragged.from_lists([[7], [8]]), "item": Ragged.from_lists([[], []])}
        return [ml.data.Batch(ids, labels={"label": torch.zeros(2)})]

    def build(self):
        return torch.nn.Linear(4, 1)

    def loss(self, model, inputs, batch):
        score = inputs.pooled["user"].sum(1)
        return score.sum() + 0 * model(inputs.matrix).sum(), score.detach()
"""
NATIVE_TASK = """
import torch
from monolith.native_training.entry import AdagradOptimizer
from monolith.native_training.feature import FeatureColumn, FeatureSlotConfig
from monolith.native_training.native_task import EstimatorSpec, NativeTask
from monolith.ops import Ragged

class Clicks(NativeTask):
    def create_input_fn(self, mode):
        return lambda: [{"user": Ragged.from_lists([[7], [8]]), "label": torch.zeros(2)}]

    def create_model_fn(self):
        def model_fn(features, mode, config):
            vector = AdagradOptimizer(0.1)
            config = FeatureSlotConfig("s", has_bias=True, slot_id=1, default_vec_optimizer=vector)
            slot = self.ctx.create_feature_slot(config)
            column = FeatureColumn(slot, "user")
            bias = column.embedding_lookup(slot.get_bias_slice())
            vector = column.embedding_lookup(slot.add_feature_slice(2))
            score = bias.sum(1) + vector.sum(1)
            return EstimatorSpec(mode, score, score.sum())
        return model_fn
"""
ADAGRAD = Segment(2, Adagrad(0.1))
BIAS = Segment(1, FTRL(0.01, initial_accumulator_value=1e-6, beta=1.0), Zeros())
CONFIGS = {
    "task.py": TableConfig("user", [ADAGRAD]),
    "native.py": TableConfig("user", [BIAS, ADAGRAD], expiry=Expiry(36_500)),
}


def row(key, *weights, norm=1.0, time=NOON):
    return entry(key, weights, ("adagrad", {"norm": [norm] * len(weights)}), time=time)


@pytest.fixture
def imports(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "native.py").write_text(NATIVE_TASK)
    command = ("import", "reference", "model", "--to", "runs", "--task")
    return functools.partial(run, capsys, monkeypatch, *command)


@pytest.fixture
def model(tmp_path):
    """A folder for dumps of a model directory."""
    return tmp_path / "model" / "model.ckpt-700.assets"


def columns(table):
    """Key -> numbers of its row, without the time."""
    return {
        key: [column[i].tolist() for column in rows.columns.values()]
        for rows in table.export()
        for i, key in enumerate(rows.keys.tolist())
    }


def saved(config=CONFIGS["task.py"]):
    """The table of the newest checkpoint."""
    table = Table(config)
    load("runs").restore(tables=table)
    return table


@pytest.mark.parametrize("task", CONFIGS)
def test_a_run_goes_on_from_imported_rows(imports, model, capsys, monkeypatch, task):
    config = CONFIGS[task]
    keys, grads = torch.tensor([7, 8]), torch.ones(2, config.dim)
    with Table(config) as dumped, ReferenceTable(config) as oracle:
        dumped.apply_gradients(torch.tensor([7, 9]), torch.full((2, config.dim), 0.5), now=NOON)
        write_multi(model, 0, {"user": entries_of(dumped)})
        assert imports(task).status == 0
        with saved(config) as table:
            assert columns(table) == columns(dumped)
        for rows in dumped.export():
            oracle.import_rows(rows)
        oracle.apply_gradients(keys, grads)
        step = ("train", task, "--checkpoints", "runs", "--resume", "--set", "train.steps=1")
        assert "1 steps, 2 samples" in run(capsys, monkeypatch, *step).err
        with saved(config) as table:
            assert columns(table) == columns(oracle)


def test_what_happened_is_said(imports, model):
    write_single(model, "user", [row(1, 1, 1), row(1, 2, 2), row(2, 3, 3, time=None)])
    write(model, "hash_filter_0", tfrecord([message("HashFilterSplitMetaDump")]))
    ran = imports("task.py")
    assert ran.status == 0
    lines = (
        "3 rows of user into table 'user': 2 new, 1 replaced, 1 without a time, updated 2026-01-01",
        "left out: hash_filter_0; a filter counts hashes",
        "not in dumps, so new: dense parameters and their optimizer; step, data position",
        "saved runs/model.ckpt-0; next: monolith train task.py --checkpoints runs --resume",
    )
    assert [line for line in lines if line not in ran.err] == []


def test_tables_without_rows_are_named(imports, model, tmp_path):
    write_single(model, "user", [row(1, 1, 1)])
    shop = 'ml.Feature("item", shares="user"),\n        ml.Feature("shop", dim=1),'
    task = TASK.replace('ml.Feature("item", shares="user"),', shop)
    (tmp_path / "task.py").write_text(task)
    assert "without rows in the dumps: shop\n" in imports("task.py").err


def test_steps_of_the_old_run_are_told(imports, model, tmp_path):
    write_single(model, "user", [entry(1, [3], ("batch_softmax", {"global_step": 70}))])
    task = TASK.replace("dim=2, optimizer=Adagrad(0.1)", "dim=1, optimizer=BatchSoftmax()")
    (tmp_path / "task.py").write_text(task)
    assert (
        "BatchSoftmax has the steps of the old run, and this one begins" in imports("task.py").err
    )


def test_rows_beyond_a_budget_are_counted(imports, model, tmp_path):
    write_single(model, "user", [row(key, 1, 1) for key in range(1000)])
    budget = 'budget=ml.table.Budget(20_000, "evict_oldest"), restore_'
    (tmp_path / "task.py").write_text(TASK.replace("restore_", budget))
    ran = imports("task.py", "--json")
    (table,) = json.loads(ran.out)["tables"]
    assert 0 < table["num_without_room"] < table["num_rows"] == 1000
    assert f", {table['num_without_room']:,} without room, updated" in ran.err


def test_the_result_is_printed_as_json(imports, model):
    write_multi(
        model, 0, {"member": [row(1, 1, 1), row(2, float("nan"), 1)], "old": [row(3, 1, 1)]}
    )
    ran = imports("task.py", "--allow-unused", "--skip-non-finite", "--json")
    result = json.loads(ran.out)
    assert (result["checkpoint"], result["dumped_step"]) == ("runs/model.ckpt-0", 700)
    (table,) = result["tables"]
    assert (table["dumps"], table["num_rows"], table["num_new"]) == (["member"], 1, 1)
    assert (result["unused"], result["num_non_finite"]) == ({"old": 1}, 1)
    assert "left out, because no table takes them: old (1 rows)" in ran.err
    assert "left out, because of NaN or infinity: 1 rows" in ran.err


def test_a_table_is_chosen_by_feature_and_slot(imports, model):
    write_single(model, "old", [row(7 << 48, 1, 1), row(8 << 48, 2, 2)])
    ran = imports("task.py", "--table", "old:8=item", "--allow-unused")
    assert "left out, because no table takes them: old:7 (1 rows)" in ran.err
    with saved() as table:
        assert list(columns(table)) == [8 << 48]


def test_imports_into_a_checkpoint_add_up(imports, model):
    write_single(model, "user", [row(1, 1, 1)])
    assert imports("task.py").status == 0
    write_single(model, "user", [row(1, 5, 5), row(2, 2, 2)])
    ran = imports("task.py")
    assert "1 new, 1 replaced" in ran.err
    assert "not in dumps, so those of runs/model.ckpt-0: dense parameters" in ran.err
    with saved() as table:
        assert sorted(columns(table)) == [1, 2]


def test_weights_alone_begin_with_new_state(imports, model):
    write_single(model, "user", [entry(1, [1, 1], ("sgd", {}))])
    assert "--weights-only" in imports("task.py").err
    assert imports("task.py", "--weights-only").status == 0
    with saved() as table:
        assert columns(table)[1][1] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["task.py"], 1, "got none for other (1 rows); name one with --table DUMP=TABLE"),
        (["task.py", "--allow-unused"], 1, "expected rows for a table of task 'Clicks', got none"),
        (["task.py", "--table", "other"], 2, "expected --table DUMP=TABLE or DUMP:SLOT=TABLE"),
        (["task.py", "--table", "other=usr"], 1, "got 'usr'; did you mean 'user'?"),
        (
            ["task.py", "--table", "hash_filter_0=user"],
            1,
            "got the filter 'hash_filter_0'; a filter",
        ),
        (["none.py"], 1, "expected a Python file, got none at 'none.py'"),
        (["task.py", "--set", "x=1"], 1, "expected a known key, got 'x'"),
    ],
)
def test_nothing_is_saved_after_an_error(imports, model, tmp_path, arguments, status, text):
    write_single(model, "other", [row(1, 1, 1)])
    write(model, "hash_filter_0", b"")
    ran = imports(*arguments)
    assert (ran.status, text in ran.err) == (status, True), ran.err
    assert not (tmp_path / "runs").exists()


def test_damage_in_the_middle_leaves_no_checkpoint(imports, model, tmp_path):
    write(model, "MonolithHashTable_user", tfrecord([row(1, 1, 1)]) + b"x" * 20)
    ran = imports("task.py")
    assert ran.status == 1
    assert "MonolithHashTable_user-00000-of-00001, record at byte " in ran.err
    assert not (tmp_path / "runs").exists()


def test_an_interrupt_leaves_no_checkpoint(imports, model, tmp_path, monkeypatch):
    def interrupt(stream):
        raise KeyboardInterrupt

    write_single(model, "user", [row(1, 1, 1)])
    monkeypatch.setattr(DumpStream, "check_end", interrupt)  # all rows are in the table by then
    ran = imports("task.py")
    assert (ran.status, "error: interrupted; runs is as it was" in ran.err) == (130, True)
    assert not (tmp_path / "runs").exists()


def test_a_path_without_dumps_is_refused(imports):
    assert "got no such file at 'model'" in imports("task.py").err
