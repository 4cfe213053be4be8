"""Become a command that the kernel kills when the launcher ends: `guarded_exec.py PID COMMAND...`.

The launcher starts each role through this file, with an interpreter that loads nothing else (about
20 ms). On Linux the process asks for SIGKILL at the end of its parent, which also covers a
launcher that was killed itself, and then turns into the command: same process, same pipes. The
request needs no code between fork and exec in the launcher, unlike `preexec_fn`, and no help from
the command, unlike a pipe that the command would have to watch. On other systems there is no such
request, so roles outlive a launcher that was killed by SIGKILL.

Linux ties the request to the thread of the launcher that started the role, so the thread that
runs the `Supervisor` starts all roles.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NO_COMMAND_STATUS = 2  # wrong usage: another start would not help


def _main() -> None:
    launcher, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != launcher:  # the launcher ended before the request
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"error: cannot run {command[0]}: {error.strerror}\n")
        sys.exit(_NO_COMMAND_STATUS)


if __name__ == "__main__":
    _main()
