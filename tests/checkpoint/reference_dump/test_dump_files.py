import pytest

from monolith.checkpoint.reference_dump import find_dumps, import_dumps, open_dumps
from monolith.checkpoint.reference_dump.dump_files import shards_of
from monolith.errors import DataLossError, NotFoundError
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD
from tests.checkpoint.reference_dump.dump_writer import entry, write, write_multi, write_single

pytestmark = pytest.mark.req("NT-SAVE-T10")


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["b-00000-of-00001"], 1),
        (["b-00001-of-00002", "b-00000-of-00002"], 2),
        (["b-00000-of-00001", "b-00000-of-00002-tmp-1234"], 1),
    ],
)
def test_complete_shards_are_found_in_order(names, number):
    files, problem = shards_of("b", names)
    assert (files, problem) == ([f"b-{i:05}-of-{number:05}" for i in range(number)], "")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["b-00000-of-00002"], "expected 2 shards, got 1 of them; missing: b-00001-of-00002"),
        (["b-00000-of-00009"], "b-00001-of-00009, b-00002-of-00009, b-00003-of-00009 and others"),
        (
            ["b-00000-of-00001", "b-00001-of-00001"],
            "expected shards 0 to 0 of 1, got b-00001-of-00001",
        ),
        (["b-00000-of-00001", "b-00001-of-00002"], "of one save, got shards of 1 and of 2 "),
        (["b-random-string"], "expected shards b-00000-of-*, got none"),
        (["b-99998-of-99999"], "expected 99999 shards, got 1 of them; missing: b-00000-of-99999"),
    ],
)
def test_what_is_wrong_with_shards_is_named(names, text):
    assert text in shards_of("b", names)[1]


def row(key):
    return entry(key, [1], ("sgd", {}))


def refused(folder, text):
    """Whether an import into a table `user` is refused."""
    table = Table(TableConfig("user", Segment(1, SGD())))
    with table, pytest.raises(DataLossError, match=text):
        import_dumps(open_dumps(folder), [table])
    return True


def test_a_missing_shard_is_named_with_its_dump(tmp_path):
    write_single(tmp_path, "user", [row(1)], [row(2)])
    (tmp_path / "MonolithHashTable_user-00001-of-00002").unlink()
    text = r"missing: MonolithHashTable_user-00001-of-00002 \(.*/MonolithHashTable_user\)"
    assert refused(tmp_path, text)


def test_rows_without_their_metadata_are_refused(tmp_path):
    write_multi(tmp_path, 0, {"user": [row(1)]}, {"user": [row(2)]})
    (tmp_path / "MonolithMultiHashTable_0.meta-00001-of-00002").unlink()
    assert refused(tmp_path, "missing: MonolithMultiHashTable_0.meta-00001-of-00002")
    (tmp_path / "MonolithMultiHashTable_0.meta-00000-of-00002").rename(
        tmp_path / "MonolithMultiHashTable_0.meta-00000-of-00001"
    )
    assert refused(tmp_path, "expected 2 files MonolithMultiHashTable_0.meta-.*, got 1")


def test_metadata_without_its_rows_is_refused(tmp_path):
    write(tmp_path, "MonolithMultiHashTable_0.meta", b"")
    assert refused(tmp_path, r"expected shards MonolithMultiHashTable_0-00000-of-\*, got none")


@pytest.mark.parametrize(("servers", "missing"), [((0, 2), 1), ((1,), 0)])
def test_the_missing_dump_of_a_server_is_named(tmp_path, servers, missing):
    for server in servers:
        write_multi(tmp_path, server, {"user": [row(server)]})
    assert refused(tmp_path, f"missing: MonolithMultiHashTable_{missing} ")


def test_servers_of_one_table_are_those_of_the_others(tmp_path):
    for name in ("user_0", "user_1", "user_2"):
        write_single(tmp_path, name, [row(1)])
    write(tmp_path, "hash_filter_3", b"")
    assert refused(tmp_path, "of 4 parameter servers, got 3; missing: MonolithHashTable_user_3")


def test_the_current_checkpoint_of_a_model_directory_is_opened(tmp_path):
    for step in (7, 10):
        write_single(tmp_path / f"model.ckpt-{step}.assets", "user", [row(step)])
    folder = open_dumps(tmp_path)
    assert (folder.step, folder.path) == (10, f"{tmp_path}/model.ckpt-10.assets")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-7"\n')
    assert open_dumps(tmp_path).step == 7
    assert open_dumps(tmp_path / "model.ckpt-10").step == 10
    assert open_dumps(tmp_path / "model.ckpt-7.assets").step == 7


def test_a_folder_of_another_name_has_no_step(tmp_path):
    write_single(tmp_path / "copy", "user", [row(1)])
    assert open_dumps(tmp_path / "copy").step is None


def test_places_without_dumps_are_refused(tmp_path):
    (tmp_path / "MonolithHashTable_user-00000-of-00001-tmp-77").write_bytes(b"")
    assert find_dumps(tmp_path) is None
    with pytest.raises(NotFoundError, match=r"or a model directory .*, got no such file at"):
        open_dumps(tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    with pytest.raises(NotFoundError, match=r"got .*/model.ckpt-7.assets without any at"):
        open_dumps(tmp_path)


def test_a_file_that_is_removed_meanwhile_is_named(tmp_path):
    write_single(tmp_path, "user", [row(1)])
    folder = open_dumps(tmp_path)
    (tmp_path / "MonolithHashTable_user-00000-of-00001").unlink()
    table = Table(TableConfig("user", Segment(1, SGD())))
    with table, pytest.raises(NotFoundError, match="MonolithHashTable_user-00000-of-00001"):
        import_dumps(folder, [table])
