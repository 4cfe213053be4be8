"""Gradients of pooled rows: applied as if each key of a bag had its own."""

import math

import pytest
import torch

from monolith.table import (
    Applied,
    BagGradients,
    Bags,
    Constant,
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
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from tests.suites.table_bags import every_mode, random_bags, repeated_keys, splits
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_same_rows,
    column,
    floats,
    keys,
    random_floats,
    read,
    refuses,
    times,
)

NAN, INF = float("nan"), float("inf")

CONFIGS = {
    "fp32": [Segment(3, SGD(0.5)), Segment(6, Adagrad(0.5))],
    "fp16": [Segment(9, Adagrad(0.5), precision="fp16")],
    "one_bit": [Segment(9, SGD(0.5), Uniform(-1, 1), view=OneBit())],
}


def gradients_of(table, bags, seed=0):
    """Random gradients of the bags, with the winners of a lookup."""
    gradients = random_floats(bags.num_bags, table.dim, seed)
    return BagGradients(bags, gradients, table.lookup_bags(bags).winners)


class AppliedBags(TableCase):
    def equal_tables(self, config):
        """Two equal tables with some rows."""
        pair = [self.build(config) for _ in range(2)]
        for table in pair:
            table.lookup_or_insert(repeated_keys(300)[:150])
        return pair

    def check(self, one, other, queue, **options):
        """Applied as bags to one and by key to the other, the tables stay equal."""
        applied = one.apply_bag_gradients(queue, **options)
        expected = other.apply_gradients(*reference_bags.expand(queue, other.dim), **options)
        assert applied == expected
        assert one.stats()["num_skipped"] == other.stats()["num_skipped"]
        assert_same_rows(one, other)

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("sum", [-1, -3, -12]),
            ("mean", [-0.5, -2.5, -6]),
            ("sqrtn", [-(0.5**0.5), -(0.5**0.5) - 2, -6 * 2**0.5]),
        ],
    )
    def test_each_key_gets_the_gradients_of_its_bags(self, mode, expected):
        table = self.table(optimizer=SGD(1))
        bags = Bags(keys(1, 2, 2, 3, 3), splits(2, 0, 1, 2), mode)
        applied = table.apply_bag_gradients([BagGradients(bags, column(1, 100, 2, 6))])
        assert applied == Applied(3, 3, 0, 0)
        assert read(table, 1, 2, 3) == pytest.approx(expected)

    def test_weights_are_factors_of_gradients(self):
        table = self.table(optimizer=SGD(1))
        bags = Bags(keys(1, 2, 1), splits(2, 1), weights=torch.tensor([2.0, 0.5, -1.0]))
        table.apply_bag_gradients([BagGradients(bags, column(3, 8))])
        assert read(table, 1, 2) == [2, -1.5]

    def test_gradient_of_a_maximum_goes_to_its_winner(self):
        table = self.table(2, optimizer=SGD(1))
        table.assign(keys(1, 2), floats([1, 5], [3, 4]))
        bags = Bags(keys(1, 2), splits(2), "max")
        winners = table.lookup_bags(bags).winners
        table.apply_bag_gradients([BagGradients(bags, floats([10, 20]), winners)])
        assert table.lookup(keys(1, 2)).tolist() == [[1, -15], [-7, 4]]

    @every_mode
    @pytest.mark.parametrize("segments", CONFIGS.values(), ids=CONFIGS)
    def test_bags_are_applied_as_their_keys_would_be(self, mode, segments):
        one, other = self.equal_tables(TableConfig("user", segments))
        bags = random_bags(repeated_keys(300), mode)
        for step in range(2):
            self.check(one, other, [gradients_of(one, bags, step)], step=step, now=NOW - 5)

    @every_mode
    @pytest.mark.parametrize("num_bags", [1, 30, 300])
    def test_bags_of_equally_many_keys_are_applied_as_their_keys_would_be(self, mode, num_bags):
        one, other = self.equal_tables(TableConfig("user", CONFIGS["fp32"]))
        piece = gradients_of(one, Bags(repeated_keys(300), num_bags, mode))
        assert one.sum_bag_gradients([piece]).norm == reference_bags.gradient_norm([piece], one.dim)
        self.check(one, other, [piece], num_threads=3)

    @pytest.mark.parametrize("num_threads", [1, 3])
    @pytest.mark.parametrize("longest", [1, 20])
    def test_many_pieces_of_all_modes_are_one_call(self, num_threads, longest):
        one, other = self.equal_tables(TableConfig("user", CONFIGS["fp32"]))
        queue = []
        for seed, mode in enumerate((*MODES, "sum")):
            numbers = repeated_keys(1500, seed % 2)
            bags = random_bags(numbers, mode, longest=longest, seed=seed, weighted=seed == 4)
            queue.append(gradients_of(one, bags, seed))
        self.check(one, other, queue, num_threads=num_threads)
        assert one.num_update_calls == other.num_update_calls == 1

    def test_queue_of_nothing_is_a_call_without_keys(self):
        table = self.table(2)
        empty = BagGradients(Bags(keys(), splits(0)), torch.full((1, 2), NAN))
        assert table.apply_bag_gradients([]) == Applied(0, 0, 0, 0)
        assert table.apply_bag_gradients([empty, empty]) == Applied(0, 0, 0, 0)
        assert table.num_update_calls == 2

    def test_queue_may_be_any_iterable(self):
        table = self.table(optimizer=SGD(1))
        piece = BagGradients(Bags(keys(1), splits(1)), column(1))
        table.apply_bag_gradients(iter([piece, piece]))
        assert read(table, 1) == [-2]

    def test_sum_of_gradients_starts_from_the_first(self):
        table = self.table(optimizer=SGD(1), initializer=Constant(-0.0))
        queue = [BagGradients(Bags(keys(1, 1), splits(2)), column(-0.0))]
        self.check(table, self.table(optimizer=SGD(1), initializer=Constant(-0.0)), queue)

    def test_gradients_of_the_caller_stay_as_they_are(self):
        table = self.build(TableConfig("user", CONFIGS["one_bit"]))
        piece = gradients_of(table, random_bags(repeated_keys(30)))
        before = piece.gradients.clone()
        table.apply_bag_gradients([piece])
        assert torch.equal(piece.gradients, before)

    def test_admission_counts_the_occurrences_in_bags(self):
        table = self.table(admission=MinCount(3))
        piece = BagGradients(Bags(keys(1, 1, 1, 2), splits(2, 2)), column(1, 1))
        assert table.apply_bag_gradients([piece]) == Applied(0, 0, 2, 0)
        assert table.apply_bag_gradients([piece]) == Applied(1, 1, 1, 0)

    def test_learning_rates_step_and_time_reach_the_rows(self):
        table = self.table(optimizer=SGD(lambda step: step))
        piece = BagGradients(Bags(keys(1), splits(1)), column(1))
        table.apply_bag_gradients([piece], step=3, now=77)
        assert read(table, 1) == [-3]
        assert times(table, 1) == [77]
        table.apply_bag_gradients([piece], learning_rates=[0.5])
        assert read(table, 1) == [-3.5]

    def test_bad_gradient_of_a_bag_is_refused_by_the_row_of_its_first_key(self):
        table = self.table(2)
        table.assign(keys(1), floats([1, 1]))
        bags = Bags(keys(1, 2, 3), splits(1, 0, 2))
        text = (
            "[Table.apply_gradients] expected finite gradients, got -inf at row 4, column 1 "
            "(table 'user'); see TableConfig.non_finite"
        )
        fine = BagGradients(bags, floats([1, 1], [NAN, NAN], [1, 1]))  # of an empty bag
        with refuses(table, ValueError, text):
            table.apply_bag_gradients([fine, BagGradients(bags, floats([1, 1], [1, 1], [1, -INF]))])

    @pytest.mark.parametrize("policy", ["skip", "clip"])
    @every_mode
    def test_bad_gradients_are_skipped_or_clipped_as_by_key(self, policy, mode):
        options = {"clip_value": 8} if policy == "clip" else {}
        one, other = self.equal_tables(
            TableConfig("user", Segment(3), non_finite=policy, **options)
        )
        piece = gradients_of(one, random_bags(repeated_keys(100), mode))
        piece.gradients[3, 1], piece.gradients[5], piece.gradients[7, 0] = NAN, INF, -INF
        self.check(one, other, [piece, gradients_of(one, random_bags(repeated_keys(50)), 1)])

    @pytest.mark.parametrize("weight", [NAN, INF, 1e30, 0.0])
    def test_weights_that_make_gradients_infinite_are_skipped_as_by_key(self, weight):
        one, other = self.equal_tables(TableConfig("user", Segment(2), non_finite="skip"))
        bags = Bags(keys(1, 2, 3), splits(2, 1), weights=torch.tensor([1.0, weight, 2.0]))
        self.check(one, other, [BagGradients(bags, floats([1e10, 1], [1, 1]))])


class AppliedSums(AppliedBags):
    def test_a_sum_can_be_applied_twice(self):
        one, other = self.equal_tables(TableConfig("user", Segment(9, Adagrad(0.5))))
        queue = [gradients_of(one, random_bags(repeated_keys(300)))]
        summed = one.sum_bag_gradients(queue)
        for _ in range(2):
            one.apply_bag_gradients(summed)
            other.apply_bag_gradients(queue)
        assert_same_rows(one, other)

    def test_a_sum_outlives_rows_that_it_found(self):
        table = self.table()
        summed = table.sum_bag_gradients([BagGradients(Bags(keys(1, 2), splits(2)), column(1))])
        table.apply_bag_gradients(summed)
        table.erase(keys(1))
        assert table.apply_bag_gradients(summed) == Applied(2, 1, 0, 0)

    def test_a_sum_of_another_table_is_as_good(self):
        table = self.table()
        queue = [BagGradients(Bags(keys(1, 2, 1), splits(2, 1)), column(1, 2))]
        table.apply_bag_gradients(ReferenceTable(table.config).sum_bag_gradients(queue))
        assert table.lookup(keys(1, 2)).tolist() == floats([-0.3], [-0.1]).tolist()

    def test_a_sum_is_refused_where_its_rows_have_another_size(self):
        queue = [BagGradients(Bags(keys(1), splits(1)), floats([1, 2]))]
        summed = self.table(2).sum_bag_gradients(queue)
        with pytest.raises(ValueError, match=r"expected gradients of shape \(1, 1\)"):
            self.table(1).apply_bag_gradients(summed)


class BagNorms(TableCase):
    def norm(self, table, queue):
        grads = {}
        for key, grad in zip(*reference_bags.expand(queue, table.dim), strict=True):
            grads[key.item()] = grads.get(key.item(), 0) + grad.double()
        return math.sqrt(sum(float(grad.square().sum()) for grad in grads.values()))

    @every_mode
    def test_norm_is_that_of_the_gradients_of_distinct_keys(self, mode):
        table = self.table(5, initializer=Uniform(-1, 1))
        queue = [gradients_of(table, random_bags(repeated_keys(300), mode), i) for i in range(2)]
        norm = table.sum_bag_gradients(queue).norm
        assert norm == pytest.approx(self.norm(table, queue), rel=1e-6)

    @pytest.mark.parametrize("num_threads", [1, 3])
    @pytest.mark.parametrize("dim", [1, 16, 19])
    def test_norm_is_the_same_whatever_the_threads(self, num_threads, dim):
        table = self.table(dim, initializer=Uniform(-1, 1))
        bags = random_bags(repeated_keys(5000), weighted=True)
        queue = [gradients_of(table, bags), gradients_of(table, random_bags(keys(1, 2, 3)))]
        expected = reference_bags.gradient_norm(queue, dim)
        assert table.sum_bag_gradients(queue, num_threads=num_threads).norm == expected

    def test_norm_by_hand(self):
        queue = [BagGradients(Bags(keys(1, 2, 1), splits(2, 1)), column(1, 2))]
        assert self.table().sum_bag_gradients(queue).norm == math.sqrt(3**2 + 1)

    def test_norm_of_nothing_is_zero(self):
        table = self.table()
        empty = BagGradients(Bags(keys(), splits(0)), column(NAN))
        assert table.sum_bag_gradients([]).norm == 0
        assert table.sum_bag_gradients([empty]).norm == 0

    def test_norm_of_gradients_that_are_not_finite(self):
        table = self.table()
        bags = Bags(keys(1, 2), splits(1, 1))
        assert table.sum_bag_gradients([BagGradients(bags, column(1, -INF))]).norm == INF
        assert math.isnan(table.sum_bag_gradients([BagGradients(bags, column(INF, NAN))]).norm)

    def test_norm_of_the_largest_gradients_is_finite(self):
        queue = [BagGradients(Bags(keys(1), splits(1)), column(3e38))]
        assert self.table().sum_bag_gradients(queue).norm == pytest.approx(3e38)

    def test_norm_changes_nothing(self):
        table = self.table()
        table.sum_bag_gradients([BagGradients(Bags(keys(1), splits(1)), column(1))])
        assert len(table) == 0
        assert table.num_update_calls == 0

    def test_norm_of_a_serving_table_is_that_of_its_argument(self):
        table = self.build(TableConfig("user", Segment(1), kind="serving"))
        queue = [BagGradients(Bags(keys(1), splits(1)), column(3))]
        assert table.sum_bag_gradients(queue).norm == 3
