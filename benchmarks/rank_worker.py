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
    """Notes the times after the warm-up and after the last step."""

    def __init__(self, num_warm: int) -> None:
        self._num_warm, self.times, self.loss = num_warm, [0.0, 0.0], 0.0
        self.cpu_times = [0.0, 0.0]
        self.loop: Any = None
        self.parts = Parts()

    def after_run(self, ctx: Any, results: Any) -> None:
        self.times[1], self.cpu_times[1] = time.perf_counter(), time.process_time()
        self.loss = results.value.loss
        if ctx.run.global_step == self._num_warm:
            self.times[0], self.cpu_times[0] = self.times[1], self.cpu_times[1]
            self.loop.stages.start_timing()
            self.parts.begin()


class Parts:
    """Processor time of the training thread in the parts of a step of ranks.

    Attributes:
        seconds: seconds by part; "thread" has those of the whole thread.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begin, self._is_inside = 0.0, False

    def watch(self, trainer: ml.Trainer) -> None:
        """Time the methods of a rank from now on."""
        assert trainer.sync is not None
        engine: Any = trainer.sync.engine
        for name, owner, method in (
            ("keys", engine.keys, "exchange"),
            ("rows", engine, "_exchange_rows"),
            ("gradients", engine._gradients, "send_sums"),
            ("folds", engine._folds, "fold"),
            ("tables", engine._owned, "_pull"),
            ("tables", engine._owned, "_push"),
            ("dense", trainer.sync.dense, "_send_next"),
            ("dense", trainer.sync.dense, "finish"),
        ):
            setattr(owner, method, self._timed(name, getattr(owner, method)))

    def _timed(self, name: str, run: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_inside:
                return run(*arguments, **named)
            self._is_inside, start = True, time.thread_time()
            try:
                return run(*arguments, **named)
            finally:
                spent = time.thread_time() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + spent
                self._is_inside = False

        return call

    def begin(self) -> None:
        """Forget what was so far."""
        self.seconds.clear()
        self._begin = time.thread_time()

    def end(self) -> None:
        """Note the time of the whole thread."""
        self.seconds["thread"] = time.thread_time() - self._begin


def main() -> None:
    path, rank, size, text = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    facts = json.loads(text)
    torch.set_num_threads(facts["threads"])
    names = {"rows": "rows", "batch": "batch_size", "dim": "dim", "num_bulk": "num_bulk"}
    task = Light(LightSettings(**{names[fact]: facts[fact] for fact in names if fact in facts}))
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
        if trainer.sync is not None and facts.get("with_parts"):
            clock.parts.watch(trainer)
        trainer.fit(Capped(task, settings.steps or 0, size))
        clock.parts.end()
        seconds = clock.times[1] - clock.times[0]
        answer: dict[str, Any] = {"seconds": seconds, "loss": clock.loss}
        answer["stages"] = {s.name: round(s.seconds / seconds, 3) for s in clock.loop.stages.all}
        if trainer.sync is not None:
            group, counts = trainer.sync.group, trainer.sync.counts
            answer["waits"] = {c.name: round(c.seconds, 3) for c in group.channels}
            answer["bytes"] = vars(counts)
            answer["padding"] = counts.padding_share
        if facts.get("with_parts"):
            answer["cpu_seconds"] = clock.cpu_times[1] - clock.cpu_times[0]
            answer["parts"] = clock.parts.seconds
        print(json.dumps(answer), flush=True)


class Capped:
    """As many batches as ranks and steps, again and again from the task's few."""

    def __init__(self, task: Light, num_steps: int, size: int) -> None:
        self._batches, self._num = task.batches(), (num_steps + 3) * size

    def __iter__(self) -> Any:
        return (self._batches[i % len(self._batches)] for i in range(self._num))


if __name__ == "__main__":
    main()
