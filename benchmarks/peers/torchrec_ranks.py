# mypy: ignore-errors
"""A rank of TorchRec's `DistributedModelParallel` on gloo: the model of the stage `ranks`.

python -m benchmarks.peers.torchrec_ranks FILE RANK SIZE JSON

Run with the interpreter of build/peers/fbgemm. It trains as benchmarks/rank_worker.py does: the
same batches in the same order, 26 tables of which the model takes the mean, Adagrad in backward.
TorchRec's planner places the tables; its pipelines overlap copies to a GPU, and are not used.
"""

import functools
import json
import sys
import time
from collections import Counter

import fbgemm_gpu
import numpy as np
import torch
import torch.distributed as dist
import torchrec
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from benchmarks.click_model import DIM, NUM_FEATURES, Sizes, batches
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE

_NAMES = [f"feature_{i}" for i in range(NUM_FEATURES)]
_INITIAL = 0.05  # rows begin within this distance of 0


class Light(torch.nn.Module):
    """The mean of all numbers of a sample's rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        tables = [
            torchrec.EmbeddingBagConfig(
                name=f"table_{name}",
                embedding_dim=DIM,
                num_embeddings=rows,
                feature_names=[name],
                init_fn=functools.partial(torch.nn.init.uniform_, a=-_INITIAL, b=_INITIAL),
            )
            for name in _NAMES
        ]
        self.bags = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

    def forward(self, ids: torchrec.KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(ids).values().mean(1)


def sharded(rows: int) -> tuple[DistributedModelParallel, dict[str, int]]:
    """The model, with tables where the planner puts them, and the numbers of tables by kind."""
    model = Light(rows)
    options = {"lr": LEARNING_RATE, "eps": 1e-10}
    apply_optimizer_in_backward(torch.optim.Adagrad, model.parameters(), options)
    sharders = [EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(Topology(dist.get_world_size(), compute_device="cpu"))
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    model = DistributedModelParallel(model, env, torch.device("cpu"), plan, sharders)
    for module in (part for lookup in model.module.bags._lookups for part in lookup.modules()):
        if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen):
            for (state,) in module.split_optimizer_states():
                state.fill_(INITIAL_ACCUMULATOR)
    kinds = [p.sharding_type for tables in plan.plan.values() for p in tables.values()]
    return model, dict(Counter(kinds))


def prepared(facts: dict) -> list:
    """The batches as TorchRec's tensors: ids feature by feature."""
    made = []
    for batch in batches(Sizes(facts["rows"], facts["batch"], threads=1)):
        ids = torch.from_numpy(np.ascontiguousarray(batch.ids.T).reshape(-1))
        lengths = torch.ones(len(ids), dtype=torch.int32)
        keyed = torchrec.KeyedJaggedTensor(_NAMES, ids, lengths=lengths)
        made.append((keyed, torch.from_numpy(batch.labels)))
    return made


def main() -> None:
    path, rank, size, text = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    facts = json.loads(text)
    torch.set_num_threads(facts["threads"])
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    (model, sharding), data = sharded(facts["rows"]), prepared(facts)
    start = 0.0
    for step in range(facts["num_warm"] + facts["num_steps"]):
        if step == facts["num_warm"]:
            start = time.perf_counter()
        ids, labels = data[(step * size + rank) % len(data)]
        loss = (model(ids) - labels).square().mean()
        loss.backward()
    seconds = time.perf_counter() - start
    dist.barrier()
    dist.destroy_process_group()
    versions = {"torch": torch.__version__, "torchrec": torchrec.__version__}
    versions["fbgemm_gpu"] = fbgemm_gpu.__version__
    answer = {"seconds": seconds, "loss": float(loss.detach()), "sharding": sharding}
    print(json.dumps({**answer, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
