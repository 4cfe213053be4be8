"""Compaction: a full checkpoint of a link, from the files of its chain."""

import os

import pytest
from pyarrow import ipc

from monolith.checkpoint import (
    Chain,
    WriteOptions,
    compact,
    existing_checkpoints,
    open_checkpoint,
)
from monolith.errors import DataLossError, OpError
from monolith.table.disk import table_files
from monolith.table.disk.contents import describe_save, find_key, verify_save
from monolith.table.disk.difference import diff_saves
from tests.checkpoint.cases import listing
from tests.checkpoint.chains import assert_restores, few_changes, new_table, save, saved_chain


@pytest.mark.parametrize("file_bytes", [1 << 25, 1 << 11])
def test_a_compacted_link_is_full_and_restores(tmp_path, monkeypatch, file_bytes):
    monkeypatch.setattr(table_files, "_FILE_BYTES", file_bytes)
    _, table, saves = saved_chain(tmp_path, num_links=4)
    manifest = compact(saves[-1].prefix)
    assert manifest.base is None
    assert manifest.num_rows == {"user": len(table)}
    assert open_checkpoint(saves[-1].prefix).manifest.to_json() == manifest.to_json()
    assert_restores(saves[-1].prefix, table)


def test_compacted_rows_are_those_of_a_full_save(tmp_path):
    _, table, saves = saved_chain(tmp_path / "a")
    compact(saves[-1].prefix)
    saved = save(Chain(tmp_path / "b"), table, 3)
    name = "model.ckpt-3.assets/user-00000-of-00001.arrow"
    one, other = (ipc.open_file(str(tmp_path / each / name)).read_all() for each in "ab")
    assert one.equals(other)
    assert saved.is_full


def test_a_compacted_checkpoint_needs_no_other(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    compact(saves[-1].prefix)
    for saved in saves[:-1]:
        os.unlink(f"{saved.prefix}.manifest.json")
    assert_restores(saves[-1].prefix, table)


def test_compaction_leaves_no_file_that_the_manifest_does_not_name(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    manifest = compact(saves[-1].prefix)
    here = {f"{tmp_path}/{name}" for name in listing(tmp_path) if name.startswith("model.ckpt-3")}
    named = {saves[-1].prefix + fact.path for fact in manifest.files}
    assert here == named | {f"{saves[-1].prefix}.manifest.json"}


def test_links_continue_a_compacted_one(tmp_path):
    chain, table, _ = saved_chain(tmp_path, full_every=3)
    assert chain.is_long
    chain.compact()
    assert (chain.num_links, chain.is_long) == (0, False)
    few_changes(table, 4)
    saved = save(chain, table, 4)
    assert not saved.is_full
    assert [base.name for base in open_checkpoint(saved.prefix).chain] == ["model.ckpt-3"]
    assert_restores(saved.prefix, table)


def test_a_link_saved_during_a_compaction_stays_valid(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    saves = []

    def meanwhile(progress):
        if not saves:
            few_changes(table, 4)
            saves.append(save(chain, table, 4))

    chain.compact(WriteOptions(progress=meanwhile))
    assert (saves[0].is_full, chain.num_links) == (False, 1)
    assert_restores(saves[0].prefix, table)


def test_the_chain_before_a_compacted_link_goes(tmp_path):
    chain, table, _ = saved_chain(tmp_path, num_links=3, keep=1)
    chain.compact()
    assert existing_checkpoints(tmp_path) == [f"{tmp_path}/model.ckpt-3"]
    assert_restores(f"{tmp_path}/model.ckpt-3", table)


def test_a_full_checkpoint_is_not_compacted(tmp_path):
    chain, _, saves = saved_chain(tmp_path, num_links=0)
    before = listing(tmp_path)
    assert chain.compact() is None
    assert compact(saves[0].prefix).to_json() == saves[0].manifest.to_json()
    assert listing(tmp_path) == before


def test_a_compaction_that_fails_leaves_the_link(tmp_path):
    chain, table, saves = saved_chain(tmp_path)

    def stop(progress):
        raise OSError(28, "No space left on device")

    before = listing(tmp_path)
    with pytest.raises(OpError, match=r"expected to compact .*, got No space left on device"):
        chain.compact(WriteOptions(progress=stop))
    assert listing(tmp_path) == before
    chain.compact()
    assert_restores(saves[-1].prefix, table)


def test_a_damaged_chain_is_not_compacted(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    file = next(tmp_path.glob("model.ckpt-1.assets/*.delta.arrow"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataLossError, match=r"model.ckpt-1.assets/user-.*delta.arrow"):
        compact(saves[-1].prefix)


def test_a_new_chain_removes_what_a_killed_compaction_left(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    assets = tmp_path / "model.ckpt-3.assets"
    for name in ("user-00000-of-00001.arrow", "user-00000-of-00001.arrow.tmp-0123456789ab"):
        (assets / name).write_bytes(b"partial")
    (assets / "vocabulary.txt").write_text("of the user")
    Chain(tmp_path)
    assert (assets / "vocabulary.txt").exists()
    assert not [name for name in os.listdir(assets) if name.startswith("user-00000-of-00001.arrow")]
    assert_restores(saves[-1].prefix, table)


def test_the_order_of_saves_does_not_depend_on_compactions(tmp_path):
    times = iter(range(100, 200))
    chain, _, saves = saved_chain(tmp_path, clock=lambda: next(times))
    compact(saves[1].prefix)
    assert existing_checkpoints(tmp_path) == [saved.prefix for saved in saves]
    assert chain.num_links == 3


@pytest.fixture
def link_and_full(tmp_path):
    """The same content as a link and as a full checkpoint, and the table."""
    _, table, saves = saved_chain(tmp_path / "a", num_links=4)
    full = save(Chain(tmp_path / "b"), table, 4)
    return open_checkpoint(saves[-1].prefix), open_checkpoint(full.prefix), table


def test_a_link_is_described_as_a_full_checkpoint(link_and_full):
    link, full, _ = link_and_full
    one, other = (vars(describe_save(each)[0]) for each in (link, full))
    differing = {name for name in one if one[name] != other[name]}
    assert differing == {"num_bytes", "num_files"}


def test_a_link_does_not_differ_from_a_full_checkpoint(link_and_full):
    link, full, table = link_and_full
    difference = diff_saves(link, full)[0]
    assert difference.num_same == len(table)
    assert difference.num_added == difference.num_removed == difference.num_changed == 0


def test_rows_of_a_key_are_those_of_the_newest_link(link_and_full):
    link, full, table = link_and_full
    keys = [0, 3, 11, 40, *(rows := next(iter(table.export()))).keys[:40].tolist(), 10**12]
    assert len(rows)
    for key in keys:
        assert find_key(link, key) == find_key(full, key)


def test_every_byte_of_a_link_is_checked(link_and_full):
    link, _, _ = link_and_full
    counts = []
    verify_save(link, advance=counts.append)
    assert len(counts) > 5


def test_a_link_loads_into_a_new_table_after_others_were_compacted(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    compact(saves[1].prefix)
    restored = new_table()
    open_checkpoint(saves[-1].prefix).restore_tables(restored)
    assert len(open_checkpoint(saves[-1].prefix).chain) == 2
    assert_restores(saves[-1].prefix, table)
    assert len(restored) == len(table)
