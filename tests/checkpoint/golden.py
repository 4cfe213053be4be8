"""The content of tests/golden/checkpoint-v1 and -v2; run as a script it writes the latter anew.

Version 1 has a full checkpoint of step 7; version 2 has a link of step 8 too.

The committed files stay as they are for ever: a new version of the format gets a folder of its own.
"""

import sys

import torch

from monolith.checkpoint import Chain, Contents
from tests.checkpoint.cases import ITEM, NOW, USER, filled

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
TABLES = (USER, ITEM)
NUM_ROWS = 200


def golden_tensors():
    return {f"tensor.{dtype}": torch.tensor([[0, 1], [2, 3]]).to(dtype) for dtype in DTYPES}


def change(tables):
    """Change some rows between the steps 7 and 8, and remove some."""
    for table in tables:
        table.assign(torch.arange(5), torch.ones(5, table.dim), now=NOW + 1)
        table.erase(torch.tensor([7, 8]))


def write(path):
    tables = [filled(config, NUM_ROWS) for config in TABLES]
    chain = Chain(path, clock=lambda: 1.5)
    for step in (7, 8):
        contents = Contents(
            tables=tables,
            dense=golden_tensors(),
            trainer={"epoch": 1, "position": [3, 4]},
            meta={"model": "Linear"},
            step=step,
            with_expired=True,
        )
        with chain.cut(contents) as snapshot:
            chain.save(snapshot)
        change(tables)


if __name__ == "__main__":
    write(sys.argv[1])
