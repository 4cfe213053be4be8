"""Links of a chain of checkpoints beside full saves: time, bytes, the pause of a cut, compaction.

A link has the 1 % of the rows that changed since the save before. Saves write as fast as the disk,
with one thread.
"""

import functools
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field

import torch

from benchmarks import workload as work
from benchmarks.harness import ROOT, BenchmarkError, Rules, Sample, say, timed
from benchmarks.ours import fill, table_config
from benchmarks.question import Question
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Workload
from monolith.checkpoint import Chain, Contents, WriteOptions, open_checkpoint
from monolith.checkpoint.chain import Saved
from monolith.table import Table

_ROWS, _DIM = 5_000_000, 16
_CHANGED_SHARE = 100  # one row in so many changes between two saves
_FOLDER = ROOT / "build" / "benchmarks" / "links"


@dataclass
class Saves:
    """Full saves and links of one table, in turns.

    Args:
        table: the table.
        workload: its size.
    """

    table: Table
    workload: Workload
    step: int = 0
    row_bytes: dict[str, list[int]] = field(default_factory=lambda: {"link": [], "full": []})
    cut_ms: list[float] = field(default_factory=list)
    compact_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chains = {"link": Chain(_FOLDER / "links", keep=1, full_every=1000)}
        self.chains["full"] = Chain(_FOLDER / "full", keep=1, full_every=1)
        self._save("link")

    def take(self, kind: str) -> Sample:
        """Milliseconds from the cut to the end of a save."""
        self._change()
        if kind == "full" and self.chains["link"].num_links >= 10:
            start = time.perf_counter()
            self.chains["link"].compact(WriteOptions(num_threads=1))
            self.compact_seconds.append(time.perf_counter() - start)
        with timed() as window:
            saved = self._save(kind)
        if saved.is_full == (kind == "link"):
            raise BenchmarkError(f"[links] expected a {kind} save, got the reason {saved.reason}")
        self.row_bytes[kind].append(sum(fact.num_bytes for fact in saved.manifest.row_files))
        return Sample(window.seconds * 1e3, window.others_cores)

    def _save(self, kind: str) -> Saved:
        self.step += 1
        contents = Contents(tables=self.table, step=self.step, with_expired=True)
        start = time.perf_counter()
        with self.chains[kind].cut(contents) as snapshot:
            self.cut_ms.append((time.perf_counter() - start) * 1e3)
            return self.chains[kind].save(snapshot, WriteOptions(num_threads=1))

    def _change(self) -> None:
        """Change one row in a hundred, others each time."""
        num_changed = self.workload.rows // _CHANGED_SHARE
        first = self.step * num_changed % self.workload.rows
        for indices in work.index_ranges(num_changed, self.workload.batch):
            keys = torch.from_numpy(work.keys_of((indices + first) % self.workload.rows))
            self.table.apply_gradients(keys, torch.ones(len(keys), _DIM))

    def check(self) -> None:
        """Compare the newest link with the table."""
        self._save("link")
        restored = open_checkpoint(_FOLDER / f"links/model.ckpt-{self.step}").load_tables()["bench"]
        keys = torch.from_numpy(
            work.keys_of(next(iter(work.index_ranges(self.workload.rows, 10**5))))
        )
        if not torch.equal(restored.lookup(keys), self.table.lookup(keys)):
            raise BenchmarkError("[links] expected the rows of the table in the newest link")
        restored.close()

    def notes(self) -> dict[str, float]:
        """What the samples do not say."""
        sizes = {kind: statistics.median(values) for kind, values in self.row_bytes.items()}
        cuts = sorted(self.cut_ms)
        return {
            "row_bytes_ratio": round(sizes["full"] / sizes["link"], 1),
            "cut_ms": round(statistics.median(cuts), 3),
            "cut_max_ms": round(cuts[-1], 3),
            **(
                {"compact_s": round(statistics.median(self.compact_seconds), 2)}
                if self.compact_seconds
                else {}
            ),
        }


def measure(workload: Workload, rules: Rules) -> None:
    """Links and full saves in turns."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    try:
        table = Table(table_config(workload.dim, with_state=True))
        fill(table, workload)
        saves = Saves(table, workload)
        takes = {kind: functools.partial(saves.take, kind) for kind in ("link", "full")}
        for take in takes.values():
            take()
        Question("link", "ms", sizes_of(workload), rules).measure(takes, saves.notes)
        saves.check()
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)


def run(options: Options) -> None:
    """Print one line."""
    rows = QUICK_ROWS if options.is_quick else _ROWS
    say(f"[links] {rows:,} rows, dim {_DIM}: links of 1 % of the rows beside full saves")
    measure(Workload(rows, _DIM, threads=1), options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
