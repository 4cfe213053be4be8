"""The content of tests/golden/checkpoint-v1; run as a script it writes a folder anew.

The committed files stay as they are for ever: a new version of the format gets a folder of its own.
"""

import sys

import torch

from monolith.checkpoint.state import CheckpointState, write_checkpoint_state
from tests.checkpoint.cases import ITEM, USER, filled, saved

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
TABLES = (USER, ITEM)
NUM_ROWS = 200


def golden_tensors():
    return {f"tensor.{dtype}": torch.tensor([[0, 1], [2, 3]]).to(dtype) for dtype in DTYPES}


def write(path):
    tables = [filled(config, NUM_ROWS) for config in TABLES]
    saved(f"{path}/model.ckpt-7", tables=tables, dense=golden_tensors())
    state = CheckpointState(f"{path}/model.ckpt-7", [f"{path}/model.ckpt-7"], [1.5])
    write_checkpoint_state(path, state, relative=True)


if __name__ == "__main__":
    write(sys.argv[1])
