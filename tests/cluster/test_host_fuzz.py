"""Calls that were changed on their way: each works or is refused, and the host goes on."""

import contextlib
import itertools
import json

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from monolith.cluster.call_host import Call
from monolith.cluster.disk.file_verbs import FILE_VERBS
from monolith.cluster.host_verbs import GROUP_VERBS, SHARD_VERBS
from monolith.cluster.server_host import SERVER, ServerHost, config_text
from monolith.cluster.server_verbs import SERVER_VERBS
from monolith.cluster.shard_hosts import GroupHost, ShardHost, plain_rows
from monolith.cluster.table_group import TableGroup
from monolith.errors import MonolithError
from monolith.table import Expiry, MinCount, OneBit, Segment, SlidingFilter, Table, TableConfig
from monolith.table.disk.config_json import config_to_json
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.rows import Rows
from tests.suites.table_base import NOW

pytestmark = pytest.mark.thorough

SEGMENTS = [Segment(3, Adagrad(0.1), precision="fp16"), Segment(2, SGD(0.1), precision="bf16")]
SERVING = [Segment(3, view=OneBit()), Segment(2, precision="fp16")]
CONFIGS = {
    "plain": TableConfig("user", SEGMENTS, expiry=Expiry(30), non_finite="skip"),
    "counted": TableConfig("user", SEGMENTS, admission=MinCount(2), non_finite="skip"),
    "filtered": TableConfig("user", SEGMENTS, admission=SlidingFilter(2), non_finite="skip"),
    "serving": TableConfig("user", SERVING, kind="serving", skip_zero=True),
}
KEYS, N = torch.tensor([7, -8, 7, 1 << 62]), 4
LAST_HASH = (1 << 64) - 1


def plain_chunk(table):
    rows = table._lookup_entry(KEYS).rows
    return plain_rows(Rows(KEYS, torch.full((N,), NOW), rows.columns))


def save_request(folder):
    file = ("m.assets/user-0.arrow.tmp-0123456789ab", "rows", ((0, 4095),))
    request = {
        "folder": str(folder),
        "files": [file],
        "config": json.dumps(config_to_json(CONFIGS["plain"])),
        "num_update_calls": 3,
    }
    request |= {"latest_time": NOW, "rate": 1e9, "num_threads": 1}
    return request | dict.fromkeys(("is_link", "with_expired", "keeps_cut"), True)


def load_request(folder):
    file = (str(folder), "m.assets/user-0.arrow", "rows", ((0, 4095),), 1, 100, "00000000", 0)
    request = {"config": json.dumps(config_to_json(CONFIGS["plain"])), "sources": [file]}
    request |= {"partitions": [(0, 4095)], "shard": ("FloorModRouting", 2, 1), "where": "m"}
    return request | {"num_threads": 1, "is_check": True}


def shard_host(table):
    """A host whose first cut has the number 0, as the calls say."""
    host = ShardHost(table)
    host._cut_numbers = itertools.count()
    return host


def shard_calls(table, folder):
    """Good arguments of every verb; of a cut only if it is open."""
    values, flags = torch.ones(N, 5), torch.zeros(N, dtype=torch.bool)
    absent = flags if table.config.skip_zero else None
    rates, is_training = [0.1, 0.1], table.config.kind == "training"
    return {
        "lookup": (KEYS, is_training, 3, 2),
        "cut_candidates": (0, [0, 5, 4095]),
        "cut_changes": (0,),
        "cut_chunk": (0, 0, LAST_HASH, 10),
        "cut_entries": (0, KEYS),
        "cut_lookup": (0, KEYS, 3),
        "export_candidates": ([0, 5, 4095],),
        "export_chunk": (0, LAST_HASH, 10),
        "apply_gradients": (KEYS, values, rates, 3, NOW, 2),
        "apply_sums": (KEYS, values, torch.ones(N, dtype=torch.int32), rates, 3, NOW, 2),
        "assign": (KEYS, values, absent, NOW, 2),
        "assign_add": (KEYS, values, NOW, 2),
        "close_cut": (0, True),
        "evict": (NOW,),
        "evict_slice": (5, NOW),
        "import_candidates": (table._export_candidates(list(range(4096))),),
        "import_rows": (plain_chunk(table), absent, 2),
        "lookup_or_insert": (KEYS, 3, NOW, 2),
        "reinitialize": (KEYS, NOW),
        "release_cut": (0, [0, 5, 4095]),
        "set_seen_time": (NOW,),
        "set_update_calls": (5,),
        "start_load": (1, load_request(folder)),
        "start_save": (0, 0, save_request(folder)),
        **dict.fromkeys(("hurry_job", "job_state", "stop_job"), (0,)),
        **dict.fromkeys(("changes", "drop_cursor", "open_cut"), ("reader",)),
        **dict.fromkeys(("contains", "erase", "lookup_entry"), (KEYS,)),
        **{verb: () for verb in SHARD_VERBS if not SHARD_VERBS[verb].arguments},
    }


def group_calls():
    splits, flat = torch.tensor([0, 3, 3, 4]), torch.ones(3 * 2 + 1)
    counts, stepped = torch.ones(N, dtype=torch.int32), torch.ones(3, dtype=torch.bool)
    times = torch.full((3,), NOW)
    return {
        "lookup": (KEYS, splits, 3, False),
        "apply_gradients": (KEYS, splits, flat, counts, ["b"], [0.1] * 3, 3, NOW),
        "assign": (KEYS, splits, flat, ["b"], NOW),
        "assign_add": (KEYS, splits, flat, [], NOW),
        "count_clamped": (["a", "c"],),
        "pull": (KEYS, splits, True, "float16"),
        "push": (KEYS, splits, flat, counts, stepped, times, [0.1] * 3, torch.ones(3).long()),
        "reinitialize": ("a", KEYS, NOW),
        **{verb: () for verb in GROUP_VERBS if not GROUP_VERBS[verb].arguments},
    }


def server_calls():
    values = [("w", torch.ones(2, 2)), ("n", torch.tensor(3))]
    place, clients = ("PartitionRouting", 1, 0), '[[["table", "user"], {}]]'
    return {
        "open_table": (config_text(CONFIGS["plain"]), place, 1 << 20),
        "open_group": (["user"],),
        "write_values": (values,),
        "read_values": (["w", "n"],),
        "restore_clients": (clients,),
        "fence": ([7, 8],),
        "open_job": (2,),
        "renumber": (0, 1),
        **{verb: () for verb in SERVER_VERBS if not SERVER_VERBS[verb].arguments},
    }


def views(value):
    """Tensors that are nearly the value."""
    return [
        value[:-1],
        value.flatten(),
        value[..., None],
        value.flip(0),
        torch.cat([value, value])[::2],
        value.double(),
        value.int(),
        value.to("meta"),
        value.to_sparse(),
        torch.full_like(value, -1 if value.dtype.is_signed else 1),
        torch.full_like(value, True if value.dtype == torch.bool else 100),
        value * float("nan"),
        value.new_empty(0),
    ]


ODD: list[object] = [
    None,
    True,
    -1,
    0,
    1,
    1 << 31,
    1 << 63,
    1 << 64,
    1 << 20000,
    1.5,
    float("nan"),
    "",
    "a",
]
ODD += ["\ud800", b"a", [], [-1], [5000], ["a", "a"], [None], (), {}, {"key": 1}, {None: 1}, KEYS]
ODD += [torch.ones(N, 5), torch.tensor(1), object]


def changed(draw, value):
    """Another value in the place of an argument, or within it."""
    choices = list(ODD)
    if isinstance(value, torch.Tensor):
        choices += views(value)
    if isinstance(value, int):
        choices += [value + 1, -value, float(value), value << 40]
    if isinstance(value, str):
        choices += [value[:-1], value + value, value.replace("1", "-1"), value.replace('"', "")]
        cut = draw(st.integers(0, len(value)))
        choices += [value[:cut] + value[cut + 1 :], value[:cut] + "9" + value[cut:]]
    if isinstance(value, list):
        choices += [value + value, value[::-1], tuple(value), value[:-1]]
    if isinstance(value, tuple | dict) and value and draw(st.booleans()):
        names = list(range(len(value)) if isinstance(value, tuple) else value)
        name = draw(st.sampled_from(names))
        inner = dict(enumerate(value)) if isinstance(value, tuple) else dict(value)
        inner[name] = changed(draw, inner[name])
        return tuple(inner.values()) if isinstance(value, tuple) else inner
    return choices[draw(st.integers(0, len(choices) - 1))]


def mutated(draw, calls):
    """A verb and its arguments, of which some were changed, lost or are one too many."""
    verb = draw(st.sampled_from(sorted(calls)))
    arguments = list(calls[verb])
    places = st.integers(0, max(0, len(arguments) - 1))
    for place in sorted(draw(st.sets(places, max_size=2))) if arguments else ():
        arguments[place] = changed(draw, arguments[place])
    fate = draw(st.sampled_from(["fine"] * 8 + ["lost", "more"]))
    if fate == "lost":
        arguments = arguments[:-1]
    return verb, (*arguments, 1) if fate == "more" else tuple(arguments)


def check_calls(host, calls, draw, serves):
    """Sends changed calls, and a good one after each."""
    numbers = itertools.count()
    for _ in range(12):
        verb, arguments = mutated(draw, calls)
        number = next(numbers)
        with contextlib.suppress(MonolithError):
            host.do(Call(1, number, number, verb, arguments))
        number = next(numbers)
        serves(lambda verb, *rest, n=number: host.do(Call(1, n, n, verb, rest)))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", [Table, ReferenceTable])
@settings(max_examples=60, phases=[Phase.generate])
@given(data=st.data())
def test_a_shard_goes_on_after_every_changed_call(name, kind, data, tmp_path_factory):
    table = kind(CONFIGS[name], clock=lambda: NOW)
    calls = shard_calls(table, tmp_path_factory.mktemp("saves"))
    del calls["close"]

    def serves(do):
        assert do("set_update_calls", 5) is None
        assert do("lookup", KEYS, False, 0, 1).shape == (N, 5)

    check_calls(shard_host(table), calls, data.draw, serves)


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_a_group_goes_on_after_every_changed_call(data):
    dims = {"a": 2, "b": 3, "c": 1}
    configs = [TableConfig(n, Segment(d, SGD(0.1)), non_finite="skip") for n, d in dims.items()]
    group = TableGroup([Table(config) for config in configs])
    ones, splits = torch.ones(7), torch.tensor([0, 3, 3, 4])

    def serves(do):
        do("assign", KEYS, splits, ones, [], NOW)
        assert torch.equal(group.lookup(group.keys({"c": KEYS[3:]})), torch.ones(1))

    check_calls(GroupHost(group), group_calls(), data.draw, serves)


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_a_server_goes_on_after_every_changed_call(data):
    def serves(do):
        do("write_values", [("good", KEYS)])
        assert torch.equal(do("read_values", ["good"])[0], KEYS)

    server = ServerHost(0, 1)
    check_calls(server._hosts[SERVER], server_calls(), data.draw, serves)
    server.close()


def test_every_verb_of_a_server_has_a_good_call():
    server, calls = ServerHost(0, 1), server_calls()
    assert set(calls) == set(SERVER_VERBS)
    first = ["open_table", "write_values"]
    for number, verb in enumerate([*first, *sorted(set(calls) - set(first))]):
        server.do(SERVER, Call(1, number, number, verb, calls[verb]))
    server.close()


def test_every_verb_has_a_good_call(tmp_path):
    table = Table(CONFIGS["plain"])
    host = shard_host(table)
    calls = shard_calls(table, tmp_path)
    assert set(calls) == {*SHARD_VERBS, *FILE_VERBS}
    order = ["open_cut", "changes", *sorted(set(calls) - {"open_cut", "close", "clear", "changes"})]
    moved = [verb for verb in order if not verb.endswith("_cut")]
    ends = ["release_cut", "close_cut", "clear", "close"]
    moved = ["start_save", *(verb for verb in moved if verb != "start_save")]
    for number, verb in enumerate(["open_cut", *moved, *ends]):
        host.do(Call(1, number, number, verb, calls[verb]))
    assert set(group_calls()) == set(GROUP_VERBS)
