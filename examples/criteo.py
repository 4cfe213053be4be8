"""The DLRM of dlrm.py on the display-ads logs of Criteo, as published: text, tabs between values.

    label <tab> 13 counts, of which any may be missing <tab> 26 ids of 8 hex digits, likewise

Example: .venv/bin/python examples/criteo.py train.txt eval.txt
         monolith train examples/criteo.py --data train='day_*' --data eval=day_23
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

# Started as a file, Python looks for modules beside it; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import monolith as ml
from examples import dlrm
from examples.run import path_of, run_task
from monolith.data import Columns, DenseColumn, Label

COUNTS = [f"count_{i}" for i in range(1, dlrm.NUM_DENSE + 1)]
IDS = [f"category_{i}" for i in range(1, dlrm.NUM_FEATURES + 1)]
NAMES = ["label", *COUNTS, *IDS]
TYPES = {**dict.fromkeys(["label", *COUNTS], "int64"), **dict.fromkeys(IDS, "string")}


def logarithms(block: pa.RecordBatch) -> pa.RecordBatch:
    """log(1 + x) of the counts; the few negative ones count as 0."""
    for name in COUNTS:
        place = block.schema.get_field_index(name)
        logarithm = pc.log1p(pc.max_element_wise(block[name], pa.scalar(0, pa.float32())))
        block = block.set_column(place, name, logarithm)
    return block


class Criteo(dlrm.Ranker):
    """Clicks on display ads."""

    features = [ml.Feature(name, dim=dlrm.DIM, optimizer=ml.Adagrad(0.05)) for name in IDS]
    dense = COUNTS

    def source(self, mode: ml.Mode) -> ml.data.Pipeline:
        has_label = mode is not ml.Mode.PREDICT  # the published test file has none
        names = NAMES if has_label else NAMES[1:]
        columns = Columns(
            IDS,
            [DenseColumn(name, fill=0) for name in COUNTS],
            [Label("label", low=0, high=1)] if has_label else [],
        )
        source = ml.data.csv(
            path_of(self, mode), separator="\t", names=names, types=TYPES, columns=columns
        )
        source = source.map(logarithms)
        if mode is ml.Mode.TRAIN:
            source = source.shuffle(100_000)
        return source.batch(self.settings.batch_size)


if __name__ == "__main__":
    run_task(Criteo, sys.argv[1:])
