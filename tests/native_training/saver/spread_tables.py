"""Tables that are spread over servers, of every kind, behind one way to update them."""

import torch

from monolith.native_training.ops import OutConfig, OutType, ParserContext, SliceConfig
from monolith.native_training.slots.combiners import FirstN
from monolith.native_training.tables import (
    DistributedHashTable,
    DistributedMultiTypeHashTable,
    PartitionedHashTable,
)
from monolith.native_training.tables.feature_plan import FeatureSpec
from monolith.native_training.tables.merged_table import MergedMultiTypeHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.ops import Ragged
from monolith.table import MinCount, Segment, SlidingFilter, TableConfig
from monolith.table.optimizers import Adagrad
from monolith.train.hosting import table_maker
from tests.suites.table_base import NOW, random_floats, random_keys

NUM_KEYS = 30
ROUNDED = [Segment(3, Adagrad(0.5), precision="bf16"), Segment(2, Adagrad(0.1))]
SLOTS = {
    "one": generate_test_hash_table_config(1, use_float16=True, learning_rate=0.37),
    "two": generate_test_hash_table_config(2, use_float16=True, learning_rate=0.11),
}


def batch(seed, dim):
    """Keys, each once, and gradients; half of the keys come back in every third update."""
    keys = torch.cat([random_keys(NUM_KEYS, seed=seed % 3), random_keys(NUM_KEYS, seed=seed + 9)])
    keys = keys.unique()
    return keys, random_floats(len(keys), dim, seed)


class Distributed:
    """`DistributedHashTable`, with rounding and candidates."""

    config = TableConfig("user", ROUNDED, admission=MinCount(1))

    def __init__(self, servers):
        self._table = DistributedHashTable(self.config, servers, clock=lambda: NOW)
        self.tables = {"user": self._table.table}

    def update(self, seed):
        """Make an update; the ids and gradients of each table."""
        keys, grads = batch(seed, 5)
        self._table.apply_gradients([(grads, self._table.lookup(keys))])
        return {"user": (keys, grads)}


class MultiType:
    """`DistributedMultiTypeHashTable`; one table has no keys in some updates."""

    is_raw = True

    def __init__(self, servers):
        self._table = DistributedMultiTypeHashTable(
            SLOTS, servers, is_raw=self.is_raw, clock=lambda: NOW
        )
        self.tables = self._table.tables

    def update(self, seed):
        """Make an update; the ids and gradients of each table."""
        pairs = {"one": batch(seed, 1), "two": batch(seed + 1, 2)}
        if seed % 4 == 1:
            del pairs["one"]
        self._table.apply_gradients(pairs)
        return pairs


class Packed(MultiType):
    """The path that is not raw."""

    is_raw = False


class Merged:
    """`MergedMultiTypeHashTable`: two slots in one table."""

    def __init__(self, servers):
        slots = {"a": SLOTS["two"], "b": SLOTS["two"], "c": SLOTS["one"]}
        self._table = MergedMultiTypeHashTable(
            slots,
            lambda configs: DistributedMultiTypeHashTable(configs, servers, clock=lambda: NOW),
        )
        self._names = self._table.sub_tables.feature_to_sub_table_name
        self.tables = self._table.table.tables

    def update(self, seed):
        """Make an update; the ids and gradients of each table."""
        slot = "ab"[seed % 2]
        pairs = {slot: batch(seed, 2), "c": batch(seed, 1)}
        self._table.apply_gradients(pairs)
        return {self._names[name]: pair for name, pair in pairs.items()}


class Partitioned:
    """`PartitionedHashTable`: gradients come through its layout."""

    def __init__(self, servers):
        features = {
            name: FeatureSpec(config, [dim], FirstN(1))
            for dim, (name, config) in enumerate(SLOTS.items(), 1)
        }
        outputs = {
            name: OutConfig([SliceConfig(name, 0, dim)], OutType.NONE)
            for dim, name in enumerate(SLOTS, 1)
        }
        params = PartitionedHashTable.gen_feature_configs(len(servers), features, outputs)
        context = ParserContext(sharding_sparse_fids_op_params=params)
        self._table = PartitionedHashTable(context, servers, clock=lambda: NOW)
        configs = self._table.feature_configs.feature_configs
        self._names = {name: config.table for name, config in configs.items()}
        self.tables = self._table.tables

    def update(self, seed):
        """Make an update; the ids and gradients of each table."""
        pairs = {"one": batch(seed, 1), "two": batch(seed + 1, 2)}
        ids = {
            name: Ragged.from_lists([[key] for key in keys.tolist()])
            for name, (keys, _) in pairs.items()
        }
        bundle = {}
        flat = self._table.flatten_layout(self._table.lookup(ids, bundle))
        grads = [pairs[name][1].reshape(out.shape) for name, out in zip(SLOTS, flat, strict=True)]
        self._table.apply_gradients(
            list(zip(grads, flat, strict=True)), auxiliary_bundle=bundle, req_time=NOW
        )
        return {self._names[name]: pair for name, pair in pairs.items()}


class Hosted:
    """The table of a trainer's feature: shards own partitions, and filters belong to these."""

    config = TableConfig("user", ROUNDED, admission=SlidingFilter(1, capacity=4096 * 300))

    def __init__(self, servers):
        self.tables = {"user": table_maker(servers, lambda: NOW)(self.config)}

    def update(self, seed):
        """Make an update; the ids and gradients of each table."""
        keys, grads = batch(seed, 5)
        self.tables["user"].apply_gradients(keys, grads)
        return {"user": (keys, grads)}


KINDS = [Distributed, MultiType, Packed, Merged, Partitioned, Hosted]
