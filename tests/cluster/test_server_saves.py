"""Saves and loads by real server processes: full disks, other numbers of servers, lost servers."""

import contextlib
import resource

import pytest

from monolith.checkpoint import Chain, Contents, open_checkpoint, write
from monolith.errors import OpError
from monolith.table.routing import PartitionRouting
from monolith.train import CheckpointHook, Hook, Trainer
from tests.checkpoint.chains import CONFIG, NOW, assert_restores, few_changes, first_rows, save
from tests.cluster.pushers import Pusher
from tests.cluster.server_processes import Nursery, connect
from tests.suites.table_base import assert_same_rows
from tests.train.tasks import Clicks, clicks

pytestmark = [pytest.mark.dist, pytest.mark.thorough]


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def start(nursery):
    """(number of servers) -> (commands, client); all end with the test."""
    with contextlib.ExitStack() as stack:

        def start(num_servers):
            commands = [
                nursery.start(i, num_servers, bind=nursery.ipc_address())
                for i in range(num_servers)
            ]
            stack.callback(lambda: [command.kill() for command in commands])
            return commands, stack.enter_context(connect(commands))

        yield start


def table_on(servers):
    return servers.table(CONFIG, PartitionRouting(len(servers)), lambda: NOW)


def limit_files(command, num_bytes):
    """Let a server's process write at most this many bytes into a file."""
    _, most = resource.prlimit(command.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (num_bytes, most))


def test_servers_that_cannot_write_fail_a_save_by_name_and_a_later_one_is_whole(start, tmp_path):
    commands, servers = start(3)
    table, chain = table_on(servers), Chain(tmp_path)
    first_rows(table)
    save(chain, table, 0)
    few_changes(table, 1)
    limit_files(commands[1], 100)
    text = r"expected to write into .*, got File too large \(shard 1 on /job:ps/task:1/"
    with pytest.raises(OpError, match=text):
        save(chain, table, 1)
    few_changes(table, 2)
    limit_files(commands[1], resource.RLIM_INFINITY)
    saved = save(chain, table, 2)
    assert saved.reason == "failed"
    assert_restores(saved.prefix, table)


class AfterStep(Hook):
    """Calls functions after steps: step -> function."""

    def __init__(self, jobs):
        self._jobs = jobs

    def after_run(self, ctx, results):
        self._jobs.get(ctx.run.global_step, lambda: None)()


def test_a_run_goes_on_after_saves_that_a_server_cannot_write(start, tmp_path, caplog):
    commands, servers = start(3)
    saves = CheckpointHook(tmp_path, every_steps=5, busy="wait")
    limits = {6: 100, 24: resource.RLIM_INFINITY}  # the run waits at 20 for the save of 15
    jobs = {step: lambda n=n: limit_files(commands[1], n) for step, n in limits.items()}
    with Trainer(Clicks(clicks(30)), servers=servers, clock=lambda: 100) as trainer:
        assert trainer.fit(hooks=[saves, AfterStep(jobs)]).num_steps == 30
        assert "/job:ps/task:1/" in caplog.text
        loaded = open_checkpoint(f"{tmp_path}/model.ckpt-30").load_tables()
        for name, table in trainer.features.tables.items():
            assert_same_rows(loaded[name], table)
    steps = {path.name.split(".")[1] for path in tmp_path.glob("model.ckpt-*.manifest.json")}
    assert not steps & {"ckpt-10", "ckpt-15"}


def test_a_save_of_a_server_that_is_killed_fails_and_the_next_one_is_whole(
    start, nursery, tmp_path
):
    commands, servers = start(3)
    pusher = Pusher(servers)
    _, link = pusher.save_twice(tmp_path / "run")
    with Contents(tables=[pusher.table], step=1).cut() as snapshot:
        commands[1].kill()
        commands[1] = nursery.start(1, 3, bind=commands[1].address)
        with pytest.raises(OpError, match="/job:ps/task:1/"):
            write(snapshot, tmp_path / "other")
    pusher.push()
    write(Contents(tables=[pusher.table]), tmp_path / "whole")
    assert_same_rows(open_checkpoint(tmp_path / "whole").load_tables()["ones"], pusher.table)
    assert pusher.counts() == [{21}] * 3
    assert not list(tmp_path.glob("other*"))
    assert link.prefix == servers.recovery()


@pytest.mark.req("NT-DPS-T14")
@pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 3), (1, 3)])
def test_a_save_of_some_servers_restores_into_others_and_into_one_table_and_back(
    start, tmp_path, first, second
):
    table = table_on(start(first)[1])
    chain = Chain(tmp_path / "chain")
    first_rows(table)
    save(chain, table, 0)
    few_changes(table, 1)
    saved = save(chain, table, 1)
    others = table_on(start(second)[1])
    open_checkpoint(saved.prefix).restore_tables([others])
    assert_same_rows(others, table)
    write(Contents(tables=[others], with_expired=True), tmp_path / "b")
    local = open_checkpoint(tmp_path / "b").load_tables()["user"]
    assert_same_rows(local, table)
    write(Contents(tables=[local], with_expired=True), tmp_path / "c")
    table.clear()
    open_checkpoint(tmp_path / "c").restore_tables([table])
    assert_same_rows(table, others)
    assert table.num_update_calls == local.num_update_calls
