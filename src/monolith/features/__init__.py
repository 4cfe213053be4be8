"""Turn the ids of a batch into one matrix, and gradients of the matrix into steps of the tables."""

from monolith.features.core import CoreEngine, engine_for
from monolith.features.cuts import CutEngine, cut_tables
from monolith.features.engine import BagFeature, FeatureEngine
from monolith.features.gradients import PendingGradients
from monolith.features.plain import PlainEngine

__all__ = [
    "BagFeature",
    "CoreEngine",
    "CutEngine",
    "FeatureEngine",
    "PendingGradients",
    "PlainEngine",
    "cut_tables",
    "engine_for",
]
