"""Saves into a bucket again and again until it is killed; started by test_s3_kill.py.

Reads lines from stdin: a directory and a first version. For each it forks a child, says its process
id, and then the number of each version that the child has saved. The weights of a version are its
number; they are large enough for an upload in several parts.
"""

import os

import s3fs  # noqa: F401 -- now, so that no child waits for the import
import torch

from monolith.checkpoint import Contents, WriteOptions, save
from monolith.table import MinCount, Segment, Table, TableConfig
from monolith.table.disk import table_files
from monolith.table.optimizers import SGD
from monolith.util import stores
from tests.forker import fork_for_lines

NUM_KEYS, NUM_WEIGHTS = 2000, 3 << 19
CONFIG = TableConfig("user", Segment(8, SGD()), admission=MinCount(0, {1: 5}))


def save_versions(line):
    directory, version = line.rsplit(maxsplit=1)
    version = int(version)
    torch.set_num_threads(1)
    keys = torch.arange(NUM_KEYS)
    with Table(CONFIG, clock=lambda: 1000) as table:
        while True:
            table.assign(keys, torch.full((NUM_KEYS, 8), float(version)))
            dense = {"weight": torch.full((NUM_WEIGHTS,), float(version))}
            contents = Contents(tables=table, dense=dense, trainer={"v": version}, step=version)
            save(contents, directory, keep=2, options=WriteOptions(num_threads=2))
            os.write(1, f"{version}\n".encode())
            version += 1


if __name__ == "__main__":
    table_files._FILE_BYTES = 1 << 14
    stores._BLOCK_BYTES = 5 << 20
    fork_for_lines(save_versions)
