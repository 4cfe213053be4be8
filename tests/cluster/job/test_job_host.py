"""`JobHost`: fences, refused steps, and what its verbs refuse."""

import contextlib
import itertools
import json
import threading

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from monolith.cluster.call_host import Call
from monolith.cluster.job.dense_shard import DenseShard
from monolith.cluster.job.job_host import JobHost
from monolith.cluster.job.job_values import share_of
from monolith.cluster.job.job_verbs import JOB_VERBS
from monolith.cluster.server_host import ServerHost
from monolith.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    MonolithError,
)
from tests.cluster.test_host_fuzz import mutated

A = share_of(0, "a")
PROGRESS = json.dumps([[A, 3, False, 2]])


class Host:
    """A host whose calls are those of several clients.

    Attributes:
        fenced: Clients that were refused.
        awaited: Clients whose running writes were awaited.
    """

    def __init__(self, index=0, *, with_dense=True):
        self.fenced, self.awaited, self._numbers = [], [], itertools.count()
        weight = torch.nn.Parameter(torch.ones(2))
        dense = DenseShard({"w": weight}, torch.optim.SGD([weight], 0.5), 0, 1)
        self.job = JobHost(
            index,
            2,
            dense if with_dense else None,
            device="ps 0",
            max_message_bytes=1 << 20,
            fence=self._fence,
            await_writes=self._await_writes,
        )

    def _fence(self, clients):
        self.fenced += clients
        for client in clients:
            self.job.release_client(client, is_gone=True)

    def _await_writes(self, clients):
        self.awaited += clients

    def do(self, verb, *arguments, client=1):
        number = next(self._numbers)
        return self.job.do(Call(client, number, number, verb, arguments))

    def join(self, worker=0, start=5, clients=(7, 8), held="{}"):
        return json.loads(self.do("join_job", worker, start, list(clients), "{}", held))

    def step(self, worker=0, start=5, number=1, grads=(), options="", progress=PROGRESS):
        arguments = worker, start, number, list(grads), options, progress, False
        return self.do("step_job", *arguments, client=8)

    def weight(self):
        return self.do("read_dense", -1)[1][0][1].tolist()


def ones():
    return [("w", torch.ones(2))]


def test_a_new_start_of_a_worker_fences_the_old_one():
    host = Host()
    host.join()
    assert host.join(start=5)["fenced"] == host.fenced == []
    assert host.join(start=6, clients=[9])["fenced"] == [7, 8]
    assert host.fenced == [7, 8]
    with pytest.raises(AbortedError, match="of one that is gone"):
        host.step()
    host.do("step_job", 0, 6, 1, ones(), "", "", False, client=9)


@pytest.mark.parametrize("index", [0, 1])
def test_the_end_of_a_lease_fences_all_callers_of_the_worker(index):
    host = Host(index)
    host.join()
    host.join(worker=1, start=4, clients=[17])
    host.job.release_client(7)
    assert host.fenced == [7, 8]
    with pytest.raises(AbortedError):
        host.step(grads=ones())
    assert host.weight() == [1.0, 1.0]
    assert host.do("describe_job")["alive"] == ([1] if index == 0 else [])


@pytest.mark.parametrize("index", [0, 1])
def test_a_step_of_a_worker_that_was_given_up_changes_nothing(index):
    host = Host(index)
    host.join()
    host.do("give_up_workers", [0, 1])
    assert host.fenced == host.awaited == [7, 8]
    with pytest.raises(AbortedError, match="got worker 0, which was given up, or was replaced"):
        host.do("step_job", 0, 5, 1, ones(), "", PROGRESS, False, client=3)
    facts = host.do("describe_job")
    assert (facts["version"], host.do("job_number", 0)) == (0, 0)


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_left_makes_no_step(index):
    host = Host(index)
    host.join()
    host.do("leave_job", 0, 4, 0)  # of another start
    host.step(grads=ones())
    host.do("leave_job", 0, 5, 1)
    with pytest.raises(AbortedError):
        host.step(number=2)


def test_every_server_knows_the_newest_step_of_each_worker():
    host = Host(1)
    host.join()
    assert host.step(number=3) == (1, 0, 0, [])
    host.step(number=2)
    assert (host.do("job_number", 0), host.do("job_number", 1)) == (3, 0)
    state = host.do("export_job")
    other = Host(1)
    other.do("import_job", state, True)
    assert other.do("job_number", 0) == 3


def test_a_step_is_noted_with_its_progress():
    host = Host()
    host.join()
    host.do("offer_shares", '["a"]', 1)
    assert json.loads(host.do("take_share", 0, 5, 0, "[]")) == ["share", A, None]
    assert host.step(grads=ones()) == (1, 1, 0, [])
    assert host.do("describe_job")["counts"]["samples"] == 2
    assert host.weight() == [0.5, 0.5]


def test_steps_of_a_worker_end_before_it_is_given_up():
    host, order = Host(), []
    host.join()
    step, give_up = host.job.dense.step, host.job.state.give_up
    host.job.state.give_up = lambda workers: (order.append("give up"), give_up(workers))
    again = []

    def slow(*arguments):
        again.append(run(lambda: host.do("give_up_workers", [0])))
        again[0].join(0.05)
        order.append("step")
        return step(*arguments)

    host.job.dense.step = slow
    assert host.step(grads=ones())[1] == 1
    again[0].join(30)
    assert order == ["step", "give up"]


def run(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("join_job", (2, 1, [9], "{}", "{}"), r"a worker in \[0, 2\), got 2 \(ps 0\)"),
        ("join_job", (0, 1, [9], "[]", "{}"), "facts as a dict of lists"),
        ("join_job", (0, 1, [9], "{}", '{"number": "1"}'), "held shares and counts"),
        ("join_job", (0, 1, [9], "{", "{}"), "facts as JSON, got"),
        ("join_job", (0, 1, [9], "", "{}"), "facts as a string of 1 to 268435456 characters"),
        ("offer_shares", ("5", 1), r"\[JobHost.offer_shares\] expected a list of texts"),
        ("offer_shares", ("[5]", 1), "expected a list of texts in JSON, got '.5.'"),
        ("take_share", (0, 5, 0, "{}"), r"\[JobHost.take_share\] expected a list of texts"),
        ("set_text", ("a", 5), "text as a string"),
        ("set_start_values", ([("a", 5)],), "values as contiguous CPU tensors"),
        ("step_job", (0, 5, 1, [], "", "5", False), "expected progress as a list of"),
        ("step_job", (0, 5, 1, [], "", "[[1]]", False), "expected progress as a list of"),
        ("step_job", (0, 5, 1, [], "", '[["a", 1, false, 1]]', False), "expected progress"),
        ("step_job", (0, 5, 1, [], "", f"[[{A!r}, 1, false, -1]]", False), "expected progress"),
        ("step_job", (0, 5, 1, [], "[]", "", False), "expected options of the 1 groups"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_changes(verb, arguments, words):
    host = Host()
    host.join()
    before = host.do("export_job")
    with pytest.raises(InvalidArgumentError, match=words):
        host.do(verb, *arguments)
    assert (host.do("export_job"), host.weight()) == (before, [1.0, 1.0])


@pytest.mark.parametrize("wrong", [(False, -1), (0, 1), (False, 1.5), (False, 1 << 50)])
def test_progress_of_another_form_is_refused(wrong):
    host = Host()
    host.join()
    with pytest.raises(InvalidArgumentError, match="expected progress"):
        host.step(progress=json.dumps([[A, 1, *wrong]]))


@pytest.mark.parametrize(
    "state", ["5", "{}", '{"numbers": 5}', '{"numbers": {"a": 1}}', '{"numbers": {}, "state": {}}']
)
def test_a_save_of_another_form_changes_nothing(state):
    host = Host()
    host.join()
    host.step(number=4)
    with pytest.raises(DataLossError, match="expected the job of a save, got "):
        host.do("import_job", state, True)
    assert host.do("job_number", 0) == 4


def test_only_server_0_has_the_state_of_the_job():
    host = Host(1)
    assert host.join() == {}
    assert host.do("describe_job")["counts"] == {}
    assert json.loads(host.do("export_job")) == {"numbers": {}, "state": None}
    with pytest.raises(FailedPreconditionError, match="expected a call to server 0, got one to ps"):
        host.do("take_share", 0, 5, 0, "[]")
    host.job.tick()
    host.job.end_waits()


def test_a_server_without_a_task_makes_no_dense_steps():
    host = Host(with_dense=False)
    host.join()
    with pytest.raises(FailedPreconditionError, match=r"started without it \(ps 0\); start it"):
        host.step(grads=ones())
    assert host.step(progress="") == (0, 1, 0, [])
    assert host.do("describe_job")["dense"] is None


def test_flags_texts_and_values_are_kept():
    host = Host()
    host.do("set_flag", "a", 2, 1, True)
    host.do("set_text", "b", "")
    host.do("set_start_values", ones())
    assert host.do("read_flags", "a", 2) == [False, True]
    assert host.do("read_text", "b") == ""
    assert host.do("start_values")[0][1].tolist() == [1.0, 1.0]
    for verb in ("set_ready", "end_job"):
        host.do(verb)
    facts = host.do("describe_job")
    assert facts["is_ready"]
    assert facts["is_ended"]


def test_a_job_has_one_number_of_workers():
    server = ServerHost(0, 1)
    number = server.open_job(2)
    assert (server.open_job(2), server.is_job_ended) == (number, False)
    with pytest.raises(InvalidArgumentError, match="a job of 2 workers, got one of 3"):
        server.open_job(3)
    server.close()


def job_calls(host):
    """Good arguments of every verb."""
    state = host.do("export_job")
    values = [("w", torch.ones(2))]
    return {
        "describe_job": (),
        "end_job": (),
        "export_dense": (),
        "export_job": (),
        "give_up_workers": ([1],),
        "hold_job": (0, 1 << 20),
        "import_dense": (3, values, "{}", [("t", torch.ones(1))]),
        "import_job": (state, True),
        "job_number": (1,),
        "join_job": (1, 6, [3], '{"a": ["b"]}', json.dumps({"taken": {A: 1}, "finished": [A]})),
        "leave_job": (1, 6, 0),
        "note_held": (0, 5, 1, 0),
        "note_lost": (2,),
        "note_parked": (0, 5, 1, 0),
        "offer_shares": ('["a", "b"]', 2),
        "park_job": (0,),
        "read_dense": (0,),
        "read_flags": ("f", 2),
        "read_text": ("t",),
        "release_job": (1,),
        "set_flag": ("f", 2, 1, True),
        "set_ready": (),
        "set_start_values": (values,),
        "set_steps": (5,),
        "set_text": ("t", "x"),
        "start_values": (),
        "step_job": (0, 5, 1, values, '[{"lr": 0.5, "nesterov": false}]', PROGRESS, True),
        "stop_workers": (),
        "take_share": (0, 5, 1, json.dumps([A])),
        "unpark_job": (1,),
        "wait_held": (1, 20),
        "watch_job": (0, 5, 1, 1),
        "worker_facts": (),
    }


def test_every_verb_has_a_good_call():
    host = Host()
    host.do("join_job", 0, 5, [7], '{"a": ["b"]}', "{}")
    calls = job_calls(host)
    assert set(calls) == set(JOB_VERBS)
    first = ["hold_job", "wait_held"]
    for verb in [*first, *sorted(set(calls).difference(first))]:
        host.do(verb, *calls[verb])


@pytest.mark.thorough
@settings(max_examples=150, phases=[Phase.generate])
@given(data=st.data())
def test_a_job_goes_on_after_every_changed_call(data):
    host = Host()
    host.do("join_job", 0, 5, [7], '{"a": ["b"]}', "{}")
    calls = job_calls(host)
    del calls["stop_workers"], calls["import_dense"]  # after them the answers are others
    for number in range(10):
        verb, arguments = mutated(data.draw, calls)
        with contextlib.suppress(MonolithError):
            host.do(verb, *arguments, client=2)
        start = 100 + number
        facts = json.dumps(host.job.state._facts)
        assert "steps" in json.loads(host.do("join_job", 0, start, [9 + number], facts, "{}"))
        version = host.do("describe_job")["version"]
        answer = host.do("step_job", 0, start, 1, ones(), "", "", True)
        assert answer[0] == version + 1
        taken = json.loads(host.do("take_share", 0, start, 1, "[]"))
        assert taken[0] in ("share", "wait", "end")
        json.loads(host.do("export_job"))
