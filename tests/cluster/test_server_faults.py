"""Real server processes that are killed, stopped, moved or ended while a client pushes."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monolith.checkpoint import open_checkpoint
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.cluster.zmq.connect import find_servers
from monolith.errors import AbortedError, FailedPreconditionError, UnavailableError
from monolith.observe.metrics import MemorySink
from monolith.train import CheckpointHook, Hook, Trainer, TrainSettings
from tests.cluster.proxy import CuttingProxy
from tests.cluster.pushers import Pusher, Pushing
from tests.cluster.server_processes import ROOT, Nursery, connect
from tests.cluster.zmq.sockets import until
from tests.suites.table_base import assert_same_rows
from tests.time_limits import AT_ONCE
from tests.train.tasks import Clicks, clicks

pytestmark = [pytest.mark.dist, pytest.mark.thorough]


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


class Job:
    """Servers of a test, each at an address that its next start has, too."""

    def __init__(self, nursery, num_servers, **options):
        self._nursery, self._num, self._options = nursery, num_servers, options
        self._binds = [nursery.ipc_address() for _ in range(num_servers)]
        self.servers = [None] * num_servers
        for index in range(num_servers):
            self.start(index)

    def start(self, index):
        self.servers[index] = self._nursery.start(
            index, self._num, bind=self._binds[index], **self._options
        )

    def restart(self, index):
        """Kill a server in the middle of whatever it does, and start an empty one."""
        self.servers[index].kill()
        self.start(index)

    def stop(self, index):
        self.servers[index].signal(signal.SIGSTOP)
        stats = list(Path("/proc", str(self.servers[index].pid), "task").glob("*/stat"))
        assert until(lambda: all(stat.read_text().rpartition(") ")[2][0] == "T" for stat in stats))

    def go_on(self, index):
        self.servers[index].signal(signal.SIGCONT)

    def end(self):
        for server in self.servers:
            if server.is_alive():
                server.kill()


@pytest.fixture
def job(nursery):
    """(number of servers, options) -> job; its servers are killed at the end."""
    jobs = []
    yield lambda *numbers, **options: jobs.append(Job(nursery, *numbers, **options)) or jobs[-1]
    for each in jobs:
        each.end()


@pytest.fixture
def three(job):
    """(job of three servers, client)."""
    job = job(3)
    with connect(job.servers) as servers:
        yield job, Pusher(servers)


# Killed


def assert_lost(pusher, number, most):
    """Rows of server 1 lack exactly the pushes that are counted as lost, the others none."""
    lost = pusher.servers.lost_pushes
    assert 1 <= lost <= most
    assert pusher.num_pushes == number
    assert pusher.counts() == [{number}, {number - lost}, {number}]
    assert update_calls(pusher.table) == [pusher.table.num_update_calls] * 3


def update_calls(table):
    """Of each server."""
    return table._ask_all("update_calls")


def test_a_killed_server_comes_back_with_its_checkpoint_and_loses_what_came_after(three, tmp_path):
    job, pusher = three
    full, link = pusher.save_twice(tmp_path)
    assert (full.is_full, link.is_full) == (True, False)
    with Pushing(pusher, lambda: pusher.push(200), most=200) as pushing:
        pushing.wait_for(60)
        job.restart(1)
        pushing.go_on()
        pushing.join()
    assert pusher.servers.lost_pushes >= 40
    assert_lost(pusher, 220, 200)


def test_a_push_without_an_answer_is_not_lost(three, tmp_path):
    job, pusher = three
    pusher.save_twice(tmp_path)
    pusher.push(5)
    pusher.pull()
    job.stop(1)
    with Pushing(pusher, pusher.apply) as pushing:
        assert until(lambda: pusher.waits_for(1))
        job.restart(1)
        pushing.join()
    assert pusher.servers.lost_pushes == 5
    assert_lost(pusher, 26, 5)


def test_a_push_that_a_lost_server_has_answered_alone_is_lost(three, tmp_path):
    job, pusher = three
    pusher.save_twice(tmp_path)
    pusher.push(5)
    pusher.pull()
    job.stop(0)
    num_before = pusher.table.acknowledged_by(1)
    with Pushing(pusher, pusher.apply) as pushing:
        assert until(lambda: pusher.table.acknowledged_by(1) > num_before)
        assert pusher.table.acknowledged_by(0) == num_before
        assert pusher.waits_for(0)
        job.restart(1)
        pusher.servers._client.call("describe", [None, (), None])  # as a read of a later batch
        job.go_on(0)
        pushing.join()
    assert pusher.servers.lost_pushes == 6
    pusher.push()
    assert_lost(pusher, 27, 6)


def test_a_server_that_is_killed_twice_is_restored_twice(three, tmp_path):
    job, pusher = three
    pusher.save_twice(tmp_path)
    with Pushing(pusher, lambda: pusher.push(200), most=100) as pushing:
        for number in (40, 120):
            pushing.wait_for(number)
            job.restart(1)
            pushing.go_on(most=number + 140)
        pushing.join()
    assert pusher.counts()[0] == {220}
    assert len(pusher.counts()[1]) == 1
    assert update_calls(pusher.table) == [pusher.table.num_update_calls] * 3


def test_an_empty_server_without_a_checkpoint_is_an_error_that_names_it(three):
    job, pusher = three
    pusher.push()
    job.restart(1)
    text = r"expected server 1 with its tables, got a new process .*/job:ps/task:1.*save check"
    for _ in range(2):
        with pytest.raises(AbortedError, match=text):
            pusher.push()


def test_a_server_that_moved_is_found_and_restored(nursery, tmp_path):
    options = {"options": ["--discovery", str(tmp_path / "servers")]}
    commands = nursery.start_all(2, **options)
    found = find_servers(HostServiceDiscovery(tmp_path / "servers"), 2)
    with contextlib.ExitStack() as stack:
        stack.callback(commands[0].kill)
        pusher = Pusher(stack.enter_context(found))
        pusher.save_twice(tmp_path / "run")
        pusher.push()
        commands[1].kill()
        moved = nursery.start(1, 2, **options)
        stack.callback(moved.kill)
        assert moved.address != commands[1].address
        pusher.push()
        assert (found.lost_pushes, pusher.counts()) == (1, [{22}, {21}])


def test_two_servers_with_one_index_are_refused_by_name(nursery):
    commands = [nursery.start(0, 2) for _ in range(2)]
    text = r"connection to /job:ps/task:1.*expected a client of server 0 of 2, got one that .*1"
    with pytest.raises(FailedPreconditionError, match=text):
        connect(commands)
    for command in commands:
        command.kill()


# Stopped, and ended by SIGTERM


def test_a_server_that_stops_in_a_push_and_goes_on_loses_and_repeats_nothing(three):
    job, pusher = three
    with Pushing(pusher, lambda: pusher.push(150), most=40) as pushing:
        for number in (20, 60, 100):
            pushing.wait_for(number)
            job.stop(1)
            pushing.go_on(most=number + 60)
            assert until(lambda: pusher.waits_for(1))
            job.go_on(1)
        pushing.join()
    assert pusher.counts() == [{150}] * 3


def test_a_server_that_stops_too_long_is_named_within_the_limit(job):
    job = job(2)
    with connect(job.servers, timeout_seconds=10.0) as servers:
        pusher = Pusher(servers)
        pusher.push()
        pusher.pull()
        job.stop(1)
        start = time.monotonic()
        text = r"push\] expected an answer of shard 1 on /job:ps/task:1\S* within 1 tries of 10.0 "
        text += r"seconds, got none since \d{4}-\d\d-\d\d"
        with pytest.raises(UnavailableError, match=text):
            pusher.apply()
        assert time.monotonic() - start < 10 + AT_ONCE
        job.go_on(1)
        assert until(lambda: not pusher.waits_for(1))
        pusher.push()
        assert pusher.counts() == [{3}, {3}]  # the push that had no answer in time is done once


def test_a_server_that_ends_in_a_run_finishes_its_calls_and_the_next_start_goes_on(three, tmp_path):
    job, pusher = three
    pusher.save_twice(tmp_path)
    with Pushing(pusher, lambda: pusher.push(200), most=200) as pushing:
        pushing.wait_for(60)
        job.servers[1].signal(signal.SIGTERM)
        job.servers[1].wait()
        job.start(1)
        pushing.go_on()
        pushing.join()
    assert_lost(pusher, 220, 200)


def test_a_connection_that_breaks_between_a_push_and_its_answer_does_it_once(nursery):
    server = nursery.start()
    proxy = CuttingProxy(server.address)
    with contextlib.closing(proxy), connect([proxy]) as servers:
        pusher = Pusher(servers)
        for _ in range(10):
            pusher.push()
            pusher.pull()
            proxy.cut()
            pusher.apply()
        assert proxy.num_cuts == 10
        assert pusher.counts() == [{20}]
    server.kill()


# Trainers and clients


class Reach(Hook):
    """Calls `reached` once, after a step."""

    def __init__(self, step, reached):
        self._step, self._reached = step, reached

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            self._reached()


@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_a_run_goes_on_when_a_server_is_killed_in_it(job, tmp_path, prefetch, push):
    job, sink = job(3), MemorySink()
    settings = TrainSettings(prefetch=prefetch, push=push)
    saves = CheckpointHook(tmp_path, every_steps=10, busy="wait")
    with (
        connect(job.servers) as servers,
        Trainer(Clicks(clicks(120)), settings, servers, metrics=sink) as trainer,
    ):
        result = trainer.fit(hooks=[saves, Reach(55, lambda: job.restart(1))])
        tables = trainer.features.tables.values()
        assert [update_calls(table) for table in tables] == [[120] * 3] * 2
    assert (result.num_steps, result.num_recoveries) == (120, 0)
    assert 1 <= servers.lost_pushes <= 20
    assert sink.total("lost_pushes", {"ps": "1"}) == servers.lost_pushes


def test_a_server_that_is_killed_in_a_save_comes_back_with_the_checkpoint_before_it(job, tmp_path):
    job = job(3)
    saves = CheckpointHook(tmp_path, every_steps=20, busy="wait", rate=1e-6)
    with connect(job.servers) as servers, Trainer(Clicks(clicks(60)), servers=servers) as trainer:
        result = trainer.fit(hooks=[saves, Reach(42, lambda: job.restart(1))])
        loaded = open_checkpoint(f"{tmp_path}/model.ckpt-60").load_tables()
        for name, table in trainer.features.tables.items():
            assert update_calls(table) == [60] * 3
            assert_same_rows(loaded[name], table)
    assert (result.num_steps, servers.lost_pushes) == (60, 22)


def test_the_cuts_of_a_killed_client_end_with_its_lease(job):
    job = job(2, limits={"lease_seconds": 10.0})
    addresses = [server.address for server in job.servers]
    with connect(job.servers) as servers:
        table = Pusher(servers).table
        with subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.cutting_client", *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as client:
            assert client.stdout.readline() == "cut\n"
            assert table._has_cut()
            with pytest.raises(FailedPreconditionError):
                table.clear()
            client.kill()
        assert until(lambda: not table._has_cut(), 60)
        table.clear()
        assert len(table) == 0
