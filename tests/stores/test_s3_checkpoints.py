"""Checkpoints in a bucket of a real server."""

import pytest
import torch

from monolith.checkpoint import Contents, find, load, open_checkpoint, remove, save
from monolith.checkpoint.commit import remove_unnamed
from monolith.checkpoint.compact import compact
from monolith.checkpoint.storage import read_file, write_file
from monolith.errors import DataLossError, NotFoundError, OpError
from monolith.table.disk import load_table, save_tables
from monolith.table.disk.contents import describe_save
from tests.checkpoint.cases import assert_same_tensors, dense_tensors, filled, saved
from tests.checkpoint.chains import assert_restores, saved_chain
from tests.table.disk.cases import assert_same_table

pytestmark = pytest.mark.dist


def save_step(bucket, step, **options):
    weight = torch.full((2,), float(step))
    return save(Contents(dense={"w": weight}, step=step), f"{bucket.url}/run", **options)


def test_what_was_saved_is_restored(bucket):
    checkpoint = open_checkpoint(saved(f"{bucket.url}/run/c-7"))
    assert checkpoint.verify() > 0
    assert_same_tensors(checkpoint.read_dense(), dense_tensors())
    assert_same_table(checkpoint.load_tables()["user"], filled())
    assert checkpoint.read_trainer() == {"epoch": 1, "position": [3, 4]}


def test_a_save_leaves_the_files_of_the_checkpoint_only(bucket):
    saved(f"{bucket.url}/run/c-7")
    assert bucket.files("run") == [
        "c-7.assets/item-00000-of-00001.arrow",
        "c-7.assets/user-00000-of-00001.arrow",
        "c-7.assets/user-00000-of-00001.candidates.arrow",
        "c-7.dense-00000-of-00001.safetensors",
        "c-7.manifest.json",
        "c-7.meta.json",
        "c-7.trainer.json",
    ]


def test_a_prefix_is_saved_again_and_removed(bucket):
    prefix = saved(f"{bucket.url}/run/c-7")
    saved(prefix, tables=())
    assert open_checkpoint(prefix).table_names == []
    remove(prefix)
    assert bucket.files() == []


def test_the_newest_checkpoints_are_kept_and_the_last_one_is_current(bucket):
    for step in (1, 2, 3, 10):
        save_step(bucket, step, keep=2)
    assert {name.split(".")[1] for name in bucket.files("run") if "." in name} == {
        "ckpt-3",
        "ckpt-10",
    }
    assert load(f"{bucket.url}/run").read_dense()["w"].tolist() == [10, 10]


def test_a_damaged_checkpoint_is_left_out_with_fallback(bucket):
    prefixes = [save_step(bucket, step) for step in (9, 10, 11)]
    write_file(f"{prefixes[2]}.dense-00000-of-00001.safetensors", b"damaged")
    with pytest.raises(DataLossError, match=r"expected .* bytes .* \(s3://.*/model.ckpt-11.dense"):
        load(f"{bucket.url}/run").verify()
    assert load(f"{bucket.url}/run", fallback=True).step == 10


def test_without_a_state_file_the_highest_step_of_a_second_is_the_newest(bucket):
    for step in (9, 10):
        save_step(bucket, step)
    bucket.system.rm(f"{bucket.name}/run/checkpoint")
    assert find(f"{bucket.url}/run").step == 10


def test_what_another_process_writes_is_seen(bucket):
    manifest = read_file(f"{save_step(bucket, 1)}.manifest.json")
    prefix = f"{bucket.url}/run/model.ckpt-2"
    with pytest.raises(NotFoundError, match=rf"expected a file, got none at {prefix}.manifest"):
        open_checkpoint(prefix)
    bucket.system.pipe_file(f"{bucket.name}/run/model.ckpt-2.manifest.json", manifest)
    assert open_checkpoint(prefix).step == 1


def test_a_bucket_that_is_not_there_is_told_and_not_made(bucket):
    with pytest.raises(OpError, match=r"s3://none-such/run/c-7.*, got The specified bucket does"):
        saved("s3://none-such/run/c-7")
    assert not bucket.system.exists("none-such")


def test_saved_tables_are_loaded_and_described(bucket):
    for _ in range(2):
        save_tables(filled(), f"{bucket.url}/tables")
    assert_same_table(load_table(f"{bucket.url}/tables"), filled())
    assert describe_save(f"{bucket.url}/tables")[0].num_rows == 25
    assert len({name.split("/")[0] for name in bucket.files("tables")}) == 2


def test_links_of_a_chain_are_restored_and_compacted(bucket):
    _, table, saves = saved_chain(f"{bucket.url}/run", num_links=2)
    assert [link.is_full for link in saves] == [True, False, False]
    assert_restores(saves[-1].prefix, table)
    compact(saves[-1].prefix)
    assert open_checkpoint(saves[-1].prefix).chain == []
    assert_restores(saves[-1].prefix, table)


def test_what_a_killed_compaction_left_is_deleted_by_the_next_chain(bucket):
    _, _, saves = saved_chain(f"{bucket.url}/run", num_links=1)
    start = f"{saves[-1].prefix}.assets"
    write_file(f"{start}/user-00007-of-00009.arrow", b"part")
    file = bucket.system.open(f"{start}/user-00008-of-00009.arrow", "wb", block_size=5 << 20)
    file.write(bytes(6 << 20))  # a part is uploaded, and the file never completed
    file.closed = True
    assert len(bucket.system.list_multipart_uploads(bucket.name)) == 1
    before = bucket.files("run")
    remove_unnamed(f"{bucket.url}/run")
    left = [name for name in before if name not in bucket.files("run")]
    assert left == [f"{start.removeprefix(bucket.url + '/run/')}/user-00007-of-00009.arrow"]
    assert bucket.system.list_multipart_uploads(bucket.name) == []
