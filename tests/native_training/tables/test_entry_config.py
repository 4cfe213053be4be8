import dataclasses

import pytest
import torch

from monolith.native_training.tables.entry_config import (
    CombineAsSegment,
    CuckooHashTableConfig,
    EmbeddingHashTableConfig,
    EntryConfig,
    HashTableConfigInstance,
)
from monolith.native_training.tables.entry_parts import (
    EntryType,
    Fp16Compressor,
    Fp32Compressor,
    SlotExpireTime,
    SlotExpireTimeConfig,
    StochasticRoundingFloat16OptimizerWrapper,
    StorageType,
)
from monolith.table import BackgroundSweep, Expiry, FixedR8, OneBit, Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, MovingAverage, PolynomialDecay
from monolith.table.reference import ReferenceTable


def segment(optimizer=None, dim=2, compressor=None):
    return CombineAsSegment(dim, Zeros(), optimizer or SGD(), compressor or Fp32Compressor())


def table_config(*segments, **options):
    config = CuckooHashTableConfig().table_config(EntryConfig(segments or [segment()]))
    return dataclasses.replace(config, **options)


def assert_refused(text, make, *args, **options):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        make(*args, **options)
    assert str(caught.value) == text


def test_defaults():
    config = EmbeddingHashTableConfig(EntryConfig([segment()]))
    assert (config.initial_capacity, config.cuckoo, config.entry_type) == (1, False, StorageType(1))
    assert (config.enable_feature_eviction, config.feature_evict_every_n_hours) == (False, 240)
    assert (config.skip_zero_embedding, config.slot_expire_time_config) == (False, None)
    assert config.entry_config.entry_type is EntryType.TRAINING
    assert EntryConfig.Segment is type(segment())


def test_cuckoo_evicts_only_when_hours_are_given():
    entry = EntryConfig([segment()])
    assert not CuckooHashTableConfig().table_config(entry).enable_feature_eviction
    config = CuckooHashTableConfig(7, feature_evict_every_n_hours=3).table_config(entry)
    assert config.enable_feature_eviction
    assert (config.initial_capacity, config.feature_evict_every_n_hours) == (7, 3)


def test_instance_makes_a_table_config_with_its_learning_rates():
    decay = PolynomialDecay(0.0, 10, 0.5)
    segments = [segment(Adagrad(0.3, warmup_steps=5), 3), segment(SGD()), segment(MovingAverage())]
    instance = HashTableConfigInstance(table_config(*segments), [decay, 0.25, 1.0])
    assert instance.table("user") == TableConfig(
        "user",
        [
            Segment(3, Adagrad(decay), Zeros()),
            Segment(2, SGD(0.25), Zeros()),
            Segment(2, MovingAverage(), Zeros()),
        ],
    )


def test_compressors_are_views_in_training_and_storage_in_serving():
    rounded = StochasticRoundingFloat16OptimizerWrapper(SGD())
    parts = [
        segment(compressor=FixedR8(0.5)),
        segment(rounded, compressor=OneBit(7)),
        segment(compressor=Fp16Compressor()),
        segment(),
    ]
    rates = [0.1] * 4
    assert HashTableConfigInstance(table_config(*parts), rates).table("user") == TableConfig(
        "user",
        [
            Segment(2, SGD(0.1), Zeros(), view=FixedR8(0.5)),
            Segment(2, SGD(0.1), Zeros(), precision="fp16", view=OneBit(7)),
            Segment(2, SGD(0.1), Zeros()),
            Segment(2, SGD(0.1), Zeros()),
        ],
    )
    entry = EntryConfig(parts, EntryType.SERVING)
    serving = table_config(entry_config=entry, skip_zero_embedding=True)
    assert HashTableConfigInstance(serving, rates).table("user") == TableConfig(
        "user",
        [
            Segment(2, view=FixedR8(0.5)),
            Segment(2, view=OneBit(7)),
            Segment(2, precision="fp16"),
            Segment(2),
        ],
        kind="serving",
        skip_zero=True,
    )


def test_days_of_slots_become_the_expiry():
    days = SlotExpireTimeConfig([SlotExpireTime(3, 14)], default_expire_time=30)
    config = table_config(slot_expire_time_config=days)
    assert HashTableConfigInstance(config, [0.1]).table("user").expiry == Expiry(30, {3: 14})
    assert HashTableConfigInstance(table_config(), [0.1]).table("user").expiry is None


def test_eviction_asks_for_a_sweep_and_an_expiry():
    quiet = HashTableConfigInstance(table_config(feature_evict_every_n_hours=3), [0.1])
    assert quiet.evict_every_seconds is None
    config = CuckooHashTableConfig(feature_evict_every_n_hours=3).table_config(
        EntryConfig([segment()])
    )
    evicting = HashTableConfigInstance(config, [0.1])
    assert evicting.evict_every_seconds == 3 * 3600
    assert evicting.table("user").expiry == Expiry(36_500)
    days = SlotExpireTimeConfig([SlotExpireTime(3, 14)])
    config = dataclasses.replace(config, slot_expire_time_config=days)
    assert HashTableConfigInstance(config, [0.1]).table("user").expiry == Expiry(36_500, {3: 14})


def test_rows_expire_by_the_days_of_the_config():
    days = SlotExpireTimeConfig([SlotExpireTime(1, 2)], default_expire_time=1)
    config = table_config(slot_expire_time_config=days, enable_feature_eviction=True)
    table = ReferenceTable(HashTableConfigInstance(config, [0.1]).table("user"))
    numbers = torch.tensor([5, (1 << 48) | 5])
    table.assign(numbers, torch.ones(2, 2), now=0)
    table.assign(torch.tensor([6]), torch.ones(1, 2), now=86_400)
    with BackgroundSweep(table, every_seconds=0.001) as sweep:
        while sweep.num_sweeps == 0:
            sweep._stop.wait(0.001)
    assert table.contains(numbers).tolist() == [False, True]


def test_instances_are_the_same_iff_their_strings_are():
    def make(dim=2, rate=0.1, names=None):
        decay = PolynomialDecay(0.0, 10, rate)
        return HashTableConfigInstance(table_config(segment(dim=dim)), [decay], names)

    assert make() == make(names=["old"])
    assert hash(make()) == hash(make())
    assert make() != make(dim=3)
    assert make() != make(rate=0.2)
    assert make() != "another thing"
    assert str(make()).startswith("TableConfigPB: EmbeddingHashTableConfig(entry_config=")
    assert str(make()).endswith(f", LearningRateFns: [{PolynomialDecay(0.0, 10, 0.1)}]")


def test_number_of_learning_rates():
    config = table_config()
    text = "Learning_rate_fns must be not empty."
    assert_refused(text, HashTableConfigInstance, config, [])
    text = "Size of learning_rate_fns and size of segments must be equal."
    assert_refused(text, HashTableConfigInstance, config, [0.1, 0.2])


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (table_config(cuckoo=False), "cuckoo True, got False"),
        (table_config(entry_type=StorageType.RAW), "entry_type StorageType.PACKED, got S"),
        (
            table_config(entry_config=EntryConfig([segment()], EntryType.UNKNOWN)),
            "entry_config.entry_type EntryType.TRAINING or EntryType.SERVING, got EntryType.U",
        ),
    ],
)
def test_what_our_tables_cannot_do_is_refused_by_name(config, text):
    with pytest.raises(ValueError, match="HashTableConfigInstance") as caught:
        HashTableConfigInstance(config, [0.1])
    assert str(caught.value).startswith(f"[HashTableConfigInstance] expected {text}")


def test_entry_needs_segments_with_their_parts():
    assert_refused("[EntryConfig] expected at least one segment", EntryConfig, [])
    text = "[EntryConfig] expected {} in segment 1 of a {} entry, got None"
    for name, kind in [
        ("init_config", EntryType.TRAINING),
        ("opt_config", EntryType.TRAINING),
        ("comp_config", EntryType.SERVING),
    ]:
        segments = [segment(), dataclasses.replace(segment(), **{name: None})]
        assert_refused(text.format(name, kind.name), EntryConfig, segments, kind)


@pytest.mark.parametrize("name", ["initial_capacity", "feature_evict_every_n_hours"])
def test_table_refuses_numbers_below_one(name):
    text = f"[EmbeddingHashTableConfig] expected {name} >= 1, got 0"
    assert_refused(text, table_config, **{name: 0})


def test_table_keeps_zero_rows_when_training():
    text = (
        "[EmbeddingHashTableConfig] expected skip_zero_embedding only with a SERVING entry, "
        "got TRAINING"
    )
    assert_refused(text, table_config, skip_zero_embedding=True)


@pytest.mark.parametrize(("capacity", "hours"), [(0, 0), (1, -1)])
def test_cuckoo_refuses_numbers(capacity, hours):
    text = (
        "[CuckooHashTableConfig] expected initial_capacity >= 1 and "
        f"feature_evict_every_n_hours >= 0, got {capacity} and {hours}"
    )
    assert_refused(text, CuckooHashTableConfig, capacity, hours)


@pytest.mark.parametrize(
    ("make", "arguments", "text"),
    [
        (EntryConfig, {"segments": 3}, "[EntryConfig] expected segments as a sequence, got 3"),
        (
            EntryConfig,
            {"segments": [3]},
            "[EntryConfig] expected each of segments as EntrySegment, got 3",
        ),
        (
            EntryConfig,
            {"segments": [segment()], "entry_type": "TRAINING"},
            "[EntryConfig] expected entry_type as EntryType, got 'TRAINING'",
        ),
        (
            segment,
            {"optimizer": "sgd"},
            "[EntrySegment] expected opt_config as Optimizer or "
            "StochasticRoundingFloat16OptimizerWrapper, got 'sgd'",
        ),
        (
            segment,
            {"compressor": "fp16"},
            "[EntrySegment] expected comp_config as Fp32Compressor or Fp16Compressor or FixedR8 "
            "or OneBit, got 'fp16'",
        ),
        (
            table_config,
            {"initial_capacity": "1"},
            "[EmbeddingHashTableConfig] expected initial_capacity as an integer, got '1'",
        ),
        (
            CuckooHashTableConfig,
            {"feature_evict_every_n_hours": 0.5},
            "[CuckooHashTableConfig] expected feature_evict_every_n_hours as an integer, got 0.5",
        ),
    ],
)
def test_wrong_types_are_refused_by_name(make, arguments, text):
    with pytest.raises(TypeError) as caught:
        make(**arguments)
    assert str(caught.value) == text
