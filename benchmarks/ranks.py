"""Two synchronous ranks of one thread against one trainer of two threads, on 26 features of dim 16.

Each rank has batches of the size of the trainer's; the rate is that of all samples. `ranks` is
sequential, `ranks_ahead` reads rows ahead and pushes on a thread (`prefetch=1, push=1`), and so
does its baseline. The notes have the share of each stage, the waits for the other rank, and the
bytes of a rank with the part that was padding.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.harness import ROOT, BenchmarkError, Sample
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage

_NUM = 2
_LIMIT_SECONDS = 300.0


def trained(size: int, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Train with so many ranks, or alone, and return what each process says."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "port") if size > 1 else "-"
        words = [sys.executable, "-m", "benchmarks.rank_worker", path]
        running = [
            subprocess.Popen(
                [*words, str(rank), str(size), json.dumps(facts)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                text=True,
            )
            for rank in range(size)
        ]
        answers = []
        for process in running:
            out, _ = process.communicate(timeout=_LIMIT_SECONDS)
            if process.returncode:
                raise BenchmarkError(f"a process of the stage ended with {process.returncode}")
            answers.append(json.loads(out.splitlines()[-1]))
        return answers


def measure(name: str, ahead: int, options: Options) -> None:
    """Compare ranks and a trainer alone."""
    sizes = {"rows": 20_000 if options.is_quick else 200_000, "batch": 4_096}
    facts = {**sizes, "prefetch": ahead, "push": ahead, "num_warm": 10}
    facts["num_steps"] = 20 if options.is_quick else 100
    last: dict[str, Any] = {}

    def sample(size: int) -> Sample:
        answers = trained(size, {**facts, "threads": _NUM // size})
        last[str(size)] = answers[0]
        seconds = max(answer["seconds"] for answer in answers)
        return Sample(size * facts["num_steps"] * facts["batch"] / seconds / 1e3)

    question = Question(name, "k samples/s", sizes, options.rules)
    takes = {"ranks": lambda: sample(_NUM), "whole": lambda: sample(1)}
    question.measure(takes, notes=lambda: last[str(_NUM)])


def run(options: Options) -> None:
    """Measure both."""
    measure("ranks", 0, options)
    measure("ranks_ahead", 1, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
