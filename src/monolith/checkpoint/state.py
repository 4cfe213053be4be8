"""Read and write the state files `checkpoint` and `monolith_checkpoint` of a directory.

`checkpoint` lists the checkpoints of the directory and names the current one; `monolith_checkpoint`
lists those that are never removed, and has time and type of the last save.
"""

import enum
import logging
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from monolith.checkpoint.storage import exists, isabs, path_of, read_file, write_file
from monolith.checkpoint.text_format import Field, format_message, parse_message
from monolith.errors import DataLossError, NotFoundError, OpError

_log = logging.getLogger(__name__)

STATE_FILE = "checkpoint"
MONOLITH_STATE_FILE = "monolith_checkpoint"


class HashTableType(enum.IntEnum):
    """Type of the tables of a checkpoint, as `monolith_checkpoint` names it."""

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
        all_model_checkpoint_paths: prefixes of the checkpoints that are kept, oldest first.
        all_model_checkpoint_timestamps: times of their saves, seconds since 1970.
        last_preserved_timestamp: until when checkpoints are kept because of their age.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: Sequence[str] = ()
    all_model_checkpoint_timestamps: Sequence[float] = ()
    last_preserved_timestamp: float | None = None

    def paths_in(self, directory: "str | os.PathLike[str]") -> list[str]:
        """Return the checkpoints in a directory; those elsewhere are another run's to remove."""
        folder = os.fspath(directory).rstrip("/")
        return [p for p in self.all_model_checkpoint_paths if posixpath.dirname(p) == folder]


@dataclass(frozen=True)
class MonolithCheckpointState:
    """Content of the file `monolith_checkpoint`.

    Args:
        exempt_model_checkpoint_paths: checkpoints that are never removed.
        last_checkpoint_save_timestamp: time of the last save, seconds since 1970.
        builtin_hash_table_type: a `HashTableType`.
    """

    exempt_model_checkpoint_paths: Sequence[str] = ()
    last_checkpoint_save_timestamp: int | None = None
    builtin_hash_table_type: int | None = None


def read_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]", filename: str | None = None
) -> CheckpointState | None:
    """Read the state of a directory, with paths that are absolute or below the directory.

    Returns:
        None where there is no file, and with a warning where the file cannot be read or names no
        checkpoint.
    """
    directory = os.fspath(checkpoint_dir)
    values = _read(posixpath.join(directory, filename or STATE_FILE), _SCHEMA)
    if values is None:
        return None
    if not values.get("model_checkpoint_path"):
        _log.warning("%s/%s names no checkpoint", directory, filename or STATE_FILE)
        return None
    current = path_of(directory, values["model_checkpoint_path"])
    paths = [path_of(directory, path) for path in values.get("all_model_checkpoint_paths", ())]
    return CheckpointState(
        current,
        paths if current in paths else [*paths, current],
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
        state: the new state.
        filename: another file than `checkpoint`.
        relative: whether paths below the directory are written relative to the directory, so that
            the directory can be moved; always where the directory itself is relative, because a
            reader joins the two.

    Raises:
        OpError: the file cannot be written.
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


def read_monolith_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]", filename: str | None = None
) -> MonolithCheckpointState | None:
    """Read the state in `monolith_checkpoint`, or in another file of the directory.

    Returns:
        None, with a warning, where there is no file or the file cannot be read.
    """
    path = posixpath.join(os.fspath(checkpoint_dir), filename or MONOLITH_STATE_FILE)
    values = _read(path, _MONOLITH_SCHEMA, missing=logging.WARNING)
    return None if values is None else MonolithCheckpointState(**values)


def write_monolith_checkpoint_state(
    checkpoint_dir: "str | os.PathLike[str]",
    state: MonolithCheckpointState,
    filename: str | None = None,
) -> None:
    """Replace the state in `monolith_checkpoint` in one step.

    Raises:
        OpError: the file cannot be written.
    """
    path = posixpath.join(os.fspath(checkpoint_dir), filename or MONOLITH_STATE_FILE)
    write_file(path, format_message(_MONOLITH_SCHEMA, asdict(state)).encode())


def record_save_time(
    checkpoint_dir: "str | os.PathLike[str]",
    seconds: float,
    table_type: HashTableType = HashTableType.CUCKOO_HASH_MAP,
    *,
    is_new_only: bool = False,
) -> None:
    """Write time and type of the last save into `monolith_checkpoint`; exempt paths stay.

    A file that cannot be read stays as it is, because it may list exempt paths.

    Args:
        checkpoint_dir: the directory.
        seconds: time of the save, since 1970.
        table_type: type of the tables.
        is_new_only: whether a file that exists stays as it is.
    """
    directory = os.fspath(checkpoint_dir)
    is_there = exists(posixpath.join(directory, MONOLITH_STATE_FILE))
    if is_there and is_new_only:
        return
    state = read_monolith_checkpoint_state(directory) if is_there else MonolithCheckpointState()
    if state is not None:
        state = replace(
            state,
            builtin_hash_table_type=int(table_type),
            last_checkpoint_save_timestamp=int(seconds),
        )
        write_monolith_checkpoint_state(directory, state)


def exempt_names(checkpoint_dir: "str | os.PathLike[str]") -> set[str] | None:
    """Return the base names of the checkpoints that `monolith_checkpoint` exempts from removal.

    Returns:
        None where the file exists and cannot be read.
    """
    directory = os.fspath(checkpoint_dir)
    if not exists(posixpath.join(directory, MONOLITH_STATE_FILE)):
        return set()
    state = read_monolith_checkpoint_state(directory)
    if state is None:
        return None
    return {posixpath.basename(path) for path in state.exempt_model_checkpoint_paths}


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
