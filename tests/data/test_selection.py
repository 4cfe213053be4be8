"""`Pipeline.select`: sources read the columns that something needs, and no others."""

import copy
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from torch.utils import _pytree as pytree

from monolith import data
from monolith.data import operations
from monolith.data.convert import BadSamples
from monolith.data.files.listing import find_files
from monolith.data.files.tabular import make_format, write_rows
from monolith.data.selection import narrow
from monolith.errors import InvalidArgumentError
from tests.data.samples import num_bytes_read, table, users, write_parquet


def read_columns(pipeline):
    """Return the names of the columns that each source of a pipeline reads."""
    found, waiting = {}, [pipeline.stage]
    while waiting:
        stage = waiting.pop()
        inner = getattr(stage, "sources", None) or [getattr(stage, "source", None)]
        waiting += [each for each in inner if each is not None]
        if isinstance(getattr(stage, "columns", None), data.Columns):
            found[id(stage)] = stage.columns.names()
    return list(found.values())


def memory(**options):
    rows = table(10).append_column("extra", pa.array(np.arange(10)))
    return data.arrow_table(rows, **options)


def is_even(block):
    return np.asarray(block["user"]) % 2 == 0


@pytest.mark.parametrize("name", ["parquet", "arrow", "csv", "jsonl", "example", "tf_example"])
def test_every_format_reads_only_what_is_selected(tmp_path, name):
    write_rows(tmp_path / "f", name, table(9).schema, iter(table(9).to_batches()))
    (file,) = find_files(tmp_path / "f")
    columns, form = data.Columns(["items"], labels=["label"]), make_format(name)
    for ahead in (False, True):
        reader = form.open(file, 0, columns, BadSamples(), ahead=ahead)
        assert sorted(reader.read().columns.schema.names) == ["items", "label"]
        reader.close()


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_the_bytes_of_other_columns_are_not_read(tmp_path, name):
    random = np.random.default_rng(0)
    rows = pa.table({f"c{i}": random.random(20_000) for i in range(40)})
    write_rows(tmp_path / "f", name, rows.schema, iter(rows.to_batches()))
    source = getattr(data, name)(tmp_path / "f").select("c7", "c9").batch(5_000)
    before = num_bytes_read()
    assert [list(batch.dense) for batch in source] == [["c7", "c9"]] * 4
    assert num_bytes_read() - before < (tmp_path / "f").stat().st_size / 10


def test_a_stage_without_a_declaration_reads_all_columns():
    assert read_columns(memory().filter(is_even).select("label")) == [
        ["user", "items", "extra", "price", "label"]
    ]


@pytest.mark.parametrize(
    ("stage", "reads"),
    [
        (lambda s: s.filter(is_even, reads=["user"]), ["user", "label"]),
        (lambda s: s.map(lambda block: block, reads=["price"]), ["price", "label"]),
        (lambda s: s.sample(lambda block, _: block, reads=["price"]), ["price", "label"]),
        (lambda s: s.filter_numbered(lambda b, _: is_even(b), "x", reads=["user"]),
         ["user", "label"]),
        (lambda s: s.shuffle(4).take(8).repeat(2).cache().shard(0, 2), ["label"]),
        (lambda s: s.drop("user"), ["label"]),
        (lambda s: s.cross("both", ["user", "extra"]), ["user", "extra", "label"]),
        (lambda s: s.filter(operations.FilterByValue("extra", "gt", 1)), ["extra", "label"]),
        (lambda s: s.split(lambda b: is_even(b), ["a", "b"], reads=["user"])["a"],
         ["user", "label"]),
        (lambda s: s.split("user", {"a": 4}, others="drop")["a"], ["user", "label"]),
    ],
)  # fmt: skip
def test_a_source_reads_what_the_stages_declare(stage, reads):
    source = stage(memory()).select("label").batch(4)
    assert read_columns(source) == [reads]
    whole = stage(memory()).batch(4)
    assert [b.label.tolist() for b in source] == [b.label.tolist() for b in whole]


def test_streams_of_one_source_still_share_it():
    flows = memory().split("extra", {"a": 4, "b": 7}, others="drop")
    merged = flows["a"].merge(flows["b"])
    selected = merged.select("user").batch(4)
    assert read_columns(selected) == [["user", "extra"]]
    assert users(selected) == users(merged.batch(4)) == [4, 7]


def test_a_merge_by_time_reads_the_times():
    columns = data.Columns(["user", "extra"], time="t")
    rows = [{"user": [i], "extra": [0], "t": [9 - i]} for i in range(2)]
    first, second = (data.arrow_table(each, columns=columns) for each in rows)
    selected = first.merge(second, by="time").select("user")
    assert read_columns(selected) == [["user", "t"]] * 2
    assert users(selected.batch(4)) == [1, 0]


def test_negatives_read_items_and_labels(tmp_path):
    generation = operations.NegativeGen(1, "extra", start_num=0)
    whole = memory().generate_negatives(generation)
    selected = whole.select("user")
    assert read_columns(selected) == [["user", "extra", "label"]]
    assert users(selected.batch(4)) == users(whole.batch(4))


def test_a_cache_keeps_the_blocks_of_its_columns():
    source = memory().cache()
    assert users(source.select("user").repeat(2).batch(4)) == 2 * list(range(10))
    assert next(iter(source.batch(4))).dense["price"].tolist() == [0, 0.25, 0.5, 0.75]


def test_samples_are_counted_if_the_source_gives_none_of_the_columns():
    ones = lambda block: block.append_column("one", pa.array(np.ones(len(block), np.float32)))  # noqa: E731
    source = memory().map(ones, adds=data.Columns(dense=["one"]), reads=[]).select("one")
    assert [len(batch) for batch in source.batch(7)] == [7, 3]


def test_a_source_that_skips_bad_samples_checks_every_column():
    rows = {"user": [1, 2, 3], "price": [1.0, None, 3.0]}
    source = data.arrow_table(rows, on_error="skip").select("user").batch(8)
    assert users(source) == [1, 3]


def test_a_bad_value_of_a_column_that_is_not_read_is_no_error():
    rows = {"user": [1, 2, 3], "price": [1.0, None, 3.0]}
    assert users(data.arrow_table(rows).select("user").batch(8)) == [1, 2, 3]


@pytest.mark.parametrize("read", ["parquet", "arrow", "csv", "jsonl"])
def test_a_state_is_resumed_with_other_columns(tmp_path, monkeypatch, read):
    monkeypatch.setattr("monolith.data.files.parquet._BLOCK", 7)
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 300)
    for i in range(3):
        rows = table(40, i * 40)
        write_rows(tmp_path / f"{i}", read, rows.schema, iter(rows.to_batches(10)))
    whole = getattr(data, read)(tmp_path).interleave(2).shuffle(25).batch(8)
    narrowed = whole.select("user", "label")
    for first, second in ((whole, narrowed), (narrowed, whole)):
        batches = iter(first)
        next(batches)
        state = json.loads(json.dumps(batches.state_dict()))
        assert users(second.resume(state)) == users(batches)


@pytest.mark.parametrize("name", ["price", "items", "label"])
def test_a_batch_refuses_a_column_that_was_left_out(name):
    (batch,) = memory().select("user", "extra").batch(20)
    text = f"expected a column that is read, got '{name}', which was left out because nothing"
    for part in (batch.features, batch.dense, batch.labels):
        for ask in (lambda p=part: p[name], lambda p=part: name in p, lambda p=part: p.get(name)):
            with pytest.raises(InvalidArgumentError, match=text):
                ask()


def test_a_column_that_the_source_never_had_is_just_missing():
    (batch,) = memory().select("user").batch(20)
    assert [part.get("x") for part in (batch.features, batch.dense, batch.labels)] == [None] * 3
    assert "x" not in batch.dense
    with pytest.raises(KeyError, match="x"):
        batch.dense["x"]


@pytest.mark.parametrize(
    "move",
    [
        lambda batch: batch.to("cpu"),
        lambda batch: pytree.tree_map(lambda leaf: leaf, batch),
        copy.copy,
        lambda batch: pickle.loads(pickle.dumps(batch)),
    ],
)
def test_a_moved_batch_refuses_the_same_columns(move):
    (batch,) = memory().select("user", "label", "extra").batch(20)
    for part in (move(batch).features, move(batch).dense, move(batch).labels):
        with pytest.raises(InvalidArgumentError, match="got 'price'"):
            part["price"]
    assert move(batch).label.tolist() == batch.label.tolist()


def test_a_column_that_a_later_stage_adds_again_is_not_refused():
    prices = lambda block: block.append_column("price", block["label"])  # noqa: E731
    source = memory().select("user", "label").map(prices, adds=data.Columns(dense=["price"]))
    assert next(iter(source.batch(2))).dense["price"].tolist() == [0, 1]


def test_a_function_that_reads_more_than_it_declares_is_told():
    source = memory().filter(is_even, reads=["price"]).select("label").batch(4)
    text = (
        r"^\[Pipeline\] expected is_even to read \['price'\] alone, as declared by reads, got .*"
        "user.*; add the column to reads$"
    )
    with pytest.raises(InvalidArgumentError, match=text):
        next(iter(source))


def test_an_error_of_a_function_without_a_declaration_is_its_own():
    with pytest.raises(KeyError, match="nothing"):
        next(iter(memory().filter(lambda block: block["nothing"]).batch(4)))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda s: s.select("usr"), ValueError,
         r"^\[Columns.only\] expected columns of \['user', .*\], got 'usr'; did you mean 'user'\?"),
        (lambda s: s.select(), ValueError, "expected at least 1 of columns, got 0"),
        (lambda s: s.filter(is_even, reads="user"), TypeError,
         r"^\[Pipeline.filter\] expected reads as names, got 'user'; write \['user'\]$"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(memory())


def test_a_long_list_of_columns_is_cut_in_messages():
    rows = {f"c{i:03}": [0.5] for i in range(300)}
    with pytest.raises(ValueError, match=r"'c019'\] and 280 more, got 'c999'"):
        data.arrow_table(rows).select("c999")


def test_declared_columns_are_told_apart_from_inferred_ones(tmp_path):
    write_parquet(tmp_path)
    columns = data.Columns(["user"], labels=["label"])
    assert data.parquet(tmp_path, columns=columns).inferred == frozenset()
    assert data.parquet(tmp_path).inferred == {"user", "items", "price", "label"}
    assert data.parquet(tmp_path, label="label").inferred == {"user", "items", "price"}
    assert data.arrow_table({"user": [7], "instance_weight": [1.0]}).inferred == {"user"}


WIDE = pa.record_batch(
    {
        **{name: pa.array([3, 4], pa.int64()) for name in ("user", "item", "chnid", "time")},
        **{name: pa.array([[1], [2, 3]]) for name in ("actions", "pre_actions", "strategies")},
        "label": pa.array([1, -1], pa.float32()),
        "stay": pa.array([3, 9], pa.float32()),
        "weight": pa.array([2, 3], pa.float32()),
    }
)
OPERATIONS = [
    operations.FilterByFids(["user"], has_actions=[2], req_time_min=4, time="time"),
    operations.FilterByValue("stay", "gt", 5),
    operations.FilterByLabel([0.0]),
    operations.all_of(operations.FilterByLabel([0.0]), operations.FilterByValue("stay", "gt", 1)),
    operations.SwitchSlot({"user": (False, 2)}),
    operations.FeatureCombine("both", "user", "item", 5),
    operations.FidMask("has", "user", 3),
    operations.MapId("user", {3: 0}),
    operations.AddLabel("1:2:1.0", -1.0, 1.0),
    operations.ScatterLabel("3:0,4:1"),
    operations.MultiLabel({3: 0, 4: 1}, pos_actions=[1], neg_actions=[2]),
    operations.MultiLabel({3: 0, 4: 1}, use_origin_label=True),
    operations.LabelUpperBound([0.5]),
    operations.LabelNormalization(["scale"], [2.0]),
    operations.RankLabel("rank", "user"),
    operations.AddAction("stay", "gt", 5, 7),
    operations.InstanceReweight("1,2", "1:2:1,2:1:-1"),
    operations.NegativeSample(0.5, correction="weight", weight="weight"),
    operations.NegativeSample(0.5, per_action_drop_rate="2:1.0", action_priority="2"),
    operations.SpecialStrategy("1,2", "1:1.0:-1.0", strategies="strategies"),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: type(each).__name__)
def test_an_operation_declares_all_that_it_reads(operation):
    draws = [operations.Draws(0, 0)] * (
        type(operation).__name__ in ("AddLabel", "NegativeSample", "SpecialStrategy")
    )
    whole = operation(WIDE, *draws)
    part = operation(WIDE.select(sorted(operation.reads)), *draws)
    if isinstance(whole, pa.RecordBatch):
        whole = whole.select(part.schema.names).to_pydict()
        part = part.to_pydict()
    np.testing.assert_equal(part, whole)


def test_a_group_with_a_filter_of_unknown_columns_reads_all():
    assert operations.any_of(operations.FilterByLabel([0.0]), is_even).reads is None


def test_what_negatives_replace_is_read_too():
    plain = operations.NegativeGen(1, "item", channel="chnid", weight="weight")
    assert plain.reads == {"item", "chnid", "label", "weight"}
    changed = operations.NegativeGen(1, "item", item_features=["price"], negative_action=3)
    assert changed.reads == {"item", "price", "label", "instance_weight", "actions"}


def test_a_stage_of_unknown_reads_needs_all_columns():
    class Unknown:
        def __init__(self, source):
            self.source = source

    source = memory().stage
    assert narrow(Unknown(source), ["user"]).source is source
