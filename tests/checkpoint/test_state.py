import errno
import logging
import os

import pytest

from monolith.checkpoint import (
    CheckpointState,
    HashTableType,
    MonolithCheckpointState,
    SaveHelper,
    checkpoint_exists,
    get_latest_checkpoint_state,
    get_monolith_checkpoint_state,
    read_checkpoint_state,
    state,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.errors import OpError


def put(directory, current="ckpt-1", *others):
    write_checkpoint_state(directory, CheckpointState(current, [*others, current]))


@pytest.fixture
def num_reads(monkeypatch):
    """Counts how often a state is read."""
    reads, read = [], read_checkpoint_state

    def counted(path):
        reads.append(path)
        return read(path)

    monkeypatch.setattr(state, "read_checkpoint_state", counted)
    return lambda: len(reads)


def test_a_state_comes_back(tmp_path):
    written = CheckpointState(f"{tmp_path}/b", [f"{tmp_path}/a", f"{tmp_path}/b"], [1.5, 2.0], 0.5)
    write_checkpoint_state(tmp_path, written)
    assert read_checkpoint_state(tmp_path) == written


def test_paths_below_the_directory_may_be_relative(tmp_path):
    paths = [f"{tmp_path}/a", "/other/b"]
    write_checkpoint_state(tmp_path, CheckpointState(f"{tmp_path}/a", paths), relative=True)
    text = (tmp_path / "checkpoint").read_text()
    assert text.splitlines() == [
        'model_checkpoint_path: "a"',
        'all_model_checkpoint_paths: "a"',
        'all_model_checkpoint_paths: "/other/b"',
    ]
    os.rename(tmp_path, f"{tmp_path}-moved")
    assert read_checkpoint_state(f"{tmp_path}-moved").all_model_checkpoint_paths == [
        f"{tmp_path}-moved/a",
        "/other/b",
    ]


def test_a_relative_directory_has_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    write_checkpoint_state("m", CheckpointState("m/a", ["m/a", "/other/b"]))
    assert read_checkpoint_state("m").all_model_checkpoint_paths == ["m/a", "/other/b"]
    assert read_checkpoint_state(tmp_path / "m").model_checkpoint_path == f"{tmp_path}/m/a"


def test_a_current_path_that_is_not_listed_is_added(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "a"')
    assert read_checkpoint_state(tmp_path).all_model_checkpoint_paths == [f"{tmp_path}/a"]


def test_a_state_that_names_nothing_is_none_with_a_warning(tmp_path, caplog):
    (tmp_path / "checkpoint").write_text("")
    assert read_checkpoint_state(tmp_path) is None
    assert "names no checkpoint" in caplog.text


def test_a_state_in_a_store():
    put("memory://states", "ckpt-3")
    assert (
        read_checkpoint_state("memory://states").model_checkpoint_path == "memory://states/ckpt-3"
    )


def test_a_state_that_cannot_be_written_is_an_op_error_and_the_old_one_stays(tmp_path, monkeypatch):
    put(tmp_path)

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        OpError, match=rf"\[write_file\] expected to write {tmp_path}/checkpoint, got No"
    ):
        put(tmp_path, "ckpt-2")
    assert read_checkpoint_state(tmp_path).model_checkpoint_path == f"{tmp_path}/ckpt-1"


@pytest.mark.req("NT-SAVE-T1")
def test_the_cache_is_read_again_for_a_larger_step_only(tmp_path, num_reads):
    put(tmp_path)
    first = get_latest_checkpoint_state(tmp_path, 5)
    put(tmp_path, "ckpt-2")
    assert get_latest_checkpoint_state(tmp_path, 5) is first
    assert get_latest_checkpoint_state(tmp_path, 4) is first
    assert num_reads() == 1
    assert get_latest_checkpoint_state(tmp_path, 6).model_checkpoint_path == f"{tmp_path}/ckpt-2"
    assert num_reads() == 2


@pytest.mark.req("NT-SAVE-T1")
def test_a_cached_none_is_read_again(tmp_path, num_reads):
    assert get_latest_checkpoint_state(tmp_path, 5) is None
    put(tmp_path)
    assert get_latest_checkpoint_state(tmp_path, 5).model_checkpoint_path == f"{tmp_path}/ckpt-1"
    assert num_reads() == 2


@pytest.mark.req("NT-SAVE-T2")
@pytest.mark.parametrize("case", ["missing", "unreadable", "garbage", "no text"])
def test_no_monolith_state_is_none_with_a_warning(tmp_path, caplog, case):
    path = tmp_path / "monolith_checkpoint"
    if case == "unreadable":
        path.mkdir()
    elif case != "missing":
        path.write_bytes(b"}garbage{" if case == "garbage" else b"\xff\xfe")
    assert get_monolith_checkpoint_state(tmp_path) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def exempt_state(tmp_path, *paths):
    written = MonolithCheckpointState(list(paths), 17, HashTableType.MULTI_CUCKOO_HASH_MAP)
    write_monolith_checkpoint_state(tmp_path, written)
    (tmp_path / "kept.manifest.json").write_text("{}")
    return written


@pytest.mark.req("NT-SAVE-T2")
def test_invalid_exempt_paths_are_removed_when_asked(tmp_path, caplog):
    written = exempt_state(tmp_path, "kept", "gone", "/nowhere/x")
    assert get_monolith_checkpoint_state(tmp_path) == written
    found = get_monolith_checkpoint_state(tmp_path, remove_invalid_path=True)
    assert found.exempt_model_checkpoint_paths == [f"{tmp_path}/kept"]
    assert f"the exempt checkpoint {tmp_path}/gone is not there" in caplog.text


def test_the_monolith_state_as_text(tmp_path):
    exempt_state(tmp_path, "kept")
    assert (tmp_path / "monolith_checkpoint").read_text() == (
        'exempt_model_checkpoint_paths: "kept"\n'
        "last_checkpoint_save_timestamp: 17\n"
        "builtin_hash_table_type: MULTI_CUCKOO_HASH_MAP\n"
    )


def test_a_checkpoint_exists_with_its_manifest(tmp_path):
    exempt_state(tmp_path)
    assert checkpoint_exists(f"{tmp_path}/kept")
    assert not checkpoint_exists(f"{tmp_path}/other")


@pytest.mark.req("NT-SAVE-T3")
def test_names_of_checkpoints():
    helper = SaveHelper("m/ckpt")
    assert helper.get_ckpt_prefix(7) == "m/ckpt-7"
    assert helper.get_ckpt_asset_dir("m/ckpt-7") == "m/ckpt-7.assets/"
    assert helper.get_global_step_value("m/ckpt-300") == 300
    assert helper.get_global_step_value("ckpt") == 0


def test_a_name_without_a_step_is_refused():
    with pytest.raises(ValueError, match=r"expected a step after the last '-', got 'my-model'"):
        SaveHelper("m/ckpt").get_global_step_value("my-model")


def test_there_are_no_steps_without_a_state(tmp_path):
    assert SaveHelper(tmp_path / "ckpt").get_existing_checkpoint_steps() == set()


def test_steps_of_the_state(tmp_path):
    put(tmp_path, "ckpt-20", "ckpt-10")
    assert SaveHelper(tmp_path / "ckpt").get_existing_checkpoint_steps() == {10, 20}
