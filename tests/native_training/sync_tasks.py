"""Tasks of the reference system's test of synchronous training, and what its ranks call."""

import torch

from monolith.cluster.ranks.rank_tables import RankTables
from monolith.native_training import hvd_lib
from monolith.native_training.cpu_training import (
    CpuTraining,
    CpuTrainingConfig,
    DistributedCpuTrainingConfig,
    distributed_sync_train,
    init_sync_train_and_update_conf,
)
from monolith.native_training.embedding_combiners import FirstN
from monolith.native_training.entry import Fp32Compressor
from monolith.native_training.feature import FeatureColumn, FeatureSlotConfig
from monolith.native_training.jobs.sync_train import fit_ranks
from monolith.native_training.native_task import EstimatorSpec, NativeTask
from monolith.native_training.saver import SecondOrStepTimer
from monolith.native_training.sync_training_hooks import ReqTimeControlDumpHook
from monolith.native_training.tasks import task_context
from monolith.ops import Ragged
from monolith.table import SGD, Adagrad, Zeros
from monolith.train import Hook, TrainSettings


def slot_of(task, name, optimizer):
    return task.ctx.create_feature_slot(
        FeatureSlotConfig(
            name,
            default_vec_initializer=Zeros(),
            default_vec_optimizer=optimizer,
            default_vec_compressor=Fp32Compressor(),
        )
    )


def embedded(task, name, dim, combiner=None, optimizer=None):
    slot = slot_of(task, name, optimizer or SGD(1.0))
    column = FeatureColumn(slot, name, **({} if combiner is None else {"combiner": combiner}))
    rows = column.embedding_lookup(slot.add_feature_slice(dim))
    return rows, column


class FeatureTask(NativeTask):
    """The loss is the sum of the embedding; gradients go through the factory."""

    def create_input_fn(self, mode):
        return lambda: [{"feature": Ragged.from_lists([[1, 2, 3, 4]])}] * 5

    def create_model_fn(self):
        def model_fn(features, mode, config):
            rows, column = embedded(self, "feature", 5)
            loss = rows.sum()
            raw = column.get_all_embeddings_concat()
            (gradient,) = torch.autograd.grad(loss, [raw])
            return EstimatorSpec(
                mode, loss=loss, train_op=self.ctx.apply_embedding_gradients([(gradient, raw)])
            )

        return model_fn


class FloatFeatureTask(NativeTask):
    """Predictions are the sums of a float feature; gradients go through the embedding only."""

    def create_input_fn(self, mode):
        batch = {"feature": Ragged.from_lists([[1, 2], [3]]), "float": torch.ones(2, 3)}
        return lambda: [batch] * 5

    def create_model_fn(self):
        def model_fn(features, mode, config):
            rows, _ = embedded(self, "feature", 5)
            return EstimatorSpec(mode, features["float"].sum(1), rows.sum())

        return model_fn


class SequenceFeatureTask(NativeTask):
    """The loss is the sum of the first two embeddings; predictions are the sums of the ids."""

    def create_input_fn(self, mode):
        return lambda: [{"sequence": Ragged.from_lists([[1, 2], [], [3, 4, 5]])}] * 5

    def create_model_fn(self):
        def model_fn(features, mode, config):
            rows, _ = embedded(self, "sequence", 5, FirstN(2))
            sums = torch.tensor([float(sum(row)) for row in features["sequence"].to_lists()])
            return EstimatorSpec(mode, sums, rows.sum())

        return model_fn


class NonFeatureTask(NativeTask):
    """The input itself is the action."""

    def __init__(self, params):
        super().__init__(params)
        self.numbers = []

    def create_input_fn(self, mode):
        return lambda: [5, 7]

    def create_model_fn(self):
        def model_fn(features, mode, config):
            return EstimatorSpec(
                mode, loss=torch.zeros(()), train_op=lambda: self.numbers.append(int(features))
            )

        return model_fn


class EmbeddingUpdateTask(NativeTask):
    """The same ids in a slot and in a dense embedding; both are equal at each step."""

    def __init__(self, params):
        super().__init__(params)
        self.embedding = torch.nn.Embedding(4, 5)
        torch.nn.init.zeros_(self.embedding.weight)
        self.seen = []

    def create_input_fn(self, mode):
        batch = {"feature": Ragged.from_lists([[0, 1, 2, 3]]), "ids": torch.tensor([[0, 1, 2, 3]])}
        return lambda: [batch] * 10

    def create_model_fn(self):
        def model_fn(features, mode, config):
            sparse, _ = embedded(self, "feature", 5, optimizer=Adagrad(0.1, 1.0))
            dense = self.embedding(features["ids"]).sum(1)
            torch.testing.assert_close(sparse, dense, atol=1e-6, rtol=0)
            self.seen.append(sparse.flatten().tolist())
            return EstimatorSpec(mode, loss=sparse.sum() + dense.sum())

        return model_fn

    def optimizer(self, model):
        return torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=1.0)


def trained(cls, steps=2):
    """Train through `CpuTraining`; this process is the only rank."""
    hvd_lib.init()
    training = CpuTraining(CpuTrainingConfig(enable_sync_training=True), cls.params().instantiate())
    with RankTables(hvd_lib.group()) as ranks:
        result = fit_ranks(training, TrainSettings(steps=steps), ranks)
    hvd_lib.shutdown()
    return training.task, result


class Regression(NativeTask):
    """A line over a pooled row; each rank has samples of its own, and a number of batches."""

    kept = None
    counts = (4, 4)

    def __init__(self, params):
        super().__init__(params)
        self.line = torch.nn.Linear(2, 1)
        type(self).kept = self

    def create_input_fn(self, mode):
        def input_fn():
            rank = task_context.get().worker_index
            random = torch.Generator().manual_seed(rank)
            for number in range(self.counts[rank % len(self.counts)]):
                size = 3 + rank  # ranks have batches of other sizes
                ids = torch.randint(0, 6, (size, 2), generator=random)
                yield {
                    "id": Ragged.from_lists(ids.tolist()),
                    "label": torch.rand(size, generator=random),
                    "req_time": torch.full((size,), 100 * (number + 1) + rank),
                }

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            rows, _ = embedded(self, "id", 2)
            score = self.line(rows).squeeze(1)
            return EstimatorSpec(mode, score, ((score - features["label"]) ** 2).mean())

        return model_fn

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.5)


class Ones(NativeTask):
    """Ids [1, 1] with a gradient of half each, and a dense parameter whose gradient is the rank."""

    def __init__(self, params):
        super().__init__(params)
        self.line = torch.nn.Linear(1, 1, bias=False)

    def create_input_fn(self, mode):
        return lambda: [{"id": Ragged.from_lists([[1, 1]])}]

    def create_model_fn(self):
        def model_fn(features, mode, config):
            rows, _ = embedded(self, "id", 1)
            rank = task_context.get().worker_index
            dense = self.line.weight.sum() * (rank + 1.0)
            return EstimatorSpec(mode, loss=0.5 * rows.sum() + dense)

        return model_fn

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1.0)


class Counted(NativeTask):
    """The loss is a sum, so a batch may be empty; each rank has batches of these sizes."""

    counts = ((1,), (1,))

    def create_input_fn(self, mode):
        def input_fn():
            for size in self.counts[task_context.get().worker_index]:
                yield {"id": Ragged.from_lists([[number] for number in range(size)])}

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            rows, _ = embedded(self, "id", 1)
            return EstimatorSpec(mode, loss=rows.sum())

        return model_fn


class Watch(Hook):
    """Counts the steps of a run and their staleness."""

    def __init__(self):
        self.steps = self.staleness = 0

    def after_run(self, ctx, results):
        self.steps += 1
        self.staleness = max(self.staleness, results.value.staleness)


def sync_job(name, folder, max_steps, options=(), counts=None, limit_hook=False):
    """Train a task as a rank by `distributed_sync_train`."""
    config = DistributedCpuTrainingConfig(model_dir=folder, enable_sync_training=True)
    for option, value in dict(options).items():
        setattr(config, option, value)
    init_sync_train_and_update_conf(config)
    cls = globals()[name]
    if counts is not None:
        cls.counts = counts
    params = cls.params()
    params.train.max_steps = max_steps
    watch, hooks = Watch(), []
    if limit_hook:
        hooks.append(ReqTimeControlDumpHook(folder, SecondOrStepTimer(every_steps=1), 1))
    result = distributed_sync_train(config, params, user_hooks=[watch, *hooks])
    hvd_lib.allgather([1])  # the last save is there
    hvd_lib.shutdown()
    found = {"ended": result.ended, "steps": watch.steps, "staleness": watch.staleness}
    if (task := getattr(cls, "kept", None)) is not None:
        found["dense"] = [parameter.tolist() for parameter in task.line.parameters()]
    return found
