"""Run the facts of engines on those of this process, and replay what they applied."""

import copy
import pickle

import pytest
import torch

from monolith.features import CoreEngine, PendingGradients, PlainEngine, engine_for
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.suites.engine import CONFIGS, FEATURES, EngineSuite, meaning, one_batch, read, train
from tests.suites.table_base import NOW, assert_equal_rows, assert_same_rows, exported


def tables(configs, clock=lambda: NOW, **options):
    return [Table(config, clock=clock, **options) for config in configs]


class TestMeaning(EngineSuite):
    make = staticmethod(meaning)


class TestPlainOnNativeTables(EngineSuite):
    make = staticmethod(
        lambda configs, features, clock: PlainEngine(tables(configs, clock), features)
    )


class TestCore(EngineSuite):
    make = staticmethod(
        lambda configs, features, clock: CoreEngine(tables(configs, clock), features)
    )


def test_the_norm_of_the_core_has_the_bits_of_the_meaning():
    norms = []
    for engine in (CoreEngine(tables(CONFIGS), FEATURES), meaning(CONFIGS, FEATURES, lambda: NOW)):
        pending = PendingGradients(engine)
        torch.stack(
            [output.square().sum() for output in read(pending, one_batch(0))]
        ).sum().backward()
        norms.append(pending.norm)
    assert norms[0] == norms[1]


def test_the_steps_of_recorded_tables_replay_into_the_reference_table():
    configs = [config for config in CONFIGS if config.admission is None]
    features = [feature for feature in FEATURES if feature.table != "rare"]
    records = [Record() for _ in configs]
    made = [Table(c, clock=lambda: NOW, record=r) for c, r in zip(configs, records, strict=True)]
    pending = PendingGradients(engine_for(made, features))
    train(pending)
    assert isinstance(pending.engine, PlainEngine)
    for table, record in zip(made, records, strict=True):
        reference = ReferenceTable(table.config)
        record.replay(reference)
        assert_equal_rows(exported(reference), exported(table))


def test_native_tables_share_calls_of_the_core():
    assert isinstance(engine_for(tables(CONFIGS), FEATURES), CoreEngine)
    mixed = [*tables(CONFIGS[:-1]), ReferenceTable(CONFIGS[-1])]
    assert isinstance(engine_for(mixed, FEATURES), PlainEngine)


def test_the_core_refuses_tables_of_other_classes():
    mixed = [*tables(CONFIGS[:-1]), ReferenceTable(CONFIGS[-1])]
    text = r"^\[CoreEngine\] expected native tables without record and views, got another \(table"
    with pytest.raises(TypeError, match=text):
        CoreEngine(mixed, FEATURES)


@pytest.mark.parametrize("kind", [CoreEngine, PlainEngine])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_an_engine_has_tables_of_its_own(kind, copied):
    pending = PendingGradients(kind([Table(config) for config in CONFIGS], FEATURES))
    train(pending, num_steps=1)
    twin = copied(pending.engine)
    assert type(twin) is kind
    for name, table in pending.engine.tables.items():
        assert twin.tables[name] is not table
        assert_same_rows(twin.tables[name], table)
