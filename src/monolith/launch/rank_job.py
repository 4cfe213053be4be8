"""`RankJob`: synchronous ranks as processes of this machine, restarted all together."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monolith.launch.job_commands import PROGRAM, THREADS_KEY, option_words
from monolith.launch.job_status import WORKER, JobEnd
from monolith.launch.job_view import View
from monolith.launch.role_process import Role
from monolith.launch.run_folder import RunFolder
from monolith.launch.supervisor import Policy, Supervisor


@dataclass(frozen=True)
class RankCommands:
    """The task of a job of ranks, its size, and the options that its ranks get.

    Args:
        task: Task file or key.
        num_ranks: Number of ranks.
        data: Values of `--data`.
        settings: Values of `--set`.
        settings_file: Value of `--settings`; None without one.
        options: Values of further options, as of `JobCommands.worker_options`.
        num_threads: Number of threads of a rank; None leaves it to the settings.
        program: Command line of `monolith`.
    """

    task: str
    num_ranks: int
    data: Sequence[str] = ()
    settings: Sequence[str] = ()
    settings_file: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    num_threads: int | None = None
    program: tuple[str, ...] = PROGRAM

    @property
    def size(self) -> str:
        """Number of ranks, in words."""
        return f"{self.num_ranks} rank{'s' * (self.num_ranks > 1)}"

    def roles(self, folder: RunFolder, start: int) -> list[Role]:
        """Return the ranks.

        Args:
            folder: Folder of the run.
            start: Number of starts before this one; ranks of different starts never meet.
        """
        rendezvous = os.path.join(folder.discovery, f"ranks-{start}")
        common = {
            "--mode": "sync",
            "--rendezvous": rendezvous,
            "--start": start,
            "--settings": self.settings_file,
            **self.options,
        }
        words = option_words(common)
        words += [word for path in self.data for word in ("--data", path)]
        if self.num_threads is not None:
            words += ["--set", f"{THREADS_KEY}={self.num_threads}"]
        words += [word for text in self.settings for word in ("--set", text)]
        return [
            Role(
                WORKER,
                rank,
                (
                    *(*self.program, "train", self.task, "--rank", f"{rank}/{self.num_ranks}"),
                    *(*words, "--no-hints", "--json"),
                ),
                title=f"rank-{rank}",
            )
            for rank in range(self.num_ranks)
        ]


class RankJob:
    """Runs ranks until all have ended. If one dies, all are started again, from the newest save.

    Args:
        commands: Task and options.
        folder: Folder of the run.
        view: View of the job.
        policy: Restarts of all ranks together, and waits.
        save_state: See `Supervisor`.
    """

    def __init__(
        self,
        commands: RankCommands,
        folder: RunFolder,
        view: View,
        policy: Policy,
        *,
        save_state: Callable[[], Any] = lambda: None,
    ) -> None:
        self._commands, self._folder, self._view = commands, folder, view
        self._policy, self._save_state = policy, save_state

    def run(self) -> JobEnd:
        """Start the ranks and return when all processes have ended."""
        begin = time.monotonic()
        for start in range(self._policy.restarts + 1):
            supervisor = Supervisor(
                self._commands.roles(self._folder, start),
                self._folder.logs,
                self._view,
                replace(self._policy, restarts=0),
                save_state=self._save_state,
            )
            end = supervisor.run()
            roles = tuple(replace(role, num_restarts=start) for role in end.job.roles)
            job = replace(end.job, seconds=time.monotonic() - begin, roles=roles)
            end = end._replace(job=job)
            if not supervisor.has_lost_role or start == self._policy.restarts:
                break
            if supervisor.signal_end is not None:  # while the other ranks were ended
                status, reason = supervisor.signal_end
                return end._replace(status=status, reason=reason)
            pause = self._policy.pause_before(start)
            self._view.note(
                f"all ranks start again in {pause:g} s, restart {start + 1} of "
                f"{self._policy.restarts}"
            )
            time.sleep(pause)
        return end
