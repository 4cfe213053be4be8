"""What the servers of a job did, recorded and repeated elsewhere, gives what the job saved."""

import json

import pytest
import torch

from monolith.checkpoint import Checkpoint
from monolith.cluster.job.dense_shard import trained_parameters
from monolith.table.reference import ReferenceTable
from monolith.train import Trainer, TrainSettings
from tests.cluster.server_records import read_records
from tests.suites.table_base import assert_equal_rows, exported
from tests.train.roles.job_tasks import Counted, JobSettings
from tests.train.roles.jobs import checkpoints, counts_of

pytestmark = pytest.mark.dist

SAVES = {"train.busy_save": "wait", "train.keep": 0}


def assert_tables_replayed(job, checkpoint, cuts):
    """Replay each table up to its cut on each server; None is the end."""
    for name, table in checkpoint.load_tables().items():
        reference = ReferenceTable(table.config)
        for server, record in enumerate(read_records(job.folder / "tables", name)):
            record.replay(reference, last=None if cuts is None else cuts[server][name])
        assert_equal_rows(exported(table), exported(reference))


def cuts_of(job, number):
    """Return the number of changes before cut `number` of each server's tables."""
    of_servers = []
    for server in range(job.num_servers):
        (life,) = job.lives(f"ps-{server}")
        cuts = {}
        for line in life:
            if line["event"] == "cut":
                cuts.setdefault(line["table"], []).append(line["num_recorded"])
        of_servers.append({name: numbers[number] for name, numbers in cuts.items()})
    return of_servers


def replay_dense(events, number, task):
    """Repeat the dense steps of a server up to export `number` with an optimizer of torch.

    Returns:
        Values and states of the optimizer, by the names of the server's parameters.
    """
    model = task.build()
    optimizer = task.optimizer(model)
    parameters = trained_parameters(model, optimizer)
    num_exports, names = 0, []
    for event, *facts in events:
        if event == "export":
            if num_exports == number:
                break
            num_exports += 1
        elif event == "load":
            (state,) = facts
            names = [name for name, _ in state.values]
            with torch.no_grad():
                for name, value in state.values:
                    parameters[name].copy_(value)
        else:
            gradients, options = facts
            for group, new in zip(optimizer.param_groups, json.loads(options), strict=True):
                group.update({n: tuple(v) if n == "betas" else v for n, v in new.items()})
            optimizer.zero_grad()
            for name, gradient in gradients:
                parameters[name].grad = gradient
            optimizer.step()
    return {name: (parameters[name].detach(), optimizer.state[parameters[name]]) for name in names}


def assert_dense_replayed(job, checkpoint, number, data):
    """Compare the dense part of a checkpoint with the replays of all servers."""
    task = Counted(JobSettings(data={"train": data}))
    with Trainer(task, TrainSettings()) as saved:
        saved.restore(checkpoint.prefix)
        parameters = dict(saved.model.named_parameters())
        replayed = {}
        for server in range(job.num_servers):
            replayed |= replay_dense(job.dense(server), number, task)
        assert replayed.keys() == parameters.keys()
        for name, (value, state) in replayed.items():
            assert torch.equal(value, parameters[name])
            of_save = saved.optimizer.state[parameters[name]]
            assert state.keys() == of_save.keys()
            for part, tensor in state.items():
                assert torch.equal(tensor, of_save[part]), (name, part)


@pytest.mark.req("TS-CPUDIST-T6", "NT-DPS-T14")
@pytest.mark.parametrize("settings", [{}, {"train.prefetch": 2, "train.push": 1}])
def test_saves_equal_the_recorded_updates_of_all_servers_up_to_their_cuts(
    nursery, samples, settings
):
    data = samples(800)
    with nursery.job(data, record=True, settings=SAVES | settings, **{"--save-every": 30}) as job:
        ended = job.run()
    saves = checkpoints(job.saves)
    assert len(saves) >= 4  # before the first step, two or more while both push, and the end
    for number, prefix in enumerate(saves):
        checkpoint = Checkpoint(prefix)
        assert_tables_replayed(job, checkpoint, cuts_of(job, number))
        assert_dense_replayed(job, checkpoint, number, data)
    assert_tables_replayed(job, Checkpoint(saves[-1]), None)
    assert ended["job"]["samples"] == 800
    assert counts_of(job.saves) == dict.fromkeys(range(800), 1)
    numbers = [line["numbers"] for line in job.lives("ps-0")[0] if line["event"] == "export"]
    assert numbers[:2] == [{}, {}]  # the second is none of a save
    assert all(numbers[2][worker] > 0 for worker in "01")  # both had pushed, and went on
    assert all(numbers[-1][worker] > numbers[2][worker] for worker in "01")


@pytest.mark.req("TS-CPUDIST-T6")
@pytest.mark.parametrize(("num_servers", "num_workers"), [(2, 2), (3, 1), (1, 3)])
def test_a_job_of_any_size_trains_exactly_the_rest_of_a_job_that_was_killed_whole(
    nursery, samples, num_servers, num_workers
):
    data = samples(800)
    with nursery.job(data, settings=SAVES, **{"--save-every": 20}) as job:
        job.pause([1, 41], [1, 35])
        job.start_all().meet(0, range(2))
        job.go(0)
        job.meet(1, range(2))
        job.wait_for(lambda: len(checkpoints(job.saves)) >= 2)
        for name in job.roles:
            job.kill(name)
    prefix = checkpoints(job.saves)[-1]
    before, saved = counts_of(prefix), Checkpoint(prefix)
    assert set(before.values()) == {1}
    assert 0 < len(before) == 8 * saved.step < 800
    with nursery.job(data, num_servers, num_workers, settings=SAVES) as resumed:
        job.saves.rename(resumed.saves)
        ended = resumed.run("--resume")
    assert counts_of(resumed.saves) == dict.fromkeys(range(800), 1)
    assert (ended["job"]["steps"], ended["job"]["samples"]) == (100, 800)
    assert ended["job"]["repeats"] == ended["job"]["lost_pushes"] == 0


@pytest.mark.req("TS-CPUDIST-T5")
@pytest.mark.parametrize("num_servers", [1, 3])
def test_a_job_of_one_worker_goes_on_with_a_run_of_one_process_and_the_other_way_round(
    nursery, samples, num_servers
):
    data = samples(400)
    task = Counted(JobSettings(data={"train": data}))
    with nursery.job(data, num_servers, 1) as job, Trainer(task, TrainSettings(steps=20)) as local:
        local.fit()
        local.save(job.saves)
        ended = job.run("--resume", "--set", "train.steps=35")
        assert (ended["num_steps"], ended["job"]["steps"]) == (15, 35)
        local.restore(job.saves)
        assert local.run.global_step == 35
        assert counts_of(job.saves) == dict.fromkeys(range(35 * 8), 1)
    with Trainer(task, TrainSettings()) as local:
        local.restore(job.saves)
        local.fit()
        local.save(job.saves)
    assert counts_of(job.saves) == dict.fromkeys(range(400), 1)
