import logging

import pytest

from monolith.checkpoint.state import (
    CheckpointState,
    HashTableType,
    MonolithCheckpointState,
    read_checkpoint_state,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.native_training.saver import (
    SaveHelper,
    get_latest_checkpoint_state,
    get_monolith_checkpoint_state,
    state_files,
)


def put(directory, current="ckpt-1", *others):
    write_checkpoint_state(directory, CheckpointState(current, [*others, current]))


@pytest.fixture
def num_reads(monkeypatch):
    """Counts how often a state is read."""
    reads, read = [], read_checkpoint_state

    def counted(path):
        reads.append(path)
        return read(path)

    monkeypatch.setattr(state_files, "read_checkpoint_state", counted)
    return lambda: len(reads)


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
