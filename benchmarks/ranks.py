"""Two synchronous ranks of one thread against one trainer of two threads, on 26 features of dim 16.

Each rank has batches of the size of the trainer's; the rate is that of all samples. `ranks` is
sequential, `ranks_ahead` reads rows ahead and pushes on a thread (`prefetch=1, push=1`), and so
does its baseline. The notes have the share of each stage, the waits for the other rank, and the
bytes of a rank with the part that was padding. With `--peers`, `DistributedModelParallel` of
TorchRec trains the same model on as many gloo ranks, in turns with ours.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.harness import ROOT, BenchmarkError, Sample, say
from benchmarks.processes import interpreter
from benchmarks.question import VERSIONS, Question
from benchmarks.stage import Options, run_stage

_NUM = 2
_LIMIT_SECONDS = 300.0
_PEER = "torchrec"
_MODULES = {"monolith": "benchmarks.rank_worker", _PEER: "benchmarks.peers.torchrec_ranks"}
_LARGEST_GAP = 0.01  # of the losses of the last step, which first rows move by about 0.001


def trained(
    size: int, facts: dict[str, Any], system: str = "monolith", *, is_alone: bool = False
) -> list[dict[str, Any]]:
    """Train with so many ranks, or with a trainer alone, and return what each process says."""
    with tempfile.TemporaryDirectory() as folder:
        path = "-" if is_alone else os.path.join(folder, "port")
        python = interpreter("fbgemm" if system == _PEER else system)
        running = [
            subprocess.Popen(
                [python, "-m", _MODULES[system], path, str(rank), str(size), json.dumps(facts)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
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
    """Compare ranks and a trainer alone, and in turn with the peer."""
    sizes = {"rows": 20_000 if options.is_quick else 200_000, "batch": 4_096}
    facts = {**sizes, "prefetch": ahead, "push": ahead, "num_warm": 10}
    facts["num_steps"] = 20 if options.is_quick else 100
    last: dict[str, Any] = {}

    def sample(size: int, system: str = "monolith") -> Sample:
        own_facts = {**facts, "threads": _NUM // size}
        answers = trained(size, own_facts, system, is_alone=size == 1)
        last[f"{system} {size}"] = answers[0]
        seconds = max(answer["seconds"] for answer in answers)
        return Sample(size * facts["num_steps"] * facts["batch"] / seconds / 1e3)

    takes = {"ranks": lambda: sample(_NUM), "whole": lambda: sample(1)}
    versions = dict(VERSIONS)
    if options.with_peers and not ahead:
        takes[_PEER] = lambda: sample(_NUM, _PEER)
        check(trained(_NUM, {**facts, "threads": 1}), trained(_NUM, {**facts, "threads": 1}, _PEER))

    def notes() -> dict[str, Any]:
        found = dict(last[f"monolith {_NUM}"])
        if _PEER in takes:
            peer = last[f"{_PEER} {_NUM}"]
            versions.update({name: peer["versions"][name] for name in (_PEER, "fbgemm_gpu")})
            found["torchrec_sharding"] = peer["sharding"]
        return found

    question = Question(name, "k samples/s", sizes, options.rules, versions)
    question.measure(takes, notes)


def check(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Refuse a peer that trains another model: losses of all ranks after as many steps."""
    pairs = [(a["loss"], b["loss"]) for a, b in zip(ours, theirs, strict=True)]
    say(f"[ranks] losses of ours and {_PEER}: {pairs}")
    if any(abs(a - b) > _LARGEST_GAP for a, b in pairs):
        raise BenchmarkError(f"[ranks] expected equal losses of ours and {_PEER}, got {pairs}")


def run(options: Options) -> None:
    """Measure both."""
    measure("ranks", 0, options)
    measure("ranks_ahead", 1, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
