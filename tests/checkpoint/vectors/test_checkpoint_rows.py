import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from monolith.checkpoint import Contents, open_checkpoint, save
from monolith.checkpoint.vectors import checkpoint_rows
from monolith.checkpoint.vectors.checkpoint_rows import decoded, joined_weights, saved_tables
from monolith.checkpoint.vectors.row_files import write_row_files
from monolith.checkpoint.vectors.torchrec_state import write_torchrec_state
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.table import Adagrad, Adam, Budget, MinCount, Segment, Table, TableConfig
from tests.checkpoint.chains import saved_chain

KEYS = torch.tensor([5, -3, 1 << 60, 7])
WEIGHTS = torch.arange(12.0).reshape(4, 3)
TIMES = torch.tensor([1, 2, 3, 4])


def rate(step):
    """A schedule, which no checkpoint can store."""
    return 0.5


def tables():
    """Return a table of two segments, and a table with a budget and an admission."""
    parts = [Segment(1, Adam(rate), name="bias"), Segment(2, Adagrad(0.1), precision="fp16")]
    user = Table(TableConfig("user", parts))
    small = TableConfig(
        "item/é", Segment(3), budget=Budget(10_000, "evict_oldest"), admission=MinCount(3)
    )
    item = Table(small)
    for table in (user, item):
        table.lookup_or_insert(KEYS, now=0)  # admits all keys
        for key, row, now in zip(KEYS, WEIGHTS, TIMES, strict=True):
            table.assign(key[None], row[None], now=int(now))
    return [user, item]


@pytest.fixture
def checkpoint(tmp_path):
    return open_checkpoint(save(Contents(tables=tables(), step=3), tmp_path / "run"))


def rows_of(table):
    """Return key -> (time, weights) of a saved table."""
    return {
        int(key): (int(time), weights.tolist())
        for rows in table.rows(2)
        for key, time, weights in zip(
            rows.keys, rows.times, joined_weights(table.config, rows), strict=True
        )
    }


EXPECTED = {
    int(key): (int(time), row.tolist()) for key, time, row in zip(KEYS, TIMES, WEIGHTS, strict=True)
}


@pytest.mark.parametrize("part_bytes", [1, 100, 1 << 28])
def test_all_rows_come_once_whatever_is_in_memory_at_a_time(checkpoint, monkeypatch, part_bytes):
    monkeypatch.setattr(checkpoint_rows, "_PART_BYTES", part_bytes)
    user, item = saved_tables(checkpoint, ["user", "item/é"])
    assert rows_of(user) == rows_of(item) == EXPECTED


def test_a_part_of_the_rows_is_in_memory_at_a_time(checkpoint, monkeypatch):
    sizes = []

    class Counted(Table):
        def close(self):
            sizes.append(len(self))
            super().close()

    monkeypatch.setattr(checkpoint_rows, "Table", Counted)
    monkeypatch.setattr(checkpoint_rows, "_PART_BYTES", 200)
    (table,) = saved_tables(checkpoint, ["user"])
    list(table.rows())
    assert len(sizes) > 1
    assert sum(sizes) == 4 > max(sizes)


@pytest.mark.parametrize("part_bytes", [20_000, 1 << 28])
def test_the_rows_of_a_link_are_those_of_its_whole_chain(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(checkpoint_rows, "_PART_BYTES", part_bytes)
    _, table, saves = saved_chain(tmp_path, num_links=3)
    (saved,) = saved_tables(open_checkpoint(saves[-1].prefix))
    chunks = [decoded(table.config, rows) for rows in table.export(chunk_rows=10_000)]
    assert saved.num_rows == len(table)
    assert rows_of(saved) == {
        key: (time, weights)
        for rows in chunks
        for key, time, weights in zip(
            rows.keys.tolist(),
            rows.times.tolist(),
            joined_weights(table.config, rows).tolist(),
            strict=True,
        )
    }


def test_a_name_of_no_table_names_the_nearest(checkpoint):
    with pytest.raises(NotFoundError, match=r"a table of \S+model.ckpt-3, got 'users'; did you"):
        saved_tables(checkpoint, ["users"])
    with pytest.raises(NotFoundError, match="got 'zzz'; it has item/é, user"):
        saved_tables(checkpoint, ["zzz"])


def test_files_of_rows_have_decoded_weights(checkpoint, tmp_path):
    counts = []
    written = write_row_files(saved_tables(checkpoint), tmp_path / "a/rows", advance=counts.append)
    assert [(path.name, n) for path, n in written.items()] == [
        ("item%2F%C3%A9.parquet", 4),
        ("user.parquet", 4),
    ]
    user = pq.read_table(tmp_path / "a/rows/user.parquet").sort_by("time").to_pydict()
    assert list(user) == ["key", "time", "weight/bias", "weight/1"]
    assert user["key"] == KEYS.tolist()
    assert np.hstack([user["weight/bias"], user["weight/1"]]).tolist() == WEIGHTS.tolist()
    assert counts == [4, 8]


def test_files_of_rows_have_the_state_of_optimizers_on_request(checkpoint, tmp_path):
    write_row_files(saved_tables(checkpoint, ["user"]), tmp_path / "rows", with_state=True)
    columns = pq.read_table(tmp_path / "rows/user.parquet").to_pydict()
    (rows,) = tables()[0].export()
    expected = {name: c.tolist() for name, c in rows.columns.items() if name.startswith("state/")}
    assert {name: columns[name] for name in columns if name.startswith("state/")} == expected


def test_a_folder_of_rows_is_new_and_appears_as_a_whole(checkpoint, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    saved = saved_tables(checkpoint)
    for place, got in (("full", "a folder with files at"), ("full/file", "a file at")):
        with pytest.raises(InvalidArgumentError, match=f"new or empty folder, got {got}"):
            write_row_files(saved, tmp_path / place)
    with pytest.raises(InvalidArgumentError, match="a path on this machine, got 's3://a'"):
        write_row_files(saved, "s3://a")

    def interrupt(num_rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_row_files(saved, tmp_path / "rows", advance=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "rows", "run"]
    assert not any((tmp_path / "rows").iterdir())
    write_row_files(saved, tmp_path / "rows")
    assert len(list((tmp_path / "rows").iterdir())) == 2


def test_a_state_of_torchrec_has_a_matrix_and_ascending_keys_for_each_table(checkpoint, tmp_path):
    counts, path = [], tmp_path / "a/state.pt"
    shapes = write_torchrec_state(saved_tables(checkpoint, ["user"]), path, counts.append)
    keys_path = tmp_path / "a/state.user.keys.parquet"
    keys = torch.tensor(pq.read_table(keys_path)["key"].to_pylist())
    weights = torch.load(path, weights_only=True)["embedding_bags.user.weight"]
    assert shapes == {keys_path: (4, 3)}
    assert keys.tolist() == sorted(KEYS.tolist())
    assert torch.equal(weights[torch.searchsorted(keys, KEYS)], WEIGHTS)
    assert counts == [4, 8]


def test_a_state_of_torchrec_is_a_new_file_of_tables_with_plain_names(checkpoint, tmp_path):
    saved, path = saved_tables(checkpoint), tmp_path / "state.pt"
    with pytest.raises(InvalidArgumentError, match=r"without '.'.*, got 'item/é'; .*--table"):
        write_torchrec_state(saved, path)
    with pytest.raises(InvalidArgumentError, match=r"ends in .pt or .pth, got '\S+state.bin'"):
        write_torchrec_state(saved, tmp_path / "state.bin")
    path.touch()
    with pytest.raises(InvalidArgumentError, match=r"a new file, got \S+state.pt, which exists"):
        write_torchrec_state(saved, path)


def test_a_state_of_torchrec_that_is_interrupted_leaves_no_file(checkpoint, tmp_path):
    def interrupt(num_rows):
        if num_rows == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_torchrec_state(saved_tables(checkpoint, ["user"]), tmp_path / "s.pt", interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
