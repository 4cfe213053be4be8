"""Chains of full checkpoints and links: each link restores as a full save of its cut would."""

import posixpath

import pytest
import torch

from monolith.checkpoint import (
    Chain,
    Contents,
    RestoreMark,
    WriteOptions,
    existing_checkpoints,
    find,
    open_checkpoint,
    remove,
    retention,
    write,
)
from monolith.checkpoint.state import MonolithCheckpointState, write_monolith_checkpoint_state
from monolith.cluster import ShardedTable
from monolith.errors import DataLossError, NotFoundError, OpError
from monolith.table.disk import table_files
from monolith.table.reference import ReferenceTable
from tests.checkpoint.cases import manifest_of, write_manifest
from tests.checkpoint.chains import (
    CONFIG,
    NOW,
    assert_restores,
    few_changes,
    first_rows,
    new_table,
    save,
    saved_chain,
)
from tests.table.disk.cases import assert_same_table


def test_a_link_restores_the_table_bit_for_bit(tmp_path):
    _, table, saves = saved_chain(tmp_path, num_links=4)
    assert [saved.is_full for saved in saves] == [True, False, False, False, False]
    assert_restores(saves[-1].prefix, table)


def test_every_link_keeps_its_own_moment(tmp_path):
    chain, table = Chain(tmp_path), new_table()
    first_rows(table)
    copies = []
    for step in range(4):
        prefix = save(chain, table, step).prefix
        copy = new_table()
        open_checkpoint(prefix).restore_tables(copy)
        assert_same_table(copy, table)
        copies.append((prefix, copy))
        few_changes(table, step)
    for prefix, copy in copies:
        assert_restores(prefix, copy)


def test_a_link_has_the_changed_rows_and_the_removed_keys_alone(tmp_path):
    chain, table = Chain(tmp_path), new_table()
    first_rows(table)
    save(chain, table, 0)
    table.assign(torch.arange(5), torch.ones(5, table.dim))
    table.erase(torch.tensor([7, 8]))
    manifest = save(chain, table, 1).manifest
    counts = {file.kind: file.num_rows for file in manifest.tables[0].files}
    assert (counts["rows"], counts["tombstones"]) == (5, 2)
    assert manifest.num_rows == {"user": len(table)}


def test_a_link_without_changes_restores(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    saved = save(chain, table, 9)
    assert saved.manifest.tables[0].num_rows == 0
    assert_restores(saved.prefix, table)


def test_dense_tensors_and_documents_of_a_link_are_whole(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    checkpoint = open_checkpoint(saves[-1].prefix)
    assert checkpoint.read_dense()["weight"].tolist() == [3.0] * 3
    assert checkpoint.read_trainer() == {"step": 3}


def test_links_of_many_files_restore(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_FILE_BYTES", 1 << 10)
    _, table, saves = saved_chain(tmp_path)
    assert len(saves[-1].manifest.tables[0].files) > 10
    assert_restores(saves[-1].prefix, table)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_link_restores_into_shards(tmp_path, num_shards):
    _, table, saves = saved_chain(tmp_path)
    with ShardedTable.local(CONFIG, num_shards, clock=lambda: NOW) as sharded:
        open_checkpoint(saves[-1].prefix).restore_tables(sharded)
        assert_same_table(sharded, table)


def test_a_single_shard_takes_its_rows_of_all_links(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    with ShardedTable.local(CONFIG, 3, clock=lambda: NOW) as sharded:
        for shard in range(3):
            open_checkpoint(saves[-1].prefix).restore_tables(sharded, shards=[shard])
        assert_same_table(sharded, table)


def test_a_chain_of_a_sharded_table_restores_into_one_table(tmp_path):
    with ShardedTable.local(CONFIG, 2, clock=lambda: NOW) as sharded:
        _, _, saves = saved_chain(tmp_path, table=sharded)
        assert not saves[-1].is_full
        assert_restores(saves[-1].prefix, sharded)


def test_a_link_restores_into_the_reference_table(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    reference = ReferenceTable(CONFIG, clock=lambda: NOW)
    open_checkpoint(saves[-1].prefix).restore_tables(reference)
    assert_same_table(reference, table)


def test_some_partitions_of_a_link_load(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    parts = [
        open_checkpoint(saves[-1].prefix).load_tables(partitions=range(i, 4096, 2))["user"]
        for i in range(2)
    ]
    assert sum(map(len, parts)) == len(table)
    assert all(rows.keys.tolist() for part in parts for rows in part.export())


def test_every_save_is_full_with_full_every_1(tmp_path):
    _, table, saves = saved_chain(tmp_path, full_every=1)
    assert all(saved.is_full and saved.reason == "first" for saved in saves)
    assert table.cursors() == []


def test_a_save_after_an_overflow_of_the_log_is_full(tmp_path):
    table = new_table(changes_bytes=1 << 10)
    chain, _, saves = saved_chain(tmp_path, table=table, num_links=1)
    assert (saves[1].is_full, saves[1].reason) == (True, "log")
    assert_restores(saves[1].prefix, table)
    table.assign(torch.tensor([1]), torch.ones(1, table.dim))
    assert not save(chain, table, 5).is_full


def test_a_save_after_a_cleared_table_is_full(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    table.clear()
    assert save(chain, table, 9).reason == "log"


def test_a_save_after_a_failed_one_is_full(tmp_path):
    chain, table, saves = saved_chain(tmp_path)

    def stop(progress):
        raise OSError(28, "No space left on device")

    few_changes(table, 8)
    with pytest.raises(OpError, match="No space left"):
        save(chain, table, 8, progress=stop)
    assert_restores(saves[-1].prefix, open_checkpoint(saves[-1].prefix).load_tables()["user"])
    saved = save(chain, table, 9)
    assert saved.reason == "failed"
    assert_restores(saved.prefix, table)


def test_a_save_of_many_changes_is_full(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    keys = torch.arange(1200)
    table.assign(keys, torch.zeros(len(keys), table.dim))
    assert save(chain, table, 9).reason == "many changes"


def test_a_save_of_other_tables_is_full(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    other = new_table(type(CONFIG)("item", CONFIG.segments))
    contents = Contents(tables=[table, other], step=9, with_expired=True)
    chain.cut(contents).close()
    with chain.cut(contents) as snapshot:
        assert chain.save(snapshot).reason in ("log", "tables")


def test_a_table_that_went_and_came_back_is_saved_whole(tmp_path):
    chain, tables = Chain(tmp_path), [new_table(), new_table(type(CONFIG)("item", CONFIG.segments))]
    reasons = []
    for step, saved in enumerate((tables, tables[:1], tables)):
        for table in tables:
            few_changes(table, step)
        contents = Contents(tables=saved, step=step, with_expired=True)
        with chain.cut(contents) as snapshot:
            reasons.append((newest := chain.save(snapshot)).reason)
    assert reasons == ["first", "tables", "tables"]
    restored = open_checkpoint(newest.prefix).load_tables()
    for table in tables:
        assert_same_table(restored[table.name], table)


@pytest.mark.parametrize("how", ["removed", "replaced", "damaged"])
def test_a_save_whose_base_is_gone_is_full(tmp_path, how):
    chain, table, saves = saved_chain(tmp_path)
    prefix = saves[-1].prefix
    if how == "removed":
        remove(prefix)
    elif how == "replaced":
        content = manifest_of(prefix)
        write_manifest(prefix, {**content, "id": "0" * 16})
    else:
        (tmp_path / "model.ckpt-3.manifest.json").write_text("{")
    saved = save(chain, table, 9)
    assert saved.reason == "base"
    assert_restores(saved.prefix, table)


def test_a_second_save_of_one_step_is_full(tmp_path):
    chain, table, saves = saved_chain(tmp_path)
    assert save(chain, table, 3).reason == "base"
    assert_restores(saves[-1].prefix, table)


def test_a_chain_follows_a_checkpoint_that_was_restored(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    table, chain = new_table(), Chain(tmp_path)
    open_checkpoint(saves[-1].prefix).restore_tables(table)
    assert chain.follow(RestoreMark.set(saves[-1].prefix, [table]))
    few_changes(table, 4)
    saved = save(chain, table, 4)
    assert (saved.is_full, chain.num_links) == (False, 4)
    assert_restores(saved.prefix, table)


def test_a_chain_goes_back_to_an_older_checkpoint(tmp_path):
    chain, table, saves = saved_chain(tmp_path)
    open_checkpoint(saves[1].prefix).restore_tables(table)
    assert chain.follow(RestoreMark.set(saves[1].prefix, [table]))
    few_changes(table, 9)
    saved = save(chain, table, 2)
    assert [base.name for base in open_checkpoint(saved.prefix).chain] == [
        "model.ckpt-0",
        "model.ckpt-1",
    ]
    assert_restores(saved.prefix, table)


def test_a_chain_does_not_follow_a_checkpoint_of_another_folder_or_tables(tmp_path):
    chain, table, saves = saved_chain(tmp_path / "a")
    prefix = saves[-1].prefix
    chain.close()
    assert not Chain(tmp_path / "b").follow(RestoreMark.set(prefix, [table]))
    assert not Chain(tmp_path / "a").follow(RestoreMark.set(prefix, []))
    assert not Chain(tmp_path / "a", full_every=1).follow(RestoreMark.set(prefix, [table]))
    assert table.cursors() == []


def test_changes_between_a_restore_and_its_chain_are_saved(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    table = new_table()
    open_checkpoint(saves[-1].prefix).restore_tables(table)
    mark = RestoreMark.set(saves[-1].prefix, [table])
    few_changes(table, 4)
    chain = Chain(tmp_path)
    chain.follow(mark)
    saved = save(chain, table, 4)
    assert not saved.is_full
    assert_restores(saved.prefix, table)


def test_a_mark_that_no_chain_follows_leaves_no_cursor(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    mark = RestoreMark.set(saves[-1].prefix, [table])
    before = len(table.cursors())
    mark.drop()
    mark.drop()
    assert len(table.cursors()) == before - 1


def test_close_drops_the_cursors(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    assert len(table.cursors()) == 1
    chain.close()
    assert table.cursors() == []
    table.close()
    chain.close()


def test_close_after_the_tables_is_fine(tmp_path):
    chain, table, _ = saved_chain(tmp_path)
    table.close()
    chain.close()
    assert chain.num_links == 0


def test_retention_keeps_what_links_need(tmp_path):
    _, table, saves = saved_chain(tmp_path, num_links=5, keep=2)
    assert len(existing_checkpoints(tmp_path)) == 6
    assert_restores(saves[-1].prefix, table)


def test_retention_removes_a_chain_after_the_next_full_save(tmp_path):
    chain, table, _ = saved_chain(tmp_path, num_links=3, keep=2)
    table.clear()
    first_rows(table)
    for step in (7, 8, 9):
        save(chain, table, step)
    names = [posixpath.basename(prefix) for prefix in existing_checkpoints(tmp_path)]
    assert names == ["model.ckpt-7", "model.ckpt-8", "model.ckpt-9"]


def test_retention_of_a_second_run_keeps_and_then_removes_the_chain_of_the_first(tmp_path):
    _, table, _ = saved_chain(tmp_path, num_links=3, keep=2)
    chain = Chain(tmp_path, keep=2)
    for step in (7, 8):
        save(chain, table, step)
    names = [posixpath.basename(prefix) for prefix in existing_checkpoints(tmp_path)]
    assert names == ["model.ckpt-7", "model.ckpt-8"]


def test_retention_removes_links_before_their_bases(tmp_path, monkeypatch):
    chain, table, _ = saved_chain(tmp_path, num_links=2, keep=1)
    removed = []
    monkeypatch.setattr(retention, "remove", lambda prefix: removed.append(prefix[-1]))
    table.clear()
    save(chain, table, 7)
    assert removed == ["2", "1", "0"]


def test_retention_keeps_what_exempt_links_need(tmp_path):
    chain, table, saves = saved_chain(tmp_path, num_links=2, keep=1)
    state = MonolithCheckpointState(["model.ckpt-2"])
    write_monolith_checkpoint_state(tmp_path, state)
    copy = open_checkpoint(saves[-1].prefix).load_tables()["user"]
    table.clear()
    for step in (7, 8):
        save(chain, table, step)
    assert_restores(saves[-1].prefix, copy)


def test_nothing_is_removed_while_a_kept_manifest_cannot_be_read(tmp_path, caplog):
    chain, table, _ = saved_chain(tmp_path, num_links=2, keep=1)
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["model.ckpt-1"]))
    (tmp_path / "model.ckpt-1.manifest.json").write_text("{")
    table.clear()
    save(chain, table, 7)
    assert "a link may need it" in caplog.text
    assert (tmp_path / "model.ckpt-0.manifest.json").exists()


def test_a_second_run_says_that_a_chain_cannot_be_read(tmp_path, caplog):
    saved_chain(tmp_path, num_links=2)
    remove(tmp_path / "model.ckpt-0")
    Chain(tmp_path)
    assert "checkpoints that only links need are not deleted" in caplog.text


def test_verify_reads_the_rows_of_the_whole_chain(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    checkpoint = open_checkpoint(saves[-1].prefix)
    own = sum(fact.num_bytes for fact in checkpoint.manifest.files)
    older = [f.num_bytes for base in checkpoint.chain for f in base.manifest.row_files]
    assert checkpoint.verify() == own + sum(older)


def damage_base(path):
    file = next(path.glob("model.ckpt-1.assets/*.delta.arrow"))
    file.write_bytes(file.read_bytes()[:-9])


def test_a_damaged_link_is_named(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    damage_base(tmp_path)
    with pytest.raises(DataLossError, match=r"bytes.*model.ckpt-1.assets/user-.*delta.arrow"):
        open_checkpoint(saves[-1].prefix).restore_tables(new_table())
    with pytest.raises(DataLossError, match=r"model.ckpt-1.assets/user-.*delta.arrow"):
        open_checkpoint(saves[-1].prefix).verify()


def test_fallback_restores_up_to_a_damaged_link(tmp_path):
    saved_chain(tmp_path)
    damage_base(tmp_path)
    assert find(tmp_path, fallback=True).step == 0


def test_a_missing_link_is_named(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    remove(saves[1].prefix)
    text = r"expected link 'model.ckpt-1' of .*model.ckpt-3, got none; restore an older"
    with pytest.raises(NotFoundError, match=text):
        open_checkpoint(saves[-1].prefix).load_tables()
    assert find(tmp_path, fallback=True).step == 0


def test_a_base_that_was_saved_again_is_refused(tmp_path):
    _, table, saves = saved_chain(tmp_path)
    write(Contents(tables=table, step=1), saves[1].prefix, WriteOptions(num_threads=1))
    with pytest.raises(DataLossError, match=r"expected link 'model.ckpt-1' .* with id .*, got id"):
        open_checkpoint(saves[-1].prefix).load_tables()


def test_a_chain_that_bites_its_tail_is_refused(tmp_path):
    _, _, saves = saved_chain(tmp_path, num_links=2)
    first, last = manifest_of(saves[1].prefix), manifest_of(saves[2].prefix)
    first["base"].update(name="model.ckpt-2", id=last["id"])
    write_manifest(saves[1].prefix, first)
    with pytest.raises(DataLossError, match="got it twice"):
        open_checkpoint(saves[2].prefix).load_tables()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "nothing"}, "expected field 'id', got 'nothing'"),
        ({"base": 7}, "field 'base' as dict, got 7"),
        ({"base": {"name": "a/b", "id": "0" * 16, "num_rows": {"user": 1}}}, "field 'name', got"),
        (
            {"base": {"name": "a", "id": "0" * 16, "num_rows": {}}},
            "a number of rows for the link's",
        ),
        ({"base": None}, "expected a base for the link's table 'user', got none"),
    ],
)
def test_a_manifest_with_a_bad_base_is_refused(tmp_path, change, text):
    _, _, saves = saved_chain(tmp_path)
    write_manifest(saves[-1].prefix, {**manifest_of(saves[-1].prefix), **change})
    with pytest.raises(DataLossError, match=text):
        open_checkpoint(saves[-1].prefix)


def test_a_link_with_another_number_of_rows_is_refused(tmp_path):
    _, _, saves = saved_chain(tmp_path)
    content = manifest_of(saves[-1].prefix)
    content["base"]["num_rows"]["user"] += 1
    write_manifest(saves[-1].prefix, content)
    with pytest.raises(DataLossError, match=r"expected \d+ rows after 3 links, got \d+"):
        open_checkpoint(saves[-1].prefix).load_tables()


@pytest.mark.parametrize("full_every", [0, True, 1.5])
def test_full_every_is_at_least_one(tmp_path, full_every):
    with pytest.raises(ValueError, match=f"expected full_every >= 1, got {full_every}"):
        Chain(tmp_path, full_every=full_every)


def test_contents_need_a_step_and_expired_rows(tmp_path):
    with pytest.raises(ValueError, match=r"\[Chain.cut\] expected contents with a step, got None"):
        Chain(tmp_path).cut(Contents())
    with pytest.raises(ValueError, match=r"expected contents with_expired, got False"):
        Chain(tmp_path).cut(Contents(step=1))


def test_a_chain_in_a_store_restores_and_is_compacted(tmp_path):
    chain, table, saves = saved_chain(f"memory://{tmp_path.name}/run", num_links=4, keep=2)
    assert not saves[-1].is_full
    assert_restores(saves[-1].prefix, table)
    chain.compact()
    assert open_checkpoint(saves[-1].prefix).manifest.base is None
    assert_restores(saves[-1].prefix, table)
