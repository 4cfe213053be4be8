"""Dense parameters on server processes, and the copies of them that a worker reads."""

import json
import urllib.request

import pytest
import torch

from monolith.checkpoint import find
from monolith.cluster.job.job_client import JobClient
from monolith.train.roles.worker import _facts_of
from tests.cluster.server_processes import Nursery, connect
from tests.native_training.jobs import served_tasks
from tests.native_training.jobs.served_tasks import (
    CallHook,
    Compiled,
    LeaveHook,
    LeftError,
    lead,
    start_server,
    start_servers,
    values_of,
)

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


class Other:
    """Worker 1 of a job, which pushes dense gradients and nothing else."""

    def __init__(self, servers, trainer):
        self._servers = connect(servers, worker=(1, 2))
        self._job = JobClient(self._servers)
        self._job.join([], _facts_of(trainer))

    def push(self, number):
        for _ in range(number):
            gradients = [[(f"v{server}", -torch.ones(1))] for server in range(2)]
            with self._job.pushing(gradients, "", [], [], wants_values=False):
                """No table."""

    def close(self):
        self._job.close()
        self._servers.close()


def num_calls(server):
    """Number of calls that a server has got so far."""
    port = server.facts["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return json.load(answer)["messages"]["calls"]


@pytest.mark.req("NT-VARS-T5")
def test_one_message_to_each_server_reads_all_parameters(nursery):
    options = [f"{served_tasks.MODULE}.Compiled", "--metrics-port", "0"]
    servers = [nursery.start(index, 2, options=options) for index in range(2)]
    costs = []

    def look(trainer):
        for _ in range(3):  # workers also ask for news, once in some seconds
            before = [num_calls(server) for server in servers]
            trainer.served.fetch()
            costs.append([num_calls(s) - n for s, n in zip(servers, before, strict=True)])
        raise LeftError

    lead(servers, [], task=Compiled(), began=look)
    assert min(costs) == [1, 1]


@pytest.mark.req("NT-VARS-T5")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo
def test_copies_change_in_place_between_steps_and_nothing_is_compiled_anew(nursery):
    servers = start_servers(nursery, "Compiled")
    served_tasks.NUM_COMPILED.clear()
    trainers, seen = [], []

    def look(step):
        parameter = trainers[0].model.v0
        seen.append((id(parameter), parameter.data_ptr(), parameter.item()))

    hooks = [CallHook(look), LeaveHook(5)]
    lead(servers, hooks, task=Compiled(), began=trainers.append, push=1)
    assert len({where[:2] for where in seen}) == 1
    values = [value for _, _, value in seen]
    assert values == sorted(values)
    assert values[-1] >= 3.0  # of the step before, or of the one before that
    assert len(served_tasks.NUM_COMPILED) == 1


@pytest.mark.req("NT-VARS-T5")
def test_staleness_is_the_number_of_steps_that_the_copies_missed(nursery):
    servers = start_servers(nursery)
    others, staleness = [], []

    def begin(trainer):
        others.append(Other(servers, trainer))
        others.append(trainer)

    def look(step):
        other, trainer = others
        staleness.append(trainer.served.staleness)
        if step in (1, 5):  # steps of the job: the other worker has made 3 of them
            other.push(3)

    lead(servers, [CallHook(look), LeaveHook(10)], began=begin, num_workers=2)
    others[0].close()
    assert staleness[:3] == [0, 3, 3]
    assert set(staleness[3:]) == {0}


@pytest.mark.req("NT-VARS-T5")
def test_a_server_with_an_older_version_is_told(nursery, tmp_path, caplog):
    addresses = [nursery.ipc_address() for _ in range(2)]
    servers = [start_server(nursery, i, bind=addresses[i]) for i in range(2)]
    trainers, found = [], []

    def look(step):
        if step == 1:
            trainers[0].save(str(tmp_path))
        if step == 3:
            servers[1].kill()
            servers[1] = start_server(nursery, 1, bind=addresses[1])
        if step == 4:
            found.append((values_of(trainers[0]), trainers[0].model.v1.item()))

    hooks = [CallHook(look), LeaveHook(4)]
    lead(servers, hooks, began=trainers.append, checkpoint_dir=str(tmp_path))
    assert found == [([(4.0, 4.0), (2.0, 2.0)], 2.0)]  # the steps after the save are lost
    assert trainers[0].served.num_rollbacks == 1
    assert "server 1 came back with dense parameters of version 2, this worker had version 3" in (
        caplog.text
    )


def test_flags_and_texts_outlive_the_server_that_has_them(nursery, tmp_path):
    addresses = [nursery.ipc_address() for _ in range(2)]
    servers = [start_server(nursery, i, bind=addresses[i]) for i in range(2)]
    trainers, found = [], []

    def look(step):
        job = trainers[0].job
        if step == 1:
            job.set_flag("restored", 2, 1, True)
            job.set_text("result", "a:1")
            servers[0].kill()
            servers[0] = start_server(nursery, 0, bind=addresses[0])
        if step == 2:
            found.append((job.flags("restored", 2), job.text("result"), job.text("first_step")))

    hooks = [CallHook(look), LeaveHook(2)]
    lead(servers, hooks, began=trainers.append, checkpoint_dir=str(tmp_path))
    assert found == [([False, True], "a:1", "0")]


@pytest.mark.req("TS-SAVE-T11")
def test_a_save_has_the_values_of_the_servers_not_those_of_the_copies(nursery, tmp_path):
    servers = start_servers(nursery)
    parts, found = [], []

    def begin(trainer):
        parts.extend([trainer, Other(servers, trainer)])

    def leave():
        trainer, other = parts
        other.push(2)
        found.append((trainer.model.v0.item(), values_of(trainer)[0][0]))
        other.close()
        trainer.save(str(tmp_path))

    lead(servers, [LeaveHook(2, leave)], began=begin, num_workers=2)
    ((copy, true),) = found
    assert (copy, true) == (2.0, 4.0)
    checkpoint = find(tmp_path)
    assert checkpoint.read_dense(["model.v0", "model.v1"])["model.v0"].item() == true
    restored = []

    def look(trainer):
        restored.append((values_of(trainer), trainer.model.v0.item()))
        raise LeftError

    lead(start_servers(nursery), [], began=look, checkpoint=checkpoint)
    assert restored == [([(4.0, 2.0), (4.0, 2.0)], 4.0)]
