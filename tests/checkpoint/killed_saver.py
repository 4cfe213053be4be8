"""Saves again and again until it is killed; started by test_kill.py.

Reads lines from stdin: a directory and a first version. For each it forks a child, says its process
id, and then the number of each version that the child has saved. The weights of a version are its
number. Odd versions take the prefix `c-1`, even ones `c-2`.
"""

import os

import torch

from monolith.checkpoint import Contents, WriteOptions, write
from monolith.table import MinCount, Segment, Table, TableConfig
from monolith.table.disk import table_files
from monolith.table.optimizers import SGD
from tests.forker import fork_for_lines

NUM_KEYS = 2000
CONFIG = TableConfig("user", Segment(8, SGD()), admission=MinCount(0, {1: 5}))


def save_versions(line):
    path, version = line.rsplit(maxsplit=1)
    version = int(version)
    torch.set_num_threads(1)
    keys = torch.arange(NUM_KEYS)
    with Table(CONFIG, clock=lambda: 1000) as table:
        while True:
            table.assign(keys, torch.full((NUM_KEYS, 8), float(version)))
            dense = {"weight": torch.full((1000,), float(version))}
            write(
                Contents(tables=table, dense=dense, trainer={"v": version}, step=version),
                f"{path}/c-{version % 2 + 1}",
                WriteOptions(num_threads=2),
            )
            os.write(1, f"{version}\n".encode())
            version += 1


if __name__ == "__main__":
    table_files._FILE_BYTES = 1 << 14
    fork_for_lines(save_versions)
