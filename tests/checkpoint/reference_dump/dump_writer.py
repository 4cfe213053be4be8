"""Writes dumps as the reference system does; shares no code with the reader.

Messages are those of google.protobuf, checksums are computed here, and blocks of Snappy are cut by
the rule of the record writer: 262,144 bytes, a record in three pieces.
"""

import functools
import struct

import pyarrow as pa

from monolith.table.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AMSGrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    RMSprop,
    RMSpropV2,
)
from tests.data.records.protos import classes

SCHEMA = """
package monolith.hash_table
syntax proto2
Adagrad norm=1:repeated float
Sgd unused=99:int64
Ftrl zero=1:repeated float norm=2:repeated float
DynamicWdAdagrad norm=1:repeated float last_update_step=2:int64
Adadelta accum=1:repeated float accum_update=2:repeated float
Adam m=1:repeated float v=2:repeated float beta1_power=3:float beta2_power=4:float
Amsgrad m=1:repeated float v=2:repeated float vhat=3:repeated float beta1_power=4:float
  beta2_power=5:float
Momentum n=1:repeated float
Rmsprop n=1:repeated float
BatchSoftmax global_step=1:int64
GroupAdagrad grad_square_sum=1:repeated float
SingleOptimizerDump oneof adagrad=1:Adagrad sgd=2:Sgd ftrl=3:Ftrl
  dynamic_wd_adagrad=4:DynamicWdAdagrad adadelta=6:Adadelta adam=7:Adam amsgrad=8:Amsgrad
  momentum=9:Momentum rmsprop=11:Rmsprop rmspropv2=12:Rmsprop group_ftrl=13:Ftrl
  batch_softmax=14:BatchSoftmax group_adagrad=15:GroupAdagrad
OptimizerDump dump=1:repeated SingleOptimizerDump
EntryDump id=1:sfixed64 num=2:repeated float opt=3:OptimizerDump last_update_ts_sec=4:int64
MultiHashTableMetadata table_name=1:string num_entries=2:uint64
HashFilterSplitMetaDump failure_count=1:int64 total_size=2:int64 num_elements=3:int64
"""
NAMES = {
    Adagrad: "adagrad",
    SGD: "sgd",
    FTRL: "ftrl",
    DynamicWdAdagrad: "dynamic_wd_adagrad",
    Adadelta: "adadelta",
    Adam: "adam",
    AMSGrad: "amsgrad",
    Momentum: "momentum",
    RMSprop: "rmsprop",
    RMSpropV2: "rmspropv2",
    GroupFTRL: "group_ftrl",
    BatchSoftmax: "batch_softmax",
    GroupAdagrad: "group_adagrad",
    MovingAverage: None,
}
BUFFER = 262_144


def message(name, **fields):
    return classes(SCHEMA)[name](**fields).SerializeToString()


def entry(key, weights, *dumps, time=None):
    """A row; dumps: (optimizer, fields) of each segment that has one."""
    row = classes(SCHEMA)["EntryDump"](id=key, num=weights)
    for name, fields in dumps:
        dump = getattr(row.opt.dump.add(), name)
        dump.SetInParent()
        for field, value in fields.items():
            if isinstance(value, list):
                getattr(dump, field).extend(value)
            else:
                setattr(dump, field, value)
    if time is not None:
        row.last_update_ts_sec = time
    return row.SerializeToString()


def entries_of(table):
    """The rows of a table, in the order of an export."""
    segments, entries = list(table.config.segments), []
    for rows in table.export():
        for i, (key, time) in enumerate(zip(rows.keys.tolist(), rows.times.tolist(), strict=True)):
            weights, dumps = [], []
            for number, segment in enumerate(segments):
                name = segment.name or number
                weights += rows.columns[f"weight/{name}"][i].tolist()
                fields = {
                    column.name: rows.columns[f"state/{name}/{column.name}"][i].tolist()
                    for column in segment.optimizer.state(segment.dim)
                }
                for scalar in {"beta1_power", "beta2_power", "global_step"} & set(fields):
                    (fields[scalar],) = fields[scalar]
                if NAMES[type(segment.optimizer)]:
                    dumps.append((NAMES[type(segment.optimizer)], fields))
            entries.append(entry(key, weights, *dumps, time=time))
    return entries


@functools.cache
def crc_table():
    numbers = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        numbers.append(number)
    return numbers


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc_table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)


def pieces(record):
    """Header, payload and footer of a record, as the record writer hands them over."""
    size = struct.pack("<Q", len(record))
    return [
        size + struct.pack("<I", masked_crc(size)),
        record,
        struct.pack("<I", masked_crc(record)),
    ]


def tfrecord(records):
    return b"".join(piece for record in records for piece in pieces(record))


def block(data):
    packed = pa.Codec("snappy").compress(data, asbytes=True)
    return struct.pack(">I", len(packed)) + packed


def snappy(records, buffer=BUFFER):
    """Blocks of Snappy; a piece that no longer fits closes a block."""
    blocks, held = [], b""
    for piece in (piece for record in records for piece in pieces(record)):
        if len(held) + len(piece) > buffer:
            blocks += [held] if held else []
            held = b""
        held += piece
    return b"".join(map(block, [*blocks, held] if held else blocks))


def write(folder, name, *shards):
    """Files of a dump; shards: bytes of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(shards):
        (folder / f"{name}-{i:05}-of-{len(shards):05}").write_bytes(data)


def write_single(folder, table, *shards):
    """A dump of one table; shards: rows of each."""
    write(folder, f"MonolithHashTable_{table}", *map(tfrecord, shards))


def write_multi(folder, server, *shards, buffer=BUFFER):
    """A dump of many tables; shards: table -> rows, of each."""
    name = f"MonolithMultiHashTable_{server}"
    rows = [[row for table in sorted(shard) for row in shard[table]] for shard in shards]
    write(folder, name, *(snappy(records, buffer) for records in rows))
    write(folder, f"{name}.meta", *map(metadata, shards))


def metadata(shard):
    """Metadata of a shard; shard: table -> rows."""
    counts = [
        message("MultiHashTableMetadata", table_name=table, num_entries=len(shard[table]))
        for table in sorted(shard)
    ]
    return tfrecord(counts)
