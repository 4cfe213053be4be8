"""Mutations of a save, and what a reader may answer to them."""

import json
import shutil
import time
from random import Random

from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.table.disk import load_tables
from tests.table.disk.cases import manifest_of, replace_file, write_manifest

REFUSALS = (DataLossError, InvalidArgumentError, NotFoundError)
NUMBERS = (0, 1, -1, 2, 4095, 4096, 65536, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64, 10**30)
VALUES: tuple[object, ...] = (*NUMBERS, None, True, "", "x", "..", [], {}, [0, 1], 0.5, 1e300)


def mutated(random, data):
    """Some bytes changed, cut out, doubled or put in."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        at, length = random.randrange(len(data) + 1), random.choice([1, 2, 4, 8, 64, 4096])
        kind = random.choice(["flip", "set", "number", "cut", "double", "end", "insert"])
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind == "set":
            data[at : at + length] = bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF])]) * length
        elif kind == "number":
            number = random.choice(NUMBERS) % (1 << 64)
            data[at // 8 * 8 : at // 8 * 8 + 8] = number.to_bytes(8, "little")
        elif kind == "cut":
            del data[at : at + length]
        elif kind == "double":
            data[at:at] = data[at : at + length]
        elif kind == "end":
            del data[at:]
        else:
            data[at:at] = random.randbytes(length)
    return bytes(data)


def change_json(random, content):
    """One value somewhere in a JSON document becomes another, or goes."""
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(content)
    node, key = random.choice(places)
    if random.random() < 0.2:
        del node[key]
    else:
        node[key] = random.choice(VALUES)


def spoil(random, path):
    """One mutation of the save: with or without checksums that fit."""
    kind = random.choice(["file", "fitting file", "manifest", "fitting manifest", "swap"])
    files = [f for table in manifest_of(path)["tables"] for f in table["files"]]
    if kind == "file":
        file = path / random.choice(files)["path"]
        file.write_bytes(mutated(random, file.read_bytes()))
    elif kind == "fitting file":
        of = random.choice(["rows", "candidates"])
        chosen = [f for f in files if f["kind"] == of]
        index = random.randrange(len(chosen))
        data = mutated(random, (path / chosen[index]["path"]).read_bytes())
        replace_file(path, index, data, of)
    elif kind == "manifest":
        manifest = path / "manifest.json"
        manifest.write_bytes(mutated(random, manifest.read_bytes()))
    elif kind == "fitting manifest":
        content = manifest_of(path)
        change_json(random, content)
        if isinstance(content, dict):
            write_manifest(path, content)
    else:
        a, b = random.sample(files, 2)
        shutil.copy(path / a["path"], path / b["path"])


def fuzz(corpus, folder, *, seconds=None, num_rounds=None, first_seed=0):
    """Loads mutated saves until time or rounds are over; how many were refused, and loaded."""
    start, num_refused, num_loaded, seed = time.monotonic(), 0, 0, first_seed
    while True:
        if num_rounds is not None and seed - first_seed >= num_rounds:
            return num_refused, num_loaded
        if seconds is not None and time.monotonic() - start > seconds:
            return num_refused, num_loaded
        random = Random(seed)
        path = folder / "save"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(random.choice(corpus), path)
        spoil(random, path)
        (folder / "seed.json").write_text(json.dumps(seed))  # what to look at after a crash
        try:
            tables = load_tables(path, num_threads=1)
        except REFUSALS as error:
            num_refused += str(error).startswith("[load_tables] expected ")
        else:
            for table in tables.values():
                table.close()
            num_loaded += 1
        seed += 1
        if num_refused + num_loaded != seed - first_seed:
            raise AssertionError(f"seed {seed - 1} was refused without a name")
