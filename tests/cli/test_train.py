import functools
import json
import re
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.run import run
from tests.forker import limited

TASK = """
from dataclasses import dataclass

import torch
import monolith as ml


@dataclass
class OfClicks(ml.TaskSettings):
    batch_size: int = 8
    rate: float = 0.1


class Clicks(ml.Task):
    Settings = OfClicks
    features = (ml.Feature("user", dim=2), ml.Feature("item", dim=2))
    label = "click"

    def source(self, mode):
        samples = ml.data.parquet(self.settings.data[mode])
        samples = samples.repeat() if mode == "train" else samples
        return samples.batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Linear(4, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled.joined).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()
"""


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


@pytest.mark.parametrize(("code", "status"), [("", 1), ("0", 1), ("3", 3)])
def test_a_task_that_ends_the_program_is_told_with_its_line(task, monolith, code, status):
    path, data = task
    path.write_text(TASK.replace("return torch.nn.Linear(4, 1)", f"raise SystemExit({code})"))
    ran = monolith("train", path, "--data", data)
    assert ran.status == status
    assert f"got sys.exit({code}); raise an error instead" in ran.err
    assert f"clicks.py, line 25, in build: raise SystemExit({code})" in ran.err


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "clicks.py"
    path.write_text(TASK)
    rows = {"user": list(range(64)), "item": [i % 5 for i in range(64)]}
    table = pa.table({**rows, "click": [float(i % 2) for i in range(64)]})
    pq.write_table(table, tmp_path / "clicks.parquet")
    return path, tmp_path / "clicks.parquet"


def test_a_task_is_trained_for_its_steps(monolith, task):
    path, data = task
    ran = monolith("train", path, "--data", data, "--set", "train.steps=6")
    assert ran.status == 0
    assert "6 steps, 48 samples in" in ran.err
    assert "ended: steps" in ran.err


def test_columns_that_are_not_used_are_named(monolith, task):
    path, data = task
    rows = pq.read_table(data)
    for i in range(7):
        rows = rows.append_column(f"c{i}", pa.array([0.5] * 64))
    pq.write_table(rows, data)
    ran = monolith("train", path, "--data", data, "--set", "train.steps=1")
    assert "3 of 10 columns are used; not used: c0, c1, c2, c3, c4, ...\n" in ran.err


def test_columns_that_are_all_used_are_not_worth_a_word(monolith, task):
    path, data = task
    assert (
        "columns are used"
        not in monolith("train", path, "--data", data, "--set", "train.steps=1").err
    )


def test_settings_are_printed_with_their_origin(monolith, task, tmp_path, monkeypatch):
    path, data = task
    (tmp_path / "set.json").write_text('{"rate": 0.5}')
    monkeypatch.setenv("MONOLITH_SET_BATCH_SIZE", "4")
    flags = ("--data", data, "--settings", tmp_path / "set.json", "--set", "train.steps=1")
    ran = monolith("train", path, *flags)
    assert "batch_size = 4  (environment MONOLITH_SET_BATCH_SIZE)" in ran.err
    assert "rate = 0.5  (file " in ran.err
    assert "train.steps = 1  (--set)" in ran.err
    assert "train.seed = 0  (default)" in ran.err


def test_an_unknown_setting_is_told_the_nearest_name(monolith, task):
    path, data = task
    ran = monolith("train", path, "--data", data, "--set", "train.stesp=1")
    assert ran.status == 1
    assert "did you mean 'train.steps'?" in ran.err


def test_held_out_samples_are_scored_at_the_end(monolith, task):
    path, data = task
    flags = ("--data", f"train={data}", "--data", f"eval={data}", "--set", "train.steps=2")
    ran = monolith("train", path, *flags)
    assert "eval: loss" in ran.err
    assert "auc" in ran.err


def test_json_lines_are_on_stdout(monolith, task):
    path, data = task
    ran = monolith("train", path, "--data", data, "--set", "train.steps=3", "--json")
    *lines, last = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["step"] for line in lines] == [3]
    assert (last["ended"], last["num_samples"], last["eval"]) == ("steps", 24, None)


def test_rows_in_servers_give_the_same_loss(monolith, task):
    path, data = task
    flags = ("--data", data, "--set", "train.steps=5", "--json")
    losses = [
        json.loads(monolith("train", path, *flags, *more).out.splitlines()[-1])["figures"]["loss"]
        for more in ((), ("--servers", 2))
    ]
    assert losses[0] == losses[1]


def test_an_early_stop_by_an_unknown_metric_is_refused(monolith, task):
    path, data = task
    flags = ("--data", f"train={data}", "--data", f"eval={data}", "--set", "train.steps=50")
    flags = (*flags, "--set", "train.eval_every=1", "--set", "train.early_stop=no_such:1")
    ran = monolith("train", path, *flags)
    assert ran.status == 1
    assert "expected a metric of the evaluation" in ran.err


def test_an_early_stop_ends_a_run(monolith, task):
    path, data = task
    flags = ("--data", f"train={data}", "--data", f"eval={data}", "--set", "train.steps=500")
    # A score of held-out samples cannot rise for ever.
    flags = (*flags, "--set", "train.eval_every=1", "--set", "train.early_stop=auc:2")
    assert "ended: early stop" in monolith("train", path, *flags).err


def test_a_wrong_patience_is_refused(monolith, task):
    path, data = task
    ran = monolith("train", path, "--data", data, "--set", "train.early_stop=auc:soon")
    assert ran.status == 1
    assert "such as auc:3, got 'auc:soon'" in ran.err.replace("\n", " ")


def test_missing_data_is_told_without_a_traceback(monolith, task, tmp_path):
    ran = monolith("train", task[0], "--data", tmp_path / "none.parquet")
    assert ran.status == 1
    assert "Traceback" not in ran.err
    assert "none.parquet" in ran.err.replace("\n", "")


def test_data_that_nobody_named_is_told_with_the_option(monolith, task):
    ran = monolith("train", task[0])
    assert ran.status == 1
    assert "expected a path for mode 'train', got none; the command line takes --data" in ran.err


def test_data_without_samples_is_a_failure(monolith, task):
    path, data = task
    pq.write_table(pq.read_table(data)[:0], data)
    ran = monolith("train", path, "--data", data)
    assert ran.status == 1
    assert f"error: expected samples to train with, got none (task Clicks, {path})" in ran.err


def test_the_batch_of_a_bad_loss_is_kept(monolith, task, monkeypatch):
    path, data = task
    monkeypatch.chdir(path.parent)
    path.write_text(TASK.replace("return loss,", "return loss / 0,"))
    ran = monolith("train", path, "--data", data)
    assert "got inf in step 0; nothing was stepped with it, the samples are in kept" in ran.err
    assert pq.read_table("kept/non_finite_loss_0.parquet").num_rows == 8


def test_missing_data_of_the_evaluation_is_told_before_the_run(monolith, task):
    path, data = task
    flags = ("--data", data, "--data", "eval=none.parquet", "--set", "train.steps=2")
    ran = monolith("train", path, *flags)
    assert ran.status == 1
    assert "none.parquet" in ran.err
    assert "step 2/2" not in ran.err


def test_evaluations_during_the_run_are_told(monolith, task):
    path, data = task
    flags = ("--data", data, "--data", f"eval={data}", "--set", "train.steps=4")
    ran = monolith("train", path, *flags, "--set", "train.eval_every=2", "--json")
    assert "eval at step 2: loss" in ran.err
    assert list(json.loads(ran.out.splitlines()[-1])["evaluations"]) == ["2", "4"]


@pytest.mark.dist
def test_a_reader_of_stdout_that_has_enough_ends_the_run_without_a_word(task):
    path, data = task
    command = [sys.executable, "-m", "monolith.cli.main", "train", str(path), "--data", str(data)]
    command += ["--set", "train.steps=2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        it.stdout.close()
        with limited(it.kill):
            err = it.stderr.read()
    assert it.returncode == 1
    assert "Broken pipe" not in err


@pytest.mark.dist
def test_ctrl_c_finishes_the_step(task):
    path, data = task
    told = TASK.replace("logit = model", 'print("in a step", flush=True)\n        logit = model')
    path.write_text(told)  # its data has no end
    command = [sys.executable, "-m", "monolith.cli.main", "train", str(path), "--data", str(data)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        with limited(process.kill):
            assert process.stdout.readline() == "in a step\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert re.search(r"interrupted after step \d+, which was finished", err)
    assert "Traceback" not in err


def test_inspect_prints_the_features_of_a_task(monolith, task):
    ran = monolith("inspect", task[0], "--json")
    shown = json.loads(ran.out)
    assert [row["feature"] for row in shown["features"]] == ["user", "item"]
    assert (shown["num_parameters"], shown["settings"]["rate"]) == (5, 0.1)


@pytest.mark.parametrize(
    ("columns", "text", "names"),
    [('("bid", "city")', "further columns: bid, city; ", ["bid", "city"]),
     ("None", "further columns: all; ", None), ("()", "label: click; 5 dense", [])],
)  # fmt: skip
def test_inspect_prints_the_further_columns_of_a_task(monolith, task, columns, text, names):
    path, _ = task
    path.write_text(TASK.replace('label = "click"', f'label = "click"\n    columns = {columns}'))
    assert text in monolith("inspect", path).err
    assert json.loads(monolith("inspect", path, "--json").out)["columns"] == names


def test_inspect_prints_a_task_for_readers(monolith, task):
    ran = monolith("inspect", task[0])
    assert "Adagrad(learning_rate=0.05)" in ran.out
    assert "2 features in 2 tables" in ran.err


def test_options_of_tables_on_disk_are_refused_for_a_task(monolith, task):
    ran = monolith("inspect", task[0], "--verify")
    assert ran.status == 2
    assert "got a task file" in ran.err


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("model(inputs.pooled['usr'])", "[Embedded] expected a feature (user, item), got 'usr'"),
        ("model(inputs.dense)", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("model(inputs.pooled.joined).foo", "AttributeError: 'Tensor' object has no attribute"),
    ],
)
def test_a_mistake_in_a_task_is_told_with_its_line(monolith, task, wrong, told):
    path, data = task
    path.write_text(TASK.replace("model(inputs.pooled.joined)", wrong))
    ran = monolith("train", path, "--data", data)
    assert (ran.status, "Traceback" in ran.err) == (1, False)
    assert f"error: {told}" in ran.err
    assert f"  {path}, line 28, in loss: logit = {wrong}" in ran.err
    assert ran.err.endswith("  all of it: monolith --traceback train ...\n")


def test_the_whole_traceback_is_printed_for_who_wants_it(monolith, task):
    path, data = task
    path.write_text(TASK.replace("inputs.pooled.joined", "inputs.dense"))
    ran = monolith("--traceback", "train", path, "--data", data)
    assert (ran.status, "Traceback (most recent call last)" in ran.err) == (1, True)
    assert "error: RuntimeError: mat1" in ran.err


def test_inspect_tells_the_line_of_a_mistake_too(monolith, task):
    task[0].write_text(TASK.replace("torch.nn.Linear(4, 1)", "torch.nn.Liner(4, 1)"))
    ran = monolith("inspect", task[0])
    assert ran.status == 1
    assert f"  {task[0]}, line 25, in build: " in ran.err
