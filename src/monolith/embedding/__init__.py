"""Tables: any int64 key -> a trainable row."""

import warnings

from monolith.embedding.admission import MinCount, Probabilistic, SlidingFilter
from monolith.embedding.bag_feature import BagFeature
from monolith.embedding.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.embedding.budget import Budget
from monolith.embedding.codecs import decode, encode
from monolith.embedding.config import NUM_PARTITIONS, Segment, TableConfig
from monolith.embedding.cut import Snapshot
from monolith.embedding.disk import Progress, load_table, load_tables, restore_tables, save_tables
from monolith.embedding.distributed_multi_type_table import DistributedMultiTypeHashTable
from monolith.embedding.distributed_table import DistributedHashTable
from monolith.embedding.expiry import Expiry
from monolith.embedding.feature_bags import FeatureBags
from monolith.embedding.initializers import Constant, Normal, Uniform, Zeros
from monolith.embedding.local_servers import LocalServers, ps_device
from monolith.embedding.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AMSGrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    RMSprop,
    RMSpropV2,
    RowWiseAdagrad,
)
from monolith.embedding.partitioned_table import PartitionedHashTable
from monolith.embedding.record import Record
from monolith.embedding.reference import ReferenceTable
from monolith.embedding.routing import FloorModRouting, PartitionRouting
from monolith.embedding.rows import Applied, Entries, RowMemory, Rows, Touched
from monolith.embedding.schedules import LearningRateFunction, PolynomialDecay
from monolith.embedding.sharded_table import ShardedTable
from monolith.embedding.sweep import BackgroundSweep
from monolith.embedding.table_group import TableGroup
from monolith.embedding.touched_key_set import TouchedKeySet
from monolith.embedding.views import FixedR8, OneBit
from monolith.ops.native import load_native

try:
    load_native()  # its error names the file, the loader's reason and what to do
except ImportError as error:
    warnings.warn(
        "[monolith.embedding] Table is the slow ReferenceTable, without the compiled core: "
        f"{error}",
        RuntimeWarning,
        stacklevel=2,
    )
    Table = ReferenceTable
else:
    from monolith.embedding.table import Table  # type: ignore[assignment]

__all__ = [
    "AMSGrad",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Applied",
    "BackgroundSweep",
    "BagFeature",
    "BagGradients",
    "Bags",
    "BatchSoftmax",
    "Budget",
    "Constant",
    "DistributedHashTable",
    "DistributedMultiTypeHashTable",
    "DynamicWdAdagrad",
    "Entries",
    "Expiry",
    "FTRL",
    "FeatureBags",
    "FixedR8",
    "FloorModRouting",
    "GradientSum",
    "GroupAdagrad",
    "GroupFTRL",
    "LearningRateFunction",
    "LocalServers",
    "MinCount",
    "Momentum",
    "MovingAverage",
    "NUM_PARTITIONS",
    "Normal",
    "OneBit",
    "PartitionRouting",
    "PartitionedHashTable",
    "PolynomialDecay",
    "PooledRows",
    "Probabilistic",
    "Progress",
    "RMSprop",
    "RMSpropV2",
    "Record",
    "ReferenceTable",
    "RowMemory",
    "RowWiseAdagrad",
    "Rows",
    "SGD",
    "Segment",
    "ShardedTable",
    "SlidingFilter",
    "Snapshot",
    "Table",
    "TableConfig",
    "TableGroup",
    "Touched",
    "TouchedKeySet",
    "Uniform",
    "Zeros",
    "decode",
    "encode",
    "load_table",
    "load_tables",
    "ps_device",
    "restore_tables",
    "save_tables",
]
