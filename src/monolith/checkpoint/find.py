"""Find the checkpoint of a path, and open it."""

import contextlib
import logging
import os
import posixpath
import re

from monolith.checkpoint.load import Checkpoint, open_checkpoint
from monolith.checkpoint.manifest import MANIFEST_SUFFIX
from monolith.checkpoint.state import read_checkpoint_state
from monolith.checkpoint.storage import exists, list_names, modified_time
from monolith.errors import NotFoundError, OpError
from monolith.util.stores import local_path

_log = logging.getLogger(__name__)


def load(path: "str | os.PathLike[str]", *, fallback: bool = False) -> Checkpoint:
    """Open the checkpoint of a prefix, or the current one of a directory.

    Args:
        path: a prefix or a directory.
        fallback: see `find`.

    Raises:
        NotFoundError: there is no checkpoint.
        OpError: the checkpoint cannot be opened; with `fallback`, none can.

    Example:
        >>> import tempfile, torch
        >>> from monolith.checkpoint import Contents, load, save
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = save(Contents(dense={"weight": torch.ones(2)}, step=7), path)
        ...     load(path).read_dense()
        {'weight': tensor([1., 1.])}
    """
    checkpoint = find(path, fallback=fallback)
    if checkpoint is None:
        raise NotFoundError(
            f"[checkpoint.load] expected a checkpoint, got none at {os.fspath(path)!r}"
        )
    return checkpoint


def find(path: "str | os.PathLike[str]", *, fallback: bool = False) -> Checkpoint | None:
    """Open the checkpoint of a prefix, or the current one of a directory; None without any.

    The newest checkpoint of a directory is current where there is no state file, for example of a
    run that was killed before its first one.

    Args:
        path: a prefix or a directory.
        fallback: read every byte of a directory's current checkpoint, and where something is wrong
            take the newest one before it that is whole, with a warning.

    Raises:
        OpError: the checkpoint cannot be opened; with `fallback`, none can, or a store does not
            answer.
    """
    place = os.fspath(path)
    if checkpoint_exists(place):
        return open_checkpoint(place)
    state = read_checkpoint_state(place)
    if state is not None and not fallback:
        return open_checkpoint(state.model_checkpoint_path)
    prefixes = list(reversed(existing_checkpoints(place)))
    if not fallback:
        return open_checkpoint(prefixes[0]) if prefixes else None
    if state is not None:
        listed = reversed(state.all_model_checkpoint_paths)
        prefixes = [state.model_checkpoint_path, *listed, *prefixes]
    return _newest_whole(list(dict.fromkeys(prefixes)))


def _newest_whole(prefixes: list[str]) -> Checkpoint | None:
    first: OpError | None = None
    for prefix in prefixes:
        try:
            checkpoint = open_checkpoint(prefix)
            checkpoint.verify()
        except OpError as error:
            if type(error) is OpError and local_path(prefix) is None:
                raise  # a store that does not answer has lost nothing
            _log.warning("the checkpoint %s is left out: %s", prefix, error)
            first = first or error
        else:
            return checkpoint
    if first is not None:
        raise first
    return None


def checkpoint_exists(prefix: "str | os.PathLike[str]") -> bool:
    """Whether there is a complete checkpoint of a prefix: its manifest exists."""
    return exists(os.fspath(prefix) + MANIFEST_SUFFIX)


def existing_checkpoints(directory: "str | os.PathLike[str]") -> list[str]:
    """Return the prefixes of all complete checkpoints of a directory, oldest save first."""
    folder = os.fspath(directory)
    prefixes = []
    for name in list_names(folder):
        if name.endswith(MANIFEST_SUFFIX):
            prefix = posixpath.join(folder, name.removesuffix(MANIFEST_SUFFIX))
            try:
                prefixes.append((_saved_time(prefix), _number_at_end(prefix), prefix))
            except NotFoundError:
                continue  # removed meanwhile
    return [prefix for *_, prefix in sorted(prefixes)]


def _saved_time(prefix: str) -> float:
    """Return when a checkpoint was saved; the time of the file if its manifest does not say so.

    A compaction writes a manifest anew, and a copy of a directory writes all of them.
    """
    with contextlib.suppress(OpError):
        saved = open_checkpoint(prefix).manifest.times.get("saved")
        if isinstance(saved, int | float):
            return saved
    return modified_time(prefix + MANIFEST_SUFFIX)


def _number_at_end(prefix: str) -> int:
    """Return the step of a name such as `model.ckpt-7`: some stores count time in seconds."""
    match = re.search(r"(\d+)$", prefix)
    return int(match[1]) if match else -1
