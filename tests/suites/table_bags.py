"""Pooled lookups: what a bag of keys reads as, and the gradients of its weights."""

import math

import pytest
import torch

from monolith.table import (
    Bags,
    Constant,
    FixedR8,
    MinCount,
    OneBit,
    Segment,
    TableConfig,
    Uniform,
)
from monolith.table import (
    bags as reference_bags,
)
from monolith.table.bags import MODES
from tests.suites.table_base import (
    EDGE_KEYS,
    TableCase,
    assert_same_bits,
    column,
    floats,
    keys,
    random_floats,
    random_keys,
)

every_mode = pytest.mark.parametrize("mode", MODES)

STORAGES = {
    "fp32": {},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
    "fixed_r8": {"view": FixedR8(0.5)},
    "one_bit": {"view": OneBit(step_size=10)},
}


def splits(*counts):
    """row_splits of bags with these counts."""
    return torch.tensor([0, *counts]).cumsum(0)


def random_bags(numbers, mode="sum", *, longest=9, seed=0, weighted=False):
    """The keys in bags of up to `longest`, some of them empty, and one long one at the end."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, longest + 1, (len(numbers),), generator=generator)
    ends = counts.cumsum(0)
    ends = ends[ends <= len(numbers)]
    row_splits = torch.cat([keys(0), ends, keys(len(numbers), len(numbers))])
    weights = torch.randn(len(numbers), generator=generator) if weighted else None
    return Bags(numbers, row_splits, mode, weights)


def repeated_keys(n, seed=0):
    """Keys of which many are equal."""
    pool = random_keys(max(1, n // 3), seed)
    return pool[torch.randint(0, len(pool), (n,), generator=torch.Generator().manual_seed(seed))]


class BagReads(TableCase):
    def known(self, **options):
        """Keys 1, 2, 3 with rows of two."""
        table = self.table(2, **options)
        table.assign(keys(1, 2, 3), floats([1, 20], [4, 8], [-7, 2]))
        return table

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("sum", [[5, 28], [0, 0], [-7, 2]]),
            ("mean", [[2.5, 14], [0, 0], [-7, 2]]),
            ("sqrtn", [[5 / math.sqrt(2), 28 / math.sqrt(2)], [0, 0], [-7, 2]]),
            ("max", [[4, 20], [0, 0], [-7, 2]]),
        ],
    )
    def test_bag_reads_its_rows_combined_and_an_empty_one_zeros(self, mode, expected):
        pooled = self.known().lookup_bags(Bags(keys(1, 2, 3), splits(2, 0, 1), mode))
        assert pooled.values.dtype == torch.float32
        assert torch.allclose(pooled.values, floats(*expected), rtol=1e-6)

    @pytest.mark.parametrize("mode", ["sum", "mean", "max"])
    @pytest.mark.parametrize("dim", [1, 16, 19])
    def test_bags_equal_those_of_torch(self, mode, dim):
        table = self.table(dim, initializer=Uniform(-1, 1))
        weight = table.lookup_or_insert(torch.arange(50))
        ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(1))
        bags = random_bags(ids, mode)
        expected = torch.nn.functional.embedding_bag(
            ids, weight, bags.row_splits, mode=mode, include_last_offset=True
        )
        assert torch.allclose(table.lookup_bags(bags).values, expected, atol=1e-5)

    def test_weighted_bags_equal_those_of_torch(self):
        table = self.table(16, initializer=Uniform(-1, 1))
        weight = table.lookup_or_insert(torch.arange(50))
        ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(2))
        bags = random_bags(ids, weighted=True)
        expected = torch.nn.functional.embedding_bag(
            ids,
            weight,
            bags.row_splits,
            mode="sum",
            per_sample_weights=bags.weights,
            include_last_offset=True,
        )
        assert torch.allclose(table.lookup_bags(bags).values, expected, atol=1e-5)

    @every_mode
    @pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)
    def test_bags_equal_rows_of_a_lookup_combined(self, mode, options):
        segments = [Segment(5, initializer=Uniform(-1, 1), **options), Segment(12)]
        table = self.build(TableConfig("user", segments))
        numbers = repeated_keys(300)
        table.lookup_or_insert(numbers[:150])
        bags = random_bags(numbers, mode)
        expected = reference_bags.pool(bags, table.lookup(numbers, step=25))
        pooled = table.lookup_bags(bags, step=25)
        assert_same_bits(pooled.values, expected.values)
        if mode == "max":
            assert_same_bits(pooled.winners, expected.winners)
        else:
            assert pooled.winners is None

    @pytest.mark.parametrize("longest", [1, 3, 40])
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("num_threads", [1, 3])
    def test_many_bags_equal_rows_of_a_lookup_combined(self, longest, weighted, num_threads):
        table = self.table(9, initializer=Uniform(-1, 1))
        numbers = repeated_keys(9000)
        table.lookup_or_insert(numbers[:6000])
        bags = random_bags(numbers, longest=longest, weighted=weighted)
        expected = reference_bags.pool(bags, table.lookup(numbers))
        pooled = table.lookup_bags(bags, num_threads=num_threads)
        assert_same_bits(pooled.values, expected.values)

    @every_mode
    @pytest.mark.parametrize("num_bags", [1, 30, 9000])
    def test_bags_of_equally_many_keys_need_no_splits(self, mode, num_bags):
        table = self.table(3, initializer=Uniform(-1, 1))
        bags = Bags(repeated_keys(9000), num_bags, mode)
        expected = table.lookup_bags(Bags(bags.keys, bags.splits(), mode))
        pooled = table.lookup_bags(bags, num_threads=3)
        assert_same_bits(pooled.values, expected.values)

    @every_mode
    def test_equally_empty_bags_read_zeros(self, mode):
        assert self.known().lookup_bags(Bags(keys(), 2, mode)).values.tolist() == [[0, 0]] * 2
        assert self.known().lookup_bags(Bags(keys(), 0, mode)).values.shape == (0, 2)

    @every_mode
    def test_one_bag_of_many_keys_is_read_in_their_order(self, mode):
        table = self.table(3, initializer=Uniform(-1, 1))
        numbers = repeated_keys(9000)
        bags = Bags(numbers, splits(1, 8998, 1), mode)
        expected = reference_bags.pool(bags, table.lookup(numbers))
        assert_same_bits(table.lookup_bags(bags, num_threads=3).values, expected.values)

    def test_sum_starts_from_the_first_row(self):
        table = self.table(initializer=Constant(-0.0))  # from 0, the sum would be +0.0
        pooled = table.lookup_bags(Bags(keys(1, 2), splits(1, 1)))
        assert_same_bits(pooled.values, column(-0.0, -0.0))

    def test_equal_keys_of_a_bag_each_count(self):
        bags = Bags(keys(1, 1, 1), splits(3), weights=torch.tensor([1.0, 2.0, 0.5]))
        assert self.known().lookup_bags(bags).values.tolist() == [[3.5, 70]]

    def test_first_of_equal_values_wins(self):
        table = self.table(3)
        table.assign(keys(1, 2, 3), floats([1, 0, 5], [1, 2, 5], [0, 2, 6]))
        bags = Bags(keys(9, 1, 2, 3, 1), splits(1, 0, 4), "max")
        winners = table.lookup_bags(bags).winners
        assert winners.dtype == torch.int32
        assert winners.tolist() == [[0, 0, 0], [-1, -1, -1], [1, 2, 3]]

    def test_missing_keys_of_bags_read_initial_values_or_zeros(self):
        table = self.known(initializer=Constant(0.5))
        bags = Bags(keys(1, 8, 9), splits(2, 1))
        assert table.lookup_bags(bags).values.tolist() == [[1.5, 20.5], [0.5, 0.5]]
        zeros = table.lookup_bags(bags, missing="zeros").values
        assert zeros.tolist() == [[1, 20], [0, 0]]

    @every_mode
    def test_missing_keys_read_the_rows_that_they_get_in_bags(self, mode):
        table = self.table(5, initializer=Uniform(-1, 1))
        bags = Bags(keys(*EDGE_KEYS), splits(3, 5), mode)
        before = table.lookup_bags(bags)
        table.lookup_or_insert(bags.keys)
        assert_same_bits(table.lookup_bags(bags).values, before.values)

    def test_keys_that_must_ask_admission_read_zeros_in_bags(self):
        table = self.table(initializer=Constant(0.5), admission=MinCount(1, slots={0: 0}))
        free, asking = 7, 1 << 48
        pooled = table.lookup_bags(Bags(keys(free, asking), splits(2)))
        assert pooled.values.tolist() == [[0.5]]

    @every_mode
    def test_serving_tables_pool_and_read_zeros_for_missing_keys(self, mode):
        segment = Segment(3, precision="bf16", initializer=Constant(0.5))
        table = self.build(TableConfig("user", segment, kind="serving"))
        table.assign(keys(1, 2), floats([1, 2, 3], [3, 2, -1]))
        pooled = table.lookup_bags(Bags(keys(1, 2, 5), splits(2, 1), mode)).values
        assert pooled[1].tolist() == [0, 0, 0]
        assert pooled[0, 1].item() == pytest.approx({"sum": 4, "sqrtn": 4 / 2**0.5}.get(mode, 2))

    @every_mode
    def test_no_bags_and_no_keys(self, mode):
        table = self.table(4)
        assert table.lookup_bags(Bags(keys(), splits(), mode)).values.shape == (0, 4)
        pooled = table.lookup_bags(Bags(keys(), splits(0, 0), mode))
        assert pooled.values.tolist() == [[0] * 4] * 2
        if mode == "max":
            assert pooled.winners.tolist() == [[-1] * 4] * 2

    def test_lookup_of_bags_stores_nothing(self):
        table = self.table()
        table.lookup_bags(Bags(keys(1, 2), splits(2)))
        assert len(table) == 0

    def test_pooled_rows_do_not_depend_on_the_default_device(self):
        table, bags = self.known(), Bags(keys(1, 2), splits(2), "max")
        total = Bags(keys(1, 2), splits(2))
        gradients = torch.ones(1, 2)
        with torch.device("meta"):
            pooled = table.lookup_bags(bags)
            weights = table.bag_weight_gradients(total, gradients)
        results = (pooled.values, pooled.winners, weights)
        assert {result.device.type for result in results} == {"cpu"}


class BagWeightGradients(TableCase):
    def test_weight_gradients_equal_those_of_torch(self):
        table = self.table(19, initializer=Uniform(-1, 1))
        weight = table.lookup_or_insert(torch.arange(50))
        ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(3))
        bags = random_bags(ids, weighted=True)
        bags.weights.requires_grad_()
        pooled = torch.nn.functional.embedding_bag(
            ids,
            weight,
            bags.row_splits,
            mode="sum",
            per_sample_weights=bags.weights,
            include_last_offset=True,
        )
        gradients = random_floats(bags.num_bags, 19)
        pooled.backward(gradients)
        result = table.bag_weight_gradients(bags, gradients)
        assert torch.allclose(result, bags.weights.grad, atol=1e-5)

    @pytest.mark.parametrize("dim", [1, 7, 8, 30])
    @pytest.mark.parametrize("num_threads", [1, 3])
    def test_weight_gradients_are_eight_partial_sums(self, dim, num_threads):
        table = self.table(dim, initializer=Uniform(-1, 1))
        numbers = repeated_keys(3000)
        table.lookup_or_insert(numbers[:2000])
        bags = random_bags(numbers, longest=20)
        gradients = random_floats(bags.num_bags, dim)
        expected = reference_bags.weight_gradients(bags, table.lookup(numbers), gradients)
        result = table.bag_weight_gradients(bags, gradients, num_threads=num_threads)
        assert_same_bits(result, expected)

    @pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)
    def test_weight_gradients_are_of_what_a_lookup_reads(self, options):
        table = self.build(TableConfig("user", Segment(5, initializer=Uniform(-1, 1), **options)))
        numbers = repeated_keys(60)
        table.lookup_or_insert(numbers[:40])
        bags = random_bags(numbers)
        gradients = random_floats(bags.num_bags, 5)
        expected = reference_bags.weight_gradients(bags, table.lookup(numbers, step=25), gradients)
        assert_same_bits(table.bag_weight_gradients(bags, gradients, step=25), expected)

    def test_weight_gradients_of_missing_keys(self):
        table = self.table(2, initializer=Constant(0.5))
        bags, gradients = Bags(keys(1, 2), splits(1, 1)), floats([1, 2], [3, 4])
        assert table.bag_weight_gradients(bags, gradients).tolist() == [1.5, 3.5]
        zeros = table.bag_weight_gradients(bags, gradients, missing="zeros")
        assert zeros.tolist() == [0, 0]

    def test_weight_gradients_of_no_keys(self):
        bags = Bags(keys(), splits(0))
        assert self.table(2).bag_weight_gradients(bags, torch.ones(1, 2)).shape == (0,)
