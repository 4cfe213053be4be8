"""Equal ids are folded before they travel, and admission counts each of them all the same."""

import dataclasses

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.cluster.transport import LocalTransport
from monolith.native_training.ops import OutConfig, OutType, ParserContext, SliceConfig
from monolith.native_training.slots.combiners import ReduceSum
from monolith.native_training.tables import (
    DistributedHashTable,
    DistributedMultiTypeHashTable,
    PartitionedHashTable,
)
from monolith.native_training.tables.feature_plan import FeatureSpec
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.ops import Ragged
from monolith.table import MinCount, Segment, TableConfig, Uniform
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import NOW, assert_same_rows, keys, random_floats

IDS = torch.tensor([4, 7]).repeat(1000)  # with two servers, one for each
WIDTH = 3


def config(**options):
    return TableConfig("a", Segment(WIDTH, Adagrad(0.5), Uniform(-1, 1)), **options)


class Single:
    def __init__(self, servers, given):
        self.table = DistributedHashTable(given, servers, clock=lambda: NOW)
        self.rows = self.table.table

    def step(self, ids, grads):
        self.table.apply_gradients([(grads, self.table.lookup(ids))])


class Multi:
    def __init__(self, servers, given, **options):
        other = TableConfig("b", Segment(2, SGD(0.1)))
        self.table = DistributedMultiTypeHashTable(
            {"a": given, "b": other}, servers, clock=lambda: NOW, **options
        )
        self.rows = self.table.tables["a"]

    def step(self, ids, grads):
        self.table.lookup({"a": ids})
        self.table.apply_gradients({"a": (ids, grads)})


class Packed(Multi):
    def __init__(self, servers, given):
        super().__init__(servers, given, is_raw=False)


class Partitioned:
    """Features `a` and `b` in tables of their own, with a sample for each id."""

    is_unique, features = True, ("a", "b")

    def __init__(self, servers, given):
        spec = FeatureSpec(generate_test_hash_table_config(WIDTH), [WIDTH], ReduceSum())
        slices = [SliceConfig(name, 0, WIDTH) for name in self.features]
        outputs = {"out": OutConfig(slices, OutType.CONCAT)}
        params = PartitionedHashTable.gen_feature_configs(
            len(servers), dict.fromkeys(self.features, spec), outputs, unique=self.is_unique
        )
        other = dataclasses.replace(given, name="b", admission=None, seed=None)
        params = dataclasses.replace(params, sub_table_name_to_config={"a": given, "b": other})
        context = ParserContext(sharding_sparse_fids_op_params=params)
        self.table = PartitionedHashTable(context, servers, clock=lambda: NOW)
        self.rows = self.table.tables["a"]

    def step(self, ids, grads):
        bundle, nothing = {}, Ragged.from_lengths(ids[:0], torch.zeros_like(ids))
        batch = {"a": Ragged.from_lengths(ids, torch.ones_like(ids)), "b": nothing}
        out = self.table.lookup(batch, bundle)["out"]
        both = torch.cat([grads, torch.zeros_like(grads)], 1)
        self.table.apply_gradients([(both, out)], auxiliary_bundle=bundle)


class NotUnique(Partitioned):
    is_unique = False


every_class = pytest.mark.parametrize("make", [Single, Multi, Packed, Partitioned, NotUnique])


@pytest.fixture
def sent(monkeypatch):
    """(verb, number of keys, number of floats on the way there and back) of each call."""
    calls, send = [], LocalTransport.send

    def watch(self, call):
        answer = send(self, call)
        floats = [a.numel() for a in call.arguments if getattr(a, "dtype", None) == torch.float32]
        back = answer.value if isinstance(answer.value, torch.Tensor) else keys()
        if call.verb in ("lookup", "apply_gradients", "apply_sums"):
            calls.append((call.verb[:5], call.arguments[0].numel(), sum(floats) + back.numel()))
        return answer

    monkeypatch.setattr(LocalTransport, "send", watch)
    return calls


@pytest.mark.req("NT-DPS-T13")
@every_class
def test_2000_occurrences_of_two_ids_send_one_key_to_each_server_each_way(sent, make):
    with LocalServers(2) as servers:
        make(servers, config()).step(IDS, torch.ones(2000, WIDTH))
    assert sent == [("looku", 1, WIDTH)] * 2 + [("apply", 1, WIDTH)] * 2


@pytest.mark.req("NT-DPS-T13")
@pytest.mark.parametrize(("threshold", "num_rows"), [(1000, 2), (1001, 0)])
@every_class
def test_admission_counts_every_occurrence(make, threshold, num_rows):
    with LocalServers(2) as servers:
        table = make(servers, config(admission=MinCount(threshold)))
        for expected in (0, num_rows):
            table.step(IDS, torch.ones(2000, WIDTH))
            assert len(table.rows) == expected


@pytest.mark.req("NT-DPS-T13")
@pytest.mark.parametrize("rule", [None, MinCount(3)])
@pytest.mark.parametrize("num_servers", [1, 3])
@every_class
def test_folded_updates_have_the_bits_of_every_occurrence(make, num_servers, rule):
    reference = ReferenceTable(config(admission=rule), clock=lambda: NOW)
    with LocalServers(num_servers) as servers:
        table = make(servers, config(admission=rule))
        for seed in range(4):
            ids = torch.randint(-9, 9, (50,), generator=torch.Generator().manual_seed(seed))
            grads = random_floats(50, WIDTH, seed)
            grads[ids == seed] = -0.0
            table.step(ids, grads)
            reference.apply_gradients(ids, grads)
        assert_same_rows(table.rows, reference)
        assert table.rows.stats()["num_candidates"] == reference.stats()["num_candidates"]


class OneTable(Partitioned):
    """Both features in table `a`, as merged ones whose ids carry the slot."""

    def __init__(self, servers, given):
        super().__init__(servers, given)
        features = {
            name: dataclasses.replace(feature, table="a")
            for name, feature in self.table.feature_configs.feature_configs.items()
        }
        configs = dataclasses.replace(self.table.feature_configs, feature_configs=features)
        params = dataclasses.replace(
            self.table.params, feature_configs=configs, sub_table_name_to_config={"a": given}
        )
        context = ParserContext(sharding_sparse_fids_op_params=params)
        self.table = PartitionedHashTable(context, servers, clock=lambda: NOW)
        self.rows = self.table.tables["a"]

    def step(self, ids, grads):
        bundle, column = {}, Ragged.from_lengths(ids, torch.ones_like(ids))
        out = self.table.lookup({"a": column, "b": column}, bundle)["out"]
        self.table.apply_gradients([(torch.cat([grads, grads], 1), out)], auxiliary_bundle=bundle)


@pytest.mark.req("NT-DPS-T13")
@pytest.mark.parametrize(("threshold", "num_rows"), [(2000, 2), (2001, 0)])
def test_ids_of_two_features_in_one_table_travel_once_and_count_twice(sent, threshold, num_rows):
    with LocalServers(2) as servers:
        table = OneTable(servers, config(admission=MinCount(threshold)))
        table.step(IDS, torch.ones(2000, WIDTH))
        assert sent == [("looku", 1, WIDTH)] * 2 + [("apply", 1, WIDTH)] * 2
        table.step(IDS, torch.ones(2000, WIDTH))
        assert len(table.rows) == num_rows


@pytest.mark.req("NT-DPS-T13")
def test_tables_with_and_without_admission_step_together():
    configs = {"a": config(admission=MinCount(2)), "b": TableConfig("b", Segment(2, SGD(0.1)))}
    references = {n: ReferenceTable(c, clock=lambda: NOW) for n, c in configs.items()}
    with LocalServers(2) as servers:
        table = DistributedMultiTypeHashTable(configs, servers, clock=lambda: NOW)
        for seed in range(3):
            ids = torch.randint(-5, 5, (20,), generator=torch.Generator().manual_seed(seed))
            pairs = {n: (ids, random_floats(20, c.dim, seed)) for n, c in configs.items()}
            applied = table.apply_gradients(pairs)
            expected = [references[name].apply_gradients(*pair) for name, pair in pairs.items()]
            assert tuple(applied) == tuple(map(sum, zip(*expected, strict=True)))
        for name, reference in references.items():
            assert_same_rows(table.tables[name], reference)


POLICIES = [{"non_finite": "skip"}, {"non_finite": "clip", "clip_value": 2}]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gradient_that_is_not_finite_meets_the_policy_alone(policy):
    grads = torch.ones(4, WIDTH)
    grads[1, 0] = torch.inf
    reference = ReferenceTable(config(**policy), clock=lambda: NOW)
    with LocalServers(2) as servers:
        table = Multi(servers, config(**policy))
        for one in (table.table, reference):
            pair = (keys(7, 7, 4, 7), grads)
            one.apply_gradients(*([{"a": pair}] if one is table.table else pair))
        assert_same_rows(table.rows, reference)
