"""A rank in a process of its own: `python -m tests.train.ranks.rank_process FILE RANK SIZE JSON`.

Prints one JSON line for each event: "step", "ended" with digests, or "error".
"""

import hashlib
import json
import sys
import time

import torch

from monolith.cluster.ranks.rank_group import RankOptions, group_of_file
from monolith.train import Hook, TrainSettings
from tests.train.ranks.rank_tasks import fit_rank, one_batch, task_of


def say(**facts):
    print(json.dumps(facts), flush=True)


class Tell(Hook):
    """Tells each step, and takes its time."""

    def __init__(self, seconds):
        self._seconds = seconds

    def after_run(self, ctx, results):
        say(event="step", step=ctx.run.global_step)
        time.sleep(self._seconds)


def digest(values):
    parts = [values[name].contiguous().numpy().tobytes() for name in sorted(values, key=str)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main():
    path, rank, size, text = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    facts = json.loads(text)
    torch.set_num_threads(1)
    options = RankOptions(facts.get("start_seconds", 60), facts.get("wait_seconds", 60))
    batches = [one_batch(seed) for seed in range(facts["num_batches"])]
    settings = TrainSettings(**facts.get("settings", {}))
    try:
        with group_of_file(path, rank, size, options) as group:
            hooks = [Tell(facts.get("seconds", 0))]
            result, parameters, rows = fit_rank(group, task_of(batches), settings, hooks)
            say(
                event="ended",
                ended=result.ended,
                steps=result.num_steps,
                samples=result.num_samples,
                parameters=digest(parameters),
                rows=digest(rows),
            )
    except Exception as error:
        say(event="error", kind=type(error).__name__, text=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
