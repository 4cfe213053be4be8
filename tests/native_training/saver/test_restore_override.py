import os
from types import SimpleNamespace

import pytest

from monolith.checkpoint.state import (
    CheckpointState,
    HashTableType,
    MonolithCheckpointState,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.native_training.runner_utils import gen_get_checkpoint_state
from monolith.native_training.saver import (
    RestoreSettings,
    copy_checkpoint_state,
    get_checkpoint_state,
)


def put(path, current=61, steps=(61, 30, 0)):
    paths = [f"{path}/model.ckpt-{step}" for step in steps]
    write_checkpoint_state(path, CheckpointState(f"{path}/model.ckpt-{current}", paths))


def wanted(path, step, mode="train"):
    settings = RestoreSettings(f"/elsewhere/model.ckpt-{step}", mode=mode)
    state = get_checkpoint_state(path, settings=settings)
    return int(state.model_checkpoint_path.rpartition("-")[2])


@pytest.mark.req("NT-RUNU-T1")
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("has_marker", [False, True])
@pytest.mark.parametrize("step", [30, 61, 7])
def test_the_override(tmp_path, mode, has_marker, step):
    put(tmp_path)
    if has_marker:
        (tmp_path / "restore_ckpt").write_text("before")
    text = (tmp_path / "checkpoint").read_text()
    is_train = mode == "train"
    applied = step == 30 and not (is_train and has_marker)
    assert wanted(tmp_path, step, mode) == (30 if applied else 61)
    is_marked = is_train and not has_marker and step in (30, 61)
    marker = tmp_path / "restore_ckpt"
    expected = f"{tmp_path}/model.ckpt-{step}" if is_marked else "before" if has_marker else None
    assert (marker.read_text() if marker.exists() else None) == expected
    is_rewritten = (tmp_path / "checkpoint").read_text() != text
    assert is_rewritten == (applied and is_train)


@pytest.mark.req("NT-RUNU-T1")
def test_a_restart_does_not_go_back(tmp_path):
    put(tmp_path)
    assert wanted(tmp_path, 61) == 61
    put(tmp_path, 80, (61, 70, 80))
    assert wanted(tmp_path, 61) == 80


def test_settings_without_a_checkpoint_and_other_files_have_no_override(tmp_path):
    put(tmp_path)
    os.rename(tmp_path / "checkpoint", tmp_path / "other")
    settings = RestoreSettings("model.ckpt-30")
    state = get_checkpoint_state(tmp_path, "other", settings=settings)
    assert state.model_checkpoint_path.endswith("-61")
    assert get_checkpoint_state(tmp_path, settings=settings) is None
    put(tmp_path)
    assert get_checkpoint_state(
        tmp_path, settings=RestoreSettings()
    ).model_checkpoint_path.endswith("-61")


def test_an_override_that_fails_is_logged_and_left_out(tmp_path, caplog):
    put(tmp_path)
    state = get_checkpoint_state(tmp_path, settings=RestoreSettings(restore_ckpt=3))
    assert state.model_checkpoint_path.endswith("-61")
    assert "the override by restore_ckpt=3 failed" in caplog.text


@pytest.mark.req("NT-RUNU-T2")
@pytest.mark.parametrize("num_bad", [2, 5, 6])
def test_a_state_that_is_not_readable_at_once(tmp_path, num_bad):
    (tmp_path / "checkpoint").write_text("}")
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == num_bad:
            put(tmp_path)

    if num_bad == 6:
        with pytest.raises(Exception, match=r"^read ckpt error!$"):
            get_checkpoint_state(tmp_path, wait=wait)
        assert len(waits) == 5
    else:
        assert get_checkpoint_state(tmp_path, wait=wait).model_checkpoint_path.endswith("-61")
        assert len(waits) == num_bad


def copied(tmp_path, **options):
    (tmp_path / "new").mkdir(exist_ok=True)
    settings = RestoreSettings(restore_dir=f"{tmp_path}/old", **options)
    copy_checkpoint_state(tmp_path / "new", settings)
    return {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old"
    path.mkdir()
    put(path)
    kind = HashTableType.MULTI_CUCKOO_HASH_MAP
    write_monolith_checkpoint_state(path, MonolithCheckpointState(["x"], 3, kind))
    return path


@pytest.mark.req("NT-RUNU-T5")
def test_a_new_directory_starts_from_another_one(tmp_path, old):
    path = f"{old}/model.ckpt-30"
    assert copied(tmp_path, restore_ckpt="model.ckpt-30") == {
        "checkpoint": f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "{path}"\n',
        "restore_ckpt": path,
        "monolith_checkpoint": f'exempt_model_checkpoint_paths: "{path}"\n'
        "builtin_hash_table_type: MULTI_CUCKOO_HASH_MAP\n",
    }


def test_another_directory_may_be_relative(tmp_path, old, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("old")
    (tmp_path / "new").mkdir()
    copy_checkpoint_state("new", RestoreSettings(restore_dir="old"))
    assert get_checkpoint_state("new").model_checkpoint_path == f"{old}/model.ckpt-61"


@pytest.mark.parametrize("restore_ckpt", [None, "model.ckpt-5"])
def test_without_a_listed_checkpoint_the_current_one_is_taken(tmp_path, old, restore_ckpt, caplog):
    files = copied(tmp_path, restore_ckpt=restore_ckpt)
    assert files["restore_ckpt"] == f"{old}/model.ckpt-61"
    assert ("model.ckpt-5 is not in" in caplog.text) == (restore_ckpt is not None)


def test_a_directory_with_a_state_stays_as_it_is(tmp_path, old):
    (tmp_path / "new").mkdir()
    put(tmp_path / "new", 5, [5])
    before = (tmp_path / "new" / "checkpoint").read_text()
    files = copied(tmp_path)
    assert files == {"checkpoint": before, "monolith_checkpoint": ""}


def test_without_a_source_the_others_need_not_wait(tmp_path, caplog):
    assert copied(tmp_path) == {"monolith_checkpoint": ""}
    assert "there is no checkpoint to restore in" in caplog.text


def test_exempt_paths_of_the_directory_stay(tmp_path, old):
    (tmp_path / "new").mkdir()
    own = MonolithCheckpointState(["a"], 9, HashTableType.CUCKOO_HASH_MAP)
    write_monolith_checkpoint_state(tmp_path / "new", own)
    os.unlink(old / "monolith_checkpoint")
    assert copied(tmp_path)["monolith_checkpoint"] == (
        'exempt_model_checkpoint_paths: "a"\n'
        f'exempt_model_checkpoint_paths: "{old}/model.ckpt-61"\n'
        "last_checkpoint_save_timestamp: 9\nbuiltin_hash_table_type: CUCKOO_HASH_MAP\n"
    )


def test_a_function_for_the_settings_of_a_job_reads_them_at_each_call(tmp_path):
    put(tmp_path)
    settings = SimpleNamespace(restore_ckpt=None, mode="eval")
    get_state = gen_get_checkpoint_state(settings)
    before = get_state(tmp_path).model_checkpoint_path
    settings.restore_ckpt = "model.ckpt-30"
    after = get_state(tmp_path).model_checkpoint_path
    assert (before, after) == (f"{tmp_path}/model.ckpt-61", f"{tmp_path}/model.ckpt-30")


def test_a_function_for_settings_takes_the_waits_of_the_caller(tmp_path):
    (tmp_path / "checkpoint").write_text("}")
    waits = []
    with pytest.raises(Exception, match="read ckpt error!"):
        gen_get_checkpoint_state(wait=waits.append)(tmp_path)
    assert len(waits) == 5
