"""Saves again and again until it is killed; started by test_kill.py.

Reads lines from stdin: a folder and a first version. For each it forks a child, says its process
id, and then the number of each version that the child has saved. The weights of a version are its
number. Files have some blocks, which threads write past the page cache, and a rest.
"""

import os

import torch

from monolith.table import MinCount, Segment, Table, TableConfig
from monolith.table.disk import save_tables, table_files
from monolith.table.optimizers import SGD
from tests.forker import fork_for_lines

NUM_KEYS, DIM = 3000, 256
CONFIG = TableConfig("user", Segment(DIM, SGD()), admission=MinCount(0, {1: 1000}))


def save_versions(line):
    path, version = line.rsplit(maxsplit=1)
    version = int(version)
    torch.set_num_threads(1)
    keys = torch.arange(NUM_KEYS)
    waiting = keys + (1 << 48)
    with Table(CONFIG, clock=lambda: 1000) as table:
        while True:
            table.assign(keys, torch.full((NUM_KEYS, DIM), float(version)))
            table.assign(waiting, torch.zeros(NUM_KEYS, DIM))
            save_tables(table, path, num_threads=2)
            os.write(1, f"{version}\n".encode())
            version += 1


if __name__ == "__main__":
    table_files._FILE_BYTES = 3 << 19
    fork_for_lines(save_versions)
