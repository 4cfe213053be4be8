import sys
from types import SimpleNamespace

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.native_training import mlp_utils
from monolith.native_training.hooks.dataset_hook import REGISTERED_ID
from monolith.native_training.mlp_utils import (
    EXTRA_DSWORKERS,
    BroadcastDatasetHook,
    DatasetInitializerHook,
    MLPEnv,
    RunnerSettings,
    ServiceStarters,
    add_mpi_exception_hook,
    make_dataset_hook,
    mlp_pass,
)
from monolith.train.driver import Run

ENVIRONMENT = {
    "MLP_PORT": "7000",
    "MLP_WORKER_NUM": "2",
    "MLP_DISPATCHER_NUM": "1",
    "MLP_DSWORKER_NUM": "2",
    "MLP_DISPATCHER_0_PRIMARY_HOST": "10.0.0.5",
    "MLP_DISPATCHER_0_PORT": "5000",
    "MLP_WORKER_0_PRIMARY_HOST": "10.0.0.6",
}


@pytest.fixture
def said(monkeypatch):
    """What an environment and its servers were asked, in order."""
    said = []
    monkeypatch.setenv("YARN_INET_ADDR", "127.0.0.1")
    monkeypatch.setattr(
        MLPEnv, "wait", lambda self, role, index=0, **o: said.append(("wait", role, index, o))
    )
    monkeypatch.setattr(MLPEnv, "join", lambda self, role: said.append(("join", role)))
    monkeypatch.setattr(MLPEnv, "start_profiler", lambda self, **o: said.append(("profiler",)))
    yield said
    EXTRA_DSWORKERS.clear()


def starters(said):
    def dispatcher(options, num_readers):
        said.append(("dispatcher", options.address, num_readers))
        return SimpleNamespace(address=options.address)

    def data_worker(make_source, dispatcher, options, *, facts):
        said.append(("data worker", dispatcher, options.address, facts))
        return SimpleNamespace(address=options.address)

    return ServiceStarters(dispatcher, data_worker)


def pass_as(said, role, index=0, settings=None, task="ads.Clicks", **more):
    env = MLPEnv({**ENVIRONMENT, "MLP_ROLE": role, "MLP_ROLE_INDEX": str(index), **more})
    mlp_pass(settings=settings, task=task, env=env, starters=starters(said))


NO_SSH = {"use_ssh": False}


@pytest.mark.req("NT-MLP-T7")
def test_a_dispatcher_serves_until_the_worker_is_gone(said):
    pass_as(said, "dispatcher", settings=RunnerSettings(num_extra_dsworker_on_gpu_worker=3))
    assert said == [("dispatcher", "tcp://127.0.0.1:7000", 2 + 3 * 2), ("join", "WORKER")]


@pytest.mark.req("NT-MLP-T7")
def test_a_data_worker_waits_for_the_dispatcher(said):
    pass_as(said, "DSWORKER", index=1)
    assert said == [
        ("wait", "DISPATCHER", 0, NO_SSH),
        ("data worker", "grpc://10.0.0.5:5000", "tcp://127.0.0.1:7000", ["ads.Clicks"]),
        ("profiler",),
        ("join", "WORKER"),
    ]


@pytest.mark.req("NT-MLP-T7")
def test_a_worker_waits_for_the_whole_service(said):
    settings = RunnerSettings(dataset_use_dataservice=True)
    pass_as(said, "worker", settings=settings)
    assert said == [
        ("wait", "DISPATCHER", 0, NO_SSH),
        ("wait", "DSWORKER", 0, NO_SSH),
        ("wait", "DSWORKER", 1, NO_SSH),
    ]
    assert settings.data_service_dispatcher == "grpc://10.0.0.5:5000"


@pytest.mark.req("NT-MLP-T7")
def test_a_worker_starts_data_workers_of_its_own(said):
    settings = RunnerSettings(dataset_use_dataservice=True, num_extra_dsworker_on_gpu_worker=2)
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    pass_as(said, "worker", settings=settings, **mpi)
    addresses = [entry[2] for entry in said if entry[0] == "data worker"]
    assert addresses == ["tcp://127.0.0.1:7006", "tcp://127.0.0.1:7007"]  # 7000 + 4 + 1 * 2 + i
    assert [worker.address for worker in EXTRA_DSWORKERS] == addresses


@pytest.mark.req("NT-MLP-T7")
@pytest.mark.parametrize("role", ["worker", "ps"])
def test_other_roles_say_where_they_are(said, caplog, role):
    caplog.set_level("INFO")
    pass_as(said, role, settings=RunnerSettings())
    assert said == []
    assert f"{role.upper()} 0 at 127.0.0.1:7000; roles: " in caplog.text


@pytest.mark.req("NT-MLP-T7")
def test_nothing_is_done_outside_of_the_environment(said):
    mlp_pass(env=MLPEnv({"MLP_ROLE": "dispatcher"}), starters=starters(said))
    assert said == []


def test_a_data_worker_without_a_task_is_refused(said):
    with pytest.raises(InvalidArgumentError, match="expected the key of a task"):
        pass_as(said, "dsworker", task=None)


@pytest.mark.req("NT-MLP-T5")
def test_there_is_no_hook_for_errors_without_a_rank(monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    before = sys.excepthook
    add_mpi_exception_hook()
    assert sys.excepthook is before


@pytest.mark.req("NT-MLP-T5")
def test_an_uncaught_error_aborts_all_ranks(monkeypatch, capsys):
    aborted = []
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # restored after the test
    add_mpi_exception_hook(aborted.append)
    error = ValueError("no such file")
    sys.excepthook(ValueError, error, None)
    assert aborted == [1]
    assert "rank 3 failed by ValueError: no such file" in capsys.readouterr().err


class FakeRanks:
    def __init__(self, common):
        self._common, self.calls = common, []

    def rank(self):
        return 2

    def broadcast(self, tensor, root_rank):
        self.calls.append((tensor.tolist(), root_rank))
        return torch.full_like(tensor, self._common)


class FakeIterator:
    def __init__(self):
        self.num_calls = 0

    def initializer(self):
        self.num_calls += 1


@pytest.fixture
def synchronous(monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "True")


@pytest.mark.req("NT-MLP-T6")
def test_ranks_read_the_data_of_rank_0(synchronous, caplog):
    caplog.set_level("INFO")
    iterator, ranks, run = FakeIterator(), FakeRanks(common=11), Run()
    hook = BroadcastDatasetHook(iterator, lambda: ranks)
    with run.as_current():
        run.add(REGISTERED_ID, 40)
        hook.begin()
        assert run.collection(REGISTERED_ID) == ()
        for _ in range(2):  # the second one after a recovery
            hook.after_create_session(run, None)
    assert (ranks.calls, hook.dataset_id, iterator.num_calls) == ([([40], 0)], 11, 2)
    assert "data 40 of rank 2, read as data 11" in caplog.text


@pytest.mark.req("NT-MLP-T6")
def test_without_a_backend_there_is_a_warning(synchronous, caplog, monkeypatch):
    monkeypatch.setattr(
        "monolith.native_training.hooks.dataset_hook._RANKS", "monolith.native_training.no_ranks"
    )
    iterator, run = FakeIterator(), Run()
    hook = BroadcastDatasetHook(iterator)
    with run.as_current():
        run.add(REGISTERED_ID, 40)
        mlp_utils.begin(hook)
        mlp_utils.after_create_session(hook, run)
    assert (hook.dataset_id, iterator.num_calls, run.collection(REGISTERED_ID)) == (None, 1, ())
    assert "there is no backend for ranks" in caplog.text


@pytest.mark.req("NT-MLP-T6")
@pytest.mark.parametrize("is_exporting", [True, False])
def test_nothing_is_broadcast_in_an_export_or_without_ranks(monkeypatch, is_exporting):
    if is_exporting:
        monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "True")
    else:
        monkeypatch.delenv("MONOLITH_WITH_HOROVOD", raising=False)
    ranks, run = FakeRanks(1), Run(is_exporting=is_exporting)
    hook = BroadcastDatasetHook(FakeIterator(), lambda: ranks)
    with run.as_current():
        run.add(REGISTERED_ID, 40)
        hook.begin()
        hook.after_create_session(run, None)
    assert (ranks.calls, run.collection(REGISTERED_ID)) == ([], ())


def test_the_hook_depends_on_the_data_service():
    assert type(make_dataset_hook(FakeIterator(), uses_data_service=True)) is BroadcastDatasetHook
    plain = make_dataset_hook(FakeIterator(), uses_data_service=False)
    assert type(plain) is DatasetInitializerHook
