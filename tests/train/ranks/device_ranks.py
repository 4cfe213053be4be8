"""Ranks of this process with their dense part on a device, and what must come out."""

from monolith.checkpoint import find
from monolith.cluster import LocalServers
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.table.routing import PartitionRouting
from monolith.train import TrainSettings
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.ranks.rank_tasks import fit_rank, largest_difference, one_batch, task_of

NUM_STEPS = 8
BATCHES = [one_batch(seed) for seed in range(2 * NUM_STEPS)]


class LocalRankTables(RankTables):
    """Tables of ranks that are threads of one process, without calls between processes."""

    def __init__(self, group, servers):
        self.group, self.local_rank, self.servers = group, group.rank, servers
        self.routing = PartitionRouting(group.size)
        self._host = self._loop = self._local = self._remote = None

    def own_shards(self, names):
        return self.servers.groups(names)[self.group.rank]


def fit_two(settings, batches=BATCHES, before=None, task=None):
    """Results, parameters and rows of two ranks."""
    task = task or task_of(batches)
    with LocalServers(2) as servers:

        def body(group):
            tables = LocalRankTables(group, servers)
            return fit_rank(group, task, settings, before=before, tables=tables)

        return run_ranks(2, body)


def assert_close(found, expected, tolerance):
    """Compare two ranks with two others."""
    for (result, parameters, rows), (other, other_parameters, other_rows) in zip(
        found, expected, strict=True
    ):
        assert result.num_samples == other.num_samples
        assert largest_difference(parameters, other_parameters) < tolerance
        assert largest_difference(rows, other_rows) < tolerance
    assert largest_difference(found[0][1], found[1][1]) == 0


def check_resumed(folder, first, second, tolerance):
    """Train half of the steps, and the rest in another run; compare with a run on the CPU.

    Args:
        folder: folder of the checkpoint.
        first: options of the settings of the first run.
        second: those of the second one.
        tolerance: largest difference.
    """
    whole = fit_two(TrainSettings(steps=NUM_STEPS))
    saved = {"checkpoint_dir": str(folder), "save_every": NUM_STEPS // 2}
    fit_two(TrainSettings(steps=NUM_STEPS // 2, **saved, **first))

    def restore(trainer):
        found = find(str(folder)) if trainer.sync.is_chief else None
        trainer.restore(trainer.sync.group.control.share(getattr(found, "prefix", None)))

    again = fit_two(TrainSettings(steps=NUM_STEPS, **saved, **second), before=restore)
    for result, parameters, rows in again:
        assert result.num_steps == NUM_STEPS // 2
        assert largest_difference(parameters, whole[0][1]) < tolerance
        assert largest_difference(rows, whole[0][2]) < tolerance
