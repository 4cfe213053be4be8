"""Which parameter servers have been initialised since they started."""

import logging
import re

from monolith.cluster.servers import LocalServers, current_servers
from monolith.errors import FailedPreconditionError
from monolith.train.driver import Run

_log = logging.getLogger(__name__)

_LABEL = re.compile(r"/job:ps/task:(\d+)(/.*)?")
_MARK = "initialized"


class PsMonitor:
    """Marks servers, in their own memory: one that was restarted has no mark.

    Args:
        ps_num: number of servers.
        servers: the servers; those of the run around the caller if None.
    """

    def __init__(self, ps_num: int, servers: LocalServers | None = None) -> None:
        self._ps_num, self._servers = ps_num, servers

    def is_ps_uninitialized(self, run: Run | None, device: str) -> bool:
        """Whether a server has no mark; true for what is no server."""
        found = _LABEL.fullmatch(device)
        servers = self._known_servers()
        if found is None or servers is None:
            return True
        index = int(found[1])
        return index >= min(self._ps_num, len(servers)) or _MARK not in servers[index].marks

    def setup_ps_initialized_state(self, run: Run | None) -> None:
        """Mark all servers."""
        servers = self._known_servers()
        for index in range(min(self._ps_num, len(servers or ()))):
            assert servers is not None
            servers[index].marks.add(_MARK)
        _log.info("%d parameter servers are marked as initialised", self._ps_num)

    def _known_servers(self) -> LocalServers | None:
        if self._servers is not None:
            return self._servers
        try:
            return current_servers()
        except FailedPreconditionError:
            return None
