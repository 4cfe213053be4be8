import os

import pytest

from monolith import utils
from monolith.errors import AbortedError, UnavailableError
from monolith.native_training.util import paths
from monolith.train import driver


@pytest.mark.req("TS-MUTIL-T1")
def test_find_main():
    assert os.path.isdir(os.path.join(utils.find_main(), "monolith"))
    assert utils.find_main is paths.find_main


@pytest.mark.req("TS-MUTIL-T2")
def test_get_libops_path():
    assert os.path.samefile(utils.get_libops_path("monolith/utils.py"), utils.__file__)


@pytest.mark.req("TS-MUTIL-T3")
def test_load_monitored_session(monkeypatch):
    for _ in range(2):
        utils.enable_monkey_patch()
        assert (AbortedError,) == utils._PREEMPTION_ERRORS
        assert utils._PREEMPTION_ERRORS is driver.PREEMPTION_ERRORS
    assert driver.drive(failing_once(AbortedError)).num_recoveries == 1
    with pytest.raises(UnavailableError):
        driver.drive(failing_once(UnavailableError))
    monkeypatch.setattr(driver, "PREEMPTION_ERRORS", (UnavailableError,))  # the list is read
    assert driver.drive(failing_once(UnavailableError)).num_recoveries == 1
    with pytest.raises(AbortedError):
        driver.drive(failing_once(AbortedError))


def failing_once(error):
    """Return a step that raises an error, and ends the run when it is called again."""
    errors = iter([error("gone")])

    def step():
        raise next(errors)

    return step


@pytest.mark.req("TS-MUTIL-T4")
def test_multi_threaded_copy(tmp_path):
    source, target = tmp_path / "source", tmp_path / "copy"
    for name in ("a", "b/c", "b/d/e"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    utils.CopyRecursively(str(source), str(target), max_workers=2)
    for name in ("a", "b/c", "b/d/e"):
        assert (target / name).read_text() == name


def test_options_of_the_copies_are_passed_on(tmp_path):
    missing, target = str(tmp_path / "missing"), str(tmp_path / "copy")
    utils.CopyFile(missing, target)
    utils.CopyRecursively(missing, target)
    with pytest.raises(FileNotFoundError):
        utils.CopyFile(missing, target, skip_nonexist=False)
    with pytest.raises(ValueError, match=f"^{missing} doesn't exist!$"):
        utils.CopyRecursively(missing, target, skip_nonexist=False)
    with pytest.raises(FileExistsError):
        utils.CopyFile(__file__, __file__, overwrite=False)
    for copy in (utils.CopyFile, utils.CopyRecursively):
        with pytest.raises(ValueError, match="got -1"):
            copy(missing, target, max_retries=-1)
