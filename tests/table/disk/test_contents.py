import errno
import json

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch

from monolith.errors import DataLossError, NotFoundError
from monolith.table import FixedR8, Segment, TableConfig, Zeros
from monolith.table.disk import save_tables
from monolith.table.disk.buffers import crc32c
from monolith.table.disk.contents import describe_save, find_key, verify_save
from monolith.table.disk.table_manifest import checksum
from monolith.table.initializers import partitions_of
from monolith.table.optimizers import SGD, Adagrad
from monolith.util.stores import StoreFile
from tests.suites.table_base import NOW
from tests.table.disk.cases import filled, make, plain, saved


def fids(*slots):
    return torch.tensor([(slot << 48) | i for i, slot in enumerate(slots)])


def saved_keys(path, keys, config=None):
    table = make(config or plain())
    table.assign(keys, torch.ones(len(keys), table.config.dim))
    save_tables(table, path)
    return table


def rows_file(path):
    (file,) = path.glob("data-*/*.rows-*.arrow")
    return file


def test_a_table_is_described(tmp_path):
    table = filled()
    save_tables(table, tmp_path)
    (found,) = describe_save(tmp_path)
    assert (found.name, found.num_rows, found.num_update_calls) == ("user", len(table), 3)
    assert found.num_candidates == len(table.export_candidates()["key"])
    assert found.num_bytes == sum(file.stat().st_size for file in tmp_path.glob("data-*/*"))
    assert found.num_files == len(list(tmp_path.glob("data-*/*")))
    assert [segment["dim"] for segment in found.config["segments"]] == [3, 5]


def test_ages_are_those_of_the_rows(tmp_path):
    table = make(plain())
    for key, now in ((1, NOW - 50), (2, NOW - 7)):
        table.assign(torch.tensor([key]), torch.ones(1, 1), now=now)
    table.erase(torch.tensor([1]))
    save_tables(table, tmp_path)
    (found,) = describe_save(tmp_path)
    assert (found.oldest_time, found.newest_time) == (NOW - 7, NOW - 7)


def test_a_table_without_rows_has_no_ages(tmp_path):
    save_tables(make(plain()), tmp_path)
    (found,) = describe_save(tmp_path)
    assert (found.num_rows, found.oldest_time, found.slots) == (0, None, {})


def test_slots_of_fids_are_counted_the_largest_first(tmp_path):
    saved_keys(tmp_path, fids(7, 3, 7, 7, 0))
    assert list(describe_save(tmp_path)[0].slots.items()) == [(7, 3), (0, 1), (3, 1)]


@pytest.mark.parametrize(
    "keys", [torch.arange(10), torch.cat([fids(7, 7), torch.tensor([-1])]), fids(*range(5000))]
)
def test_keys_that_are_no_fids_have_no_slots(tmp_path, keys):
    saved_keys(tmp_path, keys)
    assert describe_save(tmp_path)[0].slots == {}


def test_a_row_is_found_with_weights_state_and_time(tmp_path):
    table = filled()
    save_tables(table, tmp_path)
    rows = next(table.export())
    key = int(rows.keys[5])
    (found,) = find_key(tmp_path, key)
    weights = [*found.columns["weight/0"], *found.columns["weight/wide"]]
    assert weights == table.lookup(torch.tensor([key]))[0].tolist()
    assert found.time == int(rows.times[5])
    assert found.columns["state/wide/norm"] == rows.columns["state/wide/norm"][5].tolist()


def test_an_unsigned_key_is_the_same_key(tmp_path):
    saved_keys(tmp_path, torch.tensor([-5]))
    assert find_key(tmp_path, (1 << 64) - 5) == find_key(tmp_path, -5)
    assert find_key(tmp_path, -5)[0].key == -5


def test_encoded_weights_are_shown_as_numbers(tmp_path):
    config = TableConfig("user", Segment(2, SGD(), Zeros(), view=FixedR8(1.0)), kind="serving")
    saved_keys(tmp_path, torch.tensor([1]), config)
    assert find_key(tmp_path, 1)[0].columns["weight/0"] == pytest.approx([1, 1], abs=0.01)


def test_a_key_without_a_row_is_not_found(tmp_path):
    saved_keys(tmp_path, torch.tensor([1]))
    assert find_key(tmp_path, 2) == []


def test_a_table_with_a_function_as_rate_is_read(tmp_path):
    config = TableConfig("user", Segment(1, Adagrad(lambda step: 0.1)))
    saved_keys(tmp_path, torch.tensor([1]), config)
    assert len(find_key(tmp_path, 1)) == 1
    verify_save(tmp_path)


def test_names_choose_tables(tmp_path):
    save_tables([make(plain(name="a")), make(plain(name="b"))], tmp_path)
    assert [table.name for table in describe_save(tmp_path, names=["b"])] == ["b"]
    with pytest.raises(
        NotFoundError, match=r"^\[inspect\] expected one of the tables \['a', 'b'\]"
    ):
        describe_save(tmp_path, names=["c"])


def test_a_whole_save_is_verified_and_its_bytes_are_told(tmp_path):
    saved(tmp_path, filled(), filled(config=plain(name="item")))
    told = []
    verify_save(tmp_path, advance=told.append)
    assert told[-1] == sum(table.num_bytes for table in describe_save(tmp_path))
    assert len(told) == 3


def test_a_changed_byte_is_found(tmp_path):
    saved_keys(tmp_path, torch.arange(100))
    data = bytearray(rows_file(tmp_path).read_bytes())
    data[len(data) // 2] ^= 1
    rows_file(tmp_path).write_bytes(data)
    with pytest.raises(DataLossError, match=r"^\[inspect\] expected checksum"):
        verify_save(tmp_path)


def test_a_file_that_was_cut_is_found_at_once(tmp_path):
    saved_keys(tmp_path, torch.arange(100))
    size = rows_file(tmp_path).stat().st_size
    rows_file(tmp_path).write_bytes(rows_file(tmp_path).read_bytes()[:-9])
    with pytest.raises(DataLossError, match=rf"^\[inspect\] expected {size} bytes, got {size - 9}"):
        describe_save(tmp_path)


def test_a_file_that_is_no_arrow_file_is_found(tmp_path):
    saved_keys(tmp_path, torch.arange(100))
    file = rows_file(tmp_path)
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(DataLossError, match=r"^\[inspect\] expected an Arrow file with key and"):
        describe_save(tmp_path)


def rewritten(path, change):
    """Puts other rows into the file of a save, with the size and checksum of the manifest."""
    file = rows_file(path)
    with pa.ipc.open_file(file.read_bytes()) as reader:
        rows = change(reader.read_all())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = sink.getvalue().to_pybytes()
    file.write_bytes(data)
    content = json.loads((path / "manifest.json").read_text())
    content.pop("crc32c")
    content["tables"][0]["files"][0].update(num_bytes=len(data), crc32c=f"{crc32c(data):08x}")
    content["crc32c"] = checksum(content)
    (path / "manifest.json").write_text(json.dumps(content))


def test_a_key_that_is_there_twice_is_found(tmp_path):
    saved_keys(tmp_path, torch.arange(4))
    rewritten(tmp_path, lambda rows: rows.take([0, 1, 2, 2]))
    with pytest.raises(DataLossError, match=r"expected 4 different keys, got 3 \("):
        verify_save(tmp_path)


def test_keys_of_another_type_are_found(tmp_path):
    saved_keys(tmp_path, torch.arange(4))
    rewritten(tmp_path, lambda rows: rows.set_column(0, "key", pa.array([0.5] * 4)))
    with pytest.raises(DataLossError, match=r"key and time as int64, got \[DataType\(double\)"):
        describe_save(tmp_path)


def test_a_key_of_another_partition_is_found(tmp_path):
    keys = np.arange(1000)
    (own,), (foreign,) = (keys[(partitions_of(keys) < 2048) == is_low][:1] for is_low in (1, 0))
    table = make(plain())
    table.assign(torch.tensor([own]), torch.ones(1, 1))
    save_tables(table, tmp_path, partitions=range(2048))
    rewritten(
        tmp_path,
        lambda rows: rows.set_column(0, rows.schema.field("key"), pa.array([foreign])),
    )
    with pytest.raises(DataLossError, match=rf"keys of its partitions, got key {foreign} of"):
        verify_save(tmp_path)


def test_saves_of_other_file_systems_are_read():
    path = "memory://inspected"
    saved_keys(path, torch.tensor([3]))
    assert describe_save(path)[0].newest_time == NOW
    assert len(find_key(path, 3)) == 1
    verify_save(path)
    fsspec.filesystem("memory").rm("/inspected", recursive=True)


def test_a_store_that_is_lost_is_no_damage(monkeypatch):
    saved_keys("memory://lost-inspected", torch.tensor([3]))

    def fail(file, *arguments):
        raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr(StoreFile, "read", fail)
    with pytest.raises(OSError, match="no answer") as caught:
        describe_save("memory://lost-inspected")
    assert not isinstance(caught.value, DataLossError)


def test_no_save_is_told(tmp_path):
    with pytest.raises(
        NotFoundError, match=r"^\[inspect\] expected a file, got none at .*/manifest"
    ):
        describe_save(tmp_path)
