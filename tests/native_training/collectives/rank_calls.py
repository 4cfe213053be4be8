"""What the ranks of the tests of `hvd_lib` call."""

import time
from pathlib import Path

import torch

from monolith.cluster.ranks.rank_group import RankOptions
from monolith.native_training import hvd_lib
from monolith.native_training.hvd_lib import BroadcastGlobalVariablesHook
from monolith.train.driver import drive


def gather_and_broadcast():
    hvd_lib.init()
    hvd_lib.init()
    rank = hvd_lib.rank()
    found = {
        "place": [rank, hvd_lib.size()],
        "ranks": hvd_lib.allgather([rank]).tolist(),
        "uneven": hvd_lib.allgather(torch.full((rank, 2), float(rank))).tolist(),
        "first": hvd_lib.broadcast(torch.tensor([rank, 10 * rank])).tolist(),
        "last": hvd_lib.broadcast(torch.tensor(rank, dtype=torch.bfloat16), 1).item(),
    }
    hvd_lib.shutdown()
    return found


def broadcast_hook():
    hvd_lib.init()
    torch.manual_seed(hvd_lib.rank())
    model = torch.nn.Linear(3, 2)
    before = model.weight.sum().item()
    drive(iter([1]).__next__, [BroadcastGlobalVariablesHook(2, model)])
    hvd_lib.shutdown()
    return before, model.weight.sum().item(), model.bias.tolist()


def other_forms():
    hvd_lib.init()
    try:
        hvd_lib.allgather(torch.zeros(1, 1 + hvd_lib.rank()))
    except ValueError as error:
        gathered = str(error)
    try:
        hvd_lib.broadcast(torch.zeros(1 + hvd_lib.rank()), name="w")
    except ValueError as error:
        return gathered, str(error)


def gather_until_a_rank_is_gone(file):
    hvd_lib.init(RankOptions(wait_seconds=60.0))
    begin = time.monotonic()
    while time.monotonic() - begin < 60:
        begin_last = time.monotonic()
        try:
            hvd_lib.allgather([1])
            Path(file).touch()
        except RuntimeError as error:
            return type(error).__name__, str(error), time.monotonic() - begin_last
        time.sleep(0.01)
    return "nothing", "", 60.0
