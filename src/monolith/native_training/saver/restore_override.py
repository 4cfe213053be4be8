"""Which checkpoint a job starts from, if not from the current one of its directory."""

import functools
import logging
import os
import posixpath
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from monolith.checkpoint.state import (
    MONOLITH_STATE_FILE,
    STATE_FILE,
    CheckpointState,
    MonolithCheckpointState,
    read_checkpoint_state,
    read_monolith_checkpoint_state,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.checkpoint.storage import exists, isabs, write_file

_log = logging.getLogger(__name__)

RESTORE_CKPT = "restore_ckpt"
"""File of a directory: the override was applied."""

_MAX_RETRIES = 5
_RETRY_SECONDS = 1.0
_lock = threading.Lock()


@dataclass(frozen=True)
class RestoreSettings:
    """What a job asks for.

    Args:
        restore_ckpt: checkpoint to start from; its base name counts.
        restore_dir: directory of another job to start from.
        mode: "train" applies `restore_ckpt` once; other modes do at each start.
    """

    restore_ckpt: str | None = None
    restore_dir: str | None = None
    mode: str = "train"


def get_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]",
    latest_filename: str | None = None,
    *,
    settings: Any = None,
    wait: Callable[[float], None] = time.sleep,
) -> CheckpointState | None:
    """The state of a directory, with the checkpoint that the settings ask for as the current one.

    Safe from any thread; one call at a time.

    Args:
        checkpoint_dir: the directory.
        latest_filename: another state file than `checkpoint`; it has no override.
        settings: fields `restore_ckpt` and `mode` count (`RestoreSettings`); None: no override.
        wait: waits for some seconds before the file is read again.

    Returns:
        None where there is no state file.

    Raises:
        Exception: the file is there, but could not be read in 5 more tries.
    """
    directory, filename = os.fspath(checkpoint_dir), latest_filename or STATE_FILE
    with _lock:
        state = _read(directory, filename, wait)
        wanted = getattr(settings, "restore_ckpt", None)
        if state is None or not wanted or filename != STATE_FILE:
            return state
        try:
            return _applied(directory, state, wanted, settings)
        except Exception:
            _log.exception("the override by %s=%s failed", RESTORE_CKPT, wanted)
            return state


def gen_get_checkpoint_state(
    settings: Any = None, *, wait: Callable[[float], None] = time.sleep
) -> Callable[..., CheckpointState | None]:
    """Return `get_checkpoint_state` with the settings of a job; nothing else is changed.

    The settings are read at each call, so that a later change of them counts.

    Example:
        >>> import tempfile
        >>> get_state = gen_get_checkpoint_state(RestoreSettings("model.ckpt-30"))
        >>> get_state(tempfile.mkdtemp()) is None
        True
    """
    return functools.partial(get_checkpoint_state, settings=settings, wait=wait)


def _read(directory: str, filename: str, wait: Callable[[float], None]) -> CheckpointState | None:
    for num_left in reversed(range(_MAX_RETRIES + 1)):
        state = read_checkpoint_state(directory, filename)
        if state is not None or not exists(posixpath.join(directory, filename)):
            return state
        if num_left:
            wait(_RETRY_SECONDS)
    raise Exception("read ckpt error!")


def _applied(directory: str, state: CheckpointState, name: str, settings: Any) -> CheckpointState:
    current = state.model_checkpoint_path
    wanted = posixpath.join(posixpath.dirname(current), posixpath.basename(name))
    is_training = str(getattr(settings, "mode", "train")).lower() == "train"
    marker = posixpath.join(directory, RESTORE_CKPT)
    if wanted not in state.all_model_checkpoint_paths:
        _log.warning("%s is not one of %s", wanted, list(state.all_model_checkpoint_paths))
        return state
    if wanted == current:
        _log.warning("%s is the current checkpoint already", wanted)
        if is_training and not exists(marker):
            write_file(marker, wanted.encode())  # else a later start would go back to it
        return state
    if is_training and exists(marker):
        return state
    state = replace(state, model_checkpoint_path=wanted)
    if is_training:
        write_file(marker, wanted.encode())
        write_checkpoint_state(directory, state)
    return state


def copy_checkpoint_state(model_dir: "str | os.PathLike[str]", settings: Any) -> None:
    """Let a new directory start from a checkpoint of another job, `settings.restore_dir`.

    The checkpoint is not copied: the state names it where it is, and it is exempt from deletion. A
    directory that has a state stays as it is. `monolith_checkpoint` is there afterwards in any
    case, because other workers wait for it.
    """
    directory, source = os.fspath(model_dir), os.fspath(settings.restore_dir)
    try:
        _copy(directory, source, getattr(settings, "restore_ckpt", None))
    finally:
        if not exists(posixpath.join(directory, MONOLITH_STATE_FILE)):
            write_monolith_checkpoint_state(directory, MonolithCheckpointState())


def _copy(directory: str, source: str, wanted: str | None) -> None:
    state = read_checkpoint_state(source)
    if state is None:
        _log.warning("there is no checkpoint to restore in %s", source)
        return
    if exists(posixpath.join(directory, STATE_FILE)):
        return
    names = {posixpath.basename(path): path for path in state.all_model_checkpoint_paths}
    prefix = names.get(posixpath.basename(wanted or ""), state.model_checkpoint_path)
    if wanted and posixpath.basename(prefix) != posixpath.basename(wanted):
        _log.warning("%s is not in %s; the current checkpoint %s is taken", wanted, source, prefix)
    prefix = prefix if isabs(prefix) else os.path.abspath(prefix)  # it is in another directory
    write_checkpoint_state(directory, CheckpointState(prefix, [prefix]))
    write_file(posixpath.join(directory, RESTORE_CKPT), prefix.encode())
    ours = read_monolith_checkpoint_state(directory) or MonolithCheckpointState()
    other = read_monolith_checkpoint_state(source) or MonolithCheckpointState()
    exempt = [*ours.exempt_model_checkpoint_paths, prefix]
    kind = other.builtin_hash_table_type
    if kind is None:
        kind = ours.builtin_hash_table_type
    merged = replace(
        ours,
        exempt_model_checkpoint_paths=list(dict.fromkeys(exempt)),
        builtin_hash_table_type=kind,
    )
    write_monolith_checkpoint_state(directory, merged)
