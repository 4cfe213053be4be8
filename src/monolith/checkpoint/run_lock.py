"""Let one run at a time save into a directory."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from monolith.checkpoint.lease import Lease
from monolith.checkpoint.storage import make_folder, storage_errors
from monolith.errors import FailedPreconditionError
from monolith.util.stores import local_path

_RUN_LOCK = ".run.lock"


@contextlib.contextmanager
def only_run(directory: str) -> Iterator[Callable[[], None]]:
    """Make a directory and keep other runs out of it: by a lock, or in a store by a lease.

    A lock ends with the block or the process, also if the process is killed. The lease of a killed
    process ends when its time is over. Local disks without locks keep no run out.

    Yields:
        A function that raises FailedPreconditionError if another run has taken the lease over.

    Raises:
        FailedPreconditionError: another run saves there.
        OpError: the directory cannot be written.
    """
    make_folder(directory)
    folder = local_path(directory)
    if folder is None:
        lease = Lease(directory)
        with lease.held():
            yield lease.check
        return
    with contextlib.ExitStack() as stack:
        with storage_errors("CheckpointHook", f"write {directory}"):
            path = os.path.join(folder, _RUN_LOCK)
            lock = stack.enter_context(open(path, "a+b", buffering=0))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            number = lock.read().decode() or "?"
            raise FailedPreconditionError(
                f"[CheckpointHook] expected one run that saves into {directory}, got a second "
                f"beside that of process {number}; choose another folder, or end it"
            ) from error
        except OSError:  # some network disks have no locks; each save says so
            pass
        else:
            with contextlib.suppress(OSError):  # the disk may be full; the number is for readers
                lock.truncate(0)
                lock.write(str(os.getpid()).encode())
        yield lambda: None
