import os
import threading

import pytest
import torch

from monolith.checkpoint import (
    Contents,
    WriteOptions,
    load,
    open_checkpoint,
    read_checkpoint_state,
    remove,
    save,
    write,
)
from monolith.checkpoint import dense_tensors as dense_module
from monolith.cluster import ShardedTable
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.table import Expiry, Segment, TableConfig
from monolith.table.disk import table_files
from tests.checkpoint.cases import (
    ITEM,
    NOW,
    USER,
    assert_same_tensors,
    dense_tensors,
    filled,
    listing,
    make,
    manifest_of,
    saved,
)
from tests.table.disk.cases import assert_same_table


@pytest.fixture
def prefix(tmp_path):
    return saved(tmp_path / "model.ckpt-7")


def test_a_checkpoint_comes_back(prefix):
    checkpoint = open_checkpoint(prefix)
    assert (checkpoint.step, checkpoint.prefix) == (7, prefix)
    assert checkpoint.table_names == ["item", "user"]
    assert checkpoint.read_trainer() == {"epoch": 1, "position": [3, 4]}
    assert checkpoint.read_meta() == {"model": "Linear"}
    assert_same_tensors(checkpoint.read_dense(), dense_tensors())
    loaded = checkpoint.load_tables(clock=lambda: 0)
    assert_same_table(loaded["user"], filled())
    assert_same_table(loaded["item"], filled(ITEM))
    assert repr(checkpoint) == f"Checkpoint({prefix!r})"


def test_the_files_of_a_checkpoint(tmp_path, prefix):
    assert sorted(listing(tmp_path)) == [
        "model.ckpt-7.assets/item-00000-of-00001.arrow",
        "model.ckpt-7.assets/user-00000-of-00001.arrow",
        "model.ckpt-7.assets/user-00000-of-00001.candidates.arrow",
        "model.ckpt-7.dense-00000-of-00001.safetensors",
        "model.ckpt-7.manifest.json",
        "model.ckpt-7.meta.json",
        "model.ckpt-7.trainer.json",
    ]


def test_restore_replaces_what_tables_and_tensors_hold(prefix):
    table, tensors = filled(num_rows=90), {name: t + 1 for name, t in dense_tensors().items()}
    open_checkpoint(prefix).restore(tables=table, dense=tensors)
    assert_same_table(table, filled())
    assert_same_tensors(tensors, dense_tensors())


def test_a_part_of_the_tensors_reads_only_its_files(tmp_path):
    groups = [{"a": torch.ones(2)}, {"b": torch.zeros(2)}]
    prefix = saved(tmp_path / "c", dense=groups)
    os.unlink(f"{prefix}.dense-00001-of-00002.safetensors")
    assert_same_tensors(open_checkpoint(prefix).read_dense(["a"]), groups[0])


def test_large_groups_of_tensors_are_cut_into_files(tmp_path, monkeypatch):
    monkeypatch.setattr(dense_module, "_PIECE_BYTES", 16)
    tensors = {name: torch.full((3,), float(i)) for i, name in enumerate("abcd")}
    prefix = saved(tmp_path / "c", dense=tensors, num_threads=3)
    assert len(manifest_of(prefix)["dense"]) == 4
    assert_same_tensors(open_checkpoint(prefix).read_dense(num_threads=2), tensors)


def test_tensors_that_share_memory_or_are_no_block_of_it(tmp_path):
    tensor = torch.arange(6.0).reshape(2, 3)
    tensors = {"a": tensor, "b": tensor, "turned": tensor.T, "part": tensor[:, 1:]}
    prefix = saved(tmp_path / "c", dense=tensors)
    assert_same_tensors(open_checkpoint(prefix).read_dense(), tensors)


def test_a_checkpoint_of_nothing(tmp_path):
    write(Contents(), tmp_path / "c")
    checkpoint = open_checkpoint(tmp_path / "c")
    assert (checkpoint.step, checkpoint.tensors, checkpoint.table_names) == (None, {}, [])
    assert checkpoint.read_trainer() is checkpoint.read_meta() is None
    assert checkpoint.verify() == 0


def test_a_cut_holds_what_was_there_while_steps_go_on(tmp_path):
    table, weight = filled(), torch.ones(2)
    with Contents(tables=table, dense={"w": weight}).cut(with_copies=True) as cut:
        table.apply_gradients(torch.arange(60), torch.ones(60, 3))
        weight += 1
        write(cut, tmp_path / "c")
    checkpoint = open_checkpoint(tmp_path / "c")
    assert_same_table(checkpoint.load_tables()["user"], filled())
    assert checkpoint.read_dense()["w"].tolist() == [1.0, 1.0]


def test_cuts_of_the_caller_stay_open(tmp_path):
    table = filled()
    with table.cut() as snapshot, Contents(tables=[snapshot]).cut() as cut:
        write(cut, tmp_path / "a")
        cut.close()
        assert sum(map(len, snapshot.export())) == len(table)


def test_own_cuts_end_with_the_save_or_the_block(tmp_path):
    table = filled()
    with Contents(tables=table).cut() as cut:
        write(cut, tmp_path / "c")
        with pytest.raises(FailedPreconditionError, match="expected an open cut, got a closed one"):
            write(cut, tmp_path / "d")
    open_checkpoint(tmp_path / "c").restore_tables(table)  # refused beside an open cut


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5)])
def test_any_number_of_shards_restores_into_any_other(tmp_path, before, after):
    with ShardedTable.local(USER, before) as first, ShardedTable.local(USER, after) as second:
        first.assign(torch.arange(99), torch.ones(99, 3), now=5)
        second.assign(torch.arange(50, 150), torch.zeros(100, 3), now=5)
        prefix = saved(tmp_path / "c", tables=first)
        open_checkpoint(prefix).restore_tables(second)
        assert len(second) == len(first)
        assert torch.equal(second.lookup(torch.arange(150)), first.lookup(torch.arange(150)))


def test_a_part_of_the_partitions_restores(prefix):
    parts = [make(), make()]
    for i, table in enumerate(parts):
        open_checkpoint(prefix).restore_tables(table, partitions=range(i, 4096, 2))
    assert sum(map(len, parts)) == len(filled())


def test_a_saved_prefix_is_replaced_with_all_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_FILE_BYTES", 256)
    prefix = saved(tmp_path / "c", tables=filled(num_rows=300))
    num_files = len(listing(tmp_path))
    (tmp_path / "c.notes").write_text("kept")
    monkeypatch.undo()
    saved(prefix, tables=filled(ITEM))
    assert open_checkpoint(prefix).table_names == ["item"]
    assert len(os.listdir(tmp_path / "c.assets")) == 1 < num_files
    assert (tmp_path / "c.notes").read_text() == "kept"


def test_removing_takes_all_files_of_the_prefix_and_no_others(tmp_path):
    for name in ("c-1", "c-10", "c-1.b"):
        saved(tmp_path / name)
    (tmp_path / "c-1.notes").write_text("")
    remove(f"{tmp_path}/c-1")
    assert {name.split("-")[1].split(".")[0] for name in listing(tmp_path)} == {"10", "1"}
    assert all(name.startswith(("c-10.", "c-1.b.")) for name in listing(tmp_path))
    open_checkpoint(tmp_path / "c-1.b").verify()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_a_load_reads_is_removed_by_a_later_save(tmp_path, scheme):
    prefix = saved(f"{scheme}{tmp_path}/c-1")
    checkpoint = open_checkpoint(prefix)
    with checkpoint.folder.holding(["c-1.assets"]):
        remove(prefix)
        assert (tmp_path / "c-1.assets").is_dir()
        with pytest.raises(NotFoundError, match=r"c-1\.manifest\.json"):
            open_checkpoint(prefix)
    saved(tmp_path / "c-2", tables=())
    assert not [name for name in os.listdir(tmp_path) if name.startswith("c-1.")]


def test_a_checkpoint_in_a_store():
    prefix = saved("memory://checkpoints/model.ckpt-7")
    saved(prefix, tables=filled(ITEM))
    checkpoint = open_checkpoint(prefix)
    assert checkpoint.verify() > 0
    assert checkpoint.table_names == ["item"]
    assert_same_tensors(checkpoint.read_dense(), dense_tensors())
    remove(prefix)
    with pytest.raises(NotFoundError, match=r"got none at memory://checkpoints/model.ckpt-7.mani"):
        open_checkpoint(prefix)


def test_a_second_writer_on_a_directory_is_refused(tmp_path):
    seen = []

    def second(_):
        if not seen:
            seen.append(None)
            text = rf"\[checkpoint.write\] expected one save at a time, got a second at {tmp_path}"
            with pytest.raises(FailedPreconditionError, match=text):
                saved(tmp_path / "other")

    prefix = saved(tmp_path / "c", progress=second)
    assert seen
    assert open_checkpoint(prefix).verify() > 0
    assert not (tmp_path / "other.manifest.json").exists()


def test_two_tables_never_share_a_file(tmp_path):
    names = ["user", "user.candidates", "a/b", "a%2Fb", "x" * 200, "x" * 201]
    tables = [make(TableConfig(name, Segment(i + 1))) for i, name in enumerate(names)]
    for table in tables:
        table.lookup_or_insert(torch.arange(table.config.dim))
    loaded = open_checkpoint(saved(tmp_path / "c", tables=tables)).load_tables()
    assert {name: len(table) for name, table in loaded.items()} == {
        name: i + 1 for i, name in enumerate(names)
    }


def test_progress_counts_rows_and_bytes_and_may_stop(tmp_path):
    lock, seen = threading.Lock(), []

    def progress(done):
        with lock:
            seen.append(done)

    prefix = saved(tmp_path / "c", progress=progress, num_threads=2)
    assert max(done.num_rows for done in seen) == sum(
        table["num_rows"] for table in manifest_of(prefix)["tables"]
    )
    before = listing(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        saved(prefix, progress=lambda done: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tables": 3}, TypeError, "'int' object is not iterable"),
        ({"tables": ["x"]}, TypeError, r"\[Contents.cut\] expected tables, got str"),
        ({"dense": {"a": 3}}, TypeError, "expected dense tensors by name, got int as 'a'"),
        (
            {"dense": {"a": torch.ones(1, dtype=torch.complex64)}},
            TypeError,
            "float64, got torch.complex64 and",
        ),
        ({"dense": {"a": torch.ones(1).to_sparse()}}, TypeError, "and torch.sparse_coo as 'a'"),
        ({"dense": [3]}, TypeError, "expected dense as a mapping of names to tensors, got 3"),
        (
            {"dense": [{"a": torch.ones(1)}] * 2},
            ValueError,
            "a tensor once, got 'a' twice",
        ),
        (
            {"trainer": {"a": object()}},
            TypeError,
            r"\[Contents.cut\] expected trainer as JSON",
        ),
        ({"meta": {"a": float("nan")}}, TypeError, r"\[Contents.cut\] expected meta as JSON, got"),
    ],
)
def test_what_is_no_content_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Contents(**options).cut()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_threads": 0}, ValueError, r"\[checkpoint.write\] expected num_threads >= 1, got 0"),
        ({"max_bytes_per_second": 0}, ValueError, "expected max_bytes_per_second > 0, got 0"),
        ({"progress": 3}, TypeError, "expected progress as a function, got 3"),
    ],
)
def test_what_are_no_options_is_refused(tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        write(Contents(), tmp_path / "c", WriteOptions(**options))


def test_a_prefix_needs_a_name(tmp_path):
    with pytest.raises(ValueError, match=r"expected a prefix such as dir/model"):
        write(Contents(), f"{tmp_path}/")


def test_a_tensor_of_another_shape_or_dtype_is_refused_and_nothing_changes(prefix):
    tensors = dense_tensors()
    tensors["layer.bias"] = torch.zeros(3)
    tensors["layer.weight"] = torch.zeros(2, 3)
    text = r"expected tensor 'layer.bias' with shape \(3,\) and torch.float32 as in the model, got "
    with pytest.raises(InvalidArgumentError, match=text + rf"\(2,\) and torch.float32 in {prefix}"):
        open_checkpoint(prefix).restore(dense=tensors)
    with pytest.raises(InvalidArgumentError, match=r"got \(2, 3\) and torch.float32"):
        open_checkpoint(prefix).restore(dense={"layer.weight": torch.zeros(2, 3).double()})
    assert not tensors["layer.weight"].any()


def test_names_that_a_checkpoint_does_not_have(prefix):
    checkpoint = open_checkpoint(prefix)
    with pytest.raises(NotFoundError, match=rf"expected tensor 'x' in {prefix}, got none of that"):
        checkpoint.read_dense(["x"])
    other = make(TableConfig("other", Segment(1)))
    with pytest.raises(NotFoundError, match=rf"expected table 'other' in {prefix}, got tables"):
        checkpoint.restore_tables(other)
    assert checkpoint.restore_tables(other, allow_missing=True) == ["other"]


def test_times_and_ids_of_equal_checkpoints_are_all_that_differs(tmp_path):
    manifests = []
    for name, now in (("a", 1.0), ("b", 2.0)):
        write(
            Contents(tables=filled(), dense=dense_tensors(), step=3),
            tmp_path / name,
            WriteOptions(clock=lambda now=now: now),
        )
        manifests.append(manifest_of(tmp_path / name))
    assert [manifest.pop("times")["saved"] for manifest in manifests] == [1.0, 2.0]
    assert len({manifest.pop("id") for manifest in manifests}) == 2
    assert len({manifest.pop("crc32c") for manifest in manifests}) == 2  # of the ids too
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(("with_expired", "num_rows"), [(False, 1), (True, 3)])
def test_rows_that_have_expired_are_saved_if_asked(tmp_path, with_expired, num_rows):
    table = make(TableConfig("user", Segment(1), expiry=Expiry(1)))
    table.assign(torch.tensor([1, 2]), torch.ones(2, 1), now=NOW - 86_400)
    table.assign(torch.tensor([3]), torch.ones(1, 1), now=NOW)
    write(Contents(tables=table, with_expired=with_expired), tmp_path / "c")
    assert len(open_checkpoint(tmp_path / "c").load_tables()["user"]) == num_rows


class Counter:
    """An object with a state: a tensor and a number."""

    def __init__(self, value):
        self.value, self.rows = value, torch.full((2,), float(value))

    def state_dict(self):
        return {"value": self.value, "rows": self.rows}

    def load_state_dict(self, state):
        self.value, self.rows = state["value"], state["rows"]


def test_objects_come_back_with_their_tensors(tmp_path):
    prefix = save(Contents(states={"counter": Counter(3)}, trainer={"epoch": 1}, step=7), tmp_path)
    checkpoint, counter = load(tmp_path), Counter(0)
    checkpoint.restore(states={"counter": counter})
    assert (checkpoint.prefix, counter.value, counter.rows.tolist()) == (prefix, 3, [3.0, 3.0])
    assert list(checkpoint.tensors) == ["counter/rows"]
    assert checkpoint.read_trainer()["epoch"] == 1


def test_tensors_of_objects_are_in_the_last_file(tmp_path):
    dense = [{"a": torch.ones(1)}, {"b": torch.ones(2)}]
    write(Contents(dense=dense, states={"counter": Counter(3)}), tmp_path / "ckpt-1")
    first, last = open_checkpoint(tmp_path / "ckpt-1").manifest.dense
    assert set(first.tensors) == {"a"}
    assert set(last.tensors) > {"b"}
    assert all(name.startswith("counter/") for name in set(last.tensors) - {"b"})


@pytest.mark.parametrize("option", ["dense", "states"])
def test_nothing_changes_where_a_part_is_missing(tmp_path, option):
    prefix = saved(tmp_path / "c")
    targets = {"dense": {"other": torch.ones(1)}, "states": {"other": Counter(0)}}
    table = make()
    with pytest.raises(NotFoundError, match=rf"expected 'other' of the model in {prefix}, got a"):
        open_checkpoint(prefix).restore(tables=table, **{option: targets[option]})
    assert len(table) == 0


def test_two_objects_with_tensors_of_one_name_are_refused():
    first, second = Counter(1), Counter(2)
    first.state_dict = lambda: {"b/rows": first.rows}
    with pytest.raises(ValueError, match=r"\[flatten_states\] .* got 'a/b/rows' twice"):
        Contents(states={"a": first, "a/b": second}).cut()


def test_a_save_names_the_checkpoint_by_its_step_and_makes_it_current(tmp_path):
    prefix = save(Contents(dense=dense_tensors(), step=7), tmp_path / "new")
    assert prefix == f"{tmp_path}/new/model.ckpt-7"
    assert read_checkpoint_state(tmp_path / "new").model_checkpoint_path == prefix
    assert (
        (tmp_path / "new" / "checkpoint")
        .read_text()
        .startswith(
            'model_checkpoint_path: "model.ckpt-7"\n'  # so the directory can be moved
        )
    )


def test_a_save_without_a_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\[checkpoint.save\] expected contents with a step, got"):
        save(Contents(), tmp_path)
