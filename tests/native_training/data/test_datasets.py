import random
import struct

import pyarrow as pa
import pytest

from monolith import data
from monolith.data.records.framing import data_source_key
from monolith.native_training.data.datasets import merge_flow, split_flow
from tests.data.samples import users

DEVICES = ["pc", "mobile", "cloud"]


@pytest.fixture
def source(tmp_path):
    """4096 instances of three data sources, named by lagrangex headers."""
    generator = random.Random(0)
    records = data.RecordWriter("instance").records(pa.table({"user": range(4096)}))
    with open(tmp_path / "data.pb", "wb") as file:
        for record in records:
            name = generator.choice(DEVICES)
            header = struct.pack("<Q", data_source_key(name) & 0xFFFFFF00)
            file.write(header + struct.pack("<Q", len(record)) + record)
    columns = data.Columns(["user", "data_source_key"])
    framing = data.Framing(lagrangex_header=True)
    return data.instances(tmp_path / "data.pb", columns=columns, framing=framing)


def test_three_flows_come_back_in_eight_batches(source):
    pc, mobile, cloud = (split_flow(source, DEVICES, index) for index in range(3))
    merged = merge_flow(pc, [mobile, cloud], variant_type="instance").batch(
        512, drop_remainder=True
    )
    batches = list(merged)
    assert len(batches) == 8
    assert sorted(users(batches)) == list(range(4096))


def test_a_flow_has_the_samples_of_its_data_source(source):
    (batch,) = split_flow(source, DEVICES, 2).batch(4096)
    assert set(batch.features["data_source_key"].values.tolist()) == {2782803200}


def test_the_bound_is_that_of_the_split(source):
    flows = [split_flow(source, DEVICES, index, max_queue_size=7).batch(1) for index in range(2)]
    assert "pc" in flows[0].describe()[-2]
    assert flows[0].stage.source.splitter.max_waiting == 7


def test_a_flow_that_is_not_named_is_refused(source):
    with pytest.raises(IndexError):
        split_flow(source, DEVICES, 3)
    with pytest.raises(ValueError, match="expected a column of ids, got 'data_source_key'"):
        split_flow(source.drop("data_source_key"), DEVICES, 0)
