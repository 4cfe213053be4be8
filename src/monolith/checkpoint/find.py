"""Which checkpoint of a directory to restore."""

import logging
import os
import posixpath

from monolith.checkpoint.load import Checkpoint, open_checkpoint
from monolith.checkpoint.state import MANIFEST_SUFFIX, checkpoint_exists, read_checkpoint_state
from monolith.checkpoint.storage import list_names, modified_time
from monolith.errors import NotFoundError, OpError

_log = logging.getLogger(__name__)


def find_checkpoint(
    checkpoint_dir: "str | os.PathLike[str]", *, fallback: bool = False
) -> Checkpoint | None:
    """The current checkpoint of a directory; None where there is none.

    Args:
        checkpoint_dir: the directory.
        fallback: read every byte, and where something is wrong take the newest one before it that
            is whole, with a warning; also without a state file.

    Raises:
        OpError: the current one cannot be opened; with `fallback`, none can.
    """
    directory = os.fspath(checkpoint_dir)
    state = read_checkpoint_state(directory)
    if not fallback:
        return None if state is None else open_checkpoint(state.model_checkpoint_path)
    wanted = [] if state is None else [state.model_checkpoint_path]
    listed = [] if state is None else list(reversed(state.all_model_checkpoint_paths))
    first: OpError | None = None
    for prefix in dict.fromkeys([*wanted, *listed, *reversed(existing_checkpoints(directory))]):
        try:
            checkpoint = open_checkpoint(prefix)
            checkpoint.verify()
        except OpError as error:
            _log.warning("the checkpoint %s is left out: %s", prefix, error)
            first = first or error
        else:
            return checkpoint
    if first is not None:
        raise first
    return None


def locate_checkpoint(
    path: "str | os.PathLike[str]", *, fallback: bool = False
) -> Checkpoint | None:
    """The checkpoint of a prefix, or the current one of a directory; None if there is none.

    Where a run was killed before it wrote its first state file, the newest one is current.

    Args:
        path: a prefix, or a directory.
        fallback: of a directory; see `find_checkpoint`.

    Raises:
        OpError: the checkpoint cannot be opened; with `fallback`, none can.
    """
    place = os.fspath(path)
    if checkpoint_exists(place):
        return open_checkpoint(place)
    found = find_checkpoint(place, fallback=fallback)
    if found is None and (prefixes := existing_checkpoints(place)):
        return open_checkpoint(prefixes[-1])
    return found


def existing_checkpoints(checkpoint_dir: "str | os.PathLike[str]") -> list[str]:
    """Prefixes of all complete checkpoints of a directory, oldest first."""
    directory = os.fspath(checkpoint_dir)
    found = []
    for name in list_names(directory):
        if name.endswith(MANIFEST_SUFFIX):
            path = posixpath.join(directory, name)
            try:
                found.append((modified_time(path), path.removesuffix(MANIFEST_SUFFIX)))
            except NotFoundError:
                continue  # removed meanwhile
    return [prefix for _, prefix in sorted(found)]
