"""Records that are unusual, and what of them counts."""

import pyarrow as pa
import pytest

from monolith import data
from monolith.data.convert import BadSamples
from monolith.data.files.listing import file_at
from monolith.data.records.decoder import RecordFormat
from monolith.errors import DataLossError
from tests.data.records.record_bytes import (
    batch,
    example,
    fids,
    floats,
    ids_of,
    named_list,
    parse,
    put_bytes,
    put_fixed32,
    put_varint,
    tf_example,
    v1,
)

BYTES = 6


def ids_list(name, *rows, shared=False):
    return named_list(name, [put_bytes(2, fids(*row)) for row in rows], shared)


def lines(*times):
    """A list of line ids with a request time each; None: an empty one."""
    line_ids = [b"" if time is None else put_varint(3, time) for time in times]
    return named_list("__LINE_ID__", [put_bytes(BYTES, put_bytes(1, line)) for line in line_ids])


@pytest.mark.parametrize("first", [[[1], [2]], [[1, 2], [3]], [[1], [2], [3]]])
def test_of_two_lists_of_a_feature_the_last_counts(first):
    record = batch(2, ids_list("a", *first), ids_list("a", [7], [8]))
    assert ids_of("example_batch", record, "a") == [[7], [8]]


def test_an_empty_list_leaves_nothing_of_the_list_before():
    emptied = batch(0, ids_list("a", [1], [2]), ids_list("a"))
    made = parse("example_batch", [emptied, batch(1, ids_list("a", [9]))], ["a"])
    assert made.features["a"].to_lists() == [[9]]


def times_of(tmp_path, record):
    data.RecordWriter("example_batch").write_records([record], tmp_path / "f")
    columns = data.Columns(time="line_id.req_time")
    batches = iter(data.example_batches(tmp_path / "f", columns=columns, on_error="skip").batch(9))
    return next(batches).time.tolist(), sum(batches.num_skipped.values())


@pytest.mark.parametrize("first", [(None, 2), (1, 2, 3, None)])
def test_bad_rows_of_a_list_of_line_ids_are_forgotten_with_it(tmp_path, first):
    assert times_of(tmp_path, batch(2, lines(*first), lines(4, 5))) == ([4, 5], 0)


def test_a_bad_row_of_the_line_ids_is_left_out(tmp_path):
    assert times_of(tmp_path, batch(2, lines(4, None))) == ([4], 1)


def test_a_weight_that_is_wanted_as_ids_is_an_error_with_its_place():
    with pytest.raises(DataLossError, match=r"byte 2: Example.instance_weight .* expected ids"):
        parse("example", [put_fixed32(102, 2.0)], ["instance_weight"])


def test_a_key_that_is_wanted_as_a_number_is_refused():
    with pytest.raises(ValueError, match="expected column data_source_key of ids, got one of num"):
        parse("example", [], dense=["data_source_key"])


@pytest.mark.parametrize(
    ("count", "text"), [(0, "expected a value, got none"), (2, "expected one value, got 2")]
)
def test_a_slot_that_is_the_time_has_one_fid(count, text):
    record = put_bytes(1, fids(*[v1(1, 5)] * count)[2:])
    with pytest.raises(DataLossError, match=f"record 0, byte 0: Instance.fid .*{text}"):
        parse("instance", [record], time="slot_1")


def test_a_slot_that_is_the_time_may_be_a_named_feature():
    record = put_bytes(9, put_bytes(1, b"slot_1") + fids(5).replace(b"\x0a", b"\x12", 1))
    assert parse("instance", [record], time="slot_1").time.tolist() == [5]


@pytest.mark.parametrize("lists", [[], [named_list("d", [put_bytes(3, floats(1))], shared=True)]])
def test_few_bytes_do_not_become_too_many_numbers(lists):
    column = data.DenseColumn("d", width=17, fill=0.0)
    with pytest.raises(DataLossError, match="expected at most 16777216 rows or values, got 178257"):
        parse("example_batch", [batch(1 << 20, *lists)], dense=[column])


def test_a_block_ends_when_its_shared_lists_have_become_many_ids(tmp_path):
    record = batch(4096, ids_list("a", range(4096), shared=True))
    data.RecordWriter("example_batch").write_records([record] * 3, tmp_path / "f")
    file = file_at(str(tmp_path / "f"))
    columns = data.Columns(["a"])
    reader = RecordFormat("example_batch").open(file, 0, columns, BadSamples(), ahead=False)
    assert [reader.read().columns.num_rows for _ in range(3)] == [4096] * 3


def test_a_negative_limit_of_records_is_refused():
    with pytest.raises(ValueError, match="expected max_record_bytes of at least 0, got -1"):
        RecordFormat("example", max_record_bytes=-1)


CUT = b"\x8a"  # a tag without its end


@pytest.mark.parametrize(
    ("kind", "record", "text"),
    [
        ("example", example({"a": CUT}), "Feature .column 'a'.: expected a whole"),
        ("example", example({"a": put_bytes(7, CUT)}), "Feature.fid_v2_lists .*: expected a whole"),
        ("example", example({"a": put_bytes(2, CUT)}), "Feature.fid_v2_list .*: expected a whole"),
        ("example", put_bytes(1, CUT), "named_feature: expected a whole"),
        ("example", example({"__LINE_ID__": CUT}), "__LINE_ID__: expected a whole"),
        ("example", example({"__LINE_ID__": put_bytes(6, CUT)}), "__LINE_ID__: expected a whole"),
        ("tf_example", CUT, "byte 0: Example: expected a whole"),
        ("tf_example", put_bytes(1, CUT), "Features: expected a whole"),
        ("tf_example", tf_example({"a": CUT}), "Feature .column 'a'.: expected a whole"),
        ("instance", CUT, "Instance: expected a whole"),
        ("instance", put_bytes(9, CUT), "Instance.feature: expected a whole"),
        ("example_batch", CUT, "ExampleBatch: expected a whole"),
        ("example_batch", put_bytes(1, CUT), "named_feature_list: expected a whole"),
    ],
)
def test_a_tag_that_is_cut_off_is_an_error_at_every_depth(kind, record, text):
    with pytest.raises(DataLossError, match=text):
        parse(kind, [record], ["a", "line_id.uid"])


def test_records_that_tell_no_columns_are_refused_without_columns(tmp_path):
    data.RecordWriter("example").write_records([b""], tmp_path / "f")
    with pytest.raises(ValueError, match="f' expected records with features, got none"):
        data.examples(tmp_path / "f").batch(1)


def test_a_number_that_is_always_empty_is_no_column(tmp_path):
    record = example({"a": put_bytes(2, fids(7)), "d": put_bytes(3, b"")})
    data.RecordWriter("example").write_records([record] * 2, tmp_path / "f")
    made = next(iter(data.examples(tmp_path / "f").batch(2)))
    assert (list(made.features), list(made.dense)) == (["a"], [])


def written(kind, column, name="a"):
    """What a column of a table becomes on its way through records."""
    records = data.RecordWriter(kind).records(pa.table({name: column}))
    return parse(kind, records, [name]).features[name].to_lists()


def test_missing_values_of_lists_are_left_out():
    assert written("example", [[1, None, 2], None, [3]]) == [[1, 2], [], [3]]
    assert [len(row) for row in written("example", [["x", None], ["y"]])] == [1, 1]


def test_a_slot_that_fids_v1_do_not_have_is_a_feature():
    assert written("instance", [2000 << 48 | 1], "slot_2000") == [[2000 << 48 | 1]]


def test_an_empty_weight_is_none():
    table = pa.table({"instance_weight": pa.array([[]], pa.list_(pa.float32()))})
    assert data.RecordWriter("example").records(table) == [b""]


def test_batches_without_rows_are_refused():
    with pytest.raises(ValueError, match="expected a batch_size of at least 1, got 0"):
        data.RecordWriter("example_batch", batch_size=0)
