"""`distributed_train`, as far as one process shows it."""

import contextlib
import dataclasses
import types

import pytest

from monolith.cluster.discovery import HostServiceDiscovery, TfConfigServiceDiscovery
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from monolith.native_training import cpu_training
from monolith.native_training.cpu_training import (
    DistributedCpuTrainingConfig,
    NodeAliveCheckerError,
    distributed_train,
)
from monolith.native_training.jobs import distributed
from monolith.native_training.jobs.distributed import ProcessOptions, check_process, settings_of
from monolith.native_training.tasks.native_task import NativeTask
from monolith.train.figures import Figures
from monolith.train.roles.worker import JobReport
from monolith.train.run_metrics import FitResult

CONFIG = DistributedCpuTrainingConfig(num_ps=1, model_dir="m")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"index": None}, r"^Index can't be none\.$"),
        ({"num_ps": None}, r"^Num ps can't be none\.$"),
        ({"num_workers": None}, r"^Num workers can't be none\.$"),
        ({"server_type": "chief"}, r"^Unknown server type\. type: chief$"),
        ({"model_dir": ""}, r"^model dir can't be empty\.$"),
        ({"num_ps": 0}, "expected num_ps >= 1, got 0; train without servers by local_train"),
    ],
)
def test_what_is_no_process_of_a_job_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        check_process(dataclasses.replace(CONFIG, **change))


@pytest.mark.parametrize(("field", "value"), [("enable_gpu_training", True), ("mode", "eval")])
def test_what_needs_a_part_that_is_not_here_is_refused_by_name(field, value):
    with pytest.raises(NotImplementedError, match=f"expected {field}="):
        check_process(dataclasses.replace(CONFIG, **{field: value}))


def test_a_backend_of_serving_is_refused():
    with pytest.raises(NotImplementedError, match="expected sync_backend=None, got 'backend'"):
        distributed_train(CONFIG, None, None, "backend")


def test_the_trainer_has_the_options_of_the_config():
    settings = settings_of(CONFIG)
    assert (settings.prefetch, settings.push, settings.save_every) == (0, 0, 100_000_000)
    assert (settings.checkpoint_dir, settings.keep, settings.log_every) == ("m", 10, 100)
    changes = {"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True}
    changes |= {"save_checkpoints_secs": 5, "num_workers": 3}
    settings = settings_of(dataclasses.replace(CONFIG, **changes))
    assert (settings.prefetch, settings.push, settings.save_every) == (2, 1, 0)
    assert (settings.save_seconds, settings.log_every) == (5, 300)


@pytest.mark.parametrize("unit", ["secs", "steps"])
@pytest.mark.parametrize("of_task", [None, 3])
def test_saves_without_tables_have_the_pace_of_the_task_or_else_of_the_config(
    tmp_path, unit, of_task
):
    params, field = NativeTask.params(), f"dense_only_save_checkpoints_{unit}"
    others = {name: value for name, value in params.train.items() if name != field}
    params.train[field] = of_task
    servers = types.SimpleNamespace(config=dataclasses.replace(CONFIG, **{field: 7}))
    options = ProcessOptions(0.0, shutdown=print)
    discovery = HostServiceDiscovery(tmp_path)
    distributed._Worker(servers, discovery, params, (), options)._set_dense_only_saves()
    assert params.train[field] == (of_task or 7)
    assert {name: params.train[name] for name in others} == others


class Tries:
    """A worker whose tries fail by errors, one after another, and then succeed."""

    def __init__(self, monkeypatch, tmp_path, *errors, addresses=(), ended="end of data", **config):
        self._errors, self._addresses = list(errors), list(addresses)
        self.report = JobReport(FitResult(ended, 3, 12, 0.5, Figures(3, 12, 0.5)), {})
        self.discovery = HostServiceDiscovery(tmp_path / "discovery")
        self._move()
        self.config = dataclasses.replace(CONFIG, model_dir=str(tmp_path), **config)
        self.sleeps, self.num_tries, self.num_ends = [], 0, 0
        monkeypatch.setattr(distributed._Worker, "_train", self._train)

    def _train(self, worker, numbers=None):
        self.num_tries += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.report

    def _move(self):
        address = self._addresses.pop(0) if self._addresses else "a:1"
        self.discovery.register("ps", 0, address)

    def run(self):
        def sleep(seconds):
            self.sleeps.append(seconds)
            self._move()

        def shutdown(servers):
            self.num_ends += 1

        with contextlib.closing(self.discovery):
            options = {"sleep": sleep, "shutdown": shutdown}
            return distributed_train(self.config, self.discovery, None, **options)


def test_a_cluster_that_stays_is_tried_without_a_limit(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO")
    errors = [DeadlineExceededError("late"), NodeAliveCheckerError("a:1 is unreachable")] * 5
    tries = Tries(monkeypatch, tmp_path, *errors)
    assert tries.run() is tries.report
    assert (tries.num_tries, tries.sleeps, tries.num_ends) == (11, [30] * 10, 1)
    assert "Finished worker 0." in caplog.text


@pytest.mark.parametrize(
    ("config", "num_tries"),
    [({}, 1), ({"max_retry_times": 2}, 3), ({"partial_recovery": True}, 7)],
)
def test_a_cluster_that_changes_is_tried_some_times(monkeypatch, tmp_path, config, num_tries):
    addresses = [f"a:{number}" for number in range(1, 20)]
    errors = [UnavailableError("away")] * 20
    tries = Tries(monkeypatch, tmp_path, *errors, addresses=addresses, **config)
    with pytest.raises(UnavailableError, match="away"):
        tries.run()
    assert (tries.num_tries, tries.num_ends) == (num_tries, 1)


def test_a_worker_that_was_given_up_joins_again_three_times(monkeypatch, tmp_path):
    tries = Tries(monkeypatch, tmp_path, *[AbortedError("given up")] * 20)
    with pytest.raises(AbortedError, match="given up"):
        tries.run()
    assert tries.num_tries == 4


def test_servers_that_stay_away_end_the_worker(monkeypatch, tmp_path):
    errors = [NodeAliveCheckerError("a:1 is unreachable")] * 20
    tries = Tries(monkeypatch, tmp_path, *errors, session_creation_timeout_secs=0)
    with pytest.raises(NodeAliveCheckerError, match="a:1 is unreachable"):
        tries.run()


def test_another_error_ends_the_worker(monkeypatch, tmp_path):
    tries = Tries(monkeypatch, tmp_path, KeyError("x"))
    with pytest.raises(KeyError):
        tries.run()
    assert (tries.num_tries, tries.num_ends) == (1, 1)


def test_only_the_chief_ends_the_servers(monkeypatch, tmp_path):
    tries = Tries(monkeypatch, tmp_path, index=1, num_workers=2)
    tries.discovery.register("worker", 0, "c:1")
    assert tries.run() is tries.report
    assert tries.num_ends == 0


def test_an_error_without_a_server_is_a_message():
    assert str(cpu_training.NodeAliveCheckerError("a:1 is unreachable")) == "a:1 is unreachable"


@pytest.mark.parametrize(("kind", "name", "index"), [("chief", "worker", 0), ("ps", "ps", 1)])
def test_a_discovery_may_fix_the_part_of_the_process(monkeypatch, tmp_path, kind, name, index):
    cluster = {"ps": ["127.0.0.1:1", "127.0.0.1:2"], "chief": ["127.0.0.1:3"]}
    task = {"type": kind, "index": index}
    config = dataclasses.replace(CONFIG, model_dir=str(tmp_path), server_type="", index=None)
    seen = []
    monkeypatch.setattr(distributed, "run_server", lambda s, d, p, ps: seen.append(ps.address))
    monkeypatch.setattr(distributed._Worker, "run", lambda self: seen.append(self._config.index))
    distributed_train(config, TfConfigServiceDiscovery({"cluster": cluster, "task": task}), None)
    assert (config.server_type, config.index) == (name, index)
    assert seen == (["tcp://127.0.0.1:2"] if kind == "ps" else [0])


def test_two_workers_with_one_place_are_refused(monkeypatch, tmp_path):
    tries = Tries(monkeypatch, tmp_path)
    other = HostServiceDiscovery(tmp_path / "discovery")
    other.hold("worker", 0)
    with pytest.raises(FailedPreconditionError, match="no process is worker 0, got one that"):
        tries.run()
    other.close()
