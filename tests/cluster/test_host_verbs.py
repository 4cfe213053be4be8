"""What hosts refuse before anything is done: every argument of every verb, by name."""

import re

import pytest
import torch

from monolith.cluster.call_host import Call
from monolith.cluster.shard_hosts import GroupHost, ShardHost
from monolith.cluster.table_group import TableGroup
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from monolith.table import MinCount, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.table_base import NOW, floats, keys

K, V = keys(7, 8), floats([1, 2], [3, 4])
CONFIG = TableConfig("user", Segment(2, SGD(1.0), Zeros()))
SERVING = TableConfig("user", Segment(2), kind="serving")
SKIPPING = TableConfig("user", Segment(2), kind="serving", skip_zero=True)
CANDIDATES = TableConfig("user", Segment(2), admission=MinCount(3))


SPLITS, STEPPED = keys(0, 1, 2), torch.tensor([True, True])
COUNTS, TIMES = torch.tensor([3, 2], dtype=torch.int32), keys(NOW, NOW)
MOST, CALLS = (1 << 29) - 1, keys(0, 0)


def pushed(**others):
    """Good arguments of a push to `group()`, but for some."""
    good = {"keys": K, "splits": SPLITS, "grads": torch.ones(3), "counts": COUNTS}
    good |= {"is_stepped": STEPPED, "times": TIMES, "rates": [1.0, 1.0], "calls": CALLS}
    return tuple((good | others).values())


def do(host, verb, *arguments):
    return host.do(Call(1, 0, 0, verb, arguments))


def refused(host, verb, arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        do(host, verb, *arguments)


def shard(config=CONFIG, **options):
    return ShardHost(Table(config, clock=lambda: NOW), **options)


def group(**options):
    configs = [TableConfig("a", Segment(2, SGD(1.0))), TableConfig("b", Segment(1, SGD(1.0)))]
    return GroupHost(TableGroup([Table(config) for config in configs]), **options)


@pytest.mark.parametrize(
    ("verb", "arguments", "text"),
    [
        (
            "lookup",
            (K, True, 0),
            r"\[ShardHost.lookup\] expected a tuple of 4 argument\(s\) \(keys, initial, step, "
            r"threads\), got a tuple of 3 \(table 'user'\)",
        ),
        ("stats", (1,), r"expected a tuple of 0 argument\(s\) \(\), got a tuple of 1"),
        ("contains", (K.int(),), "expected keys of dtype int64, got int32"),
        ("contains", ([7],), "expected keys as a torch.Tensor, got list"),
        ("contains", (K[:, None],), r"expected keys with 1 dimension\(s\), got shape \(2, 1\)"),
        ("contains", (keys(1, 2, 3)[::2],), r"expected contiguous keys, got strides \(2,\)"),
        ("contains", (K.to("meta"),), "expected keys on device cpu, got meta"),
        (
            "assign_add",
            (K, floats([1, 2]), NOW, 1),
            r"\[ShardHost.assign_add\] expected values of shape \(n, dim\) = \(2, 2\), got \(1, ",
        ),
        ("assign_add", (K, V.double(), NOW, 1), "expected values of dtype float32, got float64"),
        ("assign_add", (K, V, -1, 1), r"expected now as an int in \[0, 4294967295\], got -1"),
        ("assign_add", (K, V, True, 1), "expected now as an int in .* got True"),
        ("assign_add", (K, V, NOW, 257), r"expected threads as an int in \[1, 256\], got 257"),
        ("assign_add", (K, V, NOW, 1 << 9999), "expected threads .* got an int of 10000 bits"),
        (
            "assign",
            (K, V, torch.tensor([True, False]), NOW, 1),
            "expected absent as None, as the table keeps rows of zeros, got a tensor of shape",
        ),
        ("lookup", (K, 1, 0, 1), "expected initial as a bool, got 1"),
        ("evict_slice", (1 << 64, NOW), "expected first as an int in .* got 18446744073709551616"),
        (
            "export_chunk",
            (5, 4, 1),
            r"expected last as an int in \[5, 18446744073709551615\], got 4",
        ),
        ("export_chunk", (0, 0, 0), "expected limit as an int in .* got 0"),
        ("changes", ("",), "expected cursor as a name of 1 to 1024 characters, got ''"),
        ("changes", ("a" * 1025,), "expected cursor as a name .* got 'a{100}'"),
        ("changes", ("\ud800",), "expected cursor as a name in Unicode"),
        ("changes", (None,), "expected cursor as a name of 1 to 1024 characters, got None"),
        ("open_cut", (7,), "expected cursor as a name of 1 to 1024 characters, got 7"),
        ("close_cut", (0, None), "expected is_read as a bool, got None"),
        ("cut_entries", (0, K.int()), "expected keys of dtype int64, got int32"),
        ("cut_lookup", (0, K.int(), 0), "expected keys of dtype int64, got int32"),
        ("cut_lookup", (0, K, -1), "expected step as an int in .* got -1"),
        ("export_candidates", ([1.0],), "expected partitions as a list of ints, got a list of 1"),
        ("export_candidates", ([1, 1],), "expected partitions that ascend, got a list of 2"),
        ("export_candidates", ([0, 4096],), r"expected partitions in \[0, 4096\), got 4096"),
        ("export_candidates", ([-1, 0],), r"expected partitions in \[0, 4096\), got -1"),
        ("apply_gradients", (K, V, 0.1, 0, NOW, 1), "expected learning_rates as a list, got 0.1"),
        (
            "apply_gradients",
            (K, V, [0.1, 0.1], 0, NOW, 1),
            "expected 1 learning rates, one per segment of all tables, got 2",
        ),
        (
            "apply_gradients",
            (K, V, [float("nan")], 0, NOW, 1),
            r"expected learning rates in \[0, 3.40282e\+38\], got nan",
        ),
        (
            "import_rows",
            ((K, K), None, 1),
            r"expected rows as a tuple \(keys, times, columns\), got a tuple of 2",
        ),
        ("import_rows", ((K, K, [V]), None, 1), "expected columns as a dict by name, got a list"),
        ("import_rows", ((K, K, {}), None, 1), r"expected columns \['weight/0'\], got \[\]"),
        ("import_rows", ((K, K, {"weight/0": V[:1]}), None, 1), "expected 2 rows in 'weight/0'"),
        ("import_rows", ((K, -K, {"weight/0": V}), None, 1), r"expected times in \[0, .* got \[-8"),
        ("import_candidates", ({"key": K},), r"expected columns \[\], got \['key'\]"),
        ("import_candidates", ({1: K},), "expected columns as a dict by name, got a dict of 1"),
    ],
)
def test_a_shard_refuses(verb, arguments, text):
    host = shard()
    refused(host, verb, arguments, text)
    assert do(host, "num_rows") == 0
    assert not host._clients.get(1)


@pytest.mark.parametrize(
    ("verb", "arguments", "text"),
    [
        ("lookup", (K, keys(0, 1), 0, False), r"expected row_splits of shape \(splits\) = \(3,\)"),
        ("lookup", (K, keys(1, 1, 2), 0, False), "expected row_splits that begin with 0, got 1"),
        ("lookup", (K, keys(0, 3, 2), 0, False), "expected row_splits that never decrease, got 3"),
        ("lookup", (K, keys(0, 1, 3), 0, False), "expected row_splits that end with 2, .* got 3"),
        ("lookup", (K, keys(0, 1, 2), 0, 0), "expected as_float16 as a bool, got 0"),
        (
            "assign",
            (K, keys(0, 1, 2), floats([1, 2]).flatten(), [], NOW),
            r"expected values of shape \(floats\) = \(3,\), got \(2,\)",
        ),
        (
            "apply_gradients",
            (K, keys(0, 1, 2), torch.ones(3).double(), None, [], [1.0, 1.0], 0, NOW),
            "expected grads of dtype float32, got float64",
        ),
        (
            "apply_gradients",
            (K, keys(0, 1, 2), torch.ones(3), COUNTS[:1], [], [1.0, 1.0], 0, NOW),
            r"expected counts of shape \(n\) = \(2,\), got \(1,\)",
        ),
        (
            "assign",
            (K, keys(0, 1, 2), torch.ones(3), ["c"], NOW),
            "expected idle with names of the host's tables, got 'c' .table 'a and 1 more'",
        ),
        (
            "assign",
            (K, keys(0, 2, 2), torch.ones(4), ["b", "b"], NOW),
            "expected idle with different names, got a list of 2",
        ),
        ("count_clamped", ("a",), "expected names as a list of names, got 'a'"),
        ("pull", (K, SPLITS, 0, "float32"), "expected initial as a bool, got 0"),
        ("pull", (K, SPLITS, True, "int8"), "expected transfer as one of float32, .*, got 'int8'"),
        ("push", pushed(grads=torch.ones(3).int()), "expected grads of dtype float32, got int32"),
        ("push", pushed(calls=CALLS - 1), "expected calls from 0 on, got -1"),
        ("push", pushed(counts=COUNTS.long()), "expected counts of dtype int32, got int64"),
        ("push", pushed(counts=COUNTS[:1]), r"expected counts of shape \(n\) = \(2,\), got \(1,\)"),
        ("push", pushed(counts=COUNTS - 3), r"expected counts from 1 on, .*, got -1"),
        (
            "push",
            pushed(counts=COUNTS * MOST),
            r"expected counts .* at most 2147483647 in all, got 2684354555",
        ),
        (
            "push",
            pushed(times=TIMES[:1]),
            r"expected times of shape \(tables\) = \(2,\), got \(1,\)",
        ),
        ("push", pushed(times=TIMES - NOW - 1), r"expected times in \[0, 4294967295\], got -1"),
        ("push", pushed(times=TIMES << 32), r"expected times in .*, got 4294967296000000"),
        ("push", pushed(is_stepped=STEPPED.int()), "expected is_stepped of dtype bool, got int32"),
        (
            "push",
            pushed(is_stepped=torch.tensor([True, False])),
            r"expected is_stepped for every table with keys, got a list of 2",
        ),
        ("push", pushed(rates=[0.1]), "expected 2 learning rates, one per segment"),
        (
            "reinitialize",
            (b"a", K, NOW),
            "expected name as a name of 1 to 1024 characters, got b'a",
        ),
    ],
)
def test_a_group_refuses(verb, arguments, text):
    refused(group(), verb, arguments, text)


def test_a_push_counts_an_update_of_every_stepped_table():
    host = group()
    first = K[:1], keys(0, 1, 1), torch.ones(2), COUNTS[:1], STEPPED, TIMES, [1.0, 1.0], CALLS
    assert do(host, "push", *first) == (1, 1, 0, 0)
    assert [table.num_update_calls for table in host.group.tables.values()] == [1, 1]
    assert do(host, "pull", K[:1], keys(0, 1, 1), False, "float32").shape == (2,)


def test_a_push_raises_the_number_of_the_tables_that_are_stepped():
    host, only_first = group(), torch.tensor([True, False])
    keys_of_first = {"keys": K[:1], "splits": keys(0, 1, 1), "counts": COUNTS[:1]}
    for sequence, number in enumerate((7, 3)):
        calls = keys(number, number)
        good = pushed(**keys_of_first, grads=torch.ones(2), is_stepped=only_first, calls=calls)
        host.do(Call(1, sequence, 0, "push", good))
    assert [table.num_update_calls for table in host.group.tables.values()] == [9, 0]


def test_a_push_is_refused_before_a_table_changes():
    host, grads = group(), torch.tensor([1.0, 1.0, float("nan")])
    with pytest.raises(ValueError, match="expected finite gradients, got nan at row 0, column 0"):
        do(host, "push", *pushed(grads=grads))
    assert [len(table) for table in host.group.tables.values()] == [0, 0]


def test_serving_tables_are_pushed_nothing():
    host = GroupHost(TableGroup([Table(SERVING)]))
    arguments = K, keys(0, 2), torch.ones(4), COUNTS, STEPPED[:1], TIMES[:1], [1.0], CALLS[:1]
    with pytest.raises(FailedPreconditionError, match="expected a training table, got a serving"):
        do(host, "push", *arguments)


@pytest.mark.parametrize(
    ("client", "sequence", "done"),
    [(-1, 0, 0), (1 << 63, 0, 0), (1, 0, 1), (1, -1, -1), (1, 0.0, 0)],
)
def test_a_call_without_a_number_is_refused(client, sequence, done):
    text = r"\[ShardHost.do\] expected a client, a sequence number and answers below it as ints"
    with pytest.raises(InvalidArgumentError, match=text):
        shard().do(Call(client, sequence, done, "num_rows", ()))


@pytest.mark.parametrize("verb", [["lookup"], None, "lookup" * 1000, "_check"])
def test_a_verb_that_is_none_is_refused_in_a_short_text(verb):
    with pytest.raises(InvalidArgumentError, match="expected a verb of a shard") as caught:
        do(shard(), verb)
    assert len(str(caught.value)) < 250


def test_arguments_of_a_last_call_are_refused():
    refused(shard(), "bye", (1,), "expected a verb of a shard, got 'bye'")


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("lookup_or_insert", (K, 0, NOW, 1)),
        ("apply_gradients", (K, V, [0.1], 0, NOW, 1)),
        ("reinitialize", (K, NOW)),
    ],
)
def test_a_serving_shard_does_not_train(verb, arguments):
    with pytest.raises(FailedPreconditionError, match="expected a training table, got a serving"):
        do(shard(SERVING), verb, *arguments)


@pytest.mark.parametrize(("verb", "arguments"), [("evict", (NOW,)), ("evict_slice", (0, NOW))])
def test_a_shard_without_expiry_evicts_nothing(verb, arguments):
    text = rf"\[ShardHost.{verb}\] expected a table whose rows expire, got one without expiry"
    with pytest.raises(FailedPreconditionError, match=text):
        do(shard(), verb, *arguments)


def test_a_serving_shard_has_no_initial_values():
    text = "expected initial as False, as the table is a serving one, got True"
    refused(shard(SERVING), "lookup", (K, True, 0, 1), text)


def test_flags_are_of_the_length_of_the_keys():
    text = r"expected absent of shape \(n\) = \(2,\), got \(1,\)"
    refused(shard(SKIPPING), "assign", (K, V, torch.tensor([True]), NOW, 1), text)


def test_a_message_has_a_largest_number_of_keys_of_a_shard():
    host = shard(max_message_bytes=64)  # of rows of 32 bytes
    assert do(host, "contains", K).tolist() == [False, False]
    text = r"\[ShardHost.contains\] expected at most 2 keys in a message, got 3 \(table 'user'\)"
    refused(host, "contains", (keys(1, 2, 3),), text)


def test_a_message_has_a_largest_number_of_candidates():
    host = shard(CANDIDATES, max_message_bytes=64)
    columns = {"key": keys(1, 2, 3), "count": keys(1, 1, 1), "time": keys(1, 1, 1)}
    refused(host, "import_candidates", (columns,), "expected at most 2 candidates in a message")


def test_a_message_has_a_largest_number_of_floats_of_a_group():
    host = group(max_message_bytes=100)
    text = "expected at most 25 floats in a message, got 26"
    host._facts.max_keys = 100
    refused(host, "lookup", (torch.arange(13), keys(0, 13, 13), 0, False), text)


def test_a_chunk_is_no_longer_than_a_message():
    host = shard(max_message_bytes=64)
    do(host, "assign", K, V, None, NOW, 1)
    host.table.assign(keys(9), floats([5, 6]))
    rows, _, _ = do(host, "export_chunk", 0, (1 << 64) - 1, 1000)
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("cut_chunk", (5, 0, 1, 1)),
        ("cut_candidates", (5, [])),
        ("release_cut", (5, [])),
        ("close_cut", (5, True)),
        ("cut_changes", (5,)),
        ("cut_entries", (5, K)),
    ],
)
def test_a_cut_that_is_not_open_is_refused(verb, arguments):
    text = rf"\[ShardHost.{verb}\] expected the number of an open cut, got 5 \(table 'user'\)"
    with pytest.raises(FailedPreconditionError, match=text):
        do(shard(), verb, *arguments)


def test_weights_of_a_cut_that_is_not_open_are_aborted():
    text = (
        "[ShardHost.cut_lookup] expected the number of an open cut, got 5: the server came back "
        "without the cut, or the cut was closed; cut again (table 'user')"
    )
    with pytest.raises(AbortedError, match=re.escape(text)):
        do(shard(), "cut_lookup", 5, K, 0)


def test_changes_that_are_asked_for_again_are_the_same():
    host = shard()
    do(host, "changes", "reader")
    host.table.assign(K, V)
    number = host.do(Call(1, 1, 0, "open_cut", ("reader",)))[0]
    first, again = (host.do(Call(1, i, 0, "cut_changes", (number,))) for i in (2, 2))
    assert first == again
    assert sorted(first[1].tolist()) == sorted(set(K.tolist()))


def test_partitions_of_a_cut_that_were_released_are_refused():
    host = shard()
    number = do(host, "open_cut", None)[0]
    host.do(Call(1, 1, 0, "release_cut", (number, [0])))
    text = "expected partitions that were not released, got 0"
    with pytest.raises(FailedPreconditionError, match=text):
        do(host, "cut_chunk", number, 0, 5, 1)


@pytest.mark.parametrize("routing", [PartitionRouting(3), FloorModRouting(3)])
def test_writes_of_keys_that_another_shard_holds_are_refused(routing):
    numbers = torch.arange(-20, 20)
    owners = routing.shard_of(numbers)
    host = shard(placement=routing.placement_of(1))
    at = int((owners != 1).nonzero()[0])
    text = (
        rf"\[ShardHost.assign\] expected keys of shard 1 of {type(routing).__name__}\(3\), got key "
        rf"{int(numbers[at])} at place {at} \(table 'user'\)"
    )
    refused(host, "assign", (numbers, torch.ones(40, 2), None, NOW, 1), text)
    own = numbers[owners == 1].contiguous()
    do(host, "assign", own, torch.ones(len(own), 2), None, NOW, 1)
    assert do(host, "lookup", numbers, False, 0, 1).sum() == 2 * len(own)


def test_whole_rows_and_pushes_of_another_shard_are_refused():
    place, text = (
        PartitionRouting(2).placement_of(0),
        "expected keys of shard 0 of PartitionRouting",
    )
    foreign = torch.arange(50)[PartitionRouting(2).shard_of(torch.arange(50)) == 1][:2].contiguous()
    rows = (foreign, keys(NOW, NOW), {"weight/0": V})
    refused(shard(placement=place), "import_rows", (rows, None, 1), text)
    refused(group(placement=place), "push", pushed(keys=foreign), text)


class OtherRouting(FloorModRouting):
    """A routing that a caller wrote."""


def test_keys_of_a_routing_of_the_caller_are_not_checked():
    host = shard(placement=OtherRouting(2).placement_of(0))
    assert do(host, "assign", K, V, None, NOW, 1) is None
