"""`RankTables`: the shards of this rank, and the way to those of all ranks by calls."""

import socket
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from monolith.cluster.ranks.rank_group import RankGroup
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.server_host import ServerHost
from monolith.cluster.servers import LocalServers, Servers
from monolith.cluster.shard_hosts import GroupHost
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.server_loop import ServerLoop

if TYPE_CHECKING:
    from typing_extensions import Self


class RankTables:
    """The tables of a job of ranks. Each rank holds a shard of every table. Close it.

    Training reads and steps rows by collectives (`RanksEngine`). Everything else, such as saves,
    restores, evictions and evaluations, goes by calls, as to parameter servers: any rank may make
    them, and the rank that is called answers on threads of its own. Ranks of several machines talk
    with keys that rank 0 makes for the job.

    Args:
        group: the ranks.

    Attributes:
        group: the ranks.
        servers: all ranks as the servers of their shards.
        local_rank: number of this rank among those of its machine.
    """

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self._host: ServerHost | None = None
        self._loop: ServerLoop | None = None
        self.servers: Servers
        self._local: LocalServers | None = None
        self._remote: RemoteServers | None = None
        self.local_rank = 0
        if group.size == 1:
            self.servers = self._local = LocalServers(1)
            return
        machines = group.control.gather(socket.gethostname())
        is_one_machine = len(set(machines)) == 1
        self.local_rank = machines[: group.rank].count(machines[group.rank])
        keys = None if is_one_machine else self._keys()
        address = "127.0.0.1" if is_one_machine else socket.gethostbyname(socket.gethostname())
        self._host = ServerHost(group.rank, group.size, label=f"rank {group.rank}")
        self._loop = ServerLoop(self._host, f"tcp://{address}:0", keys=keys)
        self._loop.start()
        self.servers = self._remote = connect_servers(
            group.control.gather(self._loop.address), keys=keys, timeout_seconds=group.wait_seconds
        )

    def _keys(self) -> CurveKeys:
        keys = asdict(CurveKeys.new()) if self.group.rank == 0 else None
        return CurveKeys(**self.group.control.share(keys))

    def own_shards(self, names: Sequence[str]) -> GroupHost:
        """Return the shards of this rank of some tables, which are open."""
        if self._local is not None:
            return self._local.groups(names)[0]
        assert self._host is not None
        return self._host.group(list(names))

    def give_up(self) -> None:
        """End the waits of this rank for others: the job has failed."""
        self.group.cancel()
        if self._remote is not None:
            self._remote.close()

    def close(self) -> None:
        """Free the shards of this rank. The other ranks call no more. Closing twice is fine."""
        if self._local is not None:
            self._local.close()
        if self._remote is not None:
            self._remote.close()
        if self._loop is not None:
            self._loop.close()
        if self._host is not None:
            self._host.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.group.control.gather(None)  # no rank calls this one any more
            else:
                self.group.fail(error)
        finally:
            self.close()
