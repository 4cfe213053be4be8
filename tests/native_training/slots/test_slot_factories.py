import logging
from dataclasses import replace

import pytest
import torch

from monolith.native_training.slots import (
    CollectingFactory,
    EmbeddingsFactory,
    FeatureColumn,
    FeaturesFactory,
    FeatureSlotConfig,
    features_of,
)
from monolith.native_training.slots.combiners import FirstN, ReduceMean, ReduceSum
from monolith.native_training.slots.slot_factories import combined_slices
from monolith.nn import Features
from monolith.optim import Optimizer
from monolith.table.optimizers import SGD
from tests.native_training.slots.slots import IDS, PLAIN, ROWS, two_slices

ADAGRAD = FeatureSlotConfig("default").default_vec_optimizer
COMBINED = {
    ReduceSum(): ([[1], [0], [15]], [[2], [0], [19]]),
    FirstN(2): ([[[1], [0]], [[0], [0]], [[2], [3]]], [[[2], [0]], [[0], [0]], [[3], [5]]]),
}


def looked_up(combiner, with_rows):
    """What was collected, the module, and a factory over a batch of ids."""
    collecting = CollectingFactory(3)
    column, _ = two_slices(collecting, combiner)
    if with_rows:
        column.get_all_embeddings_concat()
    tables = collecting.tables()
    module = Features(features_of(tables.values()))
    module.tables["a"].assign(torch.arange(1, 5), ROWS)
    return tables, module, FeaturesFactory(tables, module({"a": IDS}))


class TestCollecting:
    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_lookups_have_the_right_shapes(self, device):
        slot = CollectingFactory(8, device=device).create_feature_slot(
            FeatureSlotConfig("s", has_bias=True)
        )
        column, sequence = FeatureColumn(slot, "a"), FeatureColumn(slot, "b", FirstN(5))
        vector = slot.add_feature_slice(4)
        assert column.embedding_lookup(vector).shape == (8, 4)
        assert sequence.embedding_lookup(vector).shape == (8, 5, 4)
        assert (column.get_bias().shape, column.get_bias().device.type) == ((8, 1), device)
        assert sequence.get_size_tensor().shape == (8, 5)

    def test_gradients_of_lookups_can_be_taken(self):
        column, (one, two) = two_slices(CollectingFactory(3, device="cpu"))
        rows = column.get_all_embeddings_concat()
        assert rows is column.get_all_embeddings_concat()
        (gradient,) = torch.autograd.grad((one + two).sum(), [rows])
        assert gradient.tolist() == [[0, 0]] * 3

    def test_slots_are_collected_with_merged_slices_and_columns(self):
        factory = CollectingFactory(3)
        two_slices(factory)
        (table,) = factory.tables().values()
        assert [each.segment.dim_size for each in table.slice_configs] == [2]
        assert (table.unmerged_slice_dims, table.feature_names) == ((1, 1), ("a",))
        assert (table.feature_to_combiners, table.with_rows) == ({"a": ReduceSum()}, False)

    def test_gradients_are_dropped(self):
        factory = CollectingFactory(3, device="cpu")
        _, (one, _) = two_slices(factory)
        factory.apply_gradients([(torch.ones(3, 1), one)])()
        assert factory.tables()

    def test_thresholds_and_times_are_kept_by_number(self):
        factory = CollectingFactory(3)
        factory.create_feature_slot(
            FeatureSlotConfig(slot_id=5, occurrence_threshold=2, expire_time=9)
        )
        assert factory.slot_to_occurrence_threshold == {5: 2}
        assert factory.slot_to_expire_time == {5: 9}

    def test_a_slot_without_a_number_is_logged(self, caplog):
        with caplog.at_level(logging.WARNING):
            CollectingFactory(3).create_feature_slot(FeatureSlotConfig("user"))
        assert "slot 'user' has no slot_id" in caplog.text

    def test_two_slots_of_one_name_are_refused(self):
        factory = CollectingFactory(3)
        factory.create_feature_slot(PLAIN)
        with pytest.raises(NameError, match=r"^Duplicate names for the table\. Name: s$"):
            factory.create_feature_slot(PLAIN)

    def test_a_slot_without_slices_is_refused(self):
        factory = CollectingFactory(3)
        factory.create_feature_slot(PLAIN)
        with pytest.raises(RuntimeError, match=r"^s has no slice, pls\. check!$"):
            factory.tables()


class TestEmbeddings:
    @pytest.mark.parametrize("combiner", COMBINED)
    def test_rows_are_combined_and_cut(self, combiner):
        slices = combined_slices("a", IDS, ROWS, combiner, [1, 1])
        assert set(slices) == {"a:0_1", "a:1_2"}
        column, found = two_slices(EmbeddingsFactory({"a": ROWS}, slices), combiner)
        assert tuple(each.tolist() for each in found) == COMBINED[combiner]
        assert column.get_all_embeddings_concat() is ROWS

    def test_gradients_are_refused(self):
        text = r"^apply_gradients is not supported in this factory\.$"
        with pytest.raises(NotImplementedError, match=text):
            EmbeddingsFactory({}, {}).apply_gradients([])


class TestFeatures:
    @pytest.mark.parametrize("with_rows", [False, True])
    @pytest.mark.parametrize("combiner", COMBINED)
    def test_rows_are_combined_and_cut(self, combiner, with_rows):
        _, _, factory = looked_up(combiner, with_rows)
        column, found = two_slices(factory, combiner)
        assert tuple(each.tolist() for each in found) == COMBINED[combiner]
        if with_rows:
            rows = column.get_all_embeddings_concat()
            assert rows.tolist() == ROWS.tolist()
            assert rows is column.get_all_embeddings_concat()

    @pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean(), FirstN(2)])
    def test_gradients_of_rows_train_the_same_as_backward(self, combiner):
        trained = []
        for with_rows in (False, True):
            _, module, factory = looked_up(combiner, with_rows)
            column, (one, two) = two_slices(factory, combiner)
            loss = (one * one + 3 * two).sum()
            if with_rows:
                rows = column.get_all_embeddings_concat()
                factory.apply_gradients([(torch.autograd.grad(loss, [rows])[0], rows)])
            else:
                loss.backward()
            Optimizer(module).step()
            trained.append(module.tables["a"].lookup(torch.arange(1, 5)))
        torch.testing.assert_close(trained[0], trained[1])

    def test_gradients_are_scaled_and_missing_ones_left_out(self):
        _, module, factory = looked_up(None, True)
        column, _ = two_slices(factory)
        rows = column.get_all_embeddings_concat()
        factory.apply_gradients([(torch.ones(4, 2), rows), (None, rows)], scale=0.5)
        Optimizer(module).step()
        assert module.tables["a"].lookup(torch.arange(1, 5)).tolist() == (ROWS - 0.5).tolist()

    def test_no_gradients_train_nothing(self):
        _, module, factory = looked_up(None, True)
        factory.apply_gradients([])
        Optimizer(module).step()
        assert module.tables["a"].lookup(torch.arange(1, 5)).tolist() == ROWS.tolist()

    def test_columns_of_one_slot_share_rows(self):
        collecting = CollectingFactory(1)
        slot = collecting.create_feature_slot(PLAIN)
        vector = slot.add_feature_slice(1)
        for name in ("a", "b"):
            FeatureColumn(slot, name).embedding_lookup(vector)
        module = Features(features_of(collecting.tables().values()))
        one = IDS.from_lists([[1]])
        embedded = module({"a": one, "b": one})
        (embedded["a"] + embedded["b"]).sum().backward()
        Optimizer(module).step()
        assert list(module.tables) == ["a"]
        assert module.tables["a"].lookup(torch.tensor([1])).tolist() == [[-2.0]]

    def test_columns_of_one_slot_all_have_rows_if_one_of_them_is_asked_for_them(self):
        collecting = CollectingFactory(3)
        slot = collecting.create_feature_slot(PLAIN)
        vector = slot.add_feature_slice(2)
        FeatureColumn(slot, "a").get_all_embeddings_concat()
        FeatureColumn(slot, "b", FirstN(2)).embedding_lookup(vector)
        tables = collecting.tables()
        module = Features(features_of(tables.values()))
        module.tables["a"].assign(torch.arange(1, 5), ROWS)
        factory = FeaturesFactory(tables, module({"a": IDS, "b": IDS}))
        slot = factory.create_feature_slot(PLAIN)
        found = FeatureColumn(slot, "b", FirstN(2)).embedding_lookup(slot.add_feature_slice(2))
        assert found[2].tolist() == [[2, 3], [3, 5]]

    def test_the_size_of_a_sequence_is_that_of_the_ids(self):
        _, _, factory = looked_up(FirstN(2), False)
        column, _ = two_slices(factory, FirstN(2))
        assert column.get_size_tensor().tolist() == [[1, 0], [0, 0], [1, 1]]

    def test_a_slot_that_was_not_collected_is_refused(self):
        _, _, factory = looked_up(None, False)
        with pytest.raises(ValueError, match=r"expected slots that were collected \(s\), got 'x'"):
            factory.create_feature_slot(FeatureSlotConfig("x"))

    def test_other_slices_than_collected_are_refused(self):
        _, _, factory = looked_up(None, False)
        slot = factory.create_feature_slot(PLAIN)
        slot.add_feature_slice(1)
        text = r"expected slices of \[1, 1\] columns, as they were collected, got \[1, 2\]"
        with pytest.raises(ValueError, match=text):
            slot.add_feature_slice(2, optimizer=SGD(1.0))

    def test_other_columns_than_collected_are_refused(self):
        _, _, factory = looked_up(None, False)
        slot = factory.create_feature_slot(PLAIN)
        text = r"expected columns that were collected \(\{'a': ReduceSum\(\)\}\), got 'b' with"
        with pytest.raises(ValueError, match=text):
            FeatureColumn(slot, "b")

    def test_rows_that_were_not_asked_for_before_are_refused(self):
        _, _, factory = looked_up(None, False)
        column, _ = two_slices(factory)
        with pytest.raises(ValueError, match=r"got it now only \(feature 'a'\)"):
            column.get_all_embeddings_concat()

    def test_rows_of_a_slot_expire_after_its_days(self):
        # Default Adagrad with gradient 1: each of two ids is -0.001 / sqrt(2).
        collecting = CollectingFactory(1)
        for name, days in (("a", 0), ("b", 1)):
            config = replace(PLAIN, name=name, expire_time=days, default_vec_optimizer=ADAGRAD)
            slot = collecting.create_feature_slot(config)
            FeatureColumn(slot, name).embedding_lookup(slot.add_feature_slice(1))
        module = Features(features_of(collecting.tables().values()))
        ids = dict.fromkeys("ab", IDS.from_lists([[1, 2]]))
        module(ids).joined.sum().backward()
        Optimizer(module).step()
        for table in module.tables.values():
            table.evict()
        found = module.eval()(ids).joined.tolist()
        assert found == [[0.0, pytest.approx(-0.001414, abs=1e-6)]]
