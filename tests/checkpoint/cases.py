"""Checkpoints that the tests of this folder share."""

import json

import torch

from monolith.checkpoint import Contents, WriteOptions, write
from monolith.table import MinCount, Segment, Table, TableConfig, Zeros
from monolith.table.disk.buffers import crc32c
from monolith.table.disk.table_manifest import checksum
from monolith.table.optimizers import SGD, Adagrad

NOW = 1_700_000_000
USER = TableConfig("user", Segment(3, Adagrad(0.5), name="vector"), admission=MinCount(1))
ITEM = TableConfig("item", Segment(2, SGD(0.5), Zeros()))


def make(config=USER):
    return Table(config, clock=lambda: NOW)


def filled(config=USER, num_rows=50):
    """A table with rows, and candidates if it has a rule."""
    table = make(config)
    for end in (num_rows, num_rows // 2):
        table.apply_gradients(torch.arange(end), torch.ones(end, config.dim), now=NOW)
    return table


def dense_tensors():
    generator = torch.Generator().manual_seed(3)
    return {
        "layer.weight": torch.randn(2, 3, generator=generator),
        "layer.bias": torch.randn(2, generator=generator),
        "steps": torch.tensor(7),
    }


def saved(prefix, *, tables=None, dense=None, step=7, **options):
    """Save a checkpoint; its prefix as a str."""
    contents = Contents(
        tables=[filled(), filled(ITEM)] if tables is None else tables,
        dense=dense_tensors() if dense is None else dense,
        trainer={"epoch": 1, "position": [3, 4]},
        meta={"model": "Linear"},
        step=step,
    )
    write(contents, prefix, WriteOptions(clock=lambda: 1.5, **options))
    return str(prefix)


def manifest_path(prefix):
    return f"{prefix}.manifest.json"


def manifest_of(prefix):
    with open(manifest_path(prefix)) as file:
        return json.load(file)


def write_manifest(prefix, content):
    """A manifest with checksums that fit."""
    content.pop("crc32c", None)
    times = content.pop("times")
    times.pop("crc32c", None)
    content["crc32c"] = checksum(content)
    content["times"] = {**times, "crc32c": checksum(times)}
    with open(manifest_path(prefix), "w") as file:
        json.dump(content, file)


def replace_file(prefix, fact, data):
    """Put other bytes into a file and let its entry in a manifest agree with them."""
    fact.update(num_bytes=len(data), crc32c=f"{crc32c(data):08x}")
    with open(str(prefix) + fact["path"], "wb") as file:
        file.write(data)


def listing(path):
    """Everything below a folder, with its bytes; locks left out."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def assert_same_tensors(a, b):
    assert sorted(a) == sorted(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert torch.equal(a[name], b[name]), name
