"""Groups of tables behind transports: each call is done once, whatever happens on the way."""

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.cluster.call_host import Call
from monolith.cluster.shard_hosts import GroupHost
from monolith.cluster.table_group import TableGroup
from monolith.cluster.transport import LocalTransport, Transport
from monolith.errors import UnavailableError
from monolith.native_training.tables.key_routes import RawRoutes
from monolith.native_training.tables.sharded_group import ShardedGroup, connect
from monolith.ops import Ragged
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from tests.cluster.test_transport import FlakyTransport
from tests.suites.table_base import NOW

CONFIGS = [TableConfig("a", Segment(2, Adagrad(0.5))), TableConfig("b", Segment(1, SGD(0.1)))]


def hosts(num_shards):
    made = ([Table(config, clock=lambda: NOW) for config in CONFIGS] for _ in range(num_shards))
    return [GroupHost(TableGroup(tables)) for tables in made]


def random_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-30, 30, (90,), generator=generator)
    keys = Ragged.from_lengths(ids, torch.tensor([60, 30]))
    return keys, torch.randn(150, generator=generator)


def train(group):
    routes = RawRoutes(group)
    for seed in range(20):
        parts, grads = routes.split_flat(*random_batch(seed))
        group.apply_gradients(parts, grads, step=seed)
    return routes.lookup_flat(random_batch(99)[0], 0)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_lost_doubled_and_late_calls_change_nothing(num_shards):
    with LocalServers(1) as servers:
        expected = train(
            connect({c.name: c for c in CONFIGS}, servers, owner="Test", clock=lambda: NOW)
        )
    flaky = [FlakyTransport(host, seed) for seed, host in enumerate(hosts(num_shards))]
    group = ShardedGroup(CONFIGS, flaky, clock=lambda: NOW)
    group._client._timeout_seconds, group._client._num_tries = 0.0, 1000
    assert torch.equal(train(group), expected)
    assert {"lost", "twice", "late"} <= set(flaky[0].seen)


def test_gradients_need_not_be_contiguous():
    keys, grads = random_batch(0)
    answers = []
    for flat in (grads, torch.stack([grads, -grads], 1)[:, 0].requires_grad_()):
        group = ShardedGroup(CONFIGS, [LocalTransport(*hosts(1))], clock=lambda: NOW)
        group.apply_gradients([keys], [flat])
        answers += group.lookup([keys])
    assert torch.equal(*answers)


class _Silent(Transport):
    def send(self, call):
        raise UnavailableError("nobody")


def test_a_shard_that_never_answers_is_named():
    group = ShardedGroup(CONFIGS, [_Silent()], owner="Owner")
    text = r"\[Owner.lookup\] expected an answer of shard 0.*table 'a and 1 more'"
    with pytest.raises(UnavailableError, match=text):
        RawRoutes(group).lookup_flat(random_batch(0)[0], 0)


def test_shards_without_keys_are_not_asked():
    group = ShardedGroup(CONFIGS, [_Silent(), _Silent()])
    nothing = Ragged.from_lengths(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    assert [rows.tolist() for rows in group.lookup([nothing, nothing])] == [[], []]


def test_verbs_that_a_group_does_not_have_are_refused():
    (host,) = hosts(1)
    with pytest.raises(
        ValueError, match=r"\[GroupHost.do\] expected a verb of a shard, got 'evict'"
    ):
        host.do(Call(1, 0, 0, "evict", ()))


def test_another_number_of_rates_is_refused():
    (host,) = hosts(1)
    keys, grads = random_batch(0)
    text = "expected 2 learning rates, one per segment of all tables, got 1"
    arguments = (keys.values, keys.row_splits, grads, None, [], [1.0], 0, NOW)
    with pytest.raises(ValueError, match=text):
        host.do(Call(1, 0, 0, "apply_gradients", arguments))
