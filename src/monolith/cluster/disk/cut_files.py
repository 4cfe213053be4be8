"""`ShardFiles`: lets the shards of a cut write their files, by calls."""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from monolith.table.disk.remote.remote_save import (
    FileRequest,
    Part,
    PartState,
    RemoteFiles,
    WriteRequest,
)
from monolith.util.stores import local_path

Ask = Callable[[str, Sequence["tuple[Any, ...] | None"]], list[Any]]
"""(verb, arguments of each shard, None for no call) -> answers."""


class ShardFiles(RemoteFiles):
    """The shards of a cut as writers of its files.

    Args:
        parts: parts of the cut, one per shard.
        cuts: number of each shard's cut.
        call: calls the shards.
    """

    def __init__(self, parts: Sequence[Part], cuts: Sequence[int], call: Ask) -> None:
        self.parts, self._cuts, self._call = parts, cuts, call
        self._number = secrets.randbits(63)
        self._is_used = [True] * len(cuts)

    def start(self, request: WriteRequest, files: Sequence[Sequence[FileRequest]]) -> None:
        """Let each shard write its files."""
        self._is_used = [bool(requests) for requests in files]
        rate = None if request.rate is None else request.rate / max(1, sum(self._is_used))
        fields = {
            "folder": _absolute(request.place.folder.path),
            "config": json.dumps(request.facts.config),
            "num_update_calls": request.facts.num_update_calls,
            "latest_time": request.facts.latest_time,
            "is_link": request.is_link,
            "with_expired": request.with_expired,
            "keeps_cut": request.keeps_cut,
            "rate": rate,
            "num_threads": request.num_threads,
        }
        self._ask(
            "start_save",
            [
                (cut, {"files": [tuple(file) for file in part], **fields})
                for cut, part in zip(self._cuts, files, strict=True)
            ],
        )

    def states(self) -> list[PartState]:
        """Return the states of all shards."""
        states = iter(self._ask("save_state"))
        idle = PartState(True, 0, 0, 0, [])
        return [PartState(*next(states)) if is_used else idle for is_used in self._is_used]

    def hurry(self) -> None:
        """Lift the rate limits of all shards."""
        self._ask("hurry_save")

    def stop(self) -> bool:
        """Stop all shards."""
        return all(self._ask("stop_save"))

    def _ask(self, verb: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call each shard that has files, with the number of the save first."""
        arguments = arguments or [()] * len(self._cuts)
        calls = zip(self._is_used, arguments, strict=True)
        return self._call(verb, [(self._number, *rest) if used else None for used, rest in calls])


def _absolute(path: str) -> str:
    """Return the path as other processes of the machine need it."""
    local = local_path(path)
    return path if local is None else os.path.abspath(local)
