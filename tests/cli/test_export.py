import functools
import json
import os
import signal

import pyarrow.parquet as pq
import pytest
import torch

from monolith.checkpoint import Contents, save
from monolith.checkpoint.vectors.checkpoint_rows import CheckpointTable
from monolith.table import Adagrad, Segment, Table, TableConfig
from tests.cli.run import run

KEYS = torch.tensor([9, -2, 4])
WEIGHTS = torch.arange(6.0).reshape(3, 2)


@pytest.fixture
def monolith(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tables = [Table(TableConfig(name, Segment(2, Adagrad(0.1)))) for name in ("item", "user")]
    for table in tables:
        table.assign(KEYS, WEIGHTS, now=7)
    save(Contents(tables=tables, step=3), "run")
    return functools.partial(run, capsys, monkeypatch)


def rows_of(path, column="weight/0"):
    columns = pq.read_table(path).to_pydict()
    return dict(zip(columns["key"], columns[column], strict=True))


EXPECTED = dict(zip(KEYS.tolist(), WEIGHTS.tolist(), strict=True))


def test_rows_are_written_as_a_file_for_each_table(monolith):
    ran = monolith("export", "rows", "run", "--to", "rows")
    assert ran.status == 0
    lines = ["3 rows at rows/item.parquet", "3 rows at rows/user.parquet", "wrote 2 files in 0."]
    assert "\n".join(["checkpoint run/model.ckpt-3 (step 3)", *lines]) in ran.err
    assert rows_of("rows/item.parquet") == rows_of("rows/user.parquet") == EXPECTED
    assert pq.read_schema("rows/user.parquet").names == ["key", "time", "weight/0"]


def test_chosen_tables_are_written_with_their_state(monolith):
    ran = monolith(
        "export",
        "rows",
        "run/model.ckpt-3",
        "--to",
        "r",
        "--table",
        "user",
        "--with-state",
        "--json",
    )
    assert json.loads(ran.out) == {"file": "r/user.parquet", "num_rows": 3}
    norms = rows_of("r/user.parquet", "state/0/norm")
    assert norms == {key: [pytest.approx(0.1)] * 2 for key in EXPECTED}


def test_exported_rows_are_imported_again(monolith, tmp_path):
    monolith("export", "rows", "run", "--to", "rows")
    (tmp_path / "task.py").write_text(
        "import torch, monolith as ml\n"
        "class Users(ml.Task):\n"
        "    features = (ml.Feature('user', dim=2),)\n"
        "    source = loss = None\n"
        "    def build(self):\n"
        "        return torch.nn.Identity()\n"
    )
    options = ("--key", "key", "--vector", "weight/0", "--time", "time", "--task", "task.py")
    ran = monolith(
        "import", "parquet", "rows/user.parquet", *options, "--feature", "user", "--to", "new"
    )
    assert ran.status == 0
    monolith("export", "rows", "new", "--to", "again")
    assert rows_of("again/user.parquet") == EXPECTED
    assert set(rows_of("again/user.parquet", "time").values()) == {7}


def test_a_state_of_torchrec_says_where_the_keys_are(monolith):
    ran = monolith("export", "torchrec", "run", "--to", "state.pt", "--table", "user", "--json")
    assert json.loads(ran.out) == {"keys": "state.user.keys.parquet", "num_rows": 3, "dim": 2}
    assert 'next: collection.load_state_dict(torch.load("state.pt", weights_only=True))' in ran.err
    keys = pq.read_table("state.user.keys.parquet")["key"].to_pylist()
    weights = torch.load("state.pt", weights_only=True)["embedding_bags.user.weight"].tolist()
    assert keys == sorted(keys)
    assert dict(zip(keys, weights, strict=True)) == EXPECTED


def test_a_state_of_torchrec_is_loaded_by_modules_of_these_names(monolith):
    monolith("export", "torchrec", "run", "--to", "state.pt")
    bags = {name: torch.nn.EmbeddingBag(3, 2) for name in ("item", "user")}
    collection = torch.nn.ModuleDict({"embedding_bags": torch.nn.ModuleDict(bags)})
    collection.load_state_dict(torch.load("state.pt", weights_only=True))
    assert sorted(bags["user"].weight.tolist()) == sorted(EXPECTED.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rows", "no", "--to", "rows"), "expected a checkpoint, got none at 'no'"),
        (("rows", "run", "--to", "run"), "a new or empty folder, got a folder with files at 'run'"),
        (("rows", "run", "--to", "r", "--table", "usr"), "got 'usr'; did you mean 'user'?"),
        (("torchrec", "run", "--to", "state"), "ends in .pt or .pth, got 'state'"),
    ],
)
def test_a_wrong_argument_is_told(monolith, arguments, message):
    ran = monolith("export", *arguments)
    assert ran.status == 1
    assert message in ran.err


def test_a_damaged_checkpoint_leaves_nothing(monolith, tmp_path):
    (file, _) = sorted(tmp_path.glob("run/*.assets/*.arrow"))
    file.write_bytes(file.read_bytes()[:-8])
    ran = monolith("export", "rows", "run", "--to", "rows")
    assert ran.status == 1
    assert "; it is damaged or foreign" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("command", [("rows", "rows"), ("torchrec", "state.pt")])
def test_ctrl_c_leaves_nothing(monolith, tmp_path, monkeypatch, command):
    def interrupt(self, chunk_rows=0):
        os.kill(os.getpid(), signal.SIGINT)
        yield

    monkeypatch.setattr(CheckpointTable, "rows", interrupt)
    kind, place = command
    ran = monolith("export", kind, "run", "--to", place)
    assert (ran.status, ran.err.splitlines()[-1]) == (
        130,
        "error: interrupted; nothing was written",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
