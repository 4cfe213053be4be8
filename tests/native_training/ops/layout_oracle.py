"""What layouts are, in plain torch, one cell at a time."""

import torch

from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
    sharding_sparse_fids,
)
from monolith.ops import Ragged

SUM, MEAN, FIRSTN = PoolingType.SUM, PoolingType.MEAN, PoolingType.FIRSTN


def small_configs():
    """Two tables, three poolings, four kinds of output."""
    bias = [SliceConfig("a", 0, 1), SliceConfig("b", 0, 1)]
    vec = [SliceConfig("a", 1, 3), SliceConfig("b", 1, 3)]
    return FeatureConfigs(
        {
            "a": FeatureConfig("t1", (1, 2), SUM),
            "b": FeatureConfig("t1", (1, 2), MEAN),
            "c": FeatureConfig("t2", (2,), FIRSTN, 2),
        },
        {
            "bias": OutConfig(bias, OutType.ADDN),
            "seq": OutConfig([SliceConfig("c", 0, 2)], OutType.NONE),
            "vec": OutConfig(vec, OutType.CONCAT),
            "stk": OutConfig(vec, OutType.STACK),
        },
    )


SMALL_IDS = {"a": [[10, 11], [10]], "b": [[20, 21], []], "c": [[31, 30, 32]]}


def small_shards(**options):
    """The ids of two examples on two shards; c is shared."""
    features = {name: Ragged.from_lists(rows) for name, rows in SMALL_IDS.items()}
    options = {"batch_size": 2, "ps_num": 2, "shared": ["c"], **options}
    return sharding_sparse_fids(features, small_configs(), **options)


def small_rows(sharded, version=3):
    """Column j of the row of an id is id + 0.1 * j."""
    widths = {"t1": 3, "t2": 2}
    rows = [
        fids[:, None] + 0.1 * torch.arange(widths[key[:2]])
        for key, fids in zip(sharded.keys, sharded.fid_list, strict=True)
    ]
    if version == 4:
        tables = len(widths)
        rows = [
            torch.cat([part.view(-1) for part in rows[shard * tables : (shard + 1) * tables]])
            for shard in range(sharded.ps_num)
        ]
    return [part.requires_grad_() for part in rows]


def rows_of(values, sharded, configs):
    """The rows of the lists, taken from values by (feature, id), so that gradients reach them."""
    lists = []
    for key, fids, splits in zip(
        sharded.keys, sharded.fid_list, sharded.fid_list_row_splits, strict=True
    ):
        table = key.split(":")[0]
        names = [n for n in configs.feature_names if configs.feature_configs[n].table == table]
        parts = [
            values[name][fids[begin:end]].reshape(-1)
            for name, begin, end in zip(names, splits[:-1], splits[1:], strict=True)
        ]
        lists.append(torch.cat(parts))
    if sharded.version == 4:
        tables = len(sharded.table_names)
        lists = [torch.cat(lists[i : i + tables]) for i in range(0, len(lists), tables)]
    if sharded.version == 1:
        widths = {c.table: c.dim for c in configs.feature_configs.values()}
        lists = [
            part.view(-1, widths[key.split(":")[0]])
            for key, part in zip(sharded.keys, lists, strict=True)
        ]
    return lists


def pooled(rows, config, start, end):
    """The slice of one cell."""
    rows = rows[:, start:end]
    if config.pooling_type is FIRSTN:
        kept = rows[: config.max_sequence_length]
        padding = rows.new_zeros(config.max_sequence_length - len(kept), end - start)
        return torch.cat([kept, padding])
    total = rows.sum(0)
    return total / len(rows) if config.pooling_type is MEAN and len(rows) else total


def oracle(values, features, configs, batch_size, shared):
    """The outputs by name, from rows by (feature, id)."""
    outputs = {}
    for name, output in sorted(configs.out_configs.items()):
        columns = []
        for piece in output.slice_configs:
            feature = piece.feature_name
            config = configs.feature_configs[feature]
            lists = features[feature].to_lists() if feature in features else [[]]
            if feature in shared or feature not in features:
                lists = lists * batch_size
            cells = [values[feature][torch.tensor(ids, dtype=torch.int64)] for ids in lists]
            columns.append(
                torch.stack([pooled(rows, config, piece.start, piece.end) for rows in cells])
            )
        outputs[name] = {
            OutType.CONCAT: lambda columns: torch.cat(columns, -1),
            OutType.STACK: lambda columns: torch.stack(columns, 1),
            OutType.ADDN: sum,
            OutType.NONE: list,
        }[output.out_type](columns)
    return outputs
