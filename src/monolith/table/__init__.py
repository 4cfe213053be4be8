"""Tables from int64 keys to trainable rows, and the settings of tables."""

import warnings
from typing import TYPE_CHECKING

from monolith.ops.compiled import load_native
from monolith.table.bags import BagGradients, Bags
from monolith.table.config import Segment, TableConfig
from monolith.table.disk.table_load import load_table, load_tables, restore_tables
from monolith.table.disk.table_save import save_tables
from monolith.table.initializers import Constant, Normal, Uniform, Zeros
from monolith.table.optimizers.adagrad import (
    Adagrad,
    DynamicWdAdagrad,
    GroupAdagrad,
    RowWiseAdagrad,
)
from monolith.table.optimizers.ftrl import FTRL, GroupFTRL
from monolith.table.optimizers.moments import Adadelta, Adam, AMSGrad, RMSprop, RMSpropV2
from monolith.table.optimizers.schedules import LearningRateFunction, PolynomialDecay
from monolith.table.optimizers.sgd import SGD, BatchSoftmax, Momentum, MovingAverage
from monolith.table.precision import FixedR8, OneBit
from monolith.table.reference.table import ReferenceTable
from monolith.table.rows import Applied, Entries, Rows, Touched
from monolith.table.rules import Budget, Expiry, MinCount, Probabilistic, SlidingFilter
from monolith.table.snapshot import Snapshot
from monolith.table.sweep import BackgroundSweep

if TYPE_CHECKING:
    from monolith.table.native import Table
else:
    try:
        load_native()  # the error names the file, the loader's reason and the remedy
    except ImportError as error:
        warnings.warn(
            "[monolith.table] Table is the slow ReferenceTable, without the compiled core: "
            f"{error}",
            RuntimeWarning,
            stacklevel=2,
        )
        Table = ReferenceTable
    else:
        from monolith.table.native import Table

__all__ = [
    "AMSGrad",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Applied",
    "BackgroundSweep",
    "BagGradients",
    "Bags",
    "BatchSoftmax",
    "Budget",
    "Constant",
    "DynamicWdAdagrad",
    "Entries",
    "Expiry",
    "FTRL",
    "FixedR8",
    "GroupAdagrad",
    "GroupFTRL",
    "LearningRateFunction",
    "MinCount",
    "Momentum",
    "MovingAverage",
    "Normal",
    "OneBit",
    "PolynomialDecay",
    "Probabilistic",
    "RMSprop",
    "RMSpropV2",
    "ReferenceTable",
    "RowWiseAdagrad",
    "Rows",
    "SGD",
    "Segment",
    "SlidingFilter",
    "Snapshot",
    "Table",
    "TableConfig",
    "Touched",
    "Uniform",
    "Zeros",
    "load_table",
    "load_tables",
    "restore_tables",
    "save_tables",
]
