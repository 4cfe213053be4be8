"""Many tables over servers give the bits of single tables, on both paths."""

import pytest
import torch

from monolith.native_training.tables import DistributedMultiTypeHashTable
from monolith.table import Probabilistic, Segment, Table, TableConfig, Uniform
from monolith.table.optimizers import SGD, Adagrad
from tests.native_training.tables.kinds import on_every_kind
from tests.suites.table_base import NOW, random_floats

pytestmark = pytest.mark.thorough

both_paths = pytest.mark.parametrize("is_raw", [True, False])


@pytest.fixture(params=[1, 2, 3, 7])
def servers(request, servers_of):
    return servers_of(request.param)


def on_servers(configs, servers, is_raw):
    return DistributedMultiTypeHashTable(configs, servers, is_raw=is_raw, clock=lambda: NOW)


def mixed():
    """Slots of different dims, one with two segments."""
    segments = [Segment(2, Adagrad(0.5), Uniform(-1, 1)), Segment(1, SGD(0.1))]
    return {
        "ad": TableConfig("ad", segments, seed=3),
        "none": TableConfig("none", Segment(2)),
        "user": TableConfig("user", Segment(4, SGD(0.5), Uniform(-1, 1))),
    }


def random_ids(n, seed):
    return torch.randint(-40, 40, (n,), generator=torch.Generator().manual_seed(seed))


def exercise(table):
    """Writes of every kind to two slots with equal ids; what they read afterwards."""
    ids = {"ad": random_ids(90, 0), "user": random_ids(70, 0)}
    dims = {"ad": 3, "user": 4}
    rows = {slot: (own, random_floats(len(own), dims[slot])) for slot, own in ids.items()}
    table.assign({slot: (own[:30], values[:30]) for slot, (own, values) in rows.items()})
    table.assign_add(rows)
    table.apply_gradients(rows, step=1)
    table.apply_gradients({"user": rows["user"]}, step=2)
    return table.lookup({"ad": random_ids(120, 1), "user": random_ids(60, 2)})


def one_by_one(configs):
    """The same on single tables, without shards."""

    class Tables:
        def __init__(self):
            self.tables = {n: Table(config, clock=lambda: NOW) for n, config in configs.items()}

        def lookup(self, ids):
            return {slot: self.tables[slot].lookup(own) for slot, own in ids.items()}

        def __getattr__(self, verb):
            def call(pairs, **options):
                for slot, pair in pairs.items():
                    getattr(self.tables[slot], verb)(*pair, **options)

            return call

    return Tables()


@pytest.mark.req("NT-DPS-T4", "NT-DPS-T12")
@on_every_kind
@both_paths
def test_rows_are_those_of_single_tables_bit_for_bit(servers, is_raw):
    expected = exercise(one_by_one(mixed()))
    found = exercise(on_servers(mixed(), servers, is_raw))
    assert found.keys() == {"ad", "user"}
    assert all(torch.equal(found[slot], expected[slot]) for slot in expected)


@pytest.mark.req("NT-DPS-T12")
@on_every_kind
@both_paths
def test_random_numbers_do_not_depend_on_the_number_of_servers(servers, is_raw):
    configs = {
        "half": TableConfig("half", Segment(2, SGD(0.1), Uniform(-1, 1), precision="fp16")),
        "rare": TableConfig("rare", Segment(1, SGD(0.1)), admission=Probabilistic(3)),
    }

    def train(table):
        for step in range(40):  # few ids a call, so that most servers have none
            ids = random_ids(2, step)
            half, rare = (
                (ids, random_floats(2, 2, seed=step)),
                (ids, random_floats(2, 1, seed=step)),
            )
            table.assign_add({"half": half})
            table.apply_gradients({"half": half, "rare": rare})
        return table.lookup({slot: torch.arange(-40, 40) for slot in configs})

    found, expected = train(on_servers(configs, servers, is_raw)), train(one_by_one(configs))
    assert all(torch.equal(found[slot], expected[slot]) for slot in configs)


@both_paths
def test_calls_that_leave_servers_without_keys_do_not_depend_on_the_default_dtype(servers, is_raw):
    table = on_servers(mixed(), servers, is_raw)
    pairs = {"user": (torch.tensor([0]), torch.ones(1, 4, dtype=torch.float32))}
    torch.set_default_dtype(torch.float64)
    try:
        table.assign({}).assign(pairs)
        table.apply_gradients({})
        found = table.lookup({"user": torch.tensor([0])})["user"]
        assert (found.dtype, table.lookup({})) == (torch.float32, {})
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.tolist() == [[1, 1, 1, 1]]
