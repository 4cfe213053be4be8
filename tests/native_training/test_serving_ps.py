"""Sample batches and layout configs as a serving parameter server receives them."""

import random
import struct
from dataclasses import dataclass, field

import pytest
import torch

from monolith import data
from monolith.cluster import LocalServers
from monolith.errors import DataLossError
from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    ParserContext,
    PoolingType,
    ShardingSparseFidsOpParams,
    SliceConfig,
)
from monolith.native_training.ops.layout_messages import (
    decode_feature_configs,
    encode_feature_configs,
)
from monolith.native_training.tables import PartitionedHashTable
from monolith.native_training.tables.entry_config import (
    CombineAsSegment,
    CuckooHashTableConfig,
    EntryConfig,
    HashTableConfigInstance,
)
from monolith.native_training.tables.entry_parts import Fp32Compressor
from monolith.table import Constant
from monolith.table.optimizers import SGD
from monolith.util.protobuf import fields, put_bytes, put_varint
from tests.meta.tree import ROOT

BATCH = 10
POOLING = {1: PoolingType.SUM, 2: PoolingType.MEAN, 3: PoolingType.FIRSTN}


@dataclass
class TableMeta:
    name: str = "table"
    slice_dims: list[int] = field(default_factory=list)


@dataclass
class FeatMeta:
    name: str
    slot: int
    table: TableMeta
    max_sequence_length: int = 1
    fid_version: int = 0
    pool_type: int = 1
    fl_type: int = 0

    @property
    def slice_dims(self):
        return self.table.slice_dims

    @property
    def bits(self):
        return 54 if self.fid_version == 0 else 48


ONE, TWO, THREE = (
    TableMeta("table1", [1, 4, 4, 8]),
    TableMeta("table2", [1, 4, 4]),
    TableMeta("table3", [8]),
)
FEATURES = [
    FeatMeta("f_user_id", 1, ONE, fl_type=1),
    FeatMeta("f_user_ctx_network", 61, ONE, fl_type=1),
    FeatMeta("f_user_test10_array", 549, ONE, 10, pool_type=2, fl_type=1),
    FeatMeta("f_user_id-f_page", 504, THREE, 10, fid_version=1, pool_type=3, fl_type=1),
    FeatMeta("f_goods_id", 200, TWO),
    FeatMeta("f_page", 305, TWO),
]
NAMES = [meta.name for meta in FEATURES]


def example_batch():
    """The bytes of an ExampleBatch, with ids of a fixed seed."""
    generator = random.Random(0)
    lists = []
    for meta in FEATURES:
        features = []
        for _ in range(1 if meta.fl_type else BATCH):
            ids = [
                meta.slot << meta.bits | generator.randrange(1 << 48)
                for _ in range(meta.max_sequence_length)
            ]
            packed = put_bytes(1, struct.pack(f"<{len(ids)}Q", *ids))
            features.append(put_bytes(2, put_bytes(1 + meta.fid_version, packed)))
        kind = put_varint(3, 1) if meta.fl_type else b""
        name = put_bytes(1, meta.name.encode())
        lists.append(put_bytes(1, name + b"".join(features) + kind + put_varint(4, meta.slot)))
    return b"".join(lists) + put_varint(3, BATCH)


def feature_configs():
    """Configs of the features, and outputs whose ranges follow from the slice dims."""
    configs = {
        meta.name: FeatureConfig(
            meta.table.name,
            meta.slice_dims,
            POOLING[meta.pool_type],
            meta.max_sequence_length if meta.pool_type == 3 else 0,
        )
        for meta in FEATURES
    }
    users, items = NAMES[:3], NAMES[4:]
    pooled = users + items
    outputs = {
        "bias": OutConfig([SliceConfig(name, 0, 1) for name in pooled], OutType.CONCAT),
        "vec": OutConfig([SliceConfig(name, 1, 5) for name in pooled], OutType.CONCAT),
        "uffm": OutConfig([SliceConfig(name, 5, 9) for name in users], OutType.NONE),
        "iffm": OutConfig([SliceConfig(name, 5, 9) for name in items], OutType.NONE),
        "seq": OutConfig([SliceConfig("f_user_id-f_page", 0, 8)], OutType.NONE),
        "user_only": OutConfig([SliceConfig(name, 9, 17) for name in users], OutType.STACK),
    }
    return FeatureConfigs(configs, outputs)


SHAPES = {
    "bias": [(10, 5)],
    "vec": [(10, 20)],
    "uffm": [(10, 4)] * 3,
    "iffm": [(10, 4)] * 2,
    "seq": [(10, 10, 8)],
    "user_only": [(10, 3, 8)],
}


def lists_of(message):
    """Name -> number of features, ids of each, id of the list; of every named list."""
    found = {}
    for number, value in fields(message):
        if number == 1:
            name, features, slot = "", [], 0
            for inner, part in fields(value):
                if inner == 1:
                    name = part.decode()
                elif inner == 2:
                    ((version, listed),) = fields(part)
                    ((_, packed),) = fields(listed)
                    features.append(
                        (version, [each for (each,) in struct.iter_unpack("<Q", packed)])
                    )
                elif inner == 4:
                    slot = part
            found[name] = features, slot
    return found


@pytest.mark.req("TS-SRVPS-T1")
def test_example_gen():
    found = lists_of(example_batch())
    assert list(found) == NAMES
    for meta in FEATURES:
        features, slot = found[meta.name]
        assert (len(features), slot) == (1 if meta.fl_type else BATCH, meta.slot)
        for version, ids in features:
            assert (version, len(ids)) == (1 + meta.fid_version, meta.max_sequence_length)
            assert {each >> meta.bits for each in ids} == {meta.slot}


@pytest.mark.req("TS-SRVPS-T1")
def test_the_batch_parses_to_ids_of_every_row():
    made = data.RecordParser("example_batch", data.Columns(NAMES))([example_batch()])
    for meta in FEATURES:
        ragged = made.features[meta.name]
        assert ragged.lengths.tolist() == [meta.max_sequence_length] * BATCH
        assert set((ragged.values >> 48).tolist()) == {meta.slot}  # fids v1 became v2


@pytest.mark.req("TS-SRVPS-T2")
def test_conf_gen():
    configs = feature_configs()
    assert sorted(configs.feature_configs) == sorted(NAMES)
    pooling = {name: config.pooling_type for name, config in configs.feature_configs.items()}
    assert pooling == {meta.name: POOLING[meta.pool_type] for meta in FEATURES}
    kinds = {name: config.out_type.name for name, config in configs.out_configs.items()}
    assert kinds == {
        "bias": "CONCAT",
        "vec": "CONCAT",
        "uffm": "NONE",
        "iffm": "NONE",
        "seq": "NONE",
        "user_only": "STACK",
    }
    shapes = {
        name: [(BATCH, *dims[1:]) for dims in all_dims]
        for name, all_dims in configs.output_shapes.items()
    }
    assert shapes == SHAPES


@pytest.mark.req("TS-SRVPS-T3")
@pytest.mark.parametrize("batch_size", [BATCH, -1])
def test_configs_survive_bytes(batch_size):
    message = encode_feature_configs(feature_configs(), batch_size=batch_size)
    again = decode_feature_configs(message)
    assert again.feature_configs == feature_configs().feature_configs
    assert again.output_shapes == feature_configs().output_shapes
    assert encode_feature_configs(again, batch_size=batch_size) == message


@pytest.mark.req("TS-SRVPS-T3")
def test_both_messages_have_the_golden_bytes():
    golden = ROOT / "tests/golden/records"
    assert example_batch() == (golden / "example_batch.pb").read_bytes()
    configs = encode_feature_configs(feature_configs(), batch_size=BATCH)
    assert configs == (golden / "feature_configs.pb").read_bytes()


def rows_of(ids):
    """A row of 17 numbers for each id of a batch, all different."""
    distinct = {each: number for number, each in enumerate(sorted(set(ids)))}
    return {each: torch.arange(17.0) + 17 * number for each, number in distinct.items()}


def expected_outputs(features, rows):
    """The outputs in plain torch."""

    def pooled(meta):
        cells = [
            torch.stack([rows[each][: sum(meta.slice_dims)] for each in ids])
            for ids in features[meta.name].to_lists()
        ]
        join = {1: lambda cell: cell.sum(0), 2: lambda cell: cell.mean(0), 3: lambda cell: cell}
        return torch.stack([join[meta.pool_type](cell) for cell in cells])

    user, network, array, pair, goods, page = map(pooled, FEATURES)
    users, items = [user, network, array], [goods, page]
    return {
        "bias": [torch.cat([each[:, :1] for each in users + items], 1)],
        "vec": [torch.cat([each[:, 1:5] for each in users + items], 1)],
        "uffm": [each[:, 5:9] for each in users],
        "iffm": [each[:, 5:9] for each in items],
        "seq": [pair],
        "user_only": [torch.stack([each[:, 9:17] for each in users], 1)],
    }


@pytest.mark.req("TS-SRVPS-T3")
@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_a_partitioned_table_looks_both_up(num_ps):
    configs = decode_feature_configs(encode_feature_configs(feature_configs(), batch_size=BATCH))
    tables = {}
    for meta in (ONE, TWO, THREE):
        segment = CombineAsSegment(sum(meta.slice_dims), Constant(-1.0), SGD(), Fp32Compressor())
        entry = CuckooHashTableConfig().table_config(EntryConfig([segment]))
        tables[meta.name] = HashTableConfigInstance(entry, [1.0])
    params = ShardingSparseFidsOpParams(num_ps, configs, sub_table_name_to_config=tables)
    features = data.RecordParser("example_batch", data.Columns(NAMES))([example_batch()]).features
    ids = {name: sorted(set(features[name].values.tolist())) for name in NAMES}
    rows = rows_of([each for own in ids.values() for each in own])
    values = {
        meta.name: torch.stack([rows[each][: sum(meta.slice_dims)] for each in ids[meta.name]])
        for meta in FEATURES
    }
    with LocalServers(num_ps) as servers:
        table = PartitionedHashTable(ParserContext(sharding_sparse_fids_op_params=params), servers)
        table.assign({name: (torch.tensor(ids[name]), values[name]) for name in NAMES})
        layout = table.lookup(features)
    for name, expected in expected_outputs(features, rows).items():
        tensors = layout[name] if isinstance(layout[name], list) else [layout[name]]
        assert [tuple(tensor.shape) for tensor in tensors] == SHAPES[name]
        for tensor, right in zip(tensors, expected, strict=True):
            torch.testing.assert_close(tensor.detach(), right, rtol=1e-6, atol=0)


def test_cut_configs_are_refused():
    message = encode_feature_configs(feature_configs())
    with pytest.raises(DataLossError, match=r"\[protobuf\] expected \d+ bytes of field 2, got"):
        decode_feature_configs(message[:-1])
