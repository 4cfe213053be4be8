"""Calls of several threads in processes where torch has threads of its own."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from monolith.table import Segment, Table, TableConfig

NUM_KEYS = 50_000

COUNT_THREADS = """
import os, torch
from monolith.table import Segment, Table, TableConfig
count = lambda: len(os.listdir("/proc/self/task"))
torch.set_num_threads(3)
table, keys, counts = Table(TableConfig("user", Segment(4))), torch.tensor([7] * 20_000), []
before = count()
FIRST
counts.append(count() - before)
SECOND
counts.append(count() - before)
print(*counts)
"""
OF_TORCH, OF_TABLE = "torch.ones(9_000_000).add(1)", "table.lookup(keys, num_threads=3)"


def filled_table():
    table = Table(TableConfig("user", Segment(4)))
    table.lookup_or_insert(torch.arange(NUM_KEYS), num_threads=2)
    return table


@pytest.mark.dist
@pytest.mark.parametrize("order", [(OF_TORCH, OF_TABLE), (OF_TABLE, OF_TORCH)])
def test_a_call_has_the_threads_of_torch(order):
    code = COUNT_THREADS.replace("FIRST", order[0]).replace("SECOND", order[1])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["2", "2"]


FORK_AFTER_TORCH = """
import os, torch
from monolith.table import Segment, Table, TableConfig
torch.set_num_threads(2)
keys = torch.arange(1_000_000)
torch.ones(1_000_000).add(1)
child = os.fork()
if child == 0:
    table = Table(TableConfig("user", Segment(4)))
    os._exit(len(table._lookup(keys[:50_000], True, 0, 2)) != 50_000)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.dist
def test_a_fork_before_the_first_call_is_noticed():
    run = [sys.executable, "-c", FORK_AFTER_TORCH]
    found = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["0"]


@pytest.mark.dist
def test_a_forked_process_has_threads_of_its_own():
    table, keys = filled_table(), torch.arange(NUM_KEYS)
    expected = table.lookup(keys, num_threads=1)
    child = os.fork()
    if child == 0:  # where large ops of torch itself would wait for threads that are not there
        rows = table.lookup(keys, num_threads=2)
        os._exit(0 if rows.numpy().tobytes() == expected.numpy().tobytes() else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("num_threads", [2, 7, 64])
def test_any_number_of_threads_reads_the_same(num_threads):
    table = filled_table()
    keys = torch.arange(NUM_KEYS)
    assert torch.equal(
        table.lookup(keys, num_threads=num_threads), table.lookup(keys, num_threads=1)
    )


def test_calls_of_several_python_threads_run_beside_each_other():
    table, found = filled_table(), []

    def read():
        for _ in range(20):
            found.append(len(table.lookup(torch.arange(NUM_KEYS), num_threads=2)))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [NUM_KEYS] * 80
