"""Save and restore of checkpoints beside the disk's sequential rate: large, dense only, and small.

The rules are those of `disk.py`: the same bytes, synced, and dropped from the cache before a read.
"""

import sys
from pathlib import Path

import torch

from benchmarks import disk
from benchmarks.harness import BenchmarkError
from benchmarks.stage import Options, run_stage
from benchmarks.workload import Workload
from monolith.checkpoint import Contents, WriteOptions, open_checkpoint, write
from monolith.table import Table

_FEW_ROWS = ((1000, 16),)


class CheckpointDisk(disk.Disk):
    """A checkpoint in place of a save of tables."""

    shapes = [(4, 1 << 20)] * 4  # of the dense tensors: 64 MiB in all

    def __init__(self, workload: Workload) -> None:
        self._dense = {f"layer{i}.weight": torch.rand(shape) for i, shape in enumerate(self.shapes)}
        self._targets = {name: torch.zeros_like(tensor) for name, tensor in self._dense.items()}
        super().__init__(workload)

    @property
    def _prefix(self) -> str:
        return f"{self._save}/model.ckpt-1"

    def _files(self) -> list[Path]:
        return sorted(path for path in self._save.rglob("*.*") if path.is_file())

    def _write_save(self) -> None:
        write(
            Contents(tables=self._table, dense=self._dense, step=1),
            self._prefix,
            WriteOptions(num_threads=self._workload.threads),
        )

    def _read_save(self) -> Table:
        checkpoint, threads = open_checkpoint(self._prefix), self._workload.threads
        checkpoint.restore(dense=self._targets, num_threads=threads)
        return checkpoint.load_tables(num_threads=threads).popitem()[1]

    def _check(self, table: Table) -> None:
        super()._check(table)
        for name, tensor in self._targets.items():
            if not torch.equal(tensor, self._dense[name]):
                raise BenchmarkError(f"[checkpoint] expected the saved {name}, got another tensor")
            tensor.zero_()


class DenseDisk(CheckpointDisk):
    """As good as no rows."""

    shapes = [(4, 1 << 20)] * 16  # 256 MiB


class SmallDisk(CheckpointDisk):
    """Some megabytes: the fixed costs count."""

    shapes = [(256, 1024)] * 6  # 6 MiB


def run(options: Options) -> None:
    """Print two lines per size and side, for each kind of checkpoint."""
    disk.run(options, CheckpointDisk, "checkpoint")
    disk.run(options, DenseDisk, "checkpoint_dense", _FEW_ROWS)
    disk.run(options, SmallDisk, "checkpoint_small", _FEW_ROWS)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
