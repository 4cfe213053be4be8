"""A small model of features over tables, and the same in plain torch."""

import torch

from monolith.native_training.ops import OutConfig, OutType, SliceConfig
from monolith.native_training.slots.combiners import FirstN, ReduceMean, ReduceSum
from monolith.native_training.tables.feature_plan import FeatureSpec
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.ops import Ragged
from tests.suites.table_base import keys

THREE, TWO, ONE = (generate_test_hash_table_config(dim) for dim in (3, 2, 1))

FEATURES = {
    "a": FeatureSpec(THREE, [1, 2], ReduceSum()),
    "b": FeatureSpec(THREE, [1, 2], ReduceMean()),
    "c": FeatureSpec(TWO, [2], FirstN(2)),
    "d": FeatureSpec(TWO, [2], FirstN(2)),
}


def slices(*pieces):
    return [SliceConfig(*piece) for piece in pieces]


OUTPUTS = {
    "bias": OutConfig(slices(("a", 0, 1), ("b", 0, 1)), OutType.ADDN),
    "seq": OutConfig(slices(("c", 0, 2), ("d", 1, 2)), OutType.NONE),
    "side": OutConfig(slices(("c", 0, 2), ("d", 0, 2)), OutType.CONCAT),
    "stk": OutConfig(slices(("a", 1, 3), ("b", 1, 3)), OutType.STACK),
    "vec": OutConfig(slices(("a", 1, 3), ("b", 1, 3)), OutType.CONCAT),
}
IDS = {
    "a": [[10, 11], [10], [-3, 12, -3]],
    "b": [[20, 21, 10], [], [10]],
    "c": [[31, 30, 32], [31], []],
    "d": [[1, 31, 7]],
}
BATCH = {name: Ragged.from_lists(rows) for name, rows in IDS.items()}
ASK = {"shared": ["d"], "batch_size": 3}


class DenseModel:
    """A row for each (feature, id) of the batch, and the outputs in plain torch."""

    def __init__(self):
        torch.manual_seed(0)
        dims = {"a": 3, "b": 3, "c": 2, "d": 2}
        self.rows = {
            (name, i): torch.randn(dims[name]).requires_grad_()
            for name, cells in IDS.items()
            for i in sorted({i for cell in cells for i in cell})
        }

    def pooled(self, name):
        def of(cell):
            rows = [self.rows[name, i] for i in cell]
            if name in "ab":
                total = sum(rows, torch.zeros(3))
                return total / max(1, len(rows)) if name == "b" else total
            return torch.stack([*rows, torch.zeros(2), torch.zeros(2)][:2])

        cells = IDS[name] * 3 if name == "d" else IDS[name]
        return torch.stack([of(cell) for cell in cells])

    def outputs(self):
        a, b, c, d = (self.pooled(name) for name in "abcd")
        return {
            "bias": a[:, :1] + b[:, :1],
            "seq": [c, d[:, :, 1:2]],
            "side": torch.cat([c, d], 2),
            "stk": torch.stack([a[:, 1:], b[:, 1:]], 1),
            "vec": torch.cat([a[:, 1:], b[:, 1:]], 1),
        }

    def values(self):
        """Ids and rows by feature, to be assigned."""
        names = {name for name, _ in self.rows}
        ids = {name: [i for feature, i in self.rows if feature == name] for name in names}
        return {
            name: (keys(*own), torch.stack([self.rows[name, i].detach() for i in own]))
            for name, own in ids.items()
        }


TWINS = {name: FeatureSpec(ONE, [1], ReduceSum()) for name in ("fc_slot_1", "fc_slot_2")}
TWIN_OUTPUT = {"out": OutConfig(slices(("fc_slot_1", 0, 1), ("fc_slot_2", 0, 1)), OutType.CONCAT)}
TWIN_BATCH = {name: Ragged.from_lists([[7], [8]]) for name in TWINS}
TWIN_READ = {name: Ragged.from_lists([[7]]) for name in TWINS}
