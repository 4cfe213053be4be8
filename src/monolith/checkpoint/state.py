"""The state files `checkpoint` and `monolith_checkpoint`, and the names of checkpoints.

`checkpoint` says which checkpoints a directory has and which one is current; `monolith_checkpoint`
which ones are never deleted, when the last one was saved, and what kind of tables it holds.
"""

import enum
import logging
import os
import posixpath
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from monolith.checkpoint.storage import exists, isabs, path_of, read_file, write_file
from monolith.checkpoint.text_format import Field, format_message, parse_message
from monolith.errors import DataLossError, NotFoundError, OpError

_log = logging.getLogger(__name__)

STATE_FILE = "checkpoint"
MONOLITH_STATE_FILE = "monolith_checkpoint"
MANIFEST_SUFFIX = ".manifest.json"
"""`<prefix>.manifest.json` is there: so is the checkpoint."""

_STEP = re.compile(r"[0-9]+")


class HashTableType(enum.IntEnum):
    """What kind of tables a checkpoint holds."""

    UNKNOWN = 0
    CUCKOO_HASH_MAP = 1
    MULTI_CUCKOO_HASH_MAP = 2


# Fields in the order of their numbers, in which they are written.
_SCHEMA: Mapping[str, Field] = MappingProxyType(
    {
        "model_checkpoint_path": Field(str),
        "all_model_checkpoint_paths": Field(str, is_repeated=True),
        "all_model_checkpoint_timestamps": Field(float, is_repeated=True),
        "last_preserved_timestamp": Field(float),
    }
)
_MONOLITH_SCHEMA: Mapping[str, Field] = MappingProxyType(
    {
        "exempt_model_checkpoint_paths": Field(str, is_repeated=True),
        "last_checkpoint_save_timestamp": Field(int),
        "builtin_hash_table_type": Field(tuple(kind.name for kind in HashTableType)),
    }
)


@dataclass(frozen=True)
class CheckpointState:
    """Content of the file `checkpoint`.

    Args:
        model_checkpoint_path: prefix of the current checkpoint.
        all_model_checkpoint_paths: prefixes of all that are kept, oldest first.
        all_model_checkpoint_timestamps: when each of them was saved, seconds since 1970.
        last_preserved_timestamp: until when checkpoints are kept because of their age.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: Sequence[str] = ()
    all_model_checkpoint_timestamps: Sequence[float] = ()
    last_preserved_timestamp: float | None = None


@dataclass(frozen=True)
class MonolithCheckpointState:
    """Content of the file `monolith_checkpoint`.

    Args:
        exempt_model_checkpoint_paths: checkpoints that are never deleted.
        last_checkpoint_save_timestamp: seconds since 1970.
        builtin_hash_table_type: of the tables.
    """

    exempt_model_checkpoint_paths: Sequence[str] = ()
    last_checkpoint_save_timestamp: int | None = None
    builtin_hash_table_type: int | None = None


def read_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]", filename: str | None = None
) -> CheckpointState | None:
    """The state of a directory, its paths absolute or below the directory.

    Returns:
        None where there is no file, and with a warning where it cannot be read or says nothing.
    """
    directory = os.fspath(checkpoint_dir)
    values = _read(posixpath.join(directory, filename or STATE_FILE), _SCHEMA)
    if values is None:
        return None
    if not values.get("model_checkpoint_path"):
        _log.warning("%s/%s names no checkpoint", directory, filename or STATE_FILE)
        return None
    current = path_of(directory, values["model_checkpoint_path"])
    every = [path_of(directory, path) for path in values.get("all_model_checkpoint_paths", ())]
    return CheckpointState(
        current,
        every if current in every else [*every, current],
        values.get("all_model_checkpoint_timestamps", ()),
        values.get("last_preserved_timestamp"),
    )


def write_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]",
    state: CheckpointState,
    filename: str | None = None,
    *,
    relative: bool = False,
) -> None:
    """Replace the state of a directory in one step.

    Args:
        checkpoint_dir: the directory.
        state: what is written.
        filename: other than `checkpoint`.
        relative: paths below the directory are written relative to it, so that it can be moved;
            always where the directory itself is relative, for a reader joins the two.

    Raises:
        OpError: it cannot be written.
    """
    directory = os.fspath(checkpoint_dir)
    values = asdict(state)
    if relative or not isabs(directory):
        values["model_checkpoint_path"] = _relative(directory, state.model_checkpoint_path)
        values["all_model_checkpoint_paths"] = [
            _relative(directory, path) for path in state.all_model_checkpoint_paths
        ]
    path = posixpath.join(directory, filename or STATE_FILE)
    write_file(path, format_message(_SCHEMA, values).encode())


def _relative(directory: str, path: str) -> str:
    start = directory.rstrip("/") + "/"
    return path.removeprefix(start) if directory else path


def get_monolith_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]",
    filename: str | None = None,
    remove_invalid_path: bool = False,
) -> MonolithCheckpointState | None:
    """The state in `monolith_checkpoint`.

    Args:
        checkpoint_dir: the directory.
        filename: another file of it.
        remove_invalid_path: exempt paths become those below the directory if they are relative,
            and go, with a warning, where there is no checkpoint.

    Returns:
        None, with a warning, where there is no file or it cannot be read.
    """
    directory = os.fspath(checkpoint_dir)
    path = posixpath.join(directory, filename or MONOLITH_STATE_FILE)
    values = _read(path, _MONOLITH_SCHEMA, missing=logging.WARNING)
    if values is None:
        return None
    if remove_invalid_path:
        paths = [path_of(directory, p) for p in values.get("exempt_model_checkpoint_paths", ())]
        values["exempt_model_checkpoint_paths"] = [path for path in paths if _is_there(path)]
    return MonolithCheckpointState(**values)


def _is_there(path: str) -> bool:
    is_there = checkpoint_exists(path)
    if not is_there:
        _log.warning("the exempt checkpoint %s is not there", path)
    return is_there


def write_monolith_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]",
    state: MonolithCheckpointState,
    filename: str | None = None,
) -> None:
    """Replace the state in `monolith_checkpoint` in one step; `OpError` if that fails."""
    path = posixpath.join(os.fspath(checkpoint_dir), filename or MONOLITH_STATE_FILE)
    write_file(path, format_message(_MONOLITH_SCHEMA, asdict(state)).encode())


def _read(
    path: str, schema: Mapping[str, Field], missing: int = logging.INFO
) -> dict[str, Any] | None:
    try:
        return parse_message(schema, read_file(path).decode())
    except NotFoundError:
        _log.log(missing, "there is no %s", path)
    except (DataLossError, UnicodeDecodeError) as error:
        _log.warning("%s is no state file: %s", path, error)
    except OpError as error:
        _log.warning("%s cannot be read: %s", path, error)
    return None


def checkpoint_exists(prefix: str) -> bool:
    """Whether there is a complete checkpoint: its manifest is there."""
    return exists(prefix + MANIFEST_SUFFIX)


class _Cached(NamedTuple):
    step: int
    state: CheckpointState | None


_ckpt_state_cache_map: dict[str, _Cached] = {}
_ckpt_state_cache_lock = threading.Lock()


def get_latest_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]", global_step_value: int
) -> CheckpointState | None:
    """The state of a directory, read again only for a larger step, or where there was none.

    Safe from any thread.
    """
    directory = os.fspath(checkpoint_dir)
    with _ckpt_state_cache_lock:
        cached = _ckpt_state_cache_map.get(directory)
        if cached is None or cached.state is None or global_step_value > cached.step:
            cached = _Cached(global_step_value, read_checkpoint_state(directory))
            _ckpt_state_cache_map[directory] = cached
        return cached.state


class SaveHelper:
    """Names of the checkpoints `<basename>-<step>`.

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
        """The prefix of the checkpoint of a step."""
        return f"{self._basename}-{step}"

    @staticmethod
    def get_ckpt_asset_dir(prefix: str) -> str:
        """The folder of the tables of a checkpoint."""
        return f"{prefix}.assets/"

    @staticmethod
    def get_global_step_value(prefix: str) -> int:
        """The number after the last `-`; 0 without one.

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
        """The steps of all checkpoints in the state file of the directory."""
        state = read_checkpoint_state(posixpath.dirname(self._basename) or ".")
        paths = state.all_model_checkpoint_paths if state else ()
        return {self.get_global_step_value(path) for path in paths}
