"""In the place of srun: runs a command as tasks of this machine, and passes SIGTERM on to them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

GUARD = str(Path(__file__).parents[3] / "src" / "monolith" / "launch" / "guarded_exec.py")


def main():
    words = sys.argv[1:]
    options = []
    while words[0].startswith("--"):
        options.append(words.pop(0))
    text = " ".join(options)
    num_tasks = int(re.search(r"--ntasks=(\d+)", text)[1])
    is_killed_on_error = "--kill-on-bad-exit=1" in options
    tasks = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD, str(os.getpid()), *words],  # ends with this process
            env={**os.environ, "SLURM_PROCID": str(number), "SLURMD_NODENAME": "127.0.0.1"},
            start_new_session=True,
        )
        for number in range(num_tasks)
    ]

    def forward(number, frame):
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, number)

    signal.signal(signal.SIGTERM, forward)
    running, status = list(tasks), 0
    while running:
        pid, wait_status = os.wait()
        code = os.waitstatus_to_exitcode(wait_status)
        (task,) = (task for task in running if task.pid == pid)
        running.remove(task)
        task.returncode = code
        status = max(status, code if code >= 0 else 128 - code)
        if code and is_killed_on_error:
            forward(signal.SIGKILL, None)
    return status


if __name__ == "__main__":
    sys.exit(main())
