"""Write a job as a script for `sbatch`."""

import math
import shlex
import string

from monolith.launch.manifests.cluster_job import ClusterJob


class _Template(string.Template):
    delimiter = "%"  # `$` belongs to the shell


# A site may have bash 4.2, so nothing newer. Each role is one process (exec), so that a signal to
# its step reaches the role once: a second one would end it at once.
_SCRIPT = _Template(
    r"""#!/bin/bash
# Servers and workers of a job; worker 0, the chief, saves and ends it. Submit with sbatch.
#SBATCH --job-name=%name
#SBATCH --ntasks=%num_tasks
#SBATCH --cpus-per-task=%cpus
#SBATCH --mem-per-cpu=%{memory}M
#SBATCH --output=%name-%%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@%grace
set -u

run=%run  # on a file system that all nodes have
rm -rf "$run/discovery"
mkdir -p "$run"

# step TASKS COMMAND...: becomes srun, which runs the command as that many tasks.
step() {
  local tasks=$1
  shift
  exec srun --ntasks="$tasks" --cpus-per-task=%cpus --exact --label "$@"
}

is_alive() { kill -0 "$1" 2>/dev/null; }

# A signal ends the pause early.
pause() {
  sleep 1 &
  wait "$!"
}

# await PROCESS: until it has ended, or the time for an end is over.
await() {
  local seconds
  for ((seconds = 0; seconds < %grace; seconds++)); do
    is_alive "$1" || return
    pause
  done
}

# The chief lets the other workers end, saves, and lets the servers end.
reason=
stop() {
  reason=$1
  echo "SIG$1: the chief saves" >&2
  kill -TERM "$chief" 2>/dev/null
}
trap 'stop TERM' TERM
trap 'stop USR1' USR1

step %num_servers --kill-on-bad-exit=1 \
  bash -c 'exec "$@" --index "$SLURM_PROCID" --bind "$SLURMD_NODENAME:0"' server \
  %server --discovery "$run/discovery" &
servers=$!
step 1 \
  %worker --index 0 --servers "$run/discovery" &
chief=$!
%others
while is_alive "$chief" && is_alive "$servers"; do pause; done
failed=0
if is_alive "$chief"; then # the end of the job, unless a server has failed
  wait "$servers"
  failed=$?
  [ "$failed" = 0 ] && await "$chief"
else
  wait "$chief" && await "$servers"
fi
kill -KILL "$chief" "$servers" 2>/dev/null
wait "$chief"
status=$?
[ "$failed" = 0 ] || status=$failed
if [ "$status" = 0 ] || [ "$status" = 2 ] || [ "$reason" = TERM ]; then
  exit "$status"
elif [ "$reason" = USR1 ]; then
  echo "the time of the job is over: it goes on in the queue" >&2
  %requeue
elif [ "${SLURM_RESTART_COUNT:-0}" -lt %restarts ]; then
  echo "the chief ended with status $status: the job is tried again" >&2
  %requeue
fi
exit "$status"
"""
)

_OTHERS = _Template(
    r"""step %num_others --kill-on-bad-exit=0 \
  bash -c 'exec "$@" --index "$((SLURM_PROCID + 1))"' worker \
  %worker --servers "$run/discovery" &
"""
)
_REQUEUE = 'scontrol requeue "$SLURM_JOB_ID"'
_NO_REQUEUE = 'echo "nothing to go on from: the job has no --checkpoints" >&2'


def slurm_script(job: ClusterJob, run: str | None = None) -> str:
    """Return the text of a script for `sbatch`.

    Args:
        job: The job; its files have the same paths on all nodes.
        run: Folder of the addresses of the servers; None takes `NAME-JOBID`, in the folder where
            the script is submitted.
    """
    worker = shlex.join(job.worker_words({"--num-servers": job.num_servers}))
    others = _OTHERS.substitute(num_others=job.num_workers - 1, worker=worker)
    return _SCRIPT.substitute(
        name=job.name,
        num_tasks=job.num_servers + job.num_workers,
        num_servers=job.num_servers,
        cpus=job.cpus,
        memory=math.ceil(job.mebibytes / job.cpus),
        grace=job.grace_seconds,
        restarts=job.restarts,
        run=f'"{job.name}-$SLURM_JOB_ID"' if run is None else shlex.quote(run),
        server=shlex.join(job.server_words({})),
        worker=worker,
        others=others if job.num_workers > 1 else "",
        requeue=_REQUEUE if job.has_checkpoints else _NO_REQUEUE,
    )
