from monolith.native_training import embedding_combiners, feature
from monolith.native_training.slots import combiners, slot_factories, slot_tables, slots


def test_the_names_of_the_reference_system_are_ours():
    assert feature.FeatureSlotConfig is slots.FeatureSlotConfig
    assert feature.FeatureColumnV1 is slots.FeatureColumn
    assert feature.DummyFeatureFactory is slot_factories.CollectingFactory
    assert feature.FeatureFactoryFromEmbeddings is slot_factories.EmbeddingsFactory
    assert feature.TableConfig is slot_tables.SlotTable
    assert feature.DEFAULT_EXPIRE_TIME == 36500
    assert embedding_combiners.FirstN is combiners.FirstN
