"""What the ranks of the tests of tables in ranks call."""

import torch

from monolith.cluster import LocalServers
from monolith.native_training import hvd_lib
from monolith.native_training.ops import OutConfig, OutType, ParserContext
from monolith.native_training.slots.combiners import ReduceSum
from monolith.native_training.tables import PartitionedHashTable
from monolith.native_training.tables.feature_plan import FeatureSpec
from monolith.ops import Ragged
from tests.native_training.tables.partitioned_oracle import FEATURES, ONE, slices
from tests.suites.table_base import NOW

SPECS = {"a": FEATURES["a"], "b": FEATURES["b"], "one": FeatureSpec(ONE, [1], ReduceSum())}
OUTPUTS = {
    "bias": OutConfig(slices(("a", 0, 1), ("b", 0, 1)), OutType.ADDN),
    "one": OutConfig(slices(("one", 0, 1)), OutType.CONCAT),
    "vec": OutConfig(slices(("a", 1, 3), ("b", 1, 3)), OutType.CONCAT),
}
IDS = (  # of each rank; some are those of the other one, some come twice
    {
        "a": [[10, 11], [10], [-3, 12, -3]],
        "b": [[20, 21, 10], [], [10]],
        "one": [[5], [], [6, 7]],
    },
    {"a": [[11, 10, 14], [-3]], "b": [[], [21, 9, 9]], "one": [[7, 7], [8]]},
)


def batch_of(*ranks):
    """The samples of some ranks, one after another."""
    rows = {name: [row for rank in ranks for row in IDS[rank][name]] for name in SPECS}
    return {name: Ragged.from_lists(lists) for name, lists in rows.items()}


def table_of(num_ps, servers=None, ranks=None, **options):
    params = PartitionedHashTable.gen_feature_configs(num_ps, SPECS, OUTPUTS, **options)
    context = ParserContext(sharding_sparse_fids_op_params=params)
    return PartitionedHashTable(context, servers, clock=lambda: NOW, ranks=ranks)


def step(table, batch, **options):
    """A step on a loss that depends on the rows; returns what was looked up."""
    bundle = {}
    outputs = table.lookup(batch, bundle)
    flat = table.flatten_layout(outputs)
    loss = sum((0.25 * output.square() + output).sum() for output in flat)
    pairs = list(zip(torch.autograd.grad(loss, flat), flat, strict=True))
    table.apply_gradients(pairs, auxiliary_bundle=bundle, **options)
    return [output.detach().tolist() for output in flat]


def ranks_train(num_steps):
    hvd_lib.init()
    rank, size = hvd_lib.rank(), hvd_lib.size()
    with table_of(size, ranks=hvd_lib.group()) as table:
        times = {"req_time": NOW + rank}
        seen = [step(table, batch_of(rank % 2), **times) for _ in range(num_steps)]
        rows = {name: len(own) for name, own in table.tables.items()}
        keys = torch.tensor([10, 11, 7])
        latest = [int(own.lookup_entry(keys).rows.times.max()) for own in table.tables.values()]
    hvd_lib.shutdown()
    return seen, rows, latest


def servers_train(num_steps):
    """The same with the batches of both ranks in one process, and servers."""
    with LocalServers(2) as servers, table_of(2, servers) as table:
        seen = []
        for _ in range(num_steps):
            seen.append(step(table, batch_of(0, 1)))
        return seen, {name: len(own) for name, own in table.tables.items()}
