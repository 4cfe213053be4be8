import pytest

from monolith.native_training import entry
from monolith.table import FixedR8, OneBit, optimizers

NAMES = [
    "SgdOptimizer",
    "AdagradOptimizer",
    "AdadeltaOptimizer",
    "AdamOptimizer",
    "AmsgradOptimizer",
    "BatchSoftmaxOptimizer",
    "MomentumOptimizer",
    "MovingAverageOptimizer",
    "RmspropOptimizer",
    "RmspropV2Optimizer",
    "FTRLWithGroupSparsityOptimizer",
    "AdaGradWithGroupLassoOptimizer",
    "DynamicWdAdagradOptimizer",
    "FtrlOptimizer",
    "StochasticRoundingFloat16OptimizerWrapper",
    "ZerosInitializer",
    "ConstantsInitializer",
    "RandomUniformInitializer",
    "BatchSoftmaxInitializer",
    "OneBitCompressor",
    "FixedR8Compressor",
    "Fp16Compressor",
    "Fp32Compressor",
    "CuckooHashTableConfig",
    "HashTableConfigInstance",
    "CombineAsSegment",
    "EntryConfig",
    "EmbeddingHashTableConfig",
    "SlotExpireTimeConfig",
    "SlotOccurrenceThresholdConfig",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_reference_system_is_there(name):
    assert callable(getattr(entry, name))


def test_optimizers_take_the_arguments_of_the_reference_system():
    ftrl = entry.FtrlOptimizer(learning_rate=None, l1_regularization=0.5, warmup_steps=3)
    assert ftrl == optimizers.FTRL(0.01, l1_regularization=0.5, warmup_steps=3)
    lasso = entry.AdaGradWithGroupLassoOptimizer(beta=None, l2_regularization=0.5)
    assert lasso == optimizers.GroupAdagrad(l2_regularization=0.5)
    assert entry.FTRLWithGroupSparsityOptimizer().beta == 1.0


def test_compressors_take_the_arguments_of_the_reference_system():
    assert entry.OneBitCompressor(step_size=9, amplitude=0.5) == OneBit(9, 0.5)
    assert entry.OneBitCompressor() == OneBit(200, 0.05)
    assert entry.FixedR8Compressor(fixed_range=2.0) == FixedR8(2.0)
