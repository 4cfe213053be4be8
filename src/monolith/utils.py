"""Give copies of files and the paths of the installation."""

from monolith.native_training.util.files import copy_file, copy_tree
from monolith.native_training.util.paths import find_main, get_libops_path
from monolith.train.driver import PREEMPTION_ERRORS

__all__ = ["CopyFile", "CopyRecursively", "enable_monkey_patch", "find_main", "get_libops_path"]

_PREEMPTION_ERRORS = PREEMPTION_ERRORS


def enable_monkey_patch() -> None:
    """Change nothing: runs recover from `_PREEMPTION_ERRORS` without a patch."""


def CopyFile(  # noqa: N802
    src: str, dst: str, overwrite: bool = True, skip_nonexist: bool = True, max_retries: int = 5
) -> None:
    """Copy a file; see `copy_file`."""
    copy_file(src, dst, overwrite=overwrite, skip_missing=skip_nonexist, max_retries=max_retries)


def CopyRecursively(  # noqa: N802
    src: str, dst: str, max_workers: int = 1, skip_nonexist: bool = True, max_retries: int = 5
) -> None:
    """Copy a folder; see `copy_tree`."""
    copy_tree(
        src, dst, max_workers=max_workers, skip_missing=skip_nonexist, max_retries=max_retries
    )
