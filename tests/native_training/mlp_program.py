"""Forks a process of the MLP launch environment for each line: its variables and its arguments.

A line is JSON: the file for the output, the variables, and the settings of the data service. The
exit status is written beside the output, to `<file>.status`.
"""

import functools
import json
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

import torch

from monolith.cluster.zmq.extra import load_zmq
from monolith.model_registry import RegisterSingleTaskModel, SingleTaskModelParams
from monolith.native_training import mlp_utils, runner_utils
from monolith.native_training.cpu_training import distributed_train
from monolith.native_training.feature import FeatureColumn, FeatureSlotConfig
from monolith.native_training.native_task import EstimatorSpec, NativeTask
from monolith.native_training.native_task_context import get
from monolith.native_training.service_discovery import ServiceDiscoveryType
from monolith.ops import Ragged

KEY = "tests.native_training.mlp_program.ServedParams"
NUM_BATCHES = 12


class ServedTask(NativeTask):
    """Reads batch i on worker i % number of workers; a batch says who has read it."""

    def create_input_fn(self, mode):
        def read():
            context = get()
            for number in range(context.worker_index, NUM_BATCHES, context.num_workers):
                print(f"reads {number}", flush=True)
                yield {"feature": Ragged.from_lists([[number]])}

        return read

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(FeatureSlotConfig("slot"))
            column = FeatureColumn(slot, "feature")
            embedding = column.embedding_lookup(slot.add_feature_slice(5))
            print(f"trains {features['feature'].to_lists()[0][0]}", flush=True)
            loss = embedding.sum()
            rows = column.get_all_embeddings_concat()
            (gradient,) = torch.autograd.grad(loss, [rows])
            op = self.ctx.apply_embedding_gradients([(gradient, rows)])
            return EstimatorSpec(mode, embedding, loss, op)

        return model_fn


@RegisterSingleTaskModel
class ServedParams(SingleTaskModelParams):
    def task(self):
        params = ServedTask.params()
        params.name = "served"
        return params


def work(output, environment, model_dir):
    """Run a process; return its exit status."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(file, number)
    os.environ.update(environment)
    logging.basicConfig(level=logging.INFO)
    mlp_utils.MLPEnv = functools.partial(mlp_utils.MLPEnv, wait_seconds=0.1, join_seconds=0.3)
    env = mlp_utils.MLPEnv()
    try:
        config = runner_utils.RunnerConfig(
            discovery_type=ServiceDiscoveryType.MLP,
            server_type=env.role.lower(),
            index=env.index,
            num_ps=env.num_replicas("ps"),
            num_workers=env.num_replicas("worker"),
            model_dir=model_dir,
            task=KEY,
            use_dataservice=True,
        )
        with runner_utils.monolith_discovery(config) as discovery:
            distributed_train(config, discovery, ServedParams().task())
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run():
    load_zmq()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds
    children = []
    for line in sys.stdin:
        output, environment, model_dir = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(work(output, environment, model_dir))
        children.append((child, output))
        print(child, flush=True)
        if environment["MLP_ROLE"] == "worker":  # the last one
            break
    for child, output in children[::-1]:
        if sys.stdin.readline() == "kill\n":
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        Path(f"{output}.part").write_text(str(os.waitstatus_to_exitcode(status)))
        os.replace(f"{output}.part", f"{output}.status")
        print("ended", flush=True)


if __name__ == "__main__":
    from tests.native_training import mlp_program  # the key names the module by its path

    mlp_program.run()
