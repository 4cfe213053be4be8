"""Arguments of the pooled verbs that tables refuse."""

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import BagGradients, Bags, Segment, TableConfig
from tests.suites.table_bags import splits
from tests.suites.table_base import TableCase, floats, keys, refuses

VERBS = {
    "lookup_bags": lambda table, bags, gradients, **options: table.lookup_bags(bags, **options),
    "apply_bag_gradients": lambda table, bags, gradients, **options: table.apply_bag_gradients(
        [BagGradients(bags, gradients)], **options
    ),
    "sum_bag_gradients": lambda table, bags, gradients, **options: table.sum_bag_gradients(
        [BagGradients(bags, gradients)], **options
    ),
    "bag_weight_gradients": lambda table, bags, gradients, **options: table.bag_weight_gradients(
        bags, gradients, **options
    ),
}
READERS = ("lookup_bags", "bag_weight_gradients")
QUEUE_VERBS = ("apply_bag_gradients", "sum_bag_gradients")
STEP_VERBS = (*READERS, "apply_bag_gradients")


class BadBags(TableCase):
    def bagged(self):
        table = self.table(2)
        table.assign(keys(1), floats([1, 2]))
        return table

    def call(self, table, verb, shape=(1, 2), **options):
        bags = Bags(keys(1, 5), splits(2))
        return VERBS[verb](table, bags, torch.zeros(shape), **options)

    @pytest.mark.parametrize("verb", VERBS)
    def test_pooled_verb_of_a_closed_table(self, verb):
        table = self.bagged()
        table.close()
        text = f"[Table.{verb}] expected an open table, got a closed one (table 'user')"
        with pytest.raises(FailedPreconditionError) as caught:
            self.call(table, verb)
        assert str(caught.value) == text

    @pytest.mark.parametrize("verb", READERS)
    def test_tensor_instead_of_bags(self, verb):
        text = f"[Table.{verb}] expected bags as Bags, got Tensor (table 'user')"
        table = self.bagged()
        with refuses(table, TypeError, text):
            VERBS[verb](table, keys(1), torch.zeros(1, 2))

    @pytest.mark.parametrize("verb", READERS)
    def test_unknown_rule_for_missing_keys_of_bags(self, verb):
        table = self.bagged()
        text = f"[Table.{verb}] expected missing 'initial' or 'zeros', got 'ones' (table 'user')"
        with refuses(table, ValueError, text):
            self.call(table, verb, missing="ones")

    @pytest.mark.parametrize("verb", VERBS)
    def test_no_threads_for_a_pooled_verb(self, verb):
        table = self.bagged()
        text = f"[Table.{verb}] expected num_threads >= 1, got 0 (table 'user')"
        with refuses(table, ValueError, text):
            self.call(table, verb, num_threads=0)

    @pytest.mark.parametrize("verb", STEP_VERBS)
    def test_step_of_a_pooled_verb_below_zero(self, verb):
        table = self.bagged()
        text = f"[Table.{verb}] expected step in [0, 2**63), got -1 (table 'user')"
        with refuses(table, ValueError, text):
            self.call(table, verb, step=-1)

    @pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "lookup_bags"])
    def test_gradients_of_bags_of_another_width(self, verb):
        table = self.bagged()
        text = f"[Table.{verb}] expected gradients of shape (1, 2), got (1, 3) (table 'user')"
        with refuses(table, ValueError, text):
            self.call(table, verb, (1, 3))

    def test_weight_gradients_for_another_number_of_bags(self):
        table = self.bagged()
        text = (
            "[Table.bag_weight_gradients] expected gradients of shape (1, 2), got (2, 2) "
            "(table 'user')"
        )
        with refuses(table, ValueError, text):
            self.call(table, "bag_weight_gradients", (2, 2))

    def test_weight_gradients_of_another_mode(self):
        table = self.bagged()
        text = "[Table.bag_weight_gradients] expected bags of mode 'sum', got 'mean' (table 'user')"
        with refuses(table, ValueError, text):
            table.bag_weight_gradients(Bags(keys(1), splits(1), "mean"), torch.zeros(1, 2))

    @pytest.mark.parametrize("verb", QUEUE_VERBS)
    def test_queue_of_something_else(self, verb):
        table = self.bagged()
        text = f"[Table.{verb}] expected BagGradients in the queue, got Bags (table 'user')"
        with refuses(table, TypeError, text):
            getattr(table, verb)([Bags(keys(1), splits(1))])
        text = f"[Table.{verb}] expected queue as a sequence, got 5 (table 'user')"
        with refuses(table, TypeError, text):
            getattr(table, verb)(5)

    @pytest.mark.parametrize("verb", QUEUE_VERBS)
    def test_queue_of_too_many_keys(self, verb, tmp_path):
        # A sparse file: nothing of it is touched.
        path, n = str(tmp_path / "keys"), 1 << 30
        numbers = torch.from_file(path, True, n, dtype=torch.int64)
        piece = BagGradients(Bags(numbers, keys(0, n)), torch.zeros(1, 2))
        table = self.bagged()
        text = (
            f"[Table.{verb}] expected at most {(1 << 31) - 1} keys, got {1 << 31} "
            "(table 'user'); split the batch"
        )
        with refuses(table, ValueError, text):
            getattr(table, verb)([piece, piece])

    def test_learning_rates_and_time_of_bag_gradients(self):
        table = self.bagged()
        start = "[Table.apply_bag_gradients] expected"
        text = f"{start} 1 learning rate(s), one per segment, got 2 (table 'user')"
        with refuses(table, ValueError, text):
            self.call(table, "apply_bag_gradients", learning_rates=[1, 2])
        text = f"{start} now in [0, {(1 << 32) - 1}] seconds, got -1 (table 'user')"
        with refuses(table, ValueError, text):
            self.call(table, "apply_bag_gradients", now=-1)

    def test_bag_gradients_of_a_serving_table(self):
        table = self.build(TableConfig("user", Segment(2), kind="serving"))
        text = (
            "[Table.apply_bag_gradients] expected a training table, got a serving one "
            "(table 'user')"
        )
        with refuses(table, FailedPreconditionError, text):
            self.call(table, "apply_bag_gradients")
