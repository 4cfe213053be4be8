import functools
import gc
import json
import os
import signal
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import monolith as ml
from monolith.checkpoint import existing_checkpoints, load
from monolith.checkpoint.run_lock import only_run
from monolith.cli.tasks.task_file import load_task_class
from monolith.train.imported_rows import ImportTarget
from tests.checkpoint.vectors.test_vector_tensors import Malicious
from tests.cli.run import run

TASK = """
import torch
import monolith as ml

class Ranker(ml.Task):
    features = (
        ml.Feature("item", dim=4, combiner="mean"),
        ml.Feature("user", dim=2, bias=True),
    )

    def source(self, mode):
        return ml.data.parquet(self.settings.data[mode]).batch(self.settings.batch_size)

    def build(self):
        model = torch.nn.Linear(7, 1)
        model.load_state_dict(torch.load("dense.pt"))
        return model

    def loss(self, model, inputs, batch):
        logit = model(inputs.matrix).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()
"""
TO = ("--task", "task.py", "--feature", "item", "--to", "run")
IDS = list(range(100, 110))


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


class Model(torch.nn.Module):
    """A model of plain torch with a matrix of ten items."""

    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(10, 4, mode="mean")
        self.dense = torch.nn.Linear(7, 1)

    def forward(self, rows):
        pooled = torch.cat([self.bag(rows), torch.zeros(len(rows), 3)], 1)
        return self.dense(pooled).squeeze(1).sigmoid()


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A trained model; its files, a task and samples are in the working folder."""
    monkeypatch.chdir(tmp_path)
    model, rows = Model(), torch.arange(60).reshape(30, 2) % 10
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy(model(rows), (rows[:, 0] > 4).float())
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    torch.save(model.dense.state_dict(), "dense.pt")
    save_file(model.state_dict(), "model.safetensors")
    (tmp_path / "ids.txt").write_text("\n".join(map(str, IDS)))
    (tmp_path / "task.py").write_text(TASK)
    samples = {"item": (rows + 100).tolist(), "user": range(30), "label": [0.0, 1.0] * 15}
    pq.write_table(pa.table(samples), "train.parquet")
    vectors = pa.array(list(model.bag.weight.detach().numpy()))
    pq.write_table(pa.table({"id": IDS, "v": vectors, "at": range(10)}), "vectors.parquet")
    return model


@pytest.fixture
def embedding(monolith, model):
    return functools.partial(
        monolith, "import", "embedding", "model.pt", "--tensor", "bag.weight", "--keys", "ids.txt"
    )


@pytest.fixture
def parquet(monolith, model):
    return functools.partial(
        monolith, "import", "parquet", "vectors.parquet", "--key", "id", "--vector", "v"
    )


def rows_of(prefix="run", table="item"):
    """Return key -> weights of a table of a checkpoint."""
    with load(prefix).load_tables([table])[table] as restored:
        chunks = list(restored.export())
    return {
        key: row
        for rows in chunks
        for key, row in zip(rows.keys.tolist(), rows.columns["weight/0"].tolist(), strict=True)
    }


def expected(model, ids=IDS):
    return dict(zip(ids, model.bag.weight.tolist(), strict=True))


def test_a_trained_model_predicts_the_same_and_trains_on(embedding, monolith, model):
    ran = embedding(*TO)
    assert ran.status == 0
    task = load_task_class("task.py")(ml.TaskSettings({"predict": "train.parquet"}))
    with ml.Trainer(task) as trainer:
        trainer.restore("run")
        (output,) = trainer.predict()
    rows = torch.arange(60).reshape(30, 2) % 10
    torch.testing.assert_close(output.prediction, model(rows).detach())
    ran = monolith(
        "train", "task.py", "--data", "train.parquet", "--checkpoints", "run", "--resume"
    )
    assert ran.status == 0
    assert "resumed at step 0 from run/model.ckpt-0" in ran.err
    assert "1 steps, 30 samples" in ran.err
    assert rows_of().keys() == {*IDS}
    assert rows_of() != expected(model)


def test_an_import_says_what_happened_and_how_to_go_on(embedding, model):
    ran = embedding(*TO, "--set", "batch_size=8")
    assert "10 rows into table 'item': 10 new; in 0." in ran.err
    assert "their optimizer state is new\n8 dense parameters are new; saved run/" in ran.err
    next_command = "monolith train task.py --set batch_size=8 --checkpoints run --resume"
    assert ran.err.endswith(f"next: {next_command}\n")


def test_a_second_import_goes_on_with_the_first(embedding, monolith, model, tmp_path):
    (tmp_path / "settings.json").write_text('{"batch_size": 8}')
    embedding(*TO)
    pq.write_table(
        pa.table({"id": [7, 100, 7], "v": [[1.0] * 4, [2.0] * 4, [3.0] * 4]}), "v.parquet"
    )
    options = ("--key", "id", "--vector", "v", "--duplicates", "last")
    ran = monolith(
        "import", "parquet", "v.parquet", *options, *TO, "--settings", "settings.json", "--json"
    )
    assert "3 rows into table 'item': 1 new, 2 replaced, 1 of them by a later row" in ran.err
    assert "dense parameters are those of run/model.ckpt-0" in ran.err
    assert "train task.py --settings settings.json --checkpoints run" in ran.err
    assert rows_of() == {**expected(model), 7: [3.0] * 4, 100: [2.0] * 4}
    counts = {"num_rows": 3, "num_new": 1, "num_replaced": 2, "num_without_room": 0}
    assert json.loads(ran.out)["tables"] == {"item": counts}


@pytest.mark.parametrize("state", ["model.pt", "model.safetensors"])
def test_both_files_of_tensors_give_the_rows(monolith, model, state):
    ran = monolith("import", "embedding", state, "--tensor", "bag.weight", "--keys", "range", *TO)
    assert ran.status == 0
    assert rows_of() == expected(model, range(10))


def test_a_state_of_a_torchrec_collection_has_a_matrix_for_each_table(monolith, model):
    state = {
        f"embedding_bags.{name}.weight": torch.rand(3, dim) for name, dim in (("t", 4), ("u", 2))
    }
    torch.save(state, "collection.pt")
    for name, feature in (("t", "item"), ("u", "user")):
        tensor = f"embedding_bags.{name}.weight"
        ran = monolith(
            *("import", "embedding", "collection.pt", "--tensor", tensor, "--keys", "range"),
            *("--task", "task.py", "--feature", feature, "--to", "run"),
        )
        assert ran.status == 0
        rows = rows_of(table=feature)
        assert [rows[key] for key in range(3)] == state[tensor].tolist()


def test_strings_get_the_keys_that_the_source_of_the_task_gives_them(monolith, model, tmp_path):
    words = [f"item {i}" for i in range(10)]
    (tmp_path / "words.txt").write_text("\n".join(words))
    options = ("--keys", "words.txt", "--hash-keys", "--tensor", "bag.weight")
    assert monolith("import", "embedding", "model.pt", *options, *TO).status == 0
    assert rows_of() == expected(model, ml.data.hash_strings(pa.array(words)).tolist())


def test_rows_have_the_time_of_the_option_or_of_the_column(embedding, parquet, model):
    for command, option in ((embedding, "77"), (parquet, "at")):
        assert command(*TO, "--time", option).status == 0
        with load("run").load_tables()["item"] as table:
            times = table.lookup_entry(torch.tensor(IDS)).rows.times.tolist()
        assert times == ([77] * 10 if option == "77" else list(range(10)))


def test_a_row_without_room_in_the_budget_is_told(parquet, model, tmp_path):
    text = TASK.replace('"mean"', '"mean", budget=ml.table.Budget(20_000, "evict_oldest")')
    (tmp_path / "task.py").write_text(text)
    edit_vectors(id=range(1000), v=[[1.0] * 4] * 1000, at=range(1000))
    ran = parquet(*TO)
    assert ran.status == 0
    assert "without room in the budget; in 0." in ran.err
    assert 0 < len(rows_of()) < 1000


def edit_vectors(**columns):
    table = pq.read_table("vectors.parquet").to_pydict() | columns
    pq.write_table(pa.table(table), "vectors.parquet")


WRONG_VECTORS = [
    ({"v": [[1.0]] * 10}, "expected vectors of 4 numbers, as table 'item' has, got vectors of 1"),
    ({"v": [[1.0] * 4] * 9 + [[np.nan] * 4]}, "got nan in row 9 with key 109 of "),
    ({"id": [1, 2] * 5}, "expected each key once, got key 1 in row 0 of "),
    ({"id": ["a"] * 10}, "hash strings with --hash-keys"),
    ({"at": [-1] * 10}, "expected times in [0, 4294967295], got [-1, -1]"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG_VECTORS)
def test_vectors_that_do_not_fit_are_refused_and_nothing_is_written(
    parquet, model, columns, message
):
    edit_vectors(**columns)
    ran = parquet(*TO, "--time", "at")
    assert ran.status == 1
    assert message in ran.err
    assert not os.path.exists("run")


def test_a_column_that_is_not_there_is_told(parquet, model):
    ran = parquet(*TO, "--vector", "w")
    assert ran.status == 1
    assert "expected one of the columns id, v, at as --vector, got 'w'" in ran.err


WRONG_OPTIONS = [
    (("--feature", "items"), "of task 'Ranker', got 'items'; did you mean 'item'?"),
    (("--tensor", "bags.weight"), "got none; did you mean 'bag.weight'?"),
    (("--keys", "no.txt"), "expected a file of keys, got none at 'no.txt'"),
    (("--keys", "task.py"), "expected an int64 in each line of task.py, got: "),
    (("--task", "no.py"), "expected a Python file, got none at 'no.py'"),
    (("--slot", "-1"), "expected a slot from 0 to 32767, got -1"),
    (("--set", "bach_size=3"), "did you mean 'batch_size'?"),
    (("--to", "task.py"), "[make_folder] expected to make task.py"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_a_wrong_option_is_told_and_nothing_is_written(embedding, model, options, message):
    ran = embedding(*TO, *options)
    assert ran.status == 1
    assert message in ran.err
    assert not os.path.exists("run")


def test_a_pickle_that_runs_code_is_refused(monolith, model, tmp_path):
    torch.save({"w": torch.ones(10, 4), "x": Malicious(tmp_path / "trap")}, "model.pt")
    ran = monolith("import", "embedding", "model.pt", "--keys", "ids.txt", *TO)
    assert ran.status == 1
    assert "which may run code and is not loaded (model.pt)" in ran.err
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_truncated_file_is_refused(monolith, model, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:100])
    ran = monolith("import", "embedding", name, "--keys", "ids.txt", *TO)
    assert ran.status == 1
    assert "error: [import] expected a whole" in ran.err
    assert not os.path.exists("run")


def test_a_missing_option_is_wrong_usage(monolith, model):
    ran = monolith("import", "embedding", "model.pt", "--keys", "ids.txt")
    assert ran.status == 2
    assert "Missing option '--task'" in ran.err


def test_a_checkpoint_of_another_task_is_refused_and_stays(embedding, model, tmp_path):
    embedding(*TO)
    before = load("run").manifest
    (tmp_path / "task.py").write_text(TASK.replace('"user"', '"visitor"'))
    ran = embedding(*TO)
    assert ran.status == 1
    assert "expected table 'visitor' in run/model.ckpt-0, got tables ['item', 'user']" in ran.err
    assert load("run").manifest == before


def test_a_folder_in_which_a_run_saves_is_refused(embedding, model):
    with only_run("run"):
        ran = embedding(*TO)
    assert ran.status == 1
    assert "expected one run that saves into run, got a second" in ran.err


def interrupt(*arguments, **options):
    """Do as Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_during_the_import_leaves_nothing(parquet, model, monkeypatch):
    monkeypatch.setattr(ImportTarget, "import_weights", interrupt)
    ran = parquet(*TO)
    assert (ran.status, ran.err) == (130, "error: interrupted; run is as it was\n")
    assert not os.path.exists("run")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # open files
@pytest.mark.parametrize("before", [[], ["run/model.ckpt-0"]])
def test_ctrl_c_during_the_save_leaves_the_checkpoint_as_it_was(
    parquet, model, monkeypatch, before
):
    @contextmanager
    def row_progress(title, total):
        yield interrupt if title.startswith("saving") else lambda num_rows: None

    if before:
        parquet(*TO)
        edit_vectors(v=[[0.0] * 4] * 10)
    with monkeypatch.context() as patch:
        patch.setattr("monolith.cli.progress.row_progress", row_progress)
        ran = parquet(*TO)
    gc.collect()  # the warnings belong to this test
    assert (ran.status, ran.err) == (130, "error: interrupted; run is as it was\n")
    assert existing_checkpoints("run") == before
    assert [rows_of(prefix) for prefix in before] == [expected(model)] * len(before)
