"""Find the address of this host under YARN, and talk to Primus' application master."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from monolith.control import app_master
from monolith.control.app_master import AppMaster
from monolith.control.grpc_extra import load_grpc
from monolith.environment import app_master_address
from monolith.errors import OpError
from monolith.util.host_address import local_host

__all__ = [
    "create_primus_save_point",
    "get_local_host",
    "maybe_finish_application",
    "maybe_kill_application",
]

_log = logging.getLogger(__name__)

_CHANNEL_MAP: dict[str, Any] = {}
_CHANNEL_LOCK = threading.Lock()

get_local_host = local_host


def _get_primus_am_host() -> str:
    return app_master_address()


def _get_channel(addr: str) -> Any:
    """Return the channel to an address, the same in all threads, without encryption."""
    grpc = load_grpc()
    with _CHANNEL_LOCK:
        channel = _CHANNEL_MAP.get(addr)
        if channel is None:
            channel = _CHANNEL_MAP[addr] = grpc.insecure_channel(addr)
        return channel


def maybe_kill_application(reason: str) -> bool:
    """Let the application master end the application as failed; whether it agreed.

    Returns:
        False if there is no application master, or it does not answer within 10 seconds.
    """
    address = _get_primus_am_host()
    if not address:
        _log.info("Current framework doesn't support kill. Ignore killing...")
        return False
    try:
        AppMaster(_get_channel(address)).kill(reason)
    except OpError as error:
        _log.warning("Failed to kill the application: %s", error)
        return False
    _log.info("Killed the application: %s", reason)
    return True


def maybe_finish_application() -> bool | None:
    """Let the application master end the application as succeeded; whether it agreed.

    Returns:
        None if there is no application master, False if it does not answer within 10 seconds.
    """
    address = _get_primus_am_host()
    if not address:
        return None
    try:
        AppMaster(_get_channel(address)).succeed()
    except OpError as error:
        _log.warning("Failed to finish the application: %s", error)
        return False
    _log.info("Finished the application.")
    return True


def create_primus_save_point(
    dst: str,
    *,
    poll_seconds: float = app_master.POLL_SECONDS,
    limit_seconds: float = app_master.SAVEPOINT_SECONDS,
    sleep: Callable[[float], object] = time.sleep,
) -> bool | None:
    """Let the application master make a savepoint, and wait for its final state.

    Args:
        dst: Folder of the savepoint.
        poll_seconds: Seconds between two looks at its state.
        limit_seconds: Maximum seconds of the whole wait.
        sleep: Waits between two looks.

    Returns:
        Whether the savepoint is made; None if there is no application master.
    """
    address = _get_primus_am_host()
    if not address:
        return None
    try:
        AppMaster(_get_channel(address)).create_savepoint(
            dst, poll_seconds=poll_seconds, limit_seconds=limit_seconds, sleep=sleep
        )
    except OpError as error:
        _log.error("Failed to create the savepoint %s: %s", dst, error)
        return False
    _log.info("Created the savepoint %s.", dst)
    return True
