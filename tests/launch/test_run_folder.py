import os
import tempfile

import pytest

from monolith.errors import FailedPreconditionError
from monolith.launch import RunFolder, folder_state


def test_addresses_of_an_earlier_job_are_removed_and_logs_stay(tmp_path):
    for name in ("discovery/ps/0", "logs/ps-0.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.touch()
    with RunFolder(str(tmp_path)) as folder:
        assert os.listdir(folder.discovery) == []
        assert os.listdir(folder.logs) == ["ps-0.log"]


def test_a_folder_has_one_launcher(tmp_path):
    message = rf"\[launch\] expected one launcher .* while process {os.getpid()} runs \({tmp_path}"
    with RunFolder(str(tmp_path)), pytest.raises(FailedPreconditionError, match=message):
        RunFolder(str(tmp_path))
    with RunFolder(str(tmp_path)):
        pass


def test_a_refused_launcher_leaves_the_addresses_alone(tmp_path):
    with RunFolder(str(tmp_path)) as folder:
        open(os.path.join(folder.discovery, "0"), "w").close()
        with pytest.raises(FailedPreconditionError):
            RunFolder(str(tmp_path))
        assert os.listdir(folder.discovery) == ["0"]


@pytest.mark.parametrize("is_success", [True, False])
def test_a_temporary_folder_stays_after_a_failure_only(tmp_path, monkeypatch, is_success):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = RunFolder()
    folder.ipc_address("ps-0")
    folder.close(is_success=is_success)
    assert os.listdir(tmp_path) == ([] if is_success else [os.path.basename(folder.path)])


def test_a_named_folder_stays(tmp_path):
    RunFolder(str(tmp_path / "run")).close(is_success=True)
    assert (tmp_path / "run" / "logs").is_dir()


@pytest.mark.parametrize("name", ["run", "r" * 100])
def test_a_path_of_a_socket_is_short_and_of_this_user_only(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with RunFolder(str(tmp_path / name)) as folder:
        path = folder.ipc_address("ps-999999").removeprefix("ipc://")
        assert len(path) <= 107
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    assert not os.path.exists(os.path.dirname(path))


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        RunFolder(str(tmp_path / "file" / "run"))


def test_the_state_of_a_folder_changes_with_its_files(tmp_path):
    states = [folder_state(str(tmp_path))]
    path = tmp_path / "model.ckpt-4"
    path.mkdir()
    (path / "rows").write_text("a")
    states.append(folder_state(str(tmp_path)))
    (path / "rows").write_text("ab")
    states.append(folder_state(str(tmp_path)))
    assert len(set(states)) == 3
    assert folder_state(None) == folder_state(str(tmp_path / "none")) == (0, 0, 0)
