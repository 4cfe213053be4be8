"""The servers of a job are measured, and the fastest of them are kept."""

import contextlib
import os
import signal
import threading

import pytest

from monolith.cluster import LocalServers
from monolith.cluster.job.shared_state import LocalSharedState, ValuesSharedState
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
)
from monolith.native_training import ps_benchmark
from monolith.native_training.cpu_training import local_train
from monolith.native_training.ps_benchmark import (
    BenchmarkConfig,
    PsBenchMarkTask,
    _BenchmarkWorkerHook,
    _DummyCheckpointSaverHook,
    adjusted_by_ip,
    select_servers,
)
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.util.run_state import share, use_servers
from monolith.train import Mode, Trainer
from monolith.train.coordinator import Coordinator
from monolith.train.driver import Run, StepContext, drive
from tests.cluster.server_processes import Nursery, connect

ADDRESSES = ["a:1", "a:2", "b:1"]
TWO = ["ps0", "ps1"]


def params_of(config):
    params = PsBenchMarkTask.params()
    params.bm_config = config
    return params


def quick(sleeps=None):
    """A time whose sleeps take a thousandth; their seconds are noted."""
    noted = [] if sleeps is None else sleeps
    return TimeSource(sleep=lambda s: (noted.append(s), threading.Event().wait(s / 1000))[0])


class FakeTime(TimeSource):
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 0.0
        super().__init__(monotonic=lambda: self.now, sleep=self._sleep)

    __setattr__ = object.__setattr__

    def _sleep(self, seconds):
        self.now += seconds


def hook_of(config, shared=None, speeds=(1.0, 2.0), source=None):
    return _BenchmarkWorkerHook(config, lambda: speeds, shared=shared, source=source or quick())


def run_worker(hook, results=None):
    """One step of a worker."""
    return drive(lambda: None, [hook])


# Selection


@pytest.mark.req("NT-PSBM-T1")
def test_the_slower_servers_of_a_machine_count_for_its_faster_one():
    adjusted = adjusted_by_ip(ADDRESSES, [3, 2, 4])
    assert adjusted == [5, 2, 4]
    assert select_servers(ADDRESSES, adjusted, 2) == ["a:1", "b:1"]


def test_three_servers_of_a_machine_add_up():
    addresses = ["a:1", "a:2", "a:3", "b:1"]
    assert adjusted_by_ip(addresses, [1, 4, 2, 6]) == [1, 7, 3, 6]


def test_of_equal_throughputs_the_higher_number_comes_first():
    assert select_servers(ADDRESSES, [2, 1, 2], 2) == ["b:1", "a:1"]


def test_servers_of_one_machine_are_known_by_the_part_before_the_port():
    assert adjusted_by_ip(["[::1]:1", "[::1]:2", "ps0", "ps1"], [1, 2, 1, 2]) == [1, 3, 1, 2]


# The hook


@pytest.mark.req("NT-PSBM-T2")
def test_two_workers_end_with_the_same_list():
    shared = LocalSharedState()
    configs = [BenchmarkConfig(list(ADDRESSES), 2, 2, index) for index in range(2)]
    speeds = [(4.0, 2.0, 5.0), (2.0, 2.0, 3.0)]  # the mean is that of the selection above
    hooks = [hook_of(c, shared, s) for c, s in zip(configs, speeds, strict=True)]
    other = threading.Thread(target=run_worker, args=[hooks[1]], daemon=True)
    other.start()
    run_worker(hooks[0])
    other.join(60)
    assert [config.ps_list for config in configs] == [["a:1", "b:1"]] * 2


@pytest.mark.req("NT-PSBM-T2")
def test_nine_workers_of_ten_are_enough_to_begin():
    shared, sleeps = LocalSharedState(), []
    hooks = [hook_of(BenchmarkConfig(TWO, 1, 10, index), shared) for index in range(10)]
    for hook in hooks[1:8]:
        hook._shared = shared
        hook._set("ready")
    source = TimeSource(sleep=lambda s: (sleeps.append(s), hooks[9]._set("ready")))
    hooks[9]._shared = shared
    first = hook_of(BenchmarkConfig(TWO, 1, 10, 0), shared, source=source)
    first.after_create_session(Run(), Coordinator())
    assert sleeps == [0.5, 1.0]  # until the ninth is ready, and before the start
    assert sum(first._flags("ready")) == 9


def test_a_run_that_ends_waits_for_no_worker():
    coordinator = Coordinator()
    coordinator.request_stop()
    sleeps = []
    hook = hook_of(BenchmarkConfig(TWO, 1, 10, 0), LocalSharedState(), source=quick(sleeps))
    hook.after_create_session(Run(), coordinator)
    assert sleeps == [1.0]


def test_a_worker_that_does_not_finish_is_left_out_after_ten_seconds():
    time, shared = FakeTime(), LocalSharedState()
    config = BenchmarkConfig(list(TWO), 1, 2, 0)
    hook = hook_of(config, shared, source=time)
    shared.set_flag(f"{hook._scope}/ready", 2, 1, True)
    run_worker(hook)
    assert config.ps_list == ["ps1"]
    assert time.now == 1.0 + 10.0


def test_a_worker_without_a_result_gives_up_after_an_hour():
    time = FakeTime()
    hook = hook_of(BenchmarkConfig(TWO, 1, 2, 1), LocalSharedState(), source=time)
    text = r"expected worker 0 to select the servers within 3600 s, got no word \(worker 1\)"
    with pytest.raises(DeadlineExceededError, match=text):
        run_worker(hook)
    assert time.now == 1.0 + 10.0 + 3600.0


def test_a_benchmark_of_other_servers_has_a_result_of_its_own():
    shared = LocalSharedState()
    for names in (TWO, ["ps0", "ps2"]):
        config = BenchmarkConfig(list(names), 1, 1, 0)
        run_worker(hook_of(config, shared))
        assert config.ps_list == names[1:]


def test_a_worker_that_starts_late_takes_the_result():
    shared = LocalSharedState()
    run_worker(hook_of(BenchmarkConfig(list(TWO), 1, 1, 0), shared))
    late = hook_of(BenchmarkConfig(list(TWO), 1, 1, 0), shared, speeds=(9.0, 1.0))
    late.after_create_session(Run(), Coordinator())
    with pytest.raises(OutOfRangeError, match="the servers are selected already"):
        late.before_run(StepContext(Run(), Coordinator()))
    late.end(Run())
    assert late._config.ps_list == ["ps1"]


def test_the_log_has_the_throughputs_before_and_after_the_adjustment(caplog):
    caplog.set_level("INFO", "monolith")
    run_worker(hook_of(BenchmarkConfig(["a:1", "a:2"], 1, 1, 0), LocalSharedState()))
    lines = [r.getMessage() for r in caplog.records if r.name == ps_benchmark.__name__]
    assert lines[0].startswith("the benchmark took ")
    assert lines[1] == "throughputs of the servers: [1.0, 2.0]"
    assert lines[2] == "with those of slower servers of the same machine: [1.0, 3.0]"


def test_fewer_servers_than_required_are_refused():
    for config in (BenchmarkConfig(["a:1"], 2, 1, 0), BenchmarkConfig(TWO, 2, 1, 0, 1.0, "a:1")):
        with pytest.raises(ValueError, match=r"at least num_ps_required=2 addresses .* got 1: a:1"):
            hook_of(config)


def test_the_hook_in_the_place_of_a_saver_saves_nothing(tmp_path):
    hook, run = _DummyCheckpointSaverHook(str(tmp_path / "none")), Run(global_step=1)
    drive(iter([1]).__next__, [hook], run=run)
    hook.trigger_save(run)
    assert hook._save(run, 1) is False
    assert not (tmp_path / "none").exists()


def test_its_folder_is_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _DummyCheckpointSaverHook().checkpoint_dir == str(tmp_path / "tmp")


# The task


@pytest.mark.req("TS-PSBM-T1")
def test_basic():
    config = BenchmarkConfig(list(TWO), 1, 1, 0, benchmark_secs=1.0)
    with local_train(params_of(config), num_ps=2) as trainer:
        assert trainer.run.global_step == 1
    assert len(config.ps_list) == 1


@pytest.mark.req("TS-PSBM-T2")
def test_skip_benchmark():
    config = BenchmarkConfig(list(TWO), 1, 1, 0, 1.0, ps_str_overridden="overridden")
    with local_train(params_of(config), num_ps=2):
        pass
    assert config.ps_list[0] == "overridden"


@pytest.mark.req("NT-PSBM-T3")
def test_nothing_is_measured_where_the_result_is_given(monkeypatch):
    calls = []
    monkeypatch.setattr(ps_benchmark, "measure_servers", lambda *a: calls.append(a) or [1.0, 2.0])
    for text, num_calls in (("ps0", 0), ("", 1)):
        config = BenchmarkConfig(list(TWO), 1, 1, 0, 1.0, ps_str_overridden=text)
        with local_train(params_of(config), num_ps=2):
            pass
        assert len(calls) == num_calls


def test_the_servers_hold_nothing_after_the_benchmark():
    config = BenchmarkConfig(list(TWO), 1, 1, 0, benchmark_secs=0.01)
    with LocalServers(2) as servers, local_train(params_of(config), servers=servers):
        assert [servers[i].table_names + servers[i].parameter_names for i in range(2)] == [[], []]


def test_a_prediction_is_zero():
    config = BenchmarkConfig(list(TWO), 1, 1, 0, benchmark_secs=0.01)
    with local_train(params_of(config), num_ps=2) as trainer:
        batch = next(iter(trainer.task.source(Mode.PREDICT)))
        assert next(trainer.predict([batch])).prediction.tolist() == [0.0] * 4


def test_a_task_without_a_config_is_refused():
    with pytest.raises(
        TypeError, match=r"expected params\.bm_config as a BenchmarkConfig, got None"
    ):
        PsBenchMarkTask.params().instantiate()


def test_a_run_without_servers_is_refused():
    config = BenchmarkConfig(list(TWO), 1, 1, 0, benchmark_secs=0.01)
    with pytest.raises(FailedPreconditionError, match="got one without; train with num_ps >= 1"):
        local_train(params_of(config))


def test_every_server_has_an_address():
    config = BenchmarkConfig(list(TWO), 1, 1, 0, benchmark_secs=0.01)
    text = "expected an address for each of 3 servers, got 2 in ps_list: ps0,ps1"
    with pytest.raises(InvalidArgumentError, match=text):
        local_train(params_of(config), num_ps=3)


# Servers of other processes


@contextlib.contextmanager
def slowed(pid):
    """Let a process run one hundredth of a second in ten, as on a machine that others keep busy."""
    is_over = threading.Event()

    def body():
        while not is_over.wait(0.01):
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(0.09)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def processes():
    nursery = Nursery()
    yield nursery.start_all(2)
    nursery.close()


@pytest.mark.dist
@pytest.mark.parametrize(
    ("overridden", "expected"),
    [
        pytest.param("", None, marks=pytest.mark.req("TS-PSBM-T1")),
        pytest.param("overridden", "overridden", marks=pytest.mark.req("TS-PSBM-T2")),
    ],
)
def test_server_processes_are_measured_unless_the_result_is_given(processes, overridden, expected):
    addresses = [process.address for process in processes]
    config = BenchmarkConfig(list(addresses), 1, 1, 0, 0.3, ps_str_overridden=overridden)
    with (
        connect(processes) as servers,
        Trainer(params_of(config).instantiate(), None, servers) as t,
    ):
        use_servers(t.run, servers)
        share(t.run, ValuesSharedState(servers))
        t.fit()
    assert config.ps_list in ([[a] for a in addresses] if expected is None else [[expected]])


@pytest.mark.dist
@pytest.mark.thorough
@pytest.mark.req("NT-PSBM-T4")
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_server_process_is_left_out(processes, slow):
    addresses = [process.address for process in processes]
    config = BenchmarkConfig(list(addresses), 1, 1, 0, benchmark_secs=1.0)
    with (
        connect(processes) as servers,
        Trainer(params_of(config).instantiate(), None, servers) as t,
    ):
        use_servers(t.run, servers)
        share(t.run, LocalSharedState())
        with slowed(processes[slow].pid):
            t.fit()
        assert config.ps_list == [addresses[1 - slow]]
        assert servers._client.call("table_names", [()] * 2) == [[], []]
