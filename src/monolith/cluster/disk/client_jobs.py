"""What a client asks of shards that write and read their own files."""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from monolith.table.config import TableConfig
from monolith.table.disk.plan import Source, TablePlan
from monolith.table.disk.ranges import runs_of
from monolith.table.disk.remote.remote_jobs import JobState, RemoteJobs
from monolith.table.disk.remote.remote_load import RemoteLoader
from monolith.table.disk.remote.remote_save import FileRequest, Part, RemoteFiles, WriteRequest
from monolith.table.routing import Routing
from monolith.util.stores import local_path

Ask = Callable[[str, Sequence["tuple[Any, ...] | None"]], list[Any]]
"""(verb, arguments of each shard, None for no call) -> answers."""


class _ShardJobs(RemoteJobs):
    """A job on each shard of a table, under one number that this client has chosen.

    Args:
        labels: labels of the shards.
        ask: calls the shards.
        idle: result of a shard without a job.
    """

    def __init__(self, labels: Sequence[str], ask: Ask, idle: Any) -> None:
        self.labels, self._ask, self._idle = labels, ask, idle
        self._number = 0
        self._is_used = [False] * len(labels)

    def _start(self, verb: str, arguments: Sequence[tuple[Any, ...] | None]) -> None:
        self._number = secrets.randbits(63)
        self._is_used = [rest is not None for rest in arguments]
        self._ask(verb, [None if rest is None else (self._number, *rest) for rest in arguments])

    def states(self) -> list[JobState]:
        """Return the states of all shards."""
        states = iter(self._ask_used("job_state"))
        idle = JobState(True, 0, 0, self._idle)
        return [JobState(*next(states)) if is_used else idle for is_used in self._is_used]

    def hurry(self) -> None:
        """Lift the rate limits of all shards."""
        self._ask_used("hurry_job")

    def stop(self) -> bool:
        """Stop the jobs of all shards, and let the shards forget them."""
        return all(self._ask_used("stop_job"))

    def _ask_used(self, verb: str) -> list[Any]:
        return self._ask(verb, [(self._number,) if used else None for used in self._is_used])


class ShardFiles(_ShardJobs, RemoteFiles):
    """The shards of a cut as writers of its files.

    Args:
        parts: parts of the cut, one per shard.
        cuts: number of each shard's cut.
        ask: calls the shards.
    """

    def __init__(self, parts: Sequence[Part], cuts: Sequence[int], ask: Ask) -> None:
        super().__init__([part.label for part in parts], ask, (0, []))
        self.parts, self._cuts = parts, cuts

    def start(self, request: WriteRequest, files: Sequence[Sequence[FileRequest]]) -> None:
        """Let each shard write its files."""
        num_used = sum(map(bool, files))
        fields = {
            "folder": _absolute(request.place.folder.path),
            "config": json.dumps(request.facts.config),
            "num_update_calls": request.facts.num_update_calls,
            "latest_time": request.facts.latest_time,
            "is_link": request.is_link,
            "with_expired": request.with_expired,
            "keeps_cut": request.keeps_cut,
            "rate": None if request.rate is None else float(request.rate / max(1, num_used)),
            "num_threads": request.num_threads,
        }
        arguments = [
            (cut, {"files": [tuple(file) for file in part], **fields}) if part else None
            for cut, part in zip(self._cuts, files, strict=True)
        ]
        self._start("start_save", arguments)


class ShardLoader(_ShardJobs, RemoteLoader):
    """The shards of a table as readers of files.

    Args:
        config: config of the table.
        routing: routing of the table; one that shards know by name.
        labels: labels of the shards.
        ask: calls the shards.
    """

    def __init__(
        self, config: TableConfig, routing: Routing, labels: Sequence[str], ask: Ask
    ) -> None:
        super().__init__(labels, ask, ())
        self._config, self._routing = config, routing

    def start(self, plan: TablePlan, num_threads: int, *, is_check: bool) -> None:
        """Let each shard read its rows; a plan of one shard is that of the only shard here."""
        plans = [plan]
        if len(self.labels) > 1:
            numbers = range(len(self.labels))
            plans = [plan.of_shard(self._routing, i, self._config) for i in numbers]
        options = {"num_threads": num_threads, "is_check": is_check}
        self._start("start_load", [({**_plain_plan(part), **options},) for part in plans])


def _plain_plan(plan: TablePlan) -> dict[str, Any]:
    """Return a plan as it travels."""
    return {
        "config": json.dumps(plan.config),
        "partitions": runs_of(np.flatnonzero(plan.is_wanted).tolist()),
        "shard": None if plan.shard is None else tuple(plan.shard[0].placement_of(plan.shard[1])),
        "sources": [_plain_source(source) for source in plan.sources],
        "where": plan.where,
    }


def _plain_source(source: Source) -> tuple[Any, ...]:
    file = source.file
    place = _absolute(source.folder.path), file.path, file.kind, file.partitions
    return (*place, file.num_rows, file.num_bytes, file.crc32c, source.layer)


def _absolute(path: str) -> str:
    """Return the path as other processes of the machine need it."""
    local = local_path(path)
    return path if local is None else os.path.abspath(local)
