import pytest
import torch

from monolith.native_training.slots import (
    CollectingFactory,
    EmbeddingsFactory,
    FeatureColumn,
    FeatureSlotConfig,
)
from monolith.native_training.slots.combiners import FirstN, ReduceMean, ReduceSum
from monolith.native_training.tables.entry_parts import Fp16Compressor, Fp32Compressor
from monolith.table import FixedR8, Uniform, Zeros
from monolith.table.optimizers import FTRL, SGD, Adagrad

ADAGRAD = Adagrad(0.001, initial_accumulator_value=1.0)


def slot(**options):
    return CollectingFactory(4).create_feature_slot(FeatureSlotConfig("s", **options))


def collected(of):
    return [(each.segment, each.learning_rate_fn) for each in of.table.slices]


def test_the_name_of_a_slot_is_its_number_unless_it_has_one():
    assert FeatureSlotConfig(slot_id=7).name == "7"
    assert FeatureSlotConfig("user", slot_id=7).name == "user"


def test_defaults_are_those_of_the_reference_system():
    config = FeatureSlotConfig("s")
    assert config.bias_optimizer == FTRL(initial_accumulator_value=1e-6, beta=1.0)
    assert (config.bias_initializer, config.bias_compressor) == (Zeros(), Fp32Compressor())
    assert config.default_vec_initializer == Uniform(-0.05, 0.05)
    assert config.default_vec_optimizer == ADAGRAD
    assert config.default_vec_compressor == Fp16Compressor()
    assert (config.occurrence_threshold, config.expire_time) == (0, 36500)


def test_slices_follow_each_other_in_the_order_of_the_calls():
    made = slot()
    slices = [made.add_feature_slice(dim) for dim in (2, 3)]
    assert [(s.feature_slot, s.start, s.end, s.dim) for s in slices] == [
        (made, 0, 2, 2), (made, 2, 5, 3),
    ]  # fmt: skip


def test_a_bias_is_the_first_slice():
    made = slot(has_bias=True)
    assert made.add_feature_slice(2).start == 1
    bias = made.get_bias_slice()
    assert (bias.start, bias.end) == (0, 1)


def test_what_a_slice_does_not_name_is_that_of_the_slot():
    made = slot(default_vec_optimizer=SGD(0.5), default_vec_learning_rate_fn=0.25)
    made.add_feature_slice(2)
    ((segment, rate),) = collected(made)
    assert (segment.opt_config, segment.init_config, rate) == (SGD(0.5), Uniform(), 0.25)


def test_what_a_slice_names_is_its_own():
    made = slot()
    made.add_feature_slice(2, Zeros(), SGD(), FixedR8(1.0), 0.125)
    ((segment, rate),) = collected(made)
    assert (segment.init_config, segment.opt_config) == (Zeros(), SGD())
    assert (segment.comp_config, rate) == (FixedR8(1.0), 0.125)


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({}, None),
        ({"default_vec_learning_rate_fn": 0.5}, 0.5),
        ({"default_vec_learning_rate_fn": 0.5, "bias_learning_rate_fn": 0.25}, 0.25),
    ],
)
def test_the_rate_of_a_bias_falls_back_to_that_of_the_slot(options, rate):
    assert collected(slot(has_bias=True, **options))[0][1] == rate


def test_a_slot_knows_its_columns():
    made = slot()
    columns = (FeatureColumn(made, "a"), FeatureColumn(made, "b"))
    assert made.get_feature_columns() == columns


def test_a_column_sums_unless_told_otherwise():
    assert FeatureColumn(slot(), "a").combiner == ReduceSum()
    kinds = [FeatureColumn.reduce_sum(), FeatureColumn.reduce_mean(), FeatureColumn.first_n(2)]
    assert kinds == [ReduceSum(), ReduceMean(), FirstN(2)]


def test_a_column_takes_slices_of_its_own_slot_only():
    column, other = FeatureColumn(slot(), "a"), slot().add_feature_slice(1)
    with pytest.raises(
        AssertionError, match=r"^Slice must come from the dedicated feature slot\.$"
    ):
        column.embedding_lookup(other)


def test_a_slot_without_bias_has_no_slice_of_it():
    with pytest.raises(AssertionError) as caught:
        FeatureColumn(slot(), "a").get_bias()
    assert str(caught.value) == (
        "[FeatureSlot.get_bias_slice] expected has_bias=True, got False (slot 's')"
    )


def test_the_size_of_a_sequence_is_a_mask():
    column = FeatureColumn(slot(), "a", FirstN(3))
    column.set_size_tensor(torch.tensor([1, 4, 0, 2]))
    size = column.get_size_tensor()
    assert size.dtype == torch.int32
    assert size.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize(
    "call", [lambda column: column.set_size_tensor(torch.ones(1)), FeatureColumn.get_size_tensor]
)
def test_only_a_sequence_has_a_size(call):
    text = r"^This function is only supported in a sequence feature\.$"
    with pytest.raises(AssertionError, match=text):
        call(FeatureColumn(slot(), "a"))


def test_a_size_that_nobody_knows_is_refused():
    made = EmbeddingsFactory({}, {}).create_feature_slot(FeatureSlotConfig("s"))
    with pytest.raises(ValueError, match=r"expected set_size_tensor before, got none \(feature"):
        FeatureColumn(made, "a", FirstN(3)).get_size_tensor()


def test_a_slot_has_a_name_or_a_number():
    with pytest.raises(ValueError, match="expected a name or a slot_id, got neither"):
        FeatureSlotConfig()


@pytest.mark.parametrize("option", ["occurrence_threshold", "expire_time"])
def test_a_threshold_and_a_time_are_not_negative(option):
    with pytest.raises(ValueError, match="got -1"):
        FeatureSlotConfig("s", **{option: -1})
