"""Samples per second of the DLRM (examples/dlrm.py), and what a step is made of.

Beside the trainer: a loop written by hand on the same tables, the trainer on a Parquet file, the
dense part alone (rows are leaves with a gradient), and the peers with the same dense part.
"""

import functools
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks import end_to_end
from benchmarks.click_model import Sizes
from benchmarks.dlrm_ours import FOLDER
from benchmarks.harness import Sample
from benchmarks.processes import PEERS, WorkerProcess
from benchmarks.stage import Options, run_stage

ROUNDS = (("monolith", "dense", "fbgemm"), ("monolith", "tfra"))
_ROWS, _QUICK_ROWS = 1_000_000, 2_000
_QUICK_BATCH = 64
_NUM_RUNS, _SAMPLE_SECONDS, _QUICK_SECONDS = 11, 1.5, 0.1


class Comparison(end_to_end.Comparison):
    """Our process also gives samples of the loop and of the Parquet file."""

    name, split_steps = "dlrm", 6
    commands = {**end_to_end.COMMANDS, "monolith": ("benchmarks.dlrm_ours",)}

    def _contenders(self, workers: Mapping[str, WorkerProcess]) -> dict[str, Callable[[], Sample]]:
        contenders = super()._contenders(workers)
        for kind in ("loop", "parquet") if "dense" in workers else ():
            contenders[kind] = functools.partial(self._sample, workers["monolith"], kind=kind)
        return contenders


def run(options: Options) -> None:
    """Ours beside the dense part and FBGEMM, then beside TFRA: not all fit into memory at once."""
    rules = replace(options.rules, sample_seconds=_SAMPLE_SECONDS, num_runs=_NUM_RUNS)
    sizes = Sizes(_ROWS, model="dlrm")
    if options.is_quick:
        rules = replace(options.rules, sample_seconds=_QUICK_SECONDS)
        sizes = replace(sizes, rows=_QUICK_ROWS, batch=_QUICK_BATCH)
    try:
        for systems in ROUNDS:
            chosen = tuple(s for s in systems if options.with_peers or s not in PEERS)
            if len(chosen) > 1:
                Comparison(chosen, sizes, rules).run()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
