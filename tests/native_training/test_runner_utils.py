import json
import threading
import time
from types import SimpleNamespace

import pytest

from monolith.checkpoint.state import (
    CheckpointState,
    read_checkpoint_state,
    read_monolith_checkpoint_state,
    write_checkpoint_state,
)
from monolith.errors import DeadlineExceededError, InvalidArgumentError
from monolith.native_training.mlp_utils import RunnerSettings
from monolith.native_training.runner_utils import (
    ContainerType,
    RunnerConfig,
    get_discovery,
    monolith_discovery,
)
from monolith.native_training.service_discovery import (
    ConsulServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
    ZKServiceDiscovery,
)

TF_CONFIG = {
    "cluster": {"chief": ["host0:2222"], "ps": ["host1:2222"], "worker": ["host2:2222"]},
    "task": {"type": "chief", "index": 0},
}


@pytest.fixture
def other_job(tmp_path):
    """A folder with the state of another job."""
    folder = tmp_path / "other"
    folder.mkdir()
    names = [str(folder / f"model.ckpt-{step}") for step in (61, 30, 0)]
    write_checkpoint_state(str(folder), CheckpointState(names[0], names))
    return str(folder)


def test_containers_have_the_numbers_of_the_reference_system():
    assert (ContainerType.DOCKER.value, ContainerType.NATIVE.value) == (1, 2)


@pytest.mark.req("TS-RUNU-T1")
def test_a_local_run_has_no_discovery_until_it_is_local_no_more():
    conf = RunnerConfig(is_local=True, discovery_type=ServiceDiscoveryType.CONSUL)
    assert get_discovery(conf) is None
    conf.is_local = False
    discovery = get_discovery(conf, psm="test_psm")
    assert isinstance(discovery, ConsulServiceDiscovery)
    discovery.close()


@pytest.mark.req("TS-RUNU-T2")
def test_primus_sets_role_and_number():
    conf = RunnerConfig(
        discovery_type=ServiceDiscoveryType.PRIMUS,
        tf_config=json.dumps(TF_CONFIG),
        server_type="ps",
        index=5,
    )
    discovery = get_discovery(conf)
    assert isinstance(discovery, TfConfigServiceDiscovery)
    assert (conf.server_type, conf.index) == ("worker", 0)
    assert discovery.query("worker") == {0: "host0:2222", 1: "host2:2222"}


@pytest.mark.req("TS-RUNU-T3")
def test_consul_takes_the_name_of_the_job():
    conf = RunnerConfig(discovery_type=ServiceDiscoveryType.CONSUL, uuid="job-7")
    for discovery in (get_discovery(conf, psm="test_psm"), get_discovery(conf)):
        assert isinstance(discovery, ConsulServiceDiscovery)
        discovery.close()


@pytest.mark.req("TS-RUNU-T4")
def test_zookeeper_is_asked_or_does_not_answer(monkeypatch):
    timeouts = pytest.importorskip("kazoo.handlers.threading")
    client = pytest.importorskip("kazoo.client").KazooClient
    start = client.start
    monkeypatch.setattr(client, "start", lambda own, timeout: start(own, timeout=0.5))
    conf = RunnerConfig(
        discovery_type=ServiceDiscoveryType.ZK,
        deep_insight_name="test_model",
        zk_server="127.0.0.1:1",
    )
    try:
        discovery = get_discovery(conf, psm="test_psm")
    except timeouts.KazooTimeoutError:
        return
    assert isinstance(discovery, ZKServiceDiscovery)
    discovery.close()


def test_mlp_takes_the_variables_of_the_process(monkeypatch):
    monkeypatch.setenv("MLP_PS_NUM", "1")
    monkeypatch.setenv("MLP_PS_0_PRIMARY_HOST", "10.0.0.1")
    monkeypatch.setenv("MLP_PS_0_PORT", "7000")
    conf = RunnerConfig(discovery_type=ServiceDiscoveryType.MLP)
    discovery = get_discovery(conf)
    assert isinstance(discovery, MLPServiceDiscovery)
    assert discovery.query("ps", skip_port_check=True) == {0: "10.0.0.1:7000"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"discovery_type": ServiceDiscoveryType.PRIMUS}, "expected tf_config as JSON for PRIMUS"),
        ({}, "expected uuid as the name of the job for CONSUL, got ''"),
        ({"discovery_type": ServiceDiscoveryType.ZK}, "expected deep_insight_name as the name"),
    ],
)
def test_a_discovery_without_its_name_is_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        get_discovery(RunnerConfig(**options))


def test_a_discovery_is_closed_at_the_end_of_the_block(monkeypatch, caplog):
    caplog.set_level("INFO")
    closed = []
    monkeypatch.setattr(
        TfConfigServiceDiscovery, "close", lambda self: closed.append(self), raising=False
    )
    conf = RunnerConfig(
        discovery_type=ServiceDiscoveryType.PRIMUS, tf_config=json.dumps(TF_CONFIG), uuid="job"
    )
    with pytest.raises(KeyError), monolith_discovery(conf) as discovery:
        raise KeyError
    assert closed == [discovery]
    assert "discovery of the job job: begin" in caplog.text
    assert "discovery of the job job: end" in caplog.text
    with monolith_discovery(RunnerConfig(is_local=True)) as discovery:
        assert discovery is None


@pytest.mark.req("TS-RUNU-T5")
def test_a_new_folder_starts_from_a_checkpoint_of_another_job(tmp_path, other_job):
    model_dir = str(tmp_path / "model")
    RunnerConfig(
        is_local=True, restore_dir=other_job, model_dir=model_dir, restore_ckpt="model.ckpt-30"
    )
    assert (tmp_path / "model" / "restore_ckpt").exists()
    state = read_checkpoint_state(model_dir)
    assert state.model_checkpoint_path.endswith("/model.ckpt-30")
    assert read_monolith_checkpoint_state(model_dir).exempt_model_checkpoint_paths
    start = time.monotonic()
    RunnerConfig(server_type="worker", index=2, restore_dir=other_job, model_dir=model_dir)
    assert time.monotonic() - start < 5


@pytest.mark.req("NT-RUNU-T4")
def test_other_workers_wait_for_the_chief(tmp_path, other_job):
    model_dir, done = str(tmp_path / "model"), threading.Event()

    def start():
        RunnerConfig(
            server_type="worker",
            index=1,
            restore_dir=other_job,
            model_dir=model_dir,
            poll_seconds=0.02,
        )
        done.set()

    thread = threading.Thread(target=start)
    thread.start()
    assert not done.wait(0.2)
    RunnerConfig(server_type="worker", index=0, restore_dir=other_job, model_dir=model_dir)
    assert done.wait(20)
    thread.join()


def test_the_wait_for_the_chief_has_a_limit(tmp_path, other_job):
    with pytest.raises(DeadlineExceededError, match=r"expected the chief to write .*ps 0"):
        RunnerConfig(
            server_type="ps",
            restore_dir=other_job,
            model_dir=str(tmp_path),
            chief_timeout_secs=0,
            poll_seconds=0.01,
        )


def test_waiting_workers_go_on_though_there_is_nothing_to_restore(tmp_path):
    (tmp_path / "empty").mkdir()
    options = {"restore_dir": str(tmp_path / "empty"), "model_dir": str(tmp_path / "model")}
    RunnerConfig(is_local=True, **options)
    RunnerConfig(index=1, chief_timeout_secs=1, **options)
    assert read_checkpoint_state(options["model_dir"]) is None


@pytest.mark.req("NT-RUNU-T4")
@pytest.mark.parametrize(
    ("flag", "given", "expected"),
    [("a", "b", "a"), (None, "b", "b"), ("a", None, "a"), (None, None, None)],
)
def test_the_checkpoint_of_the_settings_comes_first(flag, given, expected):
    settings = RunnerSettings(restore_ckpt=flag)
    conf = RunnerConfig(is_local=True, restore_ckpt=given, settings=settings)
    assert (settings.restore_ckpt, conf.restore_ckpt) == (expected, expected)


@pytest.mark.req("NT-RUNU-T4")
@pytest.mark.parametrize(
    ("given", "flag", "rank", "expected"),
    [
        ({"index": 3}, 2, "7", 3),
        ({}, 2, "7", 2),
        ({}, None, "7", 7),
        ({"index": None}, None, "7", 7),
        ({}, None, None, 0),
    ],
)
def test_the_number_of_a_worker_is_that_of_the_config_the_settings_or_mpi(
    monkeypatch, given, flag, rank, expected
):
    if rank is not None:
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    monkeypatch.setattr("sys.excepthook", None)
    conf = RunnerConfig(
        enable_gpu_training=True,
        enable_partial_sync_training=True,
        settings=SimpleNamespace(index=flag),
        **given,
    )
    assert conf.index == expected


def test_settings_set_fields_that_were_not_given():
    settings = SimpleNamespace(num_ps=4, num_workers=3, discovery_type="zk", other=1)
    conf = RunnerConfig(num_ps=0, settings=settings)  # given, though it is the default
    assert (conf.num_ps, conf.num_workers) == (0, 3)
    assert conf.discovery_type == ServiceDiscoveryType.ZK


def test_settings_that_fit_no_field_are_logged(caplog):
    conf = RunnerConfig(settings=SimpleNamespace(discovery_type="telepathy", num_ps=2))
    assert "update RunnerConfig failed" in caplog.text
    assert conf.discovery_type == ServiceDiscoveryType.CONSUL


def test_topics_are_copied_to_the_settings():
    settings = RunnerSettings(kafka_topics="old", kafka_servers="a:1")
    RunnerConfig(kafka_topics="clicks", kafka_group_id="g", settings=settings)
    assert (settings.kafka_topics, settings.kafka_group_id) == ("clicks", "g")
    assert settings.kafka_servers == "a:1"


def test_an_unknown_family_of_addresses_is_refused():
    with pytest.raises(AssertionError, match="zk_watch_address_family"):
        RunnerConfig(zk_watch_address_family="ipv5")


@pytest.mark.parametrize("name", ["bzid", "kafka_dump", "input_path", "unified_serving"])
def test_a_field_whose_part_is_not_here_is_refused_when_a_run_begins(name):
    conf = RunnerConfig(**{name: "other"})
    with pytest.raises(NotImplementedError, match=rf"\[RunnerConfig\] expected {name}="):
        conf.check()


def test_a_data_service_needs_a_dispatcher():
    conf = RunnerConfig(use_dataservice=True)
    with pytest.raises(InvalidArgumentError, match="expected the address of a dispatcher"):
        conf.check()
    settings = RunnerSettings(dataset_use_dataservice=True, data_service_dispatcher="a:1")
    conf = RunnerConfig(settings=settings)
    conf.check()
    assert (conf.use_dataservice, conf.data_service_dispatcher) == (True, "a:1")
