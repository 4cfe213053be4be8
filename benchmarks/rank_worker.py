"""A process of the stage `ranks`: trains a task for some seconds, and prints what that took.

python -m benchmarks.rank_worker PORT_FILE RANK SIZE JSON      one of several ranks
python -m benchmarks.rank_worker - 0 1 JSON                    a trainer alone
"""

import contextlib
import json
import sys
import time
from typing import Any

import torch

import monolith as ml
from benchmarks.job_task import Light, LightSettings
from monolith.cluster.ranks.rank_group import group_of_file
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.observe.metrics import NullSink


class Clock(ml.train.Hook):
    """Notes the time after the warm-up and after the last step."""

    def __init__(self, num_warm: int) -> None:
        self._num_warm, self.times = num_warm, [0.0, 0.0]
        self.stages: dict[str, float] = {}
        self.loop: Any = None

    def after_run(self, ctx: Any, results: Any) -> None:
        if ctx.run.global_step == self._num_warm:
            self.times[0] = time.perf_counter()
            self.loop.stages.start_timing()
        self.times[1] = time.perf_counter()


def main() -> None:
    path, rank, size, text = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    facts = json.loads(text)
    torch.set_num_threads(facts["threads"])
    task = Light(LightSettings(rows=facts["rows"], batch_size=facts["batch"]))
    settings = ml.TrainSettings(
        steps=facts["num_warm"] + facts["num_steps"],
        threads=facts["threads"],
        prefetch=facts["prefetch"],
        push=facts["push"],
        log_every=0,
    )
    clock = Clock(facts["num_warm"])
    with contextlib.ExitStack() as stack:
        ranks = None
        if path != "-":
            group = stack.enter_context(group_of_file(path, rank, size))
            ranks = stack.enter_context(RankTables(group))
        trainer = stack.enter_context(
            ml.Trainer(task, settings, hooks=[clock], metrics=NullSink(), ranks=ranks)
        )
        begin = trainer._drive

        def drive(loop: Any, *arguments: Any) -> Any:
            clock.loop = loop
            return begin(loop, *arguments)

        trainer._drive = drive  # type: ignore[assignment,method-assign]
        trainer.fit(Capped(task, settings.steps or 0, size))
        seconds = clock.times[1] - clock.times[0]
        answer: dict[str, Any] = {"seconds": seconds}
        answer["stages"] = {s.name: round(s.seconds / seconds, 3) for s in clock.loop.stages.all}
        if trainer.sync is not None:
            group, counts = trainer.sync.group, trainer.sync.counts
            answer["waits"] = {c.name: round(c.seconds, 3) for c in group.channels}
            answer["bytes"] = vars(counts)
            answer["padding"] = counts.padding_share
        print(json.dumps(answer), flush=True)


class Capped:
    """As many batches as ranks and steps, again and again from the task's few."""

    def __init__(self, task: Light, num_steps: int, size: int) -> None:
        self._batches, self._num = task.batches(), (num_steps + 3) * size

    def __iter__(self) -> Any:
        return (self._batches[i % len(self._batches)] for i in range(self._num))


if __name__ == "__main__":
    main()
