"""Import path of the reference system; see `monolith.native_training.tables.entry_config`."""

from monolith.native_training.tables.entry_config import *  # noqa: F403
from monolith.native_training.tables.entry_parts import *  # noqa: F403
from monolith.table import FixedR8 as _FixedR8
from monolith.table import OneBit as _OneBit
from monolith.table import Zeros as _Zeros
from monolith.table import optimizers as _optimizers

ZerosInitializer = _Zeros
SgdOptimizer = _optimizers.SGD
AdagradOptimizer = _optimizers.Adagrad
AdadeltaOptimizer = _optimizers.Adadelta
AdamOptimizer = _optimizers.Adam
AmsgradOptimizer = _optimizers.AMSGrad
BatchSoftmaxOptimizer = _optimizers.BatchSoftmax
MomentumOptimizer = _optimizers.Momentum
MovingAverageOptimizer = _optimizers.MovingAverage
RmspropOptimizer = _optimizers.RMSprop
RmspropV2Optimizer = _optimizers.RMSpropV2
FtrlOptimizer = _optimizers.FTRL
FTRLWithGroupSparsityOptimizer = _optimizers.GroupFTRL
AdaGradWithGroupLassoOptimizer = _optimizers.GroupAdagrad
DynamicWdAdagradOptimizer = _optimizers.DynamicWdAdagrad
FixedR8Compressor = _FixedR8
OneBitCompressor = _OneBit
