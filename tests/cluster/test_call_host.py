"""What a host keeps of its clients, and for how long."""

import gc
import weakref

import pytest
import torch

from monolith.cluster import call_host
from monolith.cluster.call_host import Call
from monolith.cluster.shard_hosts import ShardHost
from monolith.errors import AbortedError, DataLossError, FailedPreconditionError
from monolith.table import Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD
from tests.suites.table_base import NOW, column, keys

CONFIG = TableConfig("user", Segment(1, SGD(1.0), Zeros()))


def new_host():
    return ShardHost(Table(CONFIG, clock=lambda: NOW))


def add(host, sequence, client=1, value=1.0):
    return host.do(Call(client, sequence, 0, "assign_add", (keys(7), column(value), NOW, 1)))


def insert(host, sequence, size, client=1):
    arguments = torch.arange(size), 0, NOW, 1
    return host.do(Call(client, sequence, 0, "lookup_or_insert", arguments))


def value(host):
    return host.table.lookup(keys(7)).item()


def test_large_answers_are_kept_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr(call_host, "MAX_KEPT_BYTES", 100)
    host = new_host()
    for sequence in range(5):
        insert(host, sequence, 10)  # 40 bytes each
    assert sorted(host._clients[1].writes) == [3, 4]
    with pytest.raises(AbortedError, match="expected calls from number 3 on, got 2, whose answer"):
        insert(host, 2, 10)


def test_answers_are_kept_up_to_a_number():
    host = new_host()
    for sequence in range(1100):
        add(host, sequence)
    assert len(host._clients[1].writes) == 1024


def test_the_kept_error_of_a_write_keeps_no_arguments():
    host, grads = new_host(), column(float("nan"))
    arguments = weakref.ref(grads)
    with pytest.raises(ValueError, match="expected finite gradients"):
        host.do(Call(1, 0, 0, "apply_gradients", (keys(7), grads, [0.1], 0, NOW, 1)))
    del grads
    gc.collect()
    assert arguments() is None
    assert len(host._clients[1].writes) == 1


def test_a_released_client_may_come_back_and_its_writes_stay_done_once():
    host = new_host()
    add(host, 0)
    host.release_client(1)
    assert host.clients == set()
    with pytest.raises(AbortedError, match="expected calls from number 1 on, got 0"):
        add(host, 0)
    add(host, 1)
    assert value(host) == 2.0


def test_a_fence_stays_however_many_clients_end():
    host = new_host()
    add(host, 0, client=7)
    host.fence([7])
    for client in range(100, 1200):
        host.release_client(client, is_gone=True)
    with pytest.raises(AbortedError, match="a client that is there, got number 1 of one that is"):
        add(host, 1, client=7)
    assert value(host) == 1.0


def test_a_restore_of_clients_lifts_no_fence():
    host, other = new_host(), new_host()
    add(host, 0, client=7)
    other.fence([7])
    other.restore_clients(host.clients_state())
    with pytest.raises(AbortedError, match="got number 1 of one that is gone"):
        add(other, 1, client=7)


def test_more_fences_than_a_host_keeps_are_refused(monkeypatch):
    monkeypatch.setattr(call_host, "MAX_FENCED", 2)
    host = new_host()
    host.fence([1, 2])
    host.fence([2])
    with pytest.raises(FailedPreconditionError, match="at most 2 clients that are refused, got 3"):
        host.fence([3])
    add(host, 0, client=3)


def test_cuts_of_a_released_client_are_closed_and_those_of_others_stay():
    host = new_host()
    number = host.do(Call(1, 0, 0, "open_cut", (None,)))[0]
    other = host.do(Call(2, 0, 0, "open_cut", (None,)))[0]
    host.release_client(1)
    with pytest.raises(FailedPreconditionError, match="expected the number of an open cut"):
        host.do(Call(1, 1, 0, "cut_changes", (number,)))
    assert host.do(Call(2, 1, 0, "cut_chunk", (other, 0, 1, 9)))
    assert list(host._cuts) == [other]


def test_the_number_of_a_cut_is_none_of_another_start():
    numbers = {new_host().do(Call(1, 0, 0, "open_cut", (None,)))[0] for _ in range(3)}
    assert len(numbers) == 3


def test_a_client_that_said_goodbye_has_no_cuts():
    host = new_host()
    host.do(Call(1, 0, 0, "open_cut", (None,)))
    host.do(Call(1, 0, 0, "bye", ()))
    assert not host.table._has_cut()


def test_a_write_before_a_save_is_not_done_again_after_its_restore():
    host, other = new_host(), new_host()
    add(host, 0)
    insert(host, 1, 2)
    other.restore_clients(host.clients_state())
    assert add(other, 0) is None
    with pytest.raises(AbortedError, match="got number 1, which was done before the save"):
        insert(other, 1, 2)
    assert len(other.table) == 0
    add(other, 2)
    assert value(other) == 1.0


@pytest.mark.parametrize("state", [{"x": {}}, {"1": {"done": "a"}}, {"1": 3}, 5])
def test_a_state_that_is_none_of_clients_is_refused(state):
    with pytest.raises(DataLossError, match="expected the clients of a save, got "):
        new_host().restore_clients(state)
