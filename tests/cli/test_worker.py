"""Options of `monolith worker` that are refused before anything is connected."""

import functools
import json

import pytest

from monolith.cluster.discovery import HostServiceDiscovery
from tests.cli.run import run
from tests.cli.test_train import TASK


@pytest.fixture
def monolith(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.py").write_text(TASK)
    return functools.partial(run, capsys, monkeypatch, "worker")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--index", 2, "--num-workers", 2], "expected --index below --num-workers, got 2 of 2"),
        (["--index", -1], "Invalid value for '--index'"),
        (["--num-workers", 0], "Invalid value for '--num-workers'"),
        (["--hold-seconds", 0], "Invalid value for '--hold-seconds'"),
        (["--num-servers", 2], "--num-servers"),
        (["--save-every", 5], "--checkpoints"),
        (["--device", "cuda:99"], "CUDA devices of this machine, got 'cuda:99'"),
    ],
)
def test_a_wrong_option_is_named(monolith, options, words):
    ran = monolith("clicks.py", "--servers", "127.0.0.1:1", *options)
    assert (ran.status, ran.out) == (2, "")
    assert words in " ".join(ran.err.split())


def test_a_worker_needs_servers(monolith):
    ran = monolith("clicks.py")
    assert ran.status == 2
    assert "--servers" in ran.err


def test_a_folder_of_servers_needs_their_number(monolith, tmp_path):
    ran = monolith("clicks.py", "--servers", tmp_path)
    assert ran.status == 2
    assert "--num-servers" in ran.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--index", 1], "expected --index 0 as tf-config: says, got --index 1"),
        (["--num-workers", 2], "expected --num-workers 1 as tf-config: says"),
        (["--num-servers", 2], "expected --num-servers 1 as tf-config: says"),
    ],
)
def test_an_option_that_contradicts_the_variable_is_refused(monolith, monkeypatch, options, words):
    cluster = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    ran = monolith("clicks.py", "--servers", "tf-config:", *options)
    assert ran.status == 2
    assert words in " ".join(ran.err.split())


def test_a_discovery_needs_the_number_of_servers(monolith):
    ran = monolith("clicks.py", "--servers", "consul://127.0.0.1:1/job")
    assert ran.status == 2
    assert "expected --num-servers N with the discovery 'consul://127.0.0.1:1/job'" in ran.err


def test_two_workers_with_one_place_are_refused(monolith, tmp_path):
    discovery = HostServiceDiscovery(tmp_path / "job")
    discovery.hold("worker", 0)
    ran = monolith("clicks.py", "--servers", "./job", "--num-servers", 1)
    discovery.close()
    assert ran.status == 1
    assert "expected that no process is worker 0, got one that is alive: process" in ran.err
