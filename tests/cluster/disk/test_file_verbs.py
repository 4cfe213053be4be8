"""What shards refuse before a file is touched."""

import json
import logging

import pytest

from monolith.cluster.shard_hosts import ShardHost
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from monolith.table import Segment, Table, TableConfig
from monolith.table.disk.config_json import config_to_json
from monolith.table.disk.remote import remote_jobs
from monolith.table.disk.remote.remote_jobs import RemoteJobs
from tests.cluster.test_host_fuzz import load_request
from tests.cluster.test_host_verbs import do

CONFIG = TableConfig("user", Segment(2))
TEXT = json.dumps(config_to_json(CONFIG))
FILE = ("m.arrow", "rows", ((0, 4095),))


def host():
    return ShardHost(Table(CONFIG))


def save_request(path, **changes):
    request = {"folder": str(path), "files": [FILE], "config": TEXT, "num_update_calls": 0}
    request |= {"latest_time": 0, "is_link": False, "with_expired": True, "keeps_cut": True}
    return request | {"rate": None, "num_threads": 1} | changes


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"more": 1}, "expected request as a dict with config, files, folder"),
        ({"folder": "m"}, "expected folder as at most 4096 characters"),
        ({"folder": "/\ud800"}, "expected folder as Unicode"),
        ({"files": 3}, "expected files as a list of at most 65536, got 3"),
        ({"files": [("m.arrow",)]}, "expected files with 3 values each, got a tuple of 1"),
        ({"files": [("../m.arrow", *FILE[1:])]}, "expected file as at most"),
        ({"files": [("a/../../m.arrow", *FILE[1:])]}, "expected file as at most"),
        ({"files": [("/m.arrow", *FILE[1:])]}, "expected file as at most"),
        ({"files": [("m.txt", *FILE[1:])]}, "expected file as at most"),
        ({"files": [("m.arrow", "all", FILE[2])]}, "expected kind as at most"),
        ({"files": [("m.arrow", "rows", (3,))]}, "expected partitions as pairs of ints, got 3"),
        ({"files": [("m.arrow", "rows", ((0, 4096),))]}, r"that ascend in \[0, 4096\)"),
        ({"files": [("m.arrow", "rows", ((0, 5), (5, 6)))]}, r"that ascend in \[0, 4096\)"),
        ({"config": "{"}, "expected config as JSON"),
        ({"config": "[]"}, "expected config as a JSON object with the table's name and seed"),
        ({"config": TEXT.replace("user", "item")}, "with the table's name and seed"),
        ({"rate": 0.0}, "expected rate as a float above 0 or None, got 0.0"),
        ({"rate": float("nan")}, "expected rate as a float above 0 or None, got nan"),
    ],
)
def test_a_save_that_is_not_whole_is_refused(tmp_path, changes, text):
    shard = host()
    do(shard, "open_cut", None)
    with pytest.raises(InvalidArgumentError, match=text):
        do(shard, "start_save", 0, 0, save_request(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shard", "text"),
    [
        (("Routing", 2, 1), "expected shard as None or"),
        (("FloorModRouting", 2, 2), "expected shard with a number below 4096"),
        (("FloorModRouting", 5000, 2), "expected shard with a number below 4096"),
    ],
)
def test_a_load_of_another_shard_is_refused(tmp_path, shard, text):
    request = load_request(tmp_path) | {"config": TEXT, "shard": shard}
    with pytest.raises(InvalidArgumentError, match=text):
        do(host(), "start_load", 0, request)


def test_a_number_stands_for_one_job(tmp_path):
    request = load_request(tmp_path) | {"config": TEXT, "sources": []}
    shard = host()
    shard._do_start_load(3, request)
    with pytest.raises(FailedPreconditionError, match="expected a new number of a job, got 3"):
        shard._do_start_load(3, request)


def test_the_state_of_an_unknown_job_is_refused():
    with pytest.raises(FailedPreconditionError, match="that was started and not stopped, got 5"):
        do(host(), "job_state", 5)
    assert do(host(), "stop_job", 5) is True


class Deaf(RemoteJobs):
    """Jobs that do not stop."""

    labels = ("shard 0", "shard 1")

    def __init__(self, error=None):
        self._error = error

    def states(self):
        return []

    def hurry(self):
        pass

    def stop(self):
        if self._error:
            raise self._error
        return False


@pytest.mark.parametrize(
    ("error", "text"),
    [(None, "they go on after -1"), (UnavailableError("gone"), "did not stop: gone")],
)
def test_jobs_that_do_not_stop_are_logged(monkeypatch, caplog, error, text):
    monkeypatch.setattr(remote_jobs, "_STOP_SECONDS", -1)
    with caplog.at_level(logging.WARNING):
        Deaf(error).end()
    assert text in caplog.text
    assert "shard 0, shard 1" in caplog.text
