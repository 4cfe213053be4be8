"""Tables and saves that the tests of this folder share."""

import json

import torch

from monolith.table import Expiry, MinCount, Segment, SlidingFilter, Table, TableConfig, Zeros
from monolith.table.disk import save_tables
from monolith.table.disk.buffers import crc32c
from monolith.table.disk.table_manifest import checksum
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import (
    NOW,
    assert_same_bits,
    assert_same_rows,
    random_floats,
    random_keys,
)

CONFIG = TableConfig(
    "user",
    [Segment(3, SGD(0.5)), Segment(5, Adagrad(0.5), name="wide", precision="bf16")],
    admission=MinCount(1),
    expiry=Expiry(30),
)


def make(config=CONFIG):
    return Table(config, clock=lambda: NOW)


def filled(n=1000, config=CONFIG):
    """A table with rows of some times, and candidates if it has a rule."""
    table = make(config)
    for seed in range(3):
        keys = random_keys(n, seed=seed // 2)
        table.apply_gradients(keys, random_floats(n, config.dim, seed), now=NOW - 10 + seed)
    return table


def plain(dim=1, **options):
    """The config of the reference system's vectors: zeros, SGD with rate 0.1."""
    return TableConfig(options.pop("name", "user"), Segment(dim, SGD(0.1), Zeros()), **options)


def sliding(threshold, **options):
    return plain(admission=SlidingFilter(threshold, **options))


def saved(path, *tables):
    save_tables(tables or filled(), path)
    return path


def manifest_of(path):
    return json.loads((path / "manifest.json").read_text())


def write_manifest(path, content):
    """A manifest with a checksum that fits."""
    content.pop("crc32c", None)
    content["crc32c"] = checksum(content)
    (path / "manifest.json").write_text(json.dumps(content))


def data_files(path, kind="rows"):
    """(path of the file, its entry in the manifest)."""
    return [
        (path / file["path"], file)
        for table in manifest_of(path)["tables"]
        for file in table["files"]
        if file["kind"] == kind
    ]


def replace_file(path, index, data, kind="rows"):
    """Put other bytes into a file and let the manifest agree with them."""
    content = manifest_of(path)
    files = [f for table in content["tables"] for f in table["files"] if f["kind"] == kind]
    files[index]["num_bytes"] = len(data)
    files[index]["crc32c"] = f"{crc32c(data):08x}"
    (path / files[index]["path"]).write_bytes(data)
    write_manifest(path, content)


def listing(path):
    """Everything below a folder, with its bytes."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def assert_same_table(a, b):
    """Rows, candidates, apply-call number and largest time are equal."""
    assert_same_rows(a, b)
    first, second = a.export_candidates(), b.export_candidates()
    assert first.keys() == second.keys()
    for name in first:
        assert_same_bits(first[name], second[name])
    assert a.num_update_calls == b.num_update_calls
    assert a.latest_time == b.latest_time


def ones(n, dim=1):
    return torch.ones(n, dim)
