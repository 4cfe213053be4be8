import errno
import os

import pytest

from monolith.checkpoint import checkpoint_exists, read_checkpoint_state
from monolith.checkpoint.state import (
    CheckpointState,
    HashTableType,
    MonolithCheckpointState,
    exempt_names,
    read_monolith_checkpoint_state,
    record_save_time,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.errors import OpError


def put(directory, current="ckpt-1", *others):
    write_checkpoint_state(directory, CheckpointState(current, [*others, current]))


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


def exempt_state(tmp_path, *paths):
    written = MonolithCheckpointState(list(paths), 17, HashTableType.MULTI_CUCKOO_HASH_MAP)
    write_monolith_checkpoint_state(tmp_path, written)
    (tmp_path / "kept.manifest.json").write_text("{}")
    return written


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


def test_the_time_of_a_save_is_recorded_and_exempt_paths_stay(tmp_path):
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["a"], 17))
    record_save_time(tmp_path, 20.5)
    expected = MonolithCheckpointState(["a"], 20, HashTableType.CUCKOO_HASH_MAP)
    assert read_monolith_checkpoint_state(tmp_path) == expected
    record_save_time(tmp_path, 30, is_new_only=True)
    assert read_monolith_checkpoint_state(tmp_path) == expected


def test_a_monolith_state_that_cannot_be_read_stays_as_it_is(tmp_path):
    (tmp_path / "monolith_checkpoint").write_text("}")
    record_save_time(tmp_path, 20)
    assert (tmp_path / "monolith_checkpoint").read_text() == "}"
    assert exempt_names(tmp_path) is None


def test_exempt_names_are_base_names(tmp_path):
    assert exempt_names(tmp_path) == set()
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["a", "/other/b"]))
    assert exempt_names(tmp_path) == {"a", "b"}


def test_checkpoints_elsewhere_are_not_those_of_a_directory():
    state = CheckpointState("m/c", ["m/a", "/other/b", "m/c"])
    assert state.paths_in("m/") == ["m/a", "m/c"]
