"""Files of a save that other processes read into the rows that they hold."""

from abc import abstractmethod
from collections.abc import Sequence

from monolith.table.disk.plan import TablePlan
from monolith.table.disk.remote.remote_jobs import RemoteJobs
from monolith.table.disk.workers import Work


class RemoteLoader(RemoteJobs):
    """The parts of a table that read files in other processes. For one thread."""

    @abstractmethod
    def start(self, plan: TablePlan, num_threads: int, *, is_check: bool) -> None:
        """Let each part read its rows of the plan's files in the background.

        Args:
            plan: files to read.
            num_threads: number of reading threads of each part.
            is_check: whether the files are checked only, and no row changes.
        """


def read_remotely(
    pairs: Sequence[tuple[TablePlan, RemoteLoader]], num_threads: int, work: Work, *, is_check: bool
) -> list[int]:
    """Let the parts of tables read files, all at once; return the number of rows of each table.

    Args:
        pairs: plan and parts of each table.
        num_threads: number of reading threads of each part.
        work: receives the progress, and says whether to continue.
        is_check: whether the files are checked only.
    """
    try:
        for plan, loader in pairs:
            loader.start(plan, num_threads, is_check=is_check)
        states = [loader.wait(work) for _, loader in pairs]
    finally:  # the jobs that are over too: the other processes forget them
        for _, loader in pairs:
            loader.end()
    return [sum(state.num_rows for state in parts) for parts in states]
