import pytest

from monolith.checkpoint.reference_dump import describe_dumps, num_cells, open_dumps
from monolith.checkpoint.reference_dump.dump_layout import SegmentFacts, segments_in
from monolith.errors import DataLossError
from tests.checkpoint.reference_dump.dump_writer import (
    entry,
    message,
    tfrecord,
    write,
    write_multi,
    write_single,
)

pytestmark = pytest.mark.req("NT-SAVE-T10")

ADAGRAD = ("adagrad", {"norm": [1, 1]})
SGD: tuple[str, dict[str, list[float]]] = ("sgd", {})


def facts(*pairs):
    return [SegmentFacts(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("dim", "dumps", "expected"),
    [
        (2, [ADAGRAD], [("adagrad", 2)]),
        (5, [ADAGRAD, SGD], [("adagrad", 2), ("sgd", 3)]),
        (5, [SGD, ADAGRAD, SGD], [("sgd", None), ("adagrad", 2), ("sgd", None)]),
        (
            3,
            [("batch_softmax", {"global_step": 7}), ADAGRAD],
            [("batch_softmax", 1), ("adagrad", 2)],
        ),
        (4, [ADAGRAD], [("adagrad", 2), ("", 2)]),
        (4, [], [("", 4)]),
        (3, [("group_adagrad", {"grad_square_sum": [1]})], [("group_adagrad", 3)]),
        (3, [("amsgrad", {"m": [1, 1, 1], "v": [1, 1, 1]})], [("amsgrad", 3)]),
    ],
)
def test_segments_are_shown_as_far_as_a_record_tells(dim, dumps, expected):
    assert segments_in(entry(1, [0] * dim, *dumps)) == facts(*expected)


def test_an_unknown_optimizer_is_shown_by_its_number():
    record = entry(1, [0]) + bytes.fromhex("1a050a038a0200")
    assert segments_in(record) == facts(("optimizer 33", 1))
    assert segments_in(entry(1, [0]) + bytes.fromhex("1a020a00")) == facts(("no optimizer", 1))


def test_tables_of_all_servers_are_summed(tmp_path):
    users = [entry(7 << 48 | i, [1, 1], ADAGRAD, time=i) for i in range(3)]
    write_multi(tmp_path, 0, {"item": [], "user": users[:1]}, {"item": [], "user": []})
    write_multi(tmp_path, 1, {"item": [], "user": users[1:]})
    item, user = describe_dumps(open_dumps(tmp_path))
    assert (item.name, item.num_rows, item.segments) == ("item", 0, ())
    assert (user.num_rows, user.num_without_time, user.oldest_time, user.newest_time) == (
        3,
        1,
        1,
        2,
    )
    assert (user.segments, user.slots) == (facts(("adagrad", 2)), {7: 3})


def test_a_dump_of_one_table_is_shown_by_its_suffix(tmp_path):
    write_single(tmp_path, "user_0", [entry(-1, [1], SGD)], [entry(2, [1], SGD)])
    (summary,) = describe_dumps(open_dumps(tmp_path))
    assert (summary.name, summary.kind, summary.num_rows) == ("user_0", "table", 2)
    assert summary.slots == {}  # a negative key is no fid


def test_an_incomplete_dump_is_not_read(tmp_path):
    write_single(tmp_path, "user", [entry(1, [1], SGD)], [])
    (tmp_path / "MonolithHashTable_user-00001-of-00002").unlink()
    assert describe_dumps(open_dumps(tmp_path)) == []


def test_damage_is_found(tmp_path):
    write_multi(tmp_path, 0, {"user": [entry(1, [1], SGD), b"\x15"]})
    with pytest.raises(DataLossError, match="expected an EntryDump message"):
        describe_dumps(open_dumps(tmp_path))


def test_damage_of_the_first_state_is_found(tmp_path):
    write_single(tmp_path, "user", [entry(1, [1]) + bytes.fromhex("1a020aff")])
    with pytest.raises(DataLossError, match=r"expected an EntryDump message.*record at byte 0"):
        describe_dumps(open_dumps(tmp_path))


def test_used_cells_of_a_filter_are_counted(tmp_path):
    splits = [tfrecord([message("HashFilterSplitMetaDump", num_elements=n), b"x"]) for n in (3, 4)]
    write(tmp_path, "hash_filter_0", *splits)
    folder = open_dumps(tmp_path)
    assert num_cells(folder, folder.sets[0]) == 7


def test_bytes_that_are_read_are_reported(tmp_path):
    write_single(tmp_path, "user", [entry(1, [1], SGD)], [entry(2, [1], SGD)])
    seen, folder = [], open_dumps(tmp_path)
    describe_dumps(folder, advance=seen.append)
    assert seen[-1] == folder.sets[0].num_bytes
