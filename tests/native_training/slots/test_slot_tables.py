import pytest

from monolith.native_training.slots.combiners import FirstN, ReduceMean, ReduceSum
from monolith.native_training.slots.slot_tables import (
    SliceConfig,
    SlotTable,
    features_of,
    merge_slices,
)
from monolith.native_training.tables.entry_config import CuckooHashTableConfig, EntrySegment
from monolith.native_training.tables.entry_parts import (
    Fp16Compressor,
    StochasticRoundingFloat16OptimizerWrapper,
)
from monolith.table import Expiry, MinCount, Zeros
from monolith.table.config import segments_of
from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay

FN_A = PolynomialDecay(0.01, 10, 0.11)


def part(dim, optimizer, rate=None):
    return SliceConfig(EntrySegment(dim, Zeros(), optimizer, Fp16Compressor()), rate)


def table(*slices, names=("a",), combiners=None, **options):
    combiners = combiners or dict.fromkeys(names, ReduceSum())
    slices = slices or (part(2, SGD(0.5)),)
    dims = [each.segment.dim_size for each in slices]
    return SlotTable(
        merge_slices(slices), names, dims, CuckooHashTableConfig(), combiners, **options
    )


def test_neighbours_that_differ_in_width_only_become_one():
    slices = [
        part(5, Adagrad(0.001, warmup_steps=10)),
        part(2, SGD(), FN_A),
        part(2, SGD(), PolynomialDecay(0.01, 10, 0.11)),
        part(2, SGD()),
    ]
    merged = merge_slices(slices)
    assert [each.segment.dim_size for each in merged] == [5, 4, 2]
    assert [each.learning_rate for each in merged] == [
        PolynomialDecay(0.0, 10, 0.001), FN_A, 0.01,
    ]  # fmt: skip


def test_equal_slices_that_are_no_neighbours_stay_apart():
    merged = merge_slices([part(1, SGD()), part(1, Adagrad()), part(1, SGD())])
    assert [each.segment.dim_size for each in merged] == [1, 1, 1]


def test_a_wrapped_optimizer_has_the_rate_of_what_it_wraps():
    wrapped = StochasticRoundingFloat16OptimizerWrapper(SGD(0.25))
    assert part(1, wrapped).learning_rate == 0.25
    (segment,) = table(part(1, wrapped)).features()[0].slices
    assert (segment.optimizer, segment.precision) == (SGD(0.25), "fp16")


def test_the_first_column_has_the_table_and_the_others_share_it():
    combiners = {"a": ReduceMean(), "b": FirstN(3), "c": ReduceSum()}
    found = table(names=("a", "b", "c"), combiners=combiners).features()
    assert [(f.name, f.table, f.combiner, f.max_length) for f in found] == [
        ("a", "a", "mean", 0), ("b", "a", "first", 3), ("c", "a", "sum", 0),
    ]  # fmt: skip


def test_rows_that_are_asked_for_are_not_combined():
    combiners = {"a": FirstN(3), "b": FirstN(3)}
    found = table(names=("a", "b"), combiners=combiners, with_rows=True).features()
    assert [(f.combiner, f.max_length) for f in found] == [("rows", 0), ("rows", 0)]


def test_a_slot_gives_rules_and_rates_to_its_table():
    made = table(part(2, SGD(), FN_A), occurrence_threshold=3, expire_time=7)
    config = made.features()[0].table_config()
    assert (config.admission, config.expiry) == (MinCount(3), Expiry(7))
    assert segments_of(config)[0].optimizer == SGD(FN_A)


def test_no_threshold_admits_every_id():
    assert table().features()[0].admission is None


def test_a_slot_without_columns_has_no_features():
    assert features_of([table(names=()), table()])[0].name == "a"


def test_a_feature_of_two_slots_is_refused():
    with pytest.raises(AssertionError, match=r"^Feature must only belongs to one table\.$"):
        features_of([table(), table()])


def test_a_slot_says_how_often_expired_rows_are_removed():
    evicting = SlotTable(
        [part(1, SGD())], ["a", "b"], [1], CuckooHashTableConfig(1, 2), {"a": ReduceSum()}
    )
    assert evicting.evict_every_hours == {"a": 2}
    assert table().evict_every_hours == {}
