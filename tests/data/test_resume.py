"""A pipeline that is stopped and goes on gives what it would have given."""

import gzip
import itertools
import json
import random

import numpy as np
import pytest

from monolith import data
from monolith.data.files.tabular import write_rows
from monolith.errors import FailedPreconditionError
from tests.data.samples import memory, table, users, write_parquet


def prepared(folder):
    """Pipelines with every stage."""
    csv = folder / "csv"
    csv.mkdir()
    for i in range(3):
        text = "".join(f"{i * 40 + j}\n" for j in range(40))
        (csv / f"{i}.csv").write_text("user\n" + text)
    files = folder / "parquet"
    files.mkdir()
    parquet = data.parquet(write_parquet(files, num_files=5, num_samples=33, row_group_size=7))
    is_even = lambda block: np.asarray(block["user"]) % 2 == 0  # noqa: E731
    return {
        "plain": parquet.batch(10),
        "shuffled": parquet.shuffle_files(1).interleave(3).shuffle(20).repeat(2).batch(7),
        "filtered": parquet.filter(is_even).shuffle(11).batch(4, drop_remainder=True),
        "taken": parquet.take(70).shard(1, 2).repeat(2).batch(6),
        "cached": parquet.cache().shuffle(50).repeat(3).batch(9),
        "csv": data.csv(csv).shuffle_files().shuffle(15).batch(4),
        "memory": memory(50).shuffle(13).repeat(2).batch(4),
        "synthetic": data.synthetic(90, num_features=1).map(renamed).batch(7),
        "crossed": memory(50).cross("both", ["user", "items"]).batch(6),
    }


def renamed(block):
    return block


NAMES = [
    "plain", "shuffled", "filtered", "taken", "cached", "csv", "memory", "synthetic", "crossed",
]  # fmt: skip


def contents(batches):
    return [
        {name: (each.values.tolist(), each.row_splits.tolist())
         for name, each in batch.features.items()}
        for batch in batches
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_resume_at_random_positions_gives_the_remaining_stream(tmp_path, name, depth):
    source = prepared(tmp_path)[name]
    source = source.prefetch(depth) if depth else source
    whole = contents(source)
    assert len(whole) > 4
    positions = random.Random(name).sample(range(len(whole) + 1), min(6, len(whole)))
    for position in positions:
        batches = iter(source)
        list(itertools.islice(batches, position))
        state = json.loads(json.dumps(batches.state_dict()))
        batches.close()
        fresh = prepared_again(source)
        assert contents(fresh.resume(state)) == whole[position:]


def prepared_again(source):
    """The same pipeline without what a cache has read."""
    stage = source.stage
    while hasattr(stage, "source"):
        if hasattr(stage, "blocks"):
            stage.blocks.clear()
        stage = stage.source
    return source


def file_sources(folder, monkeypatch):
    """The same samples in three files of each format, in blocks of a few samples."""
    for module, size in (("files.parquet", 7), ("files.text_lines", 300), ("records.decoder", 500)):
        monkeypatch.setattr(f"monolith.data.{module}._BLOCK", size)
    columns = data.Columns(["user", "items"], ["price"], ["label"])
    sources = {}
    for name in ("parquet", "arrow", "csv", "jsonl", "example", "example_batch", "tf_example"):
        (folder / name).mkdir()
        for i in range(3):
            rows = table(60, i * 60)
            write_rows(folder / name / f"{i}", name, rows.schema, iter(rows.to_batches(10)))
        read = {
            "example": data.examples,
            "example_batch": data.example_batches,
            "tf_example": data.tfrecords,
        }.get(name) or getattr(data, name)
        sources[name] = read(folder / name, columns=columns)
    return sources


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["parquet", "arrow", "csv", "jsonl", "example", "example_batch", "tf_example"]
)
def test_files_read_ahead_go_on_at_a_hundred_positions(tmp_path, monkeypatch, name):
    source = file_sources(tmp_path, monkeypatch)[name].interleave(2).shuffle(11).batch(1)
    whole = contents(source)
    source = source.prefetch(2)
    with iter(source) as batches:
        states = [json.dumps(batches.state_dict()) for _ in batches]
    assert len(states) == 180
    for position in random.Random(0).sample(range(1, 181), 100):
        with source.resume(json.loads(states[position - 1])) as rest:
            assert contents(itertools.islice(rest, 12)) == whole[position : position + 12]


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [0, 2])
def test_resume_at_a_hundred_positions(tmp_path, depth):
    source = prepared(tmp_path)["shuffled"]
    source = source.batch(3)
    whole = contents(source)
    assert len(whole) > 100
    source = source.prefetch(depth) if depth else source
    for position in random.Random(0).sample(range(len(whole) + 1), 100):
        batches = iter(source)
        list(itertools.islice(batches, position))
        assert contents(source.resume(batches.state_dict())) == whole[position:]
        batches.close()


def write_text(folder, end):
    for i in range(3):
        text = "".join(f"{i * 40 + j}\n" for j in range(40)).encode()
        name, packed = f"{i}.csv{end}", gzip.compress(b"user\n" + text)
        (folder / name).write_bytes(packed if end else b"user\n" + text)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_text_files_keep_their_turns(tmp_path, monkeypatch, end):
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 20)
    write_text(tmp_path, end)
    source = data.csv(tmp_path).interleave(2).batch(3)
    whole = contents(source)
    for position in range(len(whole) + 1):
        batches = iter(source)
        list(itertools.islice(batches, position))
        assert contents(source.resume(batches.state_dict())) == whole[position:]


def test_a_resumed_pass_can_be_resumed(tmp_path):
    source = prepared(tmp_path)["shuffled"]
    whole = contents(source)
    batches = iter(source)
    got = contents(itertools.islice(batches, 5))
    for _ in range(4):
        batches = source.resume(batches.state_dict())
        got += contents(itertools.islice(batches, 5))
    assert got == whole[:25]


def test_a_state_before_the_first_batch_is_the_begin():
    source = memory(10).batch(3)
    assert users(source.resume(iter(source).state_dict())) == list(range(10))


def test_a_state_of_another_pipeline_is_refused():
    state = iter(memory(10).batch(3)).state_dict()
    with pytest.raises(FailedPreconditionError, match=r"'blocks of 4'\), got .*'blocks of 3'"):
        memory(10).batch(4).resume(state)


def test_a_state_of_a_longer_pipeline_is_refused():
    state = iter(memory(10).batch(3).take(2)).state_dict()
    with pytest.raises(
        FailedPreconditionError, match=r"'the end'\), got .*'the first 2'\); make stages"
    ):
        memory(10).batch(3).resume(state)


def test_a_state_of_another_version_is_refused():
    with pytest.raises(FailedPreconditionError, match="a state of version 1, got 2"):
        memory().batch(3).resume({"version": 2})


def test_a_state_is_small(tmp_path):
    source = prepared(tmp_path)["shuffled"]
    batches = iter(source)
    next(batches)
    assert len(json.dumps(batches.state_dict())) < 1000
