"""What the ranks of the tests of the runner call."""

import torch

from monolith.cluster.ranks.rank_tables import RankTables
from monolith.native_training.runner import tpu_runner
from monolith.native_training.tasks import task_context
from monolith.ops import Ragged
from monolith.tpu_runner import RunnerFlags, TPURunner
from tests.native_training.runner.toy_task import Toy


class Differing(Toy):
    """Each rank has samples of its own."""

    def create_input_fn(self, mode):
        def input_fn():
            draw = torch.Generator().manual_seed(task_context.get().worker_index)
            for _ in range(self.p.train.num_batches):
                ids = torch.randint(
                    -40, 40, (self.p.train.per_replica_batch_size, 1), generator=draw
                )
                labels = (ids % 3 == 0).float().squeeze(1)
                yield {"id": Ragged.from_lists(ids.tolist()), "label": labels}

        return input_fn


class Noting(RankTables):
    """Notes at its end which rows this rank has."""

    keys = ()

    def close(self):
        table = self.own_shards(["id"]).group.tables["id"]
        type(self).keys = sorted(key for part in table.export() for key in part.keys.tolist())
        super().close()


def run(folder, strategy, **flags):
    """Train as a rank; the keys of this rank, and facts of the run."""
    tpu_runner.RankTables = Noting
    params = Differing.params()
    params.train.max_steps = 4
    flags = RunnerFlags(
        model_dir=folder, partition_strategy=strategy, **{"cpu_test": True, **flags}
    )
    runner = TPURunner(params, flags)
    result = runner.run()
    return {
        "keys": list(Noting.keys),
        "steps": result.num_steps,
        "samples": result.num_samples,
        "batch": runner.global_batch_size,
    }


def refusal(folder):
    """The error of ranks that are to train on a device."""
    try:
        run(folder, "mod", cpu_test=False)
    except ValueError as error:
        return str(error)
