"""A process of a job with parameter servers, with discovery by files: a server or a worker.

python -m tests.native_training.cpu_dist_program --test_case 0 --test_dir DIR --server_type ps \
    --index 0 --num_ps 2 --num_workers 2
"""

import argparse
import contextlib
import logging
import sys
import threading
import time
from pathlib import Path

import torch

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import DeadlineExceededError
from monolith.native_training import cluster_manager, cpu_training
from monolith.native_training.feature import FeatureColumn, FeatureSlotConfig
from monolith.native_training.native_task import EstimatorSpec, ModeKeys, NativeTask
from monolith.native_training.util.run_state import shared_state_of
from monolith.ops import Ragged
from monolith.train import Hook

_FLAGS = "test_sync_hook"
_POLL_SECONDS = 0.5
_WAIT_SECONDS = 300.0


class SyncHook(Hook):
    """Each worker says that it has begun; the chief goes on when all have.

    Args:
        num_workers: workers of the job.
        index: this worker; 0 is the chief.
        pause: called between two looks; tests bring their own.
    """

    def __init__(self, num_workers, index, pause=None):
        self._num_workers, self._index = num_workers, index
        self._pause = pause or (lambda: time.sleep(_POLL_SECONDS))

    def after_create_session(self, run, coordinator):
        shared, end = shared_state_of(run), time.monotonic() + _WAIT_SECONDS
        shared.set_flag(_FLAGS, self._num_workers, self._index, True)
        while self._index == 0 and not all(flags := shared.flags(_FLAGS, self._num_workers)):
            if time.monotonic() > end:
                raise DeadlineExceededError(f"workers have not begun: {flags}")
            self._pause()


class RaiseErrorHook(Hook):
    """Raises a `DeadlineExceededError` before its first step, once in the life of the process."""

    def __init__(self):
        self.num_calls = 0

    def before_run(self, ctx):
        self.num_calls += 1
        if self.num_calls == 1:
            raise DeadlineExceededError("the first step is late")


class FeatureTask(NativeTask):
    """One slot of dim 5, looked up for the ids 0 and 1; the loss is the sum of the embeddings.

    The parameter `training_hooks` has further hooks, `num_steps` the batches of a worker.
    """

    @classmethod
    def params(cls):
        params = super().params()
        params.define("training_hooks", [], "hooks of the run")
        params.define("num_steps", 1, "batches of each worker")
        return params

    def create_input_fn(self, mode):
        batch = {"feature": Ragged.from_lists([[0, 1]])}
        return lambda: [batch] * self.p.num_steps

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(FeatureSlotConfig("slot"))
            column = FeatureColumn(slot, "feature")
            embedding = column.embedding_lookup(slot.add_feature_slice(5))
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, embedding)
            loss = embedding.sum()
            if mode == ModeKeys.EVAL:
                return EstimatorSpec(mode, embedding, loss)
            rows = column.get_all_embeddings_concat()
            (gradient,) = torch.autograd.grad(loss, [rows])
            op = self.ctx.apply_embedding_gradients([(gradient, rows)])
            return EstimatorSpec(mode, embedding, loss, op, self.p.training_hooks)

        return model_fn


@contextlib.contextmanager
def quick_timings():
    """Waits of seconds become short until the block ends."""
    handler = cluster_manager._cluster_query_failure_handler
    seconds = cpu_training._EXTRA_PS_BENCHMARK_SECS
    cluster_manager._cluster_query_failure_handler = lambda: time.sleep(0.1)
    cpu_training._EXTRA_PS_BENCHMARK_SECS = 0.5
    try:
        yield
    finally:
        cluster_manager._cluster_query_failure_handler = handler
        cpu_training._EXTRA_PS_BENCHMARK_SECS = seconds


@contextlib.contextmanager
def endless_shutdown():
    """The shutdown of servers never returns until the block ends."""
    saved = cpu_training._shutdown_ps
    cpu_training._shutdown_ps = lambda *args, **kwargs: threading.Event().wait()
    try:
        yield
    finally:
        cpu_training._shutdown_ps = saved


def parsed(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--test_case", type=int, default=0, choices=sorted(CASES))
    parser.add_argument("--test_dir", required=True)
    parser.add_argument("--server_type", choices=["ps", "worker"], required=True)
    for name, default in (
        *(("index", 0), ("num_ps", 2), ("num_workers", 2)),
        *(("num_extra_ps", 0), ("num_redundant_ps", 0), ("num_steps", 1)),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--uuid", default="")
    parser.add_argument("--use_native_multi_hash_table", action="store_true")
    return parser.parse_args(arguments)


def folder_of(flags):
    """The folder of a job below that of the test."""
    return Path(flags.test_dir) / (flags.uuid or "job")


def config_of(flags):
    return cpu_training.DistributedCpuTrainingConfig(
        server_type=flags.server_type,
        index=flags.index,
        num_ps=flags.num_ps,
        num_workers=flags.num_workers,
        num_extra_ps=flags.num_extra_ps,
        num_redundant_ps=flags.num_redundant_ps,
        model_dir=str(folder_of(flags) / "model"),
        uuid=flags.uuid,
        use_native_multi_hash_table=flags.use_native_multi_hash_table,
        retry_wait_in_secs=0,
    )


def params_of(flags, *hooks):
    params = FeatureTask.params()
    params.name = "feature_task"
    params.train.max_pending_seconds_for_barrier = 2
    params.num_steps = flags.num_steps
    params.training_hooks = [SyncHook(flags.num_workers, flags.index), *hooks]
    return params


def run_case(flags, params, **options):
    """One process of the job, until it ends."""
    discovery = HostServiceDiscovery(folder_of(flags) / "service_discovery")
    with quick_timings(), contextlib.closing(discovery):
        return cpu_training.distributed_train(config_of(flags), discovery, params, **options)


def normal_run(flags):
    return run_case(flags, params_of(flags))


def run_with_endless_shutdown(flags):
    with endless_shutdown():
        return run_case(flags, params_of(flags), shutdown_seconds=0.5)


def run_with_late_step(flags):
    return run_case(flags, params_of(flags, RaiseErrorHook()))


CASES = {0: normal_run, 1: run_with_endless_shutdown, 2: run_with_late_step}


def main(arguments):
    logging.basicConfig(level=logging.INFO)
    flags = parsed(arguments)
    CASES[flags.test_case](flags)


if __name__ == "__main__":
    main(sys.argv[1:])
