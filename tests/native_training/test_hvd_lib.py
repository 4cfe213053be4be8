import subprocess
import sys
import threading
import time
import types

import pytest
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.native_training import hvd_lib
from monolith.native_training.collectives import torch_ranks
from monolith.train.driver import Run, drive
from tests.forker import ROOT

CALLS = "tests.native_training.collectives.rank_calls"


@pytest.fixture
def lib(monkeypatch):
    """A backend that is not chosen yet."""
    monkeypatch.setattr(hvd_lib, "_LIB", hvd_lib._Lib())
    monkeypatch.delenv("MONOLITH_WITH_BYTEPS", raising=False)
    return hvd_lib._LIB


@pytest.mark.req("NT-HVD-T1")
def test_the_backend_is_torch_unless_a_variable_selects_another_one(lib):
    assert hvd_lib.lib is torch_ranks
    assert not hvd_lib.enable_bps


@pytest.mark.req("NT-HVD-T1")
def test_byteps_without_its_package_is_an_error(lib, monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
    assert hvd_lib.enable_bps
    with pytest.raises(FailedPreconditionError, match="expected the package byteps, which MONO"):
        hvd_lib.init()


def test_byteps_is_used_where_it_is_installed(lib, monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "2")
    package = types.ModuleType("byteps.torch")
    package.rank = lambda: 7
    monkeypatch.setitem(sys.modules, "byteps", types.ModuleType("byteps"))
    monkeypatch.setitem(sys.modules, "byteps.torch", package)
    assert hvd_lib.rank() == 7


def test_the_variable_is_an_integer(lib, monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "yes")
    with pytest.raises(ValueError, match="expected an integer in MONOLITH_WITH_BYTEPS, got 'yes'"):
        _ = hvd_lib.enable_bps


@pytest.mark.req("NT-HVD-T1")
def test_threads_that_come_first_together_choose_once(lib, monkeypatch):
    choices = []

    def choose():
        choices.append(1)
        time.sleep(0.05)
        return torch_ranks

    monkeypatch.setattr(hvd_lib, "_load_torch", choose)
    threads = [threading.Thread(target=lambda: hvd_lib.lib) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert choices == [1]


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'alltoall'"):
        _ = hvd_lib.alltoall
    with pytest.raises(AttributeError, match="no attribute '__path__'"):
        _ = hvd_lib.__path__


@pytest.mark.req("NT-HVD-T3")
def test_an_import_imports_no_backend():
    code = (
        "import sys; from monolith.native_training import hvd_lib;"
        "print([m for m in sys.modules if m.startswith(('torch', 'byteps', 'horovod'))"
        " or m.startswith('monolith.cluster')])"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert found.strip() == "[]"


@pytest.mark.req("NT-HVD-T2")
def test_a_process_without_a_launcher_is_the_only_rank(alone):
    assert (hvd_lib.rank(), hvd_lib.size()) == (0, 1)
    values = torch.arange(4.0).view(2, 2)
    assert torch.equal(hvd_lib.broadcast(values, 0), values)
    assert torch.equal(hvd_lib.allgather(values), values)
    assert hvd_lib.allgather(3).tolist() == [3]


@pytest.mark.parametrize("verb", ["rank", "size", "allgather", "broadcast", "group"])
def test_nothing_works_before_init(verb):
    arguments = [[1]] if verb in ("allgather", "broadcast") else []
    with pytest.raises(FailedPreconditionError, match=rf"\[hvd_lib.{verb}\] expected a call of hv"):
        getattr(hvd_lib, verb)(*arguments)


def test_ranks_can_leave_and_join_again(alone):
    hvd_lib.shutdown()
    assert not hvd_lib.is_initialized()
    hvd_lib.init()
    assert hvd_lib.size() == 1


def test_a_rank_that_is_not_there_is_refused(alone):
    with pytest.raises(InvalidArgumentError, match=r"expected root_rank in \[0, 1\), got 1"):
        hvd_lib.broadcast([1], 1)


def test_processes_of_mpi_need_the_variables_of_torchrun(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(InvalidArgumentError, match=r"expected RANK, .* the 4 processes"):
        hvd_lib.init()


def test_the_hook_takes_the_variables_of_the_run(alone):
    run = Run()
    run.add("variables", torch.nn.Linear(1, 1))
    drive(iter([1]).__next__, [hvd_lib.BroadcastGlobalVariablesHook(0)], run=run)


def wait_for(path, seconds=60.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.02)


@pytest.mark.dist
@pytest.mark.req("NT-HVD-T2")
def test_two_processes_gather_and_broadcast(rank_forks, tmp_path):
    for rank, found in enumerate(rank_forks.run(tmp_path, 2, f"{CALLS}:gather_and_broadcast")):
        assert found == {
            "place": [rank, 2],
            "ranks": [0, 1],
            "uneven": [[1.0, 1.0]],
            "first": [0, 0],
            "last": 1.0,
        }


@pytest.mark.dist
@pytest.mark.req("NT-HVD-T4")
def test_four_processes_gather_and_broadcast(rank_forks, tmp_path):
    found = rank_forks.run(tmp_path, 4, f"{CALLS}:gather_and_broadcast")
    assert [each["ranks"] for each in found] == [[0, 1, 2, 3]] * 4
    assert [each["uneven"] for each in found] == [[[r, r] for r in (1, 2, 2, 3, 3, 3)]] * 4
    assert [(each["first"], each["last"]) for each in found] == [([0, 0], 1.0)] * 4


@pytest.mark.dist
@pytest.mark.req("NT-HVD-T4")
def test_four_processes_get_the_parameters_of_one(rank_forks, tmp_path):
    found = rank_forks.run(tmp_path, 4, f"{CALLS}:broadcast_hook")
    before = [each[0] for each in found]
    assert len(set(before)) == 4
    assert [each[1] for each in found] == [before[2]] * 4
    assert all(each[2] == found[2][2] for each in found)


@pytest.mark.dist
def test_tensors_of_other_forms_are_refused_on_all_ranks(rank_forks, tmp_path):
    for gathered, sent in rank_forks.run(tmp_path, 2, f"{CALLS}:other_forms"):
        assert "[hvd_lib.allgather] expected tensors of one form in all ranks" in gathered
        assert "['torch.float32', '2'" in sent or "'2'" in sent
        assert sent.endswith("in rank 1 ('w')")


@pytest.mark.dist
@pytest.mark.req("NT-HVD-T4")
def test_a_rank_that_dies_ends_the_others(rank_forks, tmp_path):
    function = f"{CALLS}:gather_until_a_rank_is_gone"
    with rank_forks.started(tmp_path, 4, function, str(tmp_path / "begun")) as ranks:
        wait_for(tmp_path / "begun")
        ranks.kill(3)
        for found in ranks.results(0, 1, 2, seconds=60):
            kind, text, seconds = found["result"]
            assert kind == "UnavailableError"
            assert "rank 3" in text
            assert seconds < 30
