"""Test the table contract. An implementation joins in three lines:

```
class TestReference(TableSuite):
    make = staticmethod(ReferenceTable)
```

`BaseTable` refuses wrong arguments for all implementations, so that `RefusalSuite` runs on one
table and on one table in shards.
"""

from tests.suites.table_admission import AdmissionByCount
from tests.suites.table_arguments import BadArguments, Numbers
from tests.suites.table_bad_bags import BadBags
from tests.suites.table_bad_cuts import BadCuts
from tests.suites.table_bad_input import BadExport, BadImport, BadInput
from tests.suites.table_bag_gradients import AppliedSums, BagNorms
from tests.suites.table_bags import BagReads, BagWeightGradients
from tests.suites.table_budget import Budgets
from tests.suites.table_changes import BadCursors, Changes
from tests.suites.table_concurrency import Concurrency
from tests.suites.table_cut_changes import (
    BadCutReads,
    CursorsOfCuts,
    CutChanges,
    CutDeltas,
    CutEntries,
)
from tests.suites.table_cut_lookups import CutLookups
from tests.suites.table_cuts import CutParts, Cuts
from tests.suites.table_expiry import Evictions, Sweeps
from tests.suites.table_export import Exports, Imports
from tests.suites.table_filters import AdmissionColumns, AdmissionFilters, BadCandidates
from tests.suites.table_gradients import Gradients, NonFinite, Rates, Segments
from tests.suites.table_optimizer_runs import OptimizerRuns
from tests.suites.table_optimizers import BatchSoftmaxVectors, OptimizerVectors
from tests.suites.table_precision import Precision, RoundedInitialValues, UpdateCalls
from tests.suites.table_races import Races
from tests.suites.table_reads import InitialValues, Reads
from tests.suites.table_scale import Scale
from tests.suites.table_serving import Serving, SkipZero
from tests.suites.table_time import Facts, Life, Times
from tests.suites.table_torch import TorchOptimizers
from tests.suites.table_vectors import Vectors
from tests.suites.table_views import Views
from tests.suites.table_writes import Assigns, Inserts, Removals


class TableSuite(
    Reads,
    InitialValues,
    Inserts,
    Assigns,
    Removals,
    Gradients,
    Rates,
    Segments,
    NonFinite,
    BagReads,
    BagWeightGradients,
    AppliedSums,
    BagNorms,
    Exports,
    Imports,
    Times,
    Facts,
    Life,
    Numbers,
    Vectors,
    AdmissionByCount,
    AdmissionColumns,
    AdmissionFilters,
    BadCandidates,
    Evictions,
    Sweeps,
    Budgets,
    Precision,
    RoundedInitialValues,
    UpdateCalls,
    Views,
    Serving,
    SkipZero,
    OptimizerVectors,
    BatchSoftmaxVectors,
    OptimizerRuns,
    TorchOptimizers,
    Cuts,
    CutParts,
    BadCuts,
    CutChanges,
    CursorsOfCuts,
    CutEntries,
    CutDeltas,
    CutLookups,
    BadCutReads,
    Changes,
    BadCursors,
    Concurrency,
    Races,
    Scale,
):
    """Runs every section of the contract."""


class RefusalSuite(BadBags, BadInput, BadExport, BadImport, BadArguments):
    """Runs every section that tests only which arguments are refused."""
