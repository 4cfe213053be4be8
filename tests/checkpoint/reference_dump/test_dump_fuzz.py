"""Seeded mutations of dumps end in rows that add up or in a DataLossError, in bounded memory."""

import random
import resource

import pytest

from monolith.checkpoint.reference_dump import describe_dumps, import_dumps, open_dumps
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import FTRL, SGD, Adagrad, Adam
from tests.checkpoint.reference_dump.dump_writer import (
    block,
    entry,
    metadata,
    snappy,
    tfrecord,
    write,
)

pytestmark = pytest.mark.req("NT-SAVE-T10")

SEGMENTS = [Segment(1, FTRL()), Segment(2, Adagrad()), Segment(1, Adam()), Segment(1, SGD())]
NUM_ROWS = 5
MAX_GROWTH = 192 << 20  # bytes: the limits of docs/reference/dumps.md, and what the allocator keeps


def row(key):
    adam = {"m": [1], "v": [1], "beta1_power": 0.5, "beta2_power": 0.5}
    ftrl, adagrad = {"zero": [1], "norm": [1]}, {"norm": [1, 1]}
    dumps = [("ftrl", ftrl), ("adagrad", adagrad), ("adam", adam), ("sgd", {})]
    return entry(key, [1, 2, 3, 4, 5], *dumps, time=key)


def mutated(data, rng, *, lengths=(8,)):
    """The bytes after up to four changes; absurd lengths are written too."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + rng.randint(1, 40)] = b""
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randint(1, 20))
        elif kind == 3:
            out[at:at] = out[rng.randrange(len(out) + 1) :]
        elif kind == 4:
            size = rng.choice(lengths)
            number = rng.choice([0, (1 << 8 * size) - 1, 1 << (8 * size - 4), 1 << 24])
            out[at : at + size] = number.to_bytes(size, rng.choice(["little", "big"]))
        else:
            del out[at:]
    return bytes(out)


def corpus(seed):
    """Files of a dump after a mutation: of a message, of frames, of blocks, or of metadata."""
    rng = random.Random(seed)
    rows = [row(key) for key in range(NUM_ROWS)]
    counts, layer = metadata({"user": rows}), max(0, seed % 8 - 3)
    if layer == 0:
        rows[rng.randrange(NUM_ROWS)] = mutated(rows[0], rng)
        return "table", tfrecord(rows), counts
    if layer == 1:
        return "table", mutated(tfrecord(rows), rng), counts
    if layer == 2:
        stream = mutated(tfrecord(rows), rng)
        return (
            "tables",
            b"".join(block(stream[at : at + 64]) for at in range(0, len(stream), 64)),
            counts,
        )
    if layer == 3:
        return "tables", mutated(snappy(rows, buffer=64), rng, lengths=(4, 8)), counts
    return "tables", snappy(rows), mutated(counts, rng)


def end_of(read, folder):
    """How a read ends: "rows", or an error that names a file."""
    try:
        read()
    except (DataLossError, InvalidArgumentError) as error:
        named = (f"{folder}/Monolith", "a table of the task for each table of the dumps, got none")
        return "error" if any(text in str(error) for text in named) else str(error)
    return "rows"


def ends_of(folder, seed):
    """How import and description of a mutation end."""
    kind, data, counts = corpus(seed)
    if kind == "table":
        write(folder, "MonolithHashTable_user", data)
    else:
        write(folder, "MonolithMultiHashTable_0", data)
        write(folder, "MonolithMultiHashTable_0.meta", counts)
    dumps = open_dumps(folder)
    with Table(TableConfig("user", SEGMENTS)) as table:
        ends = {end_of(lambda: import_dumps(dumps, [table]), folder)}
        assert len(table) <= 4 * NUM_ROWS
    ends.add(end_of(lambda: describe_dumps(dumps), folder))
    for file in folder.iterdir():
        file.unlink()
    return ends


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def check(folder, seeds):
    """Mutations end in rows or in an error, both in bounded memory."""
    ends_of(folder, seeds[0])
    before = peak_bytes()
    ends = set().union(*(ends_of(folder, seed) for seed in seeds))
    assert ends == {"rows", "error"}
    assert peak_bytes() - before < MAX_GROWTH


@pytest.mark.parametrize("begin", [0, 300])
def test_mutations_end_in_rows_or_in_an_error(tmp_path, begin):
    check(tmp_path, range(begin, begin + 300))


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(1_000, 21_000, 5_000))
def test_many_mutations_end_in_rows_or_in_an_error(tmp_path, begin):
    check(tmp_path, range(begin, begin + 5_000))
