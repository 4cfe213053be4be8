"""Operations on samples: filters, changes and new columns.

Filters are for `Pipeline.filter`; `NegativeSample`, `SpecialStrategy` and `AddLabel`, which draw
random numbers, for `Pipeline.sample`; `NegativeGen` for `Pipeline.generate_negatives`; everything
else for `Pipeline.map`.
"""

from monolith.data.columns import INVALID_LABEL
from monolith.data.operations.actions import AddAction, InstanceReweight
from monolith.data.operations.comparison import Comparison
from monolith.data.operations.draws import Draws
from monolith.data.operations.filters import (
    FilterByFids,
    FilterByLabel,
    FilterByValue,
    all_of,
    any_of,
)
from monolith.data.operations.ids import FeatureCombine, FidMask, MapId, SwitchSlot
from monolith.data.operations.item_pool import ItemPool
from monolith.data.operations.label_values import LabelNormalization, LabelUpperBound, RankLabel
from monolith.data.operations.labels import AddLabel, MultiLabel, ScatterLabel
from monolith.data.operations.negatives import NegativeGen
from monolith.data.operations.sampling import NegativeSample, SpecialStrategy

__all__ = [
    "AddAction",
    "AddLabel",
    "Comparison",
    "Draws",
    "FeatureCombine",
    "FidMask",
    "FilterByFids",
    "FilterByLabel",
    "FilterByValue",
    "INVALID_LABEL",
    "InstanceReweight",
    "ItemPool",
    "LabelNormalization",
    "LabelUpperBound",
    "MapId",
    "MultiLabel",
    "NegativeGen",
    "NegativeSample",
    "RankLabel",
    "ScatterLabel",
    "SpecialStrategy",
    "SwitchSlot",
    "all_of",
    "any_of",
]
