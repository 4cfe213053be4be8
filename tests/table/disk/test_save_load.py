"""What a save keeps, and into what it can be loaded."""

import os
import threading
import time

import fsspec
import pytest
import torch

from monolith.errors import CancelledError, FailedPreconditionError
from monolith.table import (
    FixedR8,
    OneBit,
    Probabilistic,
    Rows,
    Segment,
    SlidingFilter,
    Table,
    TableConfig,
)
from monolith.table import (
    _checks as checks,
)
from monolith.table.disk import folder as folder_module
from monolith.table.disk import load_table, load_tables, restore_tables, save_tables, table_files
from monolith.table.disk import table_save as save_module
from monolith.table.disk.writer import Throttle
from monolith.table.initializers import partitions_of
from monolith.table.optimizers import Adam, BatchSoftmax
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import NOW, exported, keys, random_floats, random_keys
from tests.suites.table_machine import CONFIGS
from tests.table.disk.cases import (
    CONFIG,
    assert_same_table,
    data_files,
    filled,
    listing,
    make,
    manifest_of,
    plain,
    saved,
)


@pytest.fixture
def small_files(monkeypatch):
    """Many files of few rows each."""
    monkeypatch.setattr(table_files, "_FILE_BYTES", 1 << 14)
    monkeypatch.setattr(table_files, "_BATCH_ROWS", 50)


def test_a_loaded_table_equals_the_saved_one(tmp_path):
    table = filled()
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path, clock=lambda: NOW)
    assert loaded.config == table.config
    assert_same_table(loaded, table)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_many_files_on_many_threads_hold_the_same(tmp_path, num_threads):
    table = filled()
    save_tables(table, tmp_path, num_threads=num_threads)
    assert len(data_files(tmp_path)) > 5
    assert_same_table(load_table(tmp_path, num_threads=num_threads), table)


def test_training_goes_on_as_if_it_was_never_broken(tmp_path):
    table = filled()
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path, clock=lambda: NOW)
    for each in (table, loaded):
        each.apply_gradients(random_keys(1000, seed=5), random_floats(1000, 8, 9))
        each.apply_gradients(random_keys(1000, seed=5), random_floats(1000, 8, 9))
    assert_same_table(loaded, table)


@pytest.mark.parametrize(
    "config",
    [
        *CONFIGS.values(),
        TableConfig("user", [Segment(3, Adam()), Segment(1, BatchSoftmax())], seed=2**64 - 1),
        TableConfig(
            "user", [Segment(9, view=OneBit()), Segment(4, view=FixedR8())], kind="serving"
        ),
        TableConfig("user", Segment(2, precision="fp16"), kind="serving", skip_zero=True),
        TableConfig("", Segment(1)),
        TableConfig("../Nutzer: \N{SNOWMAN}/1" + "x" * 200, Segment(1, name="a b")),
    ],
    ids=lambda config: "",
)
def test_tables_of_every_kind_come_back(tmp_path, config):
    table = make(config)
    for i in range(4):
        numbers = random_keys(300, seed=i // 2)
        table.assign(numbers, random_floats(300, config.dim, i), now=NOW - i)
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path)
    assert loaded.config == config
    assert_same_table(loaded, table)


@pytest.mark.parametrize("source", [Table, ReferenceTable])
def test_reference_and_native_tables_read_each_others_saves(tmp_path, source):
    table = source(CONFIG, clock=lambda: NOW)
    table.apply_gradients(random_keys(200), random_floats(200, 8))
    table.apply_gradients(random_keys(100), random_floats(100, 8))
    save_tables(table, tmp_path)
    for target in (Table(CONFIG), ReferenceTable(CONFIG)):
        restore_tables(target, tmp_path)
        assert_same_table(target, table)


def test_a_save_leaves_the_table_alone(tmp_path):
    table = filled()
    before, stats = exported(table), table.stats()
    save_tables(table, tmp_path)
    assert torch.equal(exported(table).keys, before.keys)
    assert table.stats() == stats


def test_an_empty_table_comes_back_empty(tmp_path):
    save_tables(make(), tmp_path)
    assert len(load_table(tmp_path)) == 0


def test_several_tables_share_a_save(tmp_path):
    tables = [filled(100 + i, plain(2, name=f"table{i}")) for i in range(3)]
    save_tables(tables, tmp_path)
    loaded = load_tables(tmp_path)
    assert list(loaded) == ["table0", "table1", "table2"]
    for table in tables:
        assert_same_table(loaded[table.name], table)
    assert list(load_tables(tmp_path, names=["table1"])) == ["table1"]


def test_tables_of_the_save_that_are_not_asked_for_are_left_out(tmp_path):
    slots = {name: filled(20 + i, plain(name=name)) for i, name in enumerate("abc")}
    save_tables(list(slots.values()), tmp_path)
    targets = [make(plain(name=name)) for name in "acd"]
    assert restore_tables(targets, tmp_path, allow_missing=True) == ["d"]
    assert [len(target) for target in targets] == [len(slots["a"]), len(slots["c"]), 0]


@pytest.mark.parametrize("num_shards", [1, 3, 7])
def test_a_save_loads_into_any_number_of_shards(tmp_path, num_shards):
    table = filled()
    save_tables(table, tmp_path)
    shards = [
        load_table(tmp_path, partitions=range(i, 4096, num_shards)) for i in range(num_shards)
    ]
    assert sum(map(len, shards)) == len(table)
    for i, shard in enumerate(shards):
        assert set(partitions_of(exported(shard).keys.numpy()) % num_shards) <= {i}
    numbers = torch.cat([shard.export_candidates()["key"] for shard in shards])
    assert sorted(numbers.tolist()) == sorted(table.export_candidates()["key"].tolist())


def test_filters_of_some_partitions_are_loaded_alone(tmp_path):
    table = make(plain(admission=SlidingFilter(2, capacity=1)))
    table.assign(random_keys(500), torch.zeros(500, 1))
    save_tables(table, tmp_path)
    part = load_table(tmp_path, partitions=range(100, 900))
    found, expected = part.export_candidates(), table.export_candidates(range(100, 900))
    assert all(torch.equal(found[name], column) for name, column in expected.items())


def test_filters_of_the_whole_table_are_written_as_before_shards_had_their_own(tmp_path):
    save_tables(make(plain(admission=SlidingFilter(2, capacity=1))), tmp_path)
    rule = manifest_of(tmp_path)["tables"][0]["config"]["admission"]
    assert rule == {
        "class": "SlidingFilter",
        "threshold": 2,
        "slots": {},
        "capacity": 1,
        "split_num": 7,
    }


def test_saves_of_shards_load_as_one_table(tmp_path):
    table = filled()
    ranges = [range(1000), range(1000, 1001), range(1001, 4096)]
    paths = [tmp_path / str(i) for i in range(3)]
    for path, partitions in zip(paths, ranges, strict=True):
        save_tables(table, path, partitions=partitions)
    assert_same_table(load_table(paths), table)


def test_progress_reaches_all_rows_and_bytes(tmp_path):
    table, seen = filled(), []
    save_tables(table, tmp_path, progress=seen.append)
    assert seen[-1].num_rows == seen[-1].total_rows == len(table)
    seen.clear()
    load_table(tmp_path, progress=seen.append)
    size = sum(file["num_bytes"] for t in manifest_of(tmp_path)["tables"] for file in t["files"])
    assert (seen[-1].num_rows, seen[-1].num_bytes) == (len(table), size)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_error_in_the_callback_ends_the_save_and_leaves_the_old_one(tmp_path, num_threads):
    saved(tmp_path)
    before = listing(tmp_path)

    def stop(progress):
        if progress.num_rows > 200:
            raise CancelledError("enough")

    with pytest.raises(CancelledError, match="enough"):
        save_tables(filled(), tmp_path, progress=stop, num_threads=num_threads)
    assert listing(tmp_path) == before


def test_an_error_ends_a_save_that_waits_for_its_rate(tmp_path, monkeypatch):
    create, names = folder_module._LocalFolder.create, []

    def create_once(folder, name):
        names.append(name)
        if len(names) > 1:
            raise OSError("enough")
        return create(folder, name)

    monkeypatch.setattr(folder_module._LocalFolder, "create", create_once)
    start = time.monotonic()
    with pytest.raises(OSError, match="enough"):
        save_tables(filled(), tmp_path, max_bytes_per_second=50, num_threads=2)
    assert time.monotonic() - start < 10  # of the 40 seconds or so until the next bytes
    assert listing(tmp_path) == {}


def test_a_new_save_replaces_the_old_one(tmp_path):
    saved(tmp_path, filled(10))
    saved(tmp_path, filled(20))
    assert len(load_table(tmp_path)) == 20
    assert len([name for name in os.listdir(tmp_path) if name.startswith("data-")]) == 1


def test_a_second_save_into_the_same_folder_is_refused_while_one_runs(tmp_path):
    table, inside, goes_on = filled(), threading.Event(), threading.Event()

    def wait(progress):
        inside.set()
        assert goes_on.wait(60)

    thread = threading.Thread(target=save_tables, args=(table, tmp_path), kwargs={"progress": wait})
    thread.start()
    assert inside.wait(60)
    with pytest.raises(FailedPreconditionError, match="expected one save at a time, got a second"):
        save_tables(table, tmp_path)
    goes_on.set()
    thread.join()
    assert_same_table(load_table(tmp_path), table)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("config", [plain(8), CONFIG], ids=["rows", "rows and candidates"])
def test_a_save_lets_go_of_the_rows_that_are_written(tmp_path, config):
    table, kept = filled(2000, config), []
    numbers = exported(table).keys

    def change(progress):
        if not kept:
            table.apply_gradients(numbers, torch.ones(len(numbers), 8))  # copies every old row
        kept.append(table.memory_report()["cut_bytes"])

    save_tables(table, tmp_path, num_threads=1, progress=change)
    assert kept == sorted(kept, reverse=True)
    assert 0 < kept[-1] < kept[0] / 3


@pytest.mark.parametrize("scheme", ["memory://saves/a", "file://{}"])
def test_paths_with_a_scheme(tmp_path, scheme):
    table, path = filled(100), scheme.format(tmp_path)
    save_tables(table, path)
    save_tables(table, path)
    assert_same_table(load_table(path), table)


def test_a_save_of_no_partitions_has_no_rows(tmp_path):
    table, paths = filled(), [tmp_path / "a", tmp_path / "b"]
    for path, partitions in zip(paths, [[], range(4096)], strict=True):
        save_tables(table, path, partitions=partitions)
    assert len(load_table(paths[0])) == 0
    assert_same_table(load_table(paths), table)


def test_random_answers_go_on_after_a_load(tmp_path):
    table = make(plain(admission=Probabilistic(3)))
    table.assign(keys(1), torch.ones(1, 1))
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path, clock=lambda: NOW)
    numbers = torch.arange(100)
    for each in (loaded, table):
        each.apply_gradients(numbers, torch.ones(100, 1))
    assert torch.equal(loaded.contains(numbers), table.contains(numbers))


def test_the_rate_of_writing_is_bounded_over_all_threads(tmp_path, monkeypatch):
    waits, table = [], filled()
    monkeypatch.setattr(
        save_module,
        "Throttle",
        lambda rate, wait: Throttle(rate, clock=lambda: 0.0, wait=waits.append),
    )
    save_tables(table, tmp_path, max_bytes_per_second=1000, num_threads=2)
    size = sum(f["num_bytes"] for f in manifest_of(tmp_path)["tables"][0]["files"])
    assert max(waits) == pytest.approx(size / 1000, rel=0.5)
    assert max(waits) < size / 1000


def test_a_save_leaves_folders_of_others_alone(tmp_path):
    ours = "0-user.rows-0000-4095.arrow"
    names = [f"data-raw/{ours}", "data-0123456789ab/precious.csv", f"data-0123456789ac/x/{ours}"]
    names += [f"data-0123456789ad/{ours}/x", ".lock"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("kept")
    for _ in range(2):
        saved(tmp_path, filled(3))
    assert {name: (tmp_path / name).read_text() for name in names} == dict.fromkeys(names, "kept")


def test_a_save_into_a_store_leaves_folders_of_others_alone():
    files = fsspec.filesystem("memory")
    names = ["/others/data-raw/a.csv", "/others/data-0123456789ab/a.csv"]
    for name in names:
        files.pipe_file(name, b"kept")
    for _ in range(2):
        saved("memory://others", filled(3))
    assert [files.cat_file(name) for name in names] == [b"kept"] * 2
    assert len(files.ls("/others")) == 4  # the two, a manifest, and one folder of data


@pytest.mark.parametrize("files", [[], ["0-user.rows-0000-4095.arrow"]])
def test_a_save_removes_what_a_killed_one_left(tmp_path, files):
    left = tmp_path / "data-0123456789ab"
    left.mkdir()
    for name in files:
        (left / name).write_text("")
    saved(tmp_path, filled(3))
    assert not left.exists()


def test_a_load_checks_rows_once_and_stores_them_as_they_are(tmp_path, monkeypatch):
    table = make(TableConfig("user", Segment(1, precision="fp16"), kind="serving", skip_zero=True))
    weights = torch.full((1, 1), 1e-30)  # not zero, but its fp16 code is
    table.import_rows(Rows(keys(7), keys(NOW), {"weight/0": weights}))
    save_tables(table, tmp_path)
    monkeypatch.setattr(checks, "check_rows", None)  # of `import_rows`
    assert load_table(tmp_path).contains(keys(7)).tolist() == [True]
