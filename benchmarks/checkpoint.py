"""Save and restore of a checkpoint, a table and dense tensors, beside the disk's sequential rate.

The rules are those of `disk.py`: the same bytes, synced, and dropped from the cache before a read.
"""

import functools
import sys
from pathlib import Path

import torch

from benchmarks import disk
from benchmarks.stage import run_stage
from benchmarks.workload import Workload
from monolith.checkpoint import open_checkpoint, save_checkpoint, take_cut
from monolith.embedding import Table

_DENSE_SHAPE = (4, 1 << 20)  # of each of 4 tensors: 64 MiB in all


class CheckpointDisk(disk.Disk):
    """A checkpoint in place of a save of tables."""

    def __init__(self, workload: Workload) -> None:
        self._dense = {f"layer{i}.weight": torch.rand(_DENSE_SHAPE) for i in range(4)}
        self._targets = {name: torch.empty_like(tensor) for name, tensor in self._dense.items()}
        super().__init__(workload)

    @property
    def _prefix(self) -> str:
        return f"{self._save}/model.ckpt-1"

    def _files(self) -> list[Path]:
        return sorted(path for path in self._save.rglob("*.*") if path.is_file())

    def _write_save(self) -> None:
        with take_cut(tables=self._table, dense=self._dense, step=1) as cut:
            save_checkpoint(self._prefix, cut, num_threads=self._workload.threads)

    def _read_save(self) -> Table:
        checkpoint, threads = open_checkpoint(self._prefix), self._workload.threads
        checkpoint.restore(dense=self._targets, num_threads=threads)
        return checkpoint.load_tables(num_threads=threads).popitem()[1]


if __name__ == "__main__":
    run = functools.partial(disk.run, make=CheckpointDisk, what="checkpoint")
    sys.exit(run_stage(__doc__, run))
