"""Names of checkpoints, and state files as the reference system reads them."""

import logging
import os
import posixpath
import re
import threading
from dataclasses import replace
from typing import NamedTuple

from monolith.checkpoint.find import checkpoint_exists
from monolith.checkpoint.state import (
    CheckpointState,
    MonolithCheckpointState,
    read_checkpoint_state,
    read_monolith_checkpoint_state,
)
from monolith.checkpoint.storage import path_of

_log = logging.getLogger(__name__)

_STEP = re.compile(r"[0-9]+")


def get_monolith_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]",
    filename: str | None = None,
    remove_invalid_path: bool = False,
) -> MonolithCheckpointState | None:
    """Read the state in `monolith_checkpoint`.

    Args:
        checkpoint_dir: the directory.
        filename: another file of the directory.
        remove_invalid_path: whether relative exempt paths become those below the directory, and
            paths without a checkpoint go, with a warning.

    Returns:
        None, with a warning, where there is no file or the file cannot be read.
    """
    directory = os.fspath(checkpoint_dir)
    state = read_monolith_checkpoint_state(directory, filename)
    if state is None or not remove_invalid_path:
        return state
    paths = [path_of(directory, path) for path in state.exempt_model_checkpoint_paths]
    return replace(state, exempt_model_checkpoint_paths=[p for p in paths if _is_there(p)])


def _is_there(path: str) -> bool:
    is_there = checkpoint_exists(path)
    if not is_there:
        _log.warning("the exempt checkpoint %s is not there", path)
    return is_there


class _Cached(NamedTuple):
    step: int
    state: CheckpointState | None


_ckpt_state_cache_map: dict[str, _Cached] = {}
_ckpt_state_cache_lock = threading.Lock()


def get_latest_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]", global_step_value: int
) -> CheckpointState | None:
    """Return the state of a directory; the file is re-read only for a larger step, or after None.

    Thread-safe.
    """
    directory = os.fspath(checkpoint_dir)
    with _ckpt_state_cache_lock:
        cached = _ckpt_state_cache_map.get(directory)
        if cached is None or cached.state is None or global_step_value > cached.step:
            cached = _Cached(global_step_value, read_checkpoint_state(directory))
            _ckpt_state_cache_map[directory] = cached
        return cached.state


class SaveHelper:
    """Names the checkpoints `<basename>-<step>`.

    Args:
        basename: path of the checkpoints without their step.

    Example:
        >>> helper = SaveHelper("m/ckpt")
        >>> helper.get_ckpt_prefix(7), helper.get_ckpt_asset_dir("m/ckpt-7")
        ('m/ckpt-7', 'm/ckpt-7.assets/')
        >>> helper.get_global_step_value("m/ckpt-300")
        300
    """

    def __init__(self, basename: "str | os.PathLike[str]") -> None:
        self._basename = os.fspath(basename)

    def get_ckpt_prefix(self, step: int) -> str:
        """Return the prefix of the checkpoint of a step."""
        return f"{self._basename}-{step}"

    @staticmethod
    def get_ckpt_asset_dir(prefix: str) -> str:
        """Return the folder of the tables of a checkpoint."""
        return f"{prefix}.assets/"

    @staticmethod
    def get_global_step_value(prefix: str) -> int:
        """Return the number after the last `-`, or 0 without one.

        Raises:
            ValueError: there is no number.
        """
        name, mark, step = prefix.rpartition("-")
        if not mark:
            return 0
        if not _STEP.fullmatch(step):
            raise ValueError(
                f"[SaveHelper] expected a step after the last '-', got {prefix!r}; "
                f"{name!r} may not be a base name"
            )
        return int(step)

    def get_existing_checkpoint_steps(self) -> set[int]:
        """Return the steps of all checkpoints in the state file of the directory."""
        state = read_checkpoint_state(posixpath.dirname(self._basename) or ".")
        paths = state.all_model_checkpoint_paths if state else ()
        return {self.get_global_step_value(path) for path in paths}
