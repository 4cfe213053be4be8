"""Give the optimizers, initializers, compressors and configs that a table's entry is made of."""

from monolith.native_training.tables.entry_config import (
    CombineAsSegment,
    CuckooHashTableConfig,
    EmbeddingHashTableConfig,
    EntryConfig,
    EntrySegment,
    HashTableConfigInstance,
)
from monolith.native_training.tables.entry_parts import (
    BatchSoftmaxInitializer,
    Compressor,
    ConstantsInitializer,
    DcOptimizer,
    EntryType,
    Fp16Compressor,
    Fp32Compressor,
    RandomUniformInitializer,
    SlotExpireTime,
    SlotExpireTimeConfig,
    SlotOccurrenceThreshold,
    SlotOccurrenceThresholdConfig,
    StochasticRoundingFloat16OptimizerWrapper,
    StorageType,
)
from monolith.table import FixedR8, OneBit, Zeros, optimizers

__all__ = [
    "AdaGradWithGroupLassoOptimizer",
    "AdadeltaOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AmsgradOptimizer",
    "BatchSoftmaxInitializer",
    "BatchSoftmaxOptimizer",
    "CombineAsSegment",
    "Compressor",
    "ConstantsInitializer",
    "CuckooHashTableConfig",
    "DcOptimizer",
    "DynamicWdAdagradOptimizer",
    "EmbeddingHashTableConfig",
    "EntryConfig",
    "EntrySegment",
    "EntryType",
    "FTRLWithGroupSparsityOptimizer",
    "FixedR8Compressor",
    "Fp16Compressor",
    "Fp32Compressor",
    "FtrlOptimizer",
    "HashTableConfigInstance",
    "MomentumOptimizer",
    "MovingAverageOptimizer",
    "OneBitCompressor",
    "RandomUniformInitializer",
    "RmspropOptimizer",
    "RmspropV2Optimizer",
    "SgdOptimizer",
    "SlotExpireTime",
    "SlotExpireTimeConfig",
    "SlotOccurrenceThreshold",
    "SlotOccurrenceThresholdConfig",
    "StochasticRoundingFloat16OptimizerWrapper",
    "StorageType",
    "ZerosInitializer",
]

ZerosInitializer = Zeros
SgdOptimizer = optimizers.SGD
AdagradOptimizer = optimizers.Adagrad
AdadeltaOptimizer = optimizers.Adadelta
AdamOptimizer = optimizers.Adam
AmsgradOptimizer = optimizers.AMSGrad
BatchSoftmaxOptimizer = optimizers.BatchSoftmax
MomentumOptimizer = optimizers.Momentum
MovingAverageOptimizer = optimizers.MovingAverage
RmspropOptimizer = optimizers.RMSprop
RmspropV2Optimizer = optimizers.RMSpropV2
FtrlOptimizer = optimizers.FTRL
FTRLWithGroupSparsityOptimizer = optimizers.GroupFTRL
AdaGradWithGroupLassoOptimizer = optimizers.GroupAdagrad
DynamicWdAdagradOptimizer = optimizers.DynamicWdAdagrad
FixedR8Compressor = FixedR8
OneBitCompressor = OneBit
