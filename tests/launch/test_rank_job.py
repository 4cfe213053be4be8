"""Ranks of `monolith launch`: their command lines, and restarts of all of them."""

import os
import sys

import pytest
from rich.console import Console

from monolith.launch import JobView, Policy, RankCommands, RankJob, RunFolder

PROGRAM = """
import json, os, signal, sys, time
words = sys.argv[1:]
rank, start = words[words.index("--rank") + 1][0], words[words.index("--start") + 1]
print(json.dumps({"event": "ready", "rank": int(rank)}), flush=True)
if rank == "1" and int(start) < DIES:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.2 if int(start) >= DIES else 60)
print(json.dumps({"ended": "steps", "start": start}), flush=True)
"""


def commands(dies=0, program=None):
    code = program or PROGRAM.replace("DIES", str(dies))
    return RankCommands("task.py", 2, ["d"], ["a=1"], program=(sys.executable, "-c", code))


def run(folder, restarts=2, **options):
    policy = Policy(restarts, pause_seconds=0.01, grace_seconds=1)
    with RunFolder(str(folder)) as run_folder, JobView(Console(stderr=True)) as view:
        return RankJob(commands(**options), run_folder, view, policy).run()


def test_a_rank_gets_its_number_the_rendezvous_of_its_start_and_the_options(tmp_path):
    ranks = RankCommands(
        "task.py", 2, ["data"], ["a=1"], "s.toml", {"--save-every": 5, "--resume": True}, 1, ("m",)
    )
    with RunFolder(str(tmp_path)) as folder:
        first, second = ranks.roles(folder, 3)
        rendezvous = f"{folder.discovery}/ranks-3"
    assert (first.name, second.name) == ("rank-0", "rank-1")
    assert second.command == (
        *("m", "train", "task.py", "--rank", "1/2", "--mode", "sync"),
        *("--rendezvous", rendezvous, "--start", "3", "--settings", "s.toml"),
        *("--save-every", "5", "--resume", "--data", "data"),
        *("--set", "train.threads=1", "--set", "a=1", "--no-hints", "--json"),
    )


@pytest.mark.dist
def test_all_ranks_start_again_when_one_has_died(tmp_path):
    end = run(tmp_path, dies=1)
    assert (end.status, end.reason) == (0, "all workers ended")
    assert end.result == {"ended": "steps", "start": "1"}
    assert [role.num_restarts for role in end.job.roles] == [1, 1]


@pytest.mark.dist
def test_ranks_that_die_too_often_end_the_job(tmp_path):
    end = run(tmp_path, dies=9, restarts=1)
    assert end.status == 1
    assert end.reason == "rank-1 failed: signal SIGKILL"
    assert [role.num_restarts for role in end.job.roles] == [1, 1]


@pytest.mark.dist
def test_a_mistake_is_not_tried_again(tmp_path):
    end = run(tmp_path, program="import sys; sys.exit(2)")
    assert (end.status, [role.num_restarts for role in end.job.roles]) == (1, [0, 0])


@pytest.mark.dist
def test_a_signal_while_ranks_are_ended_for_a_restart_ends_the_job(tmp_path):
    program = f"""
import json, os, signal, sys, time
def end(*_):
    os.kill({os.getpid()}, signal.SIGINT)
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
rank = int(sys.argv[sys.argv.index("--rank") + 1][0])
print(json.dumps({{"event": "ready", "rank": rank}}), flush=True)
if rank == 0:
    open({str(tmp_path / "is_ready")!r}, "w").close()
    time.sleep(60)
while not os.path.exists({str(tmp_path / "is_ready")!r}):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    end = run(tmp_path, program=program)
    assert (end.status, end.reason) == (130, "ended by SIGINT")
    assert [role.num_restarts for role in end.job.roles] == [0, 0]
